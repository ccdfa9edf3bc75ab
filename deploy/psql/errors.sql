-- Shows dead and retrying jobs by queue and error message.  Digits are left out of the message,
-- so that 500 similar errors are one line.  Requires claim or admin on the queues.  Reads all
-- unfinished and dead jobs.
-- Run \i errors.sql; to repeat it every 10 s, first run \set every 10.
SELECT to_regclass('idemq.errors') IS NOT NULL AS idemq_errors \gset
\if :idemq_errors
SELECT e.queue, e.jobs, e.dead, e.sqlstate, left(e.error, 50) AS error,
       to_char(e.last_seen, 'HH24:MI:SS') AS last, e.example_id AS example, e.fingerprint
FROM idemq.errors e ORDER BY e.dead DESC, e.jobs DESC, e.last_seen DESC LIMIT 20
\if :{?every}
\watch :every
\else
\g
\endif
\else
SELECT q.name AS queue, count(*) AS jobs, count(*) FILTER (WHERE j.status = 'dead') AS dead,
       left(regexp_replace(j.last_error, '[0-9]+', '?', 'g'), 60) AS error, max(j.id) AS example
FROM idemq.jobs j JOIN idemq.queues q USING (queue_id)
WHERE j.last_error IS NOT NULL AND (j.status = 'dead' OR j.finished_at IS NULL)
GROUP BY 1, 4 ORDER BY 3 DESC, 2 DESC, 1, 4 LIMIT 20
\if :{?every}
\watch :every
\else
\g
\endif
\endif
