-- Shows steps whose outcome is unknown: an attempt began the step and was lost before it stored
-- the answer.  The other system may or may not have done it.  Requires claim or admin on the
-- queues.
-- Run \i steps.sql; to repeat it every 10 s, first run \set every 10.
SELECT to_regclass('idemq.steps') IS NOT NULL AS idemq_steps \gset
\if :idemq_steps
SELECT q.name AS queue, s.job_id, s.name AS step, j.status, s.begun_at,
       CASE WHEN s.call_until > idemq.clock_timestamp() THEN date_trunc('seconds', s.call_until - idemq.clock_timestamp()) END AS may_arrive_in,
       s.effect_key, left(s.request::text, 40) AS request
FROM idemq.steps s JOIN idemq.queues q USING (queue_id) LEFT JOIN idemq.jobs j ON j.id = s.job_id
WHERE s.state = 'open' AND (j.token IS DISTINCT FROM s.token OR j.status <> 'running')
ORDER BY s.begun_at
LIMIT 30
\if :{?every}
\watch :every
\else
\g
\endif
\else
\echo 'This idemq has no steps.'
\endif
