-- Topics: what is published becomes a job in each queue that is bound.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -

-- ---- Patterns: known answers
SELECT pattern, topic, idemq.topic_matches(pattern, topic) FROM (VALUES
	(1, 'a', 'a', true), (2, 'a', 'b', false), (3, 'a', 'a.b', false), (4, 'a.b', 'a', false), (5, 'a.b', 'a.b', true),
	(6, 'a.*', 'a', false), (7, 'a.*', 'a.b', true), (8, 'a.*', 'a.b.c', false), (9, 'a.*.c', 'a.b.c', true), (10, 'a.*.c', 'a.c', false),
	(11, 'a.#', 'a', true), (12, 'a.#', 'a.b', true), (13, 'a.#', 'a.b.c', true), (14, 'a.#', 'b', false), (15, 'a.#', 'ab', false),
	(16, 'a.#.c', 'a.c', true), (17, 'a.#.c', 'a.b.c', true), (18, 'a.#.c', 'a.c.b', false), (19, 'a.#.c', 'a.c.c', true),
	(20, 'a.#.#', 'a', true), (21, 'a.*.#', 'a', false), (22, 'a.*.#', 'a.b', true), (23, 'a.#.*', 'a', false), (24, 'a.#.*', 'a.b.c', true),
	(25, 'a.#.b.#.c', 'a.x.b.b.y.c', true), (26, 'a.#.b.#.c', 'a.c.b', false), (27, 'a.#.b.*.c', 'a.b.c.b.x.c', true), (28, 'a.*.*', 'a.b', false),
	(29, 'a.B', 'a.b', false), (30, 'a.#.b', 'a.bb', false)) v(n, pattern, topic, expected)
	WHERE idemq.topic_matches(pattern, topic) <> expected;
-- A naive model, on words of two letters: all prefixes by recursion.
CREATE FUNCTION model(p text[], t text[]) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	IF cardinality(p) = 0 THEN RETURN cardinality(t) = 0; END IF;
	IF p[1] = '#' THEN
		FOR i IN 1 .. cardinality(t) + 1 LOOP
			IF model(p[2:], t[i:]) THEN RETURN true; END IF;
		END LOOP;
		RETURN false;
	END IF;
	RETURN cardinality(t) > 0 AND (p[1] = '*' OR p[1] = t[1]) AND model(p[2:], t[2:]);
END $$;
SELECT setseed(0.17);
CREATE TABLE trials AS SELECT n,
	'a' || (SELECT coalesce(string_agg('.' || (ARRAY['a', 'b', '*', '#', '#'])[1 + floor(random() * 5)::int], ''), '') FROM generate_series(1, (random() * 6)::int + n * 0)) AS pattern,
	'a' || (SELECT coalesce(string_agg('.' || (ARRAY['a', 'b'])[1 + floor(random() * 2)::int], ''), '') FROM generate_series(1, (random() * 7)::int + n * 0)) AS topic
	FROM generate_series(1, 5000) n;
SELECT count(*) FILTER (WHERE m) > 500 AS many_match, count(*) FILTER (WHERE NOT m) > 500 AS many_do_not, count(*) FILTER (WHERE m <> f) AS differ
	FROM (SELECT model(string_to_array(pattern, '.'), string_to_array(topic, '.')) AS m, idemq.topic_matches(pattern, topic) AS f FROM trials) x;
-- The worst that fits: 127 words, which backtracking over every # would never end with.
SELECT idemq.topic_matches('a' || repeat('.#.b', 63) || '.c', 'a' || repeat('.b', 126)),
	idemq.topic_matches('a' || repeat('.#', 127), 'a' || repeat('.b', 127)), idemq.topic_matches('a' || repeat('.#.*', 63), 'a' || repeat('.b', 62));
-- What is none.
SELECT idemq.topic_matches('#', 'a');
SELECT idemq.topic_matches('*.a', 'a');
SELECT idemq.topic_matches('a.b*', 'a');
SELECT idemq.topic_matches('a.##', 'a');
SELECT idemq.topic_matches('a..b', 'a');
SELECT idemq.topic_matches('a.', 'a');
SELECT idemq.topic_matches('.a', 'a');
SELECT idemq.topic_matches('', 'a');
SELECT idemq.topic_matches('a', 'a.*');
SELECT idemq.topic_matches('a', 'a.b#');
SELECT idemq.topic_matches('a', '1.b');
SELECT idemq.topic_matches('a', repeat('x', 49));
SELECT idemq.topic_matches('a', 'a.' || repeat('x', 254));
SELECT idemq.topic_matches('a', 'a.' || repeat('x', 253)), idemq.topic_matches('a.*', 'a.' || repeat('x', 253));
SELECT idemq.topic_matches(NULL, 'a'), idemq.topic_matches('a', NULL);
SELECT idemq.topic_matches('a', NULL);

-- ---- Publishing
SELECT calls, jobs, skipped FROM idemq.publish_calls \gset
SELECT idemq.create_queue('mail') AS mail, idemq.create_queue('stats') AS stats, idemq.create_queue('eu') AS eu, idemq.create_queue('quiet') AS quiet \gset
SELECT idemq.create_topic('orders');
SELECT idemq.create_topic('orders');
SELECT idemq.create_topic('or.ders');
SELECT idemq.bind_topic('orders.#', 'stats'), idemq.bind_topic('orders.*.paid', 'mail'), idemq.bind_topic('orders.eu.#', 'eu');
SELECT idemq.bind_topic('orders.#', 'stats');
SELECT idemq.bind_topic('users.#', 'stats');
SELECT idemq.bind_topic('orders.#', 'nowhere');
SELECT queue, outcome FROM idemq.publish('orders.eu.paid', '{"order": 1}', headers => '{"h": 1}', priority => 2, group_key => 'g', delay => '1 h', max_attempts => 7, expires_in => '2 h', kind => 'paid');
SELECT q.name, j.payload, j.headers, j.priority, j.group_key, j.run_at - j.enqueued_at AS delay, j.max_attempts, j.expires_at - j.enqueued_at AS expires_in, j.key, j.kind
	FROM idemq.jobs j JOIN idemq.queues q USING (queue_id) ORDER BY 1;
SELECT queue, id, outcome FROM idemq.publish('orders.us.sent', '2') \gset
SELECT :'queue' AS queue, :'outcome' AS outcome, payload FROM idemq.jobs WHERE id = :id;
SELECT count(*) FROM idemq.publish('orders', '3');
SELECT count(*) FROM idemq.jobs;
-- Bound twice, by different patterns: one job.
SELECT idemq.bind_topic('orders.eu.paid', 'stats');
SELECT queue, outcome FROM idemq.publish('orders.eu.paid', '4');
-- Nobody is bound; no such space.
SELECT idemq.create_topic('void');
SELECT * FROM idemq.publish('void.a', '1');
SELECT * FROM idemq.publish('users.a', '1');
-- One transaction.
BEGIN;
SELECT count(*) FROM idemq.publish('orders.eu.paid', '"undone"');
ROLLBACK;
SELECT count(*) FROM idemq.jobs WHERE payload = '"undone"';
-- A key: the same call again answers the first ids, whatever its payload; a queue's own keys are others.
SELECT count(*) FROM idemq.enqueue('stats', '"own"', key => 'k');
CREATE TABLE first AS SELECT * FROM idemq.publish('orders.eu.paid', '5', key => 'k');
SELECT p.queue, p.outcome, p.id = f.id AS same FROM idemq.publish('orders.eu.paid', '5', key => 'k') p LEFT JOIN first f USING (queue);
SELECT p.queue, p.outcome, p.id = f.id AS same FROM idemq.publish('orders.us.paid', '6', key => 'k') p LEFT JOIN first f USING (queue);
SELECT DISTINCT key, outcome FROM first JOIN idemq.jobs USING (id);
-- A queue that is bound since gets what it lacks.
SELECT idemq.bind_topic('orders.#', 'quiet');
SELECT p.queue, p.outcome, p.id = f.id AS same FROM idemq.publish('orders.eu.paid', '5', key => 'k') p LEFT JOIN first f USING (queue);
SELECT idemq.unbind_topic('orders.#', 'quiet'), idemq.unbind_topic('orders.#', 'quiet');
-- The key of a schedule's tick is no key of a publisher's.
CALL idemq.tick();
SELECT idemq.schedule('nightly', '0 3 * * *', 'stats', '1') > now() AS scheduled;
SELECT queue, outcome FROM idemq.publish('orders.us', '1', key => 'nightly@2026-11-21T03:00:00Z');

-- ---- Privileges
CREATE ROLE regress_publisher;
CREATE ROLE regress_reader;
CREATE ROLE regress_owner;
CREATE ROLE regress_stranger;
GRANT USAGE ON SCHEMA idemq TO regress_owner, regress_stranger;
GRANT EXECUTE ON FUNCTION idemq.create_topic, idemq.create_queue TO regress_owner;
SET ROLE regress_owner;
SELECT idemq.create_topic('news');
SELECT idemq.create_queue('letters', retention => '0') > 0 AS created;
SELECT idemq.grant_topic('news', 'regress_publisher', 'publish'), idemq.grant_topic('news', 'regress_reader', 'bind');
SELECT idemq.grant_topic('news', 'regress_publisher', 'read');
SELECT idemq.grant_topic('orders', 'regress_owner', 'bind');
SELECT idemq.bind_topic('orders.#', 'letters');
SELECT * FROM idemq.publish('orders.a', '1');
SELECT idemq.drop_topic('orders');
SELECT topic, privileges FROM idemq.topics;
SET ROLE regress_publisher;
SELECT topic, privileges FROM idemq.topics;
SELECT * FROM idemq.publish('news.sport', '1');
SELECT idemq.bind_topic('news.#', 'letters');
SELECT idemq.create_topic('mine');
SELECT idemq.grant_topic('news', 'regress_publisher', 'bind');
-- Binding takes both.
SET ROLE regress_reader;
SELECT * FROM idemq.publish('news.sport', '1');
SELECT idemq.bind_topic('news.#', 'letters');
SET ROLE regress_owner;
SELECT idemq.grant_queue('letters', 'regress_reader', 'enqueue');
SET ROLE regress_reader;
SELECT idemq.bind_topic('news.#', 'letters');
SET ROLE regress_publisher;
SELECT queue, outcome FROM idemq.publish('news.sport', '1');
SELECT count(*) FROM idemq.topic_bindings;
SELECT idemq.unbind_topic('news.#', 'letters');
-- No role may give a job the key of a published job, not even in a queue of its own: the publisher would wait for it.
SET ROLE regress_reader;
SELECT outcome FROM idemq.enqueue('letters', '1', key => 'k1@topic:news');
SELECT outcome FROM idemq.enqueue_many('letters', '{1,2}', keys => '{k2,k1@topic:news}');
SELECT outcome FROM idemq.enqueue_graph('[{"name": "a", "queue": "letters", "payload": 1, "key": "k1@topic:news"}]');
SET ROLE regress_owner;
SELECT outcome FROM idemq.enqueue('letters', '1', key => 'k1@topic:news', on_duplicate => 'replace');
SELECT outcome FROM idemq.acquire('letters', 'k1@topic:news', '1');
SELECT key, outcome FROM unnest('{k1@topic:,@topic:a:b,topic:news,@topic}'::text[]) key, idemq.enqueue('letters', '1', key => key, delay => '1 h');
SET ROLE regress_publisher;
SELECT queue, outcome FROM idemq.publish('news.sport', '"k1"', key => 'k1');
SET ROLE regress_owner;
SELECT outcome FROM idemq.enqueue('letters', '1', key => 'k1@topic:news', on_duplicate => 'rerun');
RESET ROLE;
SELECT outcome FROM idemq.enqueue('letters', '1', key => 'k1@topic:news', on_duplicate => 'rerun');
SELECT outcome FROM idemq.enqueue('letters', '1', key => 'k2@topic:news');
DELETE FROM idemq.jobs WHERE queue_id = idemq.queue_id('letters') AND key IS NOT NULL;
SET ROLE regress_stranger;
SELECT count(*) FROM idemq.topics;
SELECT count(*) FROM idemq.topic_bindings;
SELECT privileges FROM idemq.topics WHERE topic = 'news';
SELECT count(*) FROM idemq_internal.topic_grants;
SELECT count(*) FROM idemq.publish_calls;
SELECT * FROM idemq.publish('news.sport', '1');
-- What is taken back ends at once, shown and no error of the publisher's.
SET ROLE regress_owner;
SELECT idemq.revoke_queue('letters', 'regress_reader', 'enqueue');
SET ROLE regress_publisher;
SELECT count(*) FROM idemq.publish('news.sport', '"revoked"');
SET ROLE regress_reader;
SELECT topic, pattern, queue, role, refusal, refused_at > bound_at AS refused FROM idemq.topic_bindings;
SET ROLE regress_owner;
SELECT idemq.grant_queue('letters', 'regress_reader', 'enqueue');
SELECT idemq.revoke_topic('news', 'regress_reader', 'bind');
SET ROLE regress_publisher;
SELECT count(*) FROM idemq.publish('news.sport', '"revoked"');
SET ROLE regress_owner;
SELECT pattern, queue, role, refusal FROM idemq.topic_bindings;
-- Another role's binding stands beside it, and serves the queue.
SELECT idemq.bind_topic('news.#', 'letters');
SET ROLE regress_publisher;
SELECT queue, outcome FROM idemq.publish('news.sport', '2');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT queue, outcome FROM idemq.publish('news.sport', '2');
COMMIT;
SET ROLE regress_owner;
SELECT pattern, queue, role, refusal FROM idemq.topic_bindings ORDER BY role;
SET ROLE regress_reader;
SELECT idemq.unbind_topic('news.#', 'letters');
SELECT idemq.unbind_topic('news.#', 'letters');
RESET ROLE;
SELECT payload, count(*) FROM idemq.jobs j JOIN idemq.queues q USING (queue_id) WHERE q.name = 'letters' GROUP BY 1 ORDER BY 1;
-- A dropped role leaves nothing to the next of its name.
SELECT idemq.grant_topic('news', 'regress_stranger', 'bind'), idemq.grant_queue('letters', 'regress_stranger', 'enqueue');
SET ROLE regress_stranger;
SELECT idemq.bind_topic('news.weather', 'letters');
RESET ROLE;
REVOKE USAGE ON SCHEMA idemq FROM regress_stranger;
DROP ROLE regress_stranger;
CREATE ROLE regress_stranger;
SELECT queue, outcome FROM idemq.publish('news.weather', '3');
SELECT pattern, queue, role, refusal FROM idemq.topic_bindings WHERE topic = 'news' ORDER BY role;
SET ROLE regress_stranger;
SELECT count(*) FROM idemq.topic_bindings;
RESET ROLE;
SELECT severity, invariant, detail FROM idemq.check() ORDER BY 2, 3;
SELECT idemq.unbind_topic('news.weather', 'letters');
DELETE FROM idemq_internal.topic_grants WHERE role_name = 'regress_stranger';
DELETE FROM idemq_internal.queue_grants WHERE role_name = 'regress_stranger';
-- USAGE of the schema comes with the first privilege, and goes with the last.
SELECT idemq.grant_topic('news', 'regress_stranger', 'publish'), has_schema_privilege('regress_stranger', 'idemq', 'USAGE');
SELECT idemq.revoke_topic('news', 'regress_stranger', 'publish'), has_schema_privilege('regress_stranger', 'idemq', 'USAGE');

-- ---- Drops
SELECT idemq.drop_queue('quiet', force => true), idemq.drop_queue('eu', force => true);
SELECT pattern, queue FROM idemq.topic_bindings WHERE topic = 'orders' ORDER BY 1, 2;
SELECT queue FROM idemq.publish('orders.eu.paid', '7');
SELECT idemq.create_queue('eu') AS other \gset
SELECT queue FROM idemq.publish('orders.eu.paid', '8');
SELECT idemq.drop_topic('news');
SELECT count(*) FROM idemq_internal.topic_binding_entries WHERE topic = 'news';
SELECT count(*) FROM idemq_internal.topic_grants WHERE topic = 'news';
SELECT has_schema_privilege('regress_publisher', 'idemq', 'USAGE'), has_schema_privilege('regress_owner', 'idemq', 'USAGE');
SELECT idemq.drop_topic('news');
SELECT action, role, queue, details FROM idemq.audit WHERE action ~ 'topic' ORDER BY id;
SELECT calls - :calls AS calls, jobs - :jobs AS jobs, skipped - :skipped AS skipped FROM idemq.publish_calls;

-- ---- Arguments
SELECT idemq.create_topic(NULL);
SELECT idemq.drop_topic(NULL);
SELECT idemq.grant_topic('orders', NULL, 'bind');
SELECT idemq.grant_topic('orders', 'regress_owner', NULL);
SELECT idemq.bind_topic(NULL, 'mail');
SELECT idemq.bind_topic('orders.#', NULL);
SELECT idemq.unbind_topic('users.#', 'mail');
SELECT idemq.unbind_topic('orders.#', 'nowhere');
SELECT idemq.publish(NULL, '1');
SELECT idemq.publish('orders', NULL);
SELECT idemq.publish('orders', '1', priority => NULL);
SELECT idemq.publish('orders', '1', priority => 10);
SELECT idemq.publish('orders', '1', key => '');
SELECT idemq.publish('orders', '1', key => repeat('x', 1012));
SELECT queue, outcome FROM idemq.publish('orders', '1', key => repeat('x', 1011));
SELECT idemq.publish('orders.*', '1');
SELECT idemq.publish('orders.#', '1');
SELECT idemq.publish('orders', '1', delay => '1 h', run_at => now());
SELECT id FROM idemq.publish('orders', to_jsonb(repeat('y', 1000000))) \gset
SELECT length(payload::text) FROM idemq.jobs WHERE id = :id;
BEGIN READ ONLY;
SELECT idemq.publish('orders', '1');
ROLLBACK;

-- ---- check() tells of what a hand has left
INSERT INTO idemq_internal.topic_binding_entries (topic, pattern, queue_id, role_name, bound_at) VALUES ('gone', 'gone.#', 1000000, 'regress_owner', now());
SELECT severity, invariant, detail FROM idemq.check() ORDER BY 2, 3;
DELETE FROM idemq_internal.topic_binding_entries WHERE topic = 'gone';
SELECT * FROM idemq.check();
DROP EXTENSION idemq CASCADE;
DROP ROLE regress_publisher, regress_reader, regress_owner, regress_stranger;
