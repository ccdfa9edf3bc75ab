INSERT INTO bench.skip (queue_id, enqueued_at, priority, max_attempts, status, run_at, payload) VALUES (1, now(), 4, 20, 'pending', now(), :payload) RETURNING id \gset
