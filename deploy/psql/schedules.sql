-- Shows schedules, starting with those that are late or fail.  Requires membership in pg_monitor,
-- or enqueue on the queue.  Only the creator and administrators see last_error.
-- Run \i schedules.sql; to repeat it every 10 s, first run \set every 10.
SELECT s.name, s.queue, s.cron, s.time_zone AS zone, s.last_run, s.next_run,
       CASE WHEN s.paused_at IS NOT NULL THEN 'paused'
            WHEN s.failed_at IS NOT NULL THEN 'FAILS'
            WHEN s.next_run IS NULL THEN 'NO ZONE'
            WHEN s.next_run < idemq.clock_timestamp() - interval '30 s' THEN 'LATE'
            ELSE '' END AS state,
       left(s.last_error, 50) AS last_error
FROM idemq.schedules s
ORDER BY s.failed_at IS NULL, s.next_run NULLS FIRST, s.name
LIMIT 30
\if :{?every}
\watch :every
\else
\g
\endif
