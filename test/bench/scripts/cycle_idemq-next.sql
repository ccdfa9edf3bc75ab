-- A worker's loop: the first statement only claims, and each other one commits a job and
-- claims the next, in one transaction.
\if :id > 0
SELECT id, token FROM idemq.commit_and_claim(:id, :token, '{"ok": true}') \gset
\else
SELECT id, token FROM idemq.claim('bench') \gset
\endif
