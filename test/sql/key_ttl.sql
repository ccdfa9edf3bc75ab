-- key_ttl: a key's time to live, of each request, in place of the queue's idempotency_window.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('long', idempotency_window => '10 days', retention => '0', lease => '1 h');
SELECT idemq.create_queue('short', idempotency_window => '0', retention => '0', lease => '1 h');
-- Time is moved by hand: what was to be in an hour is now.
CREATE PROCEDURE an_hour_later() LANGUAGE sql AS $$ UPDATE idemq.jobs SET key_expires_at = key_expires_at - interval '1 h', finished_at = finished_at - interval '1 h' $$;

-- Shorter than the window: the key is free after it, and the finished job goes.
SELECT outcome FROM idemq.enqueue('long', '1', key => 'a', key_ttl => '1 h');
SELECT idemq.commit(id, token) FROM idemq.claim('long');
SELECT outcome, status FROM idemq.enqueue('long', '1', key => 'a', key_ttl => '1 h');
SELECT idemq.apply_retention();
CALL an_hour_later();
SELECT outcome, status FROM idemq.enqueue('long', '2', key => 'a');
SELECT key, payload, status, key_expires_at FROM idemq.jobs ORDER BY id;
SELECT idemq.apply_retention();
SELECT key, payload, status FROM idemq.jobs ORDER BY id;
SELECT idemq.purge('long');

-- Longer than window and retention: the job stays, and answers.
SELECT outcome FROM idemq.enqueue('short', '1', key => 'a', key_ttl => '2 h');
SELECT idemq.commit(id, token, '"done"') FROM idemq.claim('short');
CALL an_hour_later();
SELECT idemq.apply_retention();
SELECT outcome, status, result FROM idemq.enqueue('short', '1', key => 'a');
SELECT outcome, result FROM idemq.acquire('short', 'a');
CALL an_hour_later();
SELECT idemq.apply_retention();
SELECT count(*) FROM idemq.jobs;
-- Without one the window counts, beside it.
SELECT outcome FROM idemq.enqueue('short', '1', key => 'b');
SELECT idemq.commit(id, token) FROM idemq.claim('short');
SELECT outcome FROM idemq.enqueue('short', '1', key => 'b');
SELECT idemq.purge('short');
SELECT idemq.apply_retention();
SELECT count(*) FROM idemq.jobs;

-- An unfinished job keeps its key: never are two of one key in progress.
SELECT outcome FROM idemq.enqueue('long', '1', key => 'c', key_ttl => '1 ms'); -- meant to expire
SELECT pg_sleep(0.01);
SELECT outcome FROM idemq.enqueue('long', '1', key => 'c');
SELECT id, token FROM idemq.claim('long') \gset
SELECT outcome, status FROM idemq.enqueue('long', '1', key => 'c');
SELECT outcome, status FROM idemq.enqueue('long', '2', key => 'c', on_duplicate => 'rerun');
SELECT idemq.commit(:id, :token);
SELECT status, payload FROM idemq.jobs;
SELECT idemq.commit(id, token) FROM idemq.claim('long');
SELECT outcome FROM idemq.enqueue('long', '3', key => 'c', on_duplicate => 'rerun');
SELECT id > :id AS new, key, payload FROM idemq.jobs WHERE key = 'c';
SELECT idemq.purge('long');

-- Who replaces, or has it run again, may give the key a new time.
SELECT outcome FROM idemq.enqueue('long', '1', key => 'd', key_ttl => '1 h');
SELECT outcome FROM idemq.enqueue('long', '2', key => 'd', on_duplicate => 'replace');
SELECT key_expires_at > now() + interval '50 min' AS kept FROM idemq.jobs;
SELECT outcome FROM idemq.enqueue('long', '2', key => 'd', key_ttl => '3 h', on_duplicate => 'replace');
SELECT key_expires_at > now() + interval '2 h 50 min' AS longer FROM idemq.jobs;
SELECT id, token FROM idemq.claim('long') \gset
SELECT outcome FROM idemq.enqueue('long', '2', key => 'd', key_ttl => '5 h', on_duplicate => 'rerun');
SELECT key_expires_at > now() + interval '4 h 50 min' AS longer FROM idemq.jobs;
SELECT idemq.commit(:id, :token);
SELECT key_expires_at > now() + interval '4 h 50 min' AS kept FROM idemq.jobs;
SELECT idemq.purge('long');

-- Of many; by CALL; refused.
SELECT ord, outcome FROM idemq.enqueue_many('long', '{1,2,3}', keys => '{x,y,z}', key_ttls => '{1 h,NULL,2 h}') ORDER BY ord;
SELECT key, key_expires_at - enqueued_at AS ttl FROM idemq.jobs ORDER BY key;
CALL idemq.enqueue_job('long', '9', key => 'call', key_ttl => '1 day', id => 0);
SELECT idemq.enqueue('long', '1', key_ttl => '1 h');
SELECT idemq.enqueue('long', '1', key => 'e', key_ttl => '0');
SELECT idemq.enqueue('long', '1', key => 'e', key_ttl => '-1 h');
SELECT idemq.enqueue_many('long', '{1,2}', keys => '{e,NULL}', key_ttls => '{1 h,1 h}');
SELECT idemq.enqueue_many('long', '{1,2}', keys => '{e,f}', key_ttls => '{1 h}');
SELECT idemq.check();
DROP PROCEDURE an_hour_later;
DROP EXTENSION idemq;
