-- As cycle_idemq-next, for 100 jobs in one transaction; the row of each committed job
-- comes first, then that of each claimed one.
\if :id > 0
SELECT max(id) AS id, array_agg(id) FILTER (WHERE outcome = 'claimed') AS ids, array_agg(token) FILTER (WHERE outcome = 'claimed') AS tokens FROM idemq.commit_many_and_claim(:ids::bigint[], :tokens::bigint[], array_fill('{"ok": true}'::jsonb, ARRAY[100]), max_jobs => 100) \gset
\else
SELECT max(id) AS id, array_agg(id) AS ids, array_agg(token) AS tokens FROM idemq.claim('bench', 100) \gset
\endif
