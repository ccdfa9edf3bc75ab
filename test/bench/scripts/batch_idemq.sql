SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM idemq.claim('bench', 100) \gset
SELECT count(*) FROM idemq.commit_many(:ids::bigint[], :tokens::bigint[], array_fill('{"ok": true}'::jsonb, ARRAY[100])) WHERE outcome = 'committed';
