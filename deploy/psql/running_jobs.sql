-- Shows the running jobs and their workers, starting with the job that has run longest.  pid is
-- empty if the session is gone.  A member of pg_monitor sees all queues; other roles see the
-- queues that they may claim from.
-- Run \i running_jobs.sql; to repeat it every 2 s, first run \set every 2.
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
