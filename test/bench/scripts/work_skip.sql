WITH c AS (UPDATE bench.skip SET status = 'running', attempt = attempt + 1, claimed_at = now(), deadline = now() + interval '30 s' WHERE id = (SELECT id FROM bench.skip WHERE queue_id = 1 AND status = 'pending' AND run_at <= now() ORDER BY priority, run_at, id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id, attempt) SELECT coalesce(max(id), 0) AS id, coalesce(max(attempt), 0) AS token FROM c \gset
\if :id > 0
UPDATE bench.skip SET status = 'completed', finished_at = now(), result = '{"ok": true}' WHERE id = :id AND status = 'running';
\endif
