-- Shows every queue, starting with the one whose jobs have waited longest.  The first row is the
-- background worker, whose "oldest" is its delay.  Requires membership in pg_monitor.
-- Run \i overview.sql; to repeat it every 2 s, first run \set every 2.
SELECT '(worker)' AS queue,
       CASE WHEN w.pid IS NULL THEN 'NONE'
            WHEN w.stuck_for IS NOT NULL THEN 'STUCK'
            ELSE coalesce(w.task, CASE WHEN w.awake THEN 'awake' ELSE 'asleep' END) END AS state,
       date_trunc('milliseconds', w.lag)::text AS oldest,
       NULL::bigint AS waiting, NULL::bigint AS running, NULL::bigint AS retrying, NULL::bigint AS dead,
       NULL::bigint AS done, NULL::text AS "failed %", NULL::text AS "wait p99", NULL::text AS "run p99"
FROM idemq.background_worker w
UNION ALL
SELECT * FROM (
    SELECT m.queue,
           CASE WHEN m.paused THEN 'paused'
                WHEN NOT m.in_memory THEN 'NO MEMORY'
                WHEN m.recovering THEN 'recovering'
                WHEN m.permits_used >= m.max_running THEN 'max_running'
                ELSE '' END,
           date_trunc('milliseconds', m.oldest_ready)::text,
           m.pending + m.blocked, m.running, m.retrying, m.dead, m.committed_total,
           round(100.0 * m.failed_total / nullif(m.failed_total + m.committed_total, 0), 1)::text,
           date_trunc('milliseconds', m.wait_p99)::text, date_trunc('milliseconds', m.run_p99)::text
    FROM idemq.metrics m
    ORDER BY m.oldest_ready DESC NULLS LAST, m.dead DESC, m.queue
    LIMIT 30) AS q
\if :{?every}
\watch :every
\else
\g
\endif
