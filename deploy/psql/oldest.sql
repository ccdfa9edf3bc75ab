-- For each queue, shows the two unclaimed jobs that have been due longest, and what they are
-- waiting for.  Requires claim or admin on the queues.
-- Run \i oldest.sql; to repeat it every 2 s, first run \set every 2.
SELECT q.name AS queue, j.id, date_trunc('milliseconds', idemq.clock_timestamp() - j.ready_at) AS due_for,
       j.priority AS prio, j.attempt AS tries, left(idemq.why(j.id), 60) AS why
FROM idemq.queues q
CROSS JOIN LATERAL (
    SELECT j.id, j.ready_at, j.priority, j.attempt FROM generate_series(0, 9) AS p (priority)
    CROSS JOIN LATERAL (
        SELECT * FROM idemq.jobs j
        WHERE j.queue_id = q.queue_id AND j.priority = p.priority AND j.ready_at <= idemq.clock_timestamp()
        AND j.status IN ('pending', 'retrying')
        ORDER BY j.ready_at, j.id LIMIT 2) AS j
    ORDER BY j.ready_at, j.id LIMIT 2) AS j
ORDER BY j.ready_at
LIMIT 30
\if :{?every}
\watch :every
\else
\g
\endif
