-- The clients walk the table together, each row once: the order in which a
-- queue touches pages, and cheaper in WAL than random rows.
\set n :n + 1
\set row mod(:n * :clients + :client_id, :rows) + 1
UPDATE bench.floor SET status = 'running', attempt = attempt + 1, token = token + 1, claimed_at = now(), deadline = now() + interval '30 s' WHERE id = :row RETURNING id, token \gset
UPDATE bench.floor SET status = 'completed', finished_at = now(), result = '{"ok": true}' WHERE id = :id;
