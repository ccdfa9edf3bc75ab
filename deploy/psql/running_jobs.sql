-- Who runs what, the job that has run longest first; pid is empty when the session is gone.
-- As a member of pg_monitor all queues, otherwise those that one may claim from.
-- \i running_jobs.sql; again every 2 s: \set every 2 before
SELECT w.queue, w.job_id, w.worker, w.pid, w.attempt AS try, w.state,
       date_trunc('milliseconds', idemq.clock_timestamp() - w.claimed_at) AS runs_for,
       date_trunc('milliseconds', w.expires_in) AS lease_left,
       CASE WHEN w.attached THEN 'yes' ELSE '' END AS attached,
       a.state AS session, a.wait_event
FROM idemq.running_jobs w LEFT JOIN pg_stat_activity a ON a.pid = w.pid
ORDER BY w.claimed_at NULLS FIRST, w.job_id
LIMIT 30
\if :{?every}
\watch :every
\else
\g
\endif
