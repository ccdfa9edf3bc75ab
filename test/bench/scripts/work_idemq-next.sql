-- Finding no job is no error here: id 0, and round again with a claim.
\if :id > 0
SELECT coalesce(max(id), 0) AS id, coalesce(max(token), 0) AS token FROM idemq.commit_and_claim(:id, :token, '{"ok": true}') \gset
\else
SELECT coalesce(max(id), 0) AS id, coalesce(max(token), 0) AS token FROM idemq.claim('bench') \gset
\endif
