-- Who may do what: grants by queue and by name; a stranger sees nothing.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
CREATE ROLE idemq_producer LOGIN;
CREATE ROLE idemq_worker LOGIN;
CREATE ROLE idemq_boss LOGIN;
CREATE ROLE idemq_stranger LOGIN;
CREATE ROLE idemq_outsider;
CREATE ROLE idemq_group;
CREATE ROLE idemq_member LOGIN IN ROLE idemq_group;
SELECT idemq.create_queue('q', retry_jitter => 0, lease => '1 h') AS q \gset
SELECT idemq.create_queue('other', lease => '1 h') AS other \gset
SELECT idemq.grant_queue('q', 'idemq_producer', 'enqueue');
SELECT idemq.grant_queue('q', 'idemq_worker', 'claim');
SELECT idemq.grant_queue('q', 'idemq_boss', 'admin');
SELECT idemq.grant_queue('q', 'idemq_group', 'claim');
-- Granted twice is granted once.
SELECT idemq.grant_queue('q', 'idemq_worker', 'claim');
SELECT role_name, privilege FROM idemq_internal.queue_grants ORDER BY 1;
-- The stranger may use the schema, for a queue of its own; the outsider holds nothing.
SELECT idemq.create_queue('strange') AS strange \gset
SELECT idemq.grant_queue('strange', 'idemq_stranger', 'enqueue');

-- Every function on queue q, as each role; a running job, one pending, one dead, for each call anew.
CREATE TABLE calls (ord int GENERATED ALWAYS AS IDENTITY, call text, sql text);
INSERT INTO calls (call, sql) VALUES
	('enqueue', 'SELECT outcome FROM idemq.enqueue(''q'', ''1'')'),
	('enqueue, duplicate', 'SELECT outcome || coalesce('' '' || status, '''') FROM idemq.enqueue(''q'', ''"p"'', key => ''pending'')'),
	('enqueue_many', 'SELECT outcome FROM idemq.enqueue_many(''q'', ''{1}'')'),
	('claim', 'SELECT coalesce((SELECT payload #>> ''{}'' FROM idemq.claim(''q'')), ''no row'')'),
	('claim_any', 'SELECT coalesce((SELECT payload #>> ''{}'' FROM idemq.claim_any(''{q}'')), ''no row'')'),
	('claim_job', 'SELECT outcome FROM idemq.claim_job($1)'),
	('claim_job, locked', 'SELECT outcome || coalesce('' retry_after'' || (retry_after > now()), '''') FROM idemq.claim_job($2)'),
	('commit_once', 'SELECT idemq.commit_once($1)'),
	('heartbeat', 'SELECT idemq.heartbeat($2, $3)'),
	('heartbeat, stale', 'SELECT idemq.heartbeat($2, $3 - 1)'),
	('heartbeat_many', 'SELECT outcome FROM idemq.heartbeat_many(ARRAY[$2], ARRAY[$3])'),
	('validate', 'SELECT idemq.validate($2, $3)'),
	('checkpoint', 'SELECT ''done'' || idemq.checkpoint($2, $3, ''1'')'),
	('assert_current', 'SELECT ''done'' || idemq.assert_current($2, $3)'),
	('commit', 'SELECT idemq.commit($2, $3)'),
	('commit, stale', 'SELECT idemq.commit($2, $3 - 1)'),
	('try_commit', 'SELECT idemq.try_commit($2, $3)'),
	('commit_many', 'SELECT outcome FROM idemq.commit_many(ARRAY[$2], ARRAY[$3])'),
	('fail', 'SELECT idemq.fail($2, $3)'),
	('fail_many', 'SELECT outcome FROM idemq.fail_many(ARRAY[$2], ARRAY[$3])'),
	('release', 'SELECT idemq.release($2, $3)'),
	('add_parents', 'SELECT count(*) FROM idemq.add_parents($1, ARRAY[$4], $2, $3)'),
	('hold_back', 'SELECT ''done'' FROM idemq.hold_back($2, $3, ''1 min'')'),
	('release_many', 'SELECT outcome FROM idemq.release_many(ARRAY[$2], ARRAY[$3])'),
	('cancel', 'SELECT idemq.cancel($1)'),
	('cancel_many', 'SELECT outcome FROM idemq.cancel_many(ARRAY[$1])'),
	('cancel_matching', 'SELECT cancelled FROM idemq.cancel_matching(''q'', key_prefix => ''nothing'')'),
	('retry', 'SELECT idemq.retry($4)'),
	('redrive', 'SELECT idemq.redrive(''q'')'),
	('retry_many', 'SELECT outcome FROM idemq.retry_many(ARRAY[$4])'),
	('reschedule', 'SELECT idemq.reschedule($4, priority => 4)'),
	('reap', 'SELECT idemq.reap(''q'')'),
	('reap all', 'SELECT idemq.reap()'),
	('job', 'SELECT count(*) FROM idemq.job($1)'),
	('flow', 'SELECT count(*) FROM idemq.flow($1)'),
	('flow_jobs', 'SELECT count(*) FROM idemq.flow_jobs($1)'),
	('flow_ids', 'SELECT count(*) FROM idemq.flow_ids($1)'),
	('report_worker', 'SELECT idemq.report_worker(''7b0c7f6a-1111-4222-8333-444455556666'', ''w'', ''{q}'')'),
	('idemq.workers', 'SELECT count(*) FROM idemq.workers'),
	('idemq.history', 'SELECT count(*) FROM idemq.history'),
	('percentile', 'SELECT idemq.percentile(''{10,1}'', 0.5)'),
	('idemq.jobs', 'SELECT count(*) FROM idemq.jobs'),
	('idemq.attempts', 'SELECT count(*) FROM idemq.attempts'),
	('idemq.audit', 'SELECT count(*) FROM idemq.audit'),
	('idemq.queues', 'SELECT string_agg(name, '' '') FROM idemq.queues'),
	('idemq_internal.queue_grants', 'SELECT count(*) FROM idemq_internal.queue_grants'),
	('purge', 'SELECT idemq.purge(''q'')'),
	('pause', 'SELECT ''done'' || idemq.pause(''q'')'),
	('resume', 'SELECT ''done'' || idemq.resume(''q'')'),
	('pause a group', 'SELECT ''done'' || idemq.pause(''q'', group_key => ''g'')'),
	('resume a group', 'SELECT ''done'' || idemq.resume(''q'', ''g'')'),
	('alter_queue', 'SELECT ''done'' || idemq.alter_queue(''q'', lease => ''2 h'')'),
	('ensure_queue, unchanged', 'SELECT outcome FROM idemq.ensure_queue(''q'')'),
	('ensure_queue, changed', 'SELECT outcome FROM idemq.ensure_queue(''q'', lease => ''2 h'')'),
	('ensure_queue, created', 'SELECT outcome FROM idemq.ensure_queue(''mine'')'),
	('ensure_topic, created', 'SELECT idemq.ensure_topic(''mine'')'),
	('grant_queue', 'SELECT ''done'' || idemq.grant_queue(''q'', ''idemq_stranger'', ''claim'')'),
	('revoke_queue', 'SELECT ''done'' || idemq.revoke_queue(''q'', ''idemq_worker'', ''claim'')'),
	('drop_queue', 'SELECT ''done'' || idemq.drop_queue(''q'', true)'),
	('create_queue', 'SELECT idemq.create_queue(''mine'') > 0'),
	('enqueue elsewhere', 'SELECT outcome FROM idemq.enqueue(''other'', ''1'')'),
	('claim elsewhere', 'SELECT count(*) FROM idemq.claim(''other'')'),
	('claim from no queue', 'SELECT count(*) FROM idemq.claim(''nope'')'),
	('INSERT', 'INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, payload) VALUES (1, now(), 4, 1, ''pending'', ''1'') RETURNING 1'),
	('UPDATE', 'UPDATE idemq.jobs SET status = ''cancelled'' RETURNING 1'),
	('DELETE', 'DELETE FROM idemq.jobs RETURNING 1'),
	('TRUNCATE', 'TRUNCATE idemq.jobs'),
	('SELECT FOR UPDATE', 'SELECT 1 FROM idemq.jobs LIMIT 1 FOR UPDATE'),
	('LOCK', 'LOCK idemq.jobs IN ROW EXCLUSIVE MODE'),
	('UPDATE queues', 'UPDATE idemq.queues SET paused = true RETURNING 1'),
	('INSERT queue_grants', 'INSERT INTO idemq_internal.queue_grants VALUES (1, ''idemq_stranger'', ''admin'') RETURNING 1'),
	('DELETE attempts', 'DELETE FROM idemq.attempts RETURNING 1'),
	('DELETE audit', 'DELETE FROM idemq.audit RETURNING 1'),
	('nextval', 'SELECT nextval(''idemq.jobs_id_seq'') > 0'),
	('trigger function', 'SELECT idemq_internal.jobs_changed()');

-- What a role is told: an outcome, or the SQLSTATE; then all is undone.
CREATE FUNCTION as_role(role text, sql text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	pending bigint;
	held record;
	dead bigint;
	answer text;
BEGIN
	BEGIN
		pending := (idemq.enqueue('q', '"p"', key => 'pending')).id;
		PERFORM idemq.enqueue('q', '"h"', priority => 0);
		SELECT id, token INTO held FROM idemq.claim('q');
		dead := (idemq.enqueue('q', '"d"', priority => 0)).id;
		PERFORM idemq.fail(id, token, 'x', permanent => true) FROM idemq.claim('q');
		PERFORM idemq.enqueue('other', '"o"');
		EXECUTE format('SET LOCAL ROLE %I', role);
		BEGIN
			IF sql ~ '^(TRUNCATE|LOCK)' THEN
				EXECUTE sql;
				answer := 'done';
			ELSE
				EXECUTE sql INTO answer USING pending, held.id, held.token, dead;
			END IF;
		EXCEPTION WHEN OTHERS THEN
			answer := SQLSTATE;
		END;
		RAISE SQLSTATE 'UNDO0';
	EXCEPTION WHEN SQLSTATE 'UNDO0' THEN
		RETURN answer;
	END;
END $$;
GRANT ALL ON SCHEMA public TO PUBLIC;
SELECT call, as_role('idemq_producer', sql) AS enqueue, as_role('idemq_worker', sql) AS claim, as_role('idemq_boss', sql) AS admin,
	as_role('idemq_member', sql) AS member, as_role('idemq_stranger', sql) AS stranger, as_role('postgres', sql) AS superuser
FROM calls ORDER BY ord;
-- Who holds nothing gets nowhere.
SELECT call, as_role('idemq_outsider', sql) AS outsider FROM calls WHERE as_role('idemq_outsider', sql) IS DISTINCT FROM '42501';

-- To a stranger every job is as one that does not exist; the same outcome and the same error.
SELECT call, as_role('idemq_stranger', sql) AS stranger, as_role('idemq_worker', replace(replace(replace(sql, '$2', '($2 + 1000)'), '$1', '($1 + 1000)'), '$4', '($4 + 1000)')) AS no_such_job
FROM calls WHERE sql ~ '\$[124]' AND as_role('idemq_stranger', sql) IS DISTINCT FROM
	as_role('idemq_worker', replace(replace(replace(sql, '$2', '($2 + 1000)'), '$1', '($1 + 1000)'), '$4', '($4 + 1000)'));

-- Really as those roles, in sessions and transactions of their own.
SET ROLE idemq_producer;
SELECT (idemq.enqueue('q', '{"a": 1}', key => 'k')).id \gset
SELECT id = :id AS same, outcome FROM idemq.enqueue('q', '{"a": 1}', key => 'k', on_duplicate => 'replace');
SELECT count(*) FROM idemq.jobs;
SELECT name, lease FROM idemq.queues;
SELECT * FROM idemq.claim('q');
SELECT idemq.cancel(:id), idemq.retry(:id);
SET ROLE idemq_worker;
SELECT id = :id AS same, payload, key, token FROM idemq.claim('q', worker => 'w') \gset claimed_
SELECT :'claimed_same' AS same, :'claimed_payload' AS payload;
SELECT idemq.enqueue('q', '1');
SELECT status, payload, worker FROM idemq.jobs;
SELECT idemq.checkpoint(:id, :claimed_token, '1');
SELECT idemq.fail(:id, :claimed_token, 'by the worker', '0');
SELECT error FROM idemq.attempts;
SELECT idemq.commit(id, token, '2') FROM idemq.claim('q');
SELECT idemq.cancel(:id);
SET ROLE idemq_stranger;
SELECT count(*) FROM idemq.jobs;
SELECT * FROM idemq.claim('q');
SELECT idemq.commit(:id, :claimed_token);
SELECT idemq.try_commit(:id, :claimed_token);
UPDATE idemq.jobs SET status = 'pending';
SELECT idemq.create_queue('mine');
SET ROLE idemq_boss;
SELECT status, result FROM idemq.job(:id);
SELECT idemq.alter_queue('q', lease => '2 h');
SELECT idemq.alter_queue('other', lease => '2 h');
SELECT idemq.purge('q');
-- A leaky function in a query cannot see what the policy hides.
SET ROLE idemq_producer;
SELECT (idemq.enqueue('q', '"secret"')).outcome;
CREATE FUNCTION pg_temp.leak(jsonb) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS $$ BEGIN RAISE NOTICE '%', $1; RETURN true; END $$;
SELECT count(*) FROM idemq.jobs WHERE pg_temp.leak(payload);
DROP FUNCTION pg_temp.leak;
RESET ROLE;
SELECT idemq.purge('q');

-- Grants take effect, and go, at once; revoke of what is not there is nothing.
SELECT idemq.grant_queue('q', 'idemq_stranger', 'enqueue');
SET ROLE idemq_stranger;
SELECT (idemq.enqueue('q', '1')).outcome;
RESET ROLE;
SELECT idemq.revoke_queue('q', 'idemq_stranger', 'enqueue');
SELECT idemq.revoke_queue('q', 'idemq_stranger', 'enqueue');
SET ROLE idemq_stranger;
SELECT idemq.enqueue('q', '1');
RESET ROLE;
BEGIN;
SELECT idemq.grant_queue('q', 'idemq_stranger', 'claim');
SET LOCAL ROLE idemq_stranger;
SELECT count(*) FROM idemq.claim('q');
ROLLBACK;
SET ROLE idemq_stranger;
SELECT * FROM idemq.claim('q');
RESET ROLE;
-- Membership: taken away, and by SET ROLE.
SET ROLE idemq_member;
SELECT count(*) FROM idemq.claim('q');
RESET ROLE;
REVOKE idemq_group FROM idemq_member;
SET ROLE idemq_member;
SELECT * FROM idemq.claim('q');
SELECT count(*) FROM idemq.jobs;
RESET ROLE;
-- The boss hands on, and cannot hand on what is not his.
SET ROLE idemq_boss;
SELECT idemq.grant_queue('q', 'idemq_member', 'claim');
SELECT idemq.grant_queue('other', 'idemq_member', 'claim');
SELECT idemq.revoke_queue('q', 'idemq_member', 'claim');
RESET ROLE;
-- Arguments.
SELECT idemq.grant_queue('nope', 'idemq_worker', 'claim');
SELECT idemq.grant_queue(NULL, 'idemq_worker', 'claim');
SELECT idemq.grant_queue('q', NULL, 'claim');
SELECT idemq.grant_queue('q', 'idemq_worker', NULL);
SELECT idemq.grant_queue('q', 'idemq_worker', '');
SELECT idemq.grant_queue('q', 'idemq_worker', 'Claim');
SELECT idemq.grant_queue('q', 'idemq_worker', 'select');
SELECT idemq.grant_queue('q', 'idemq_nobody', 'claim');
SELECT idemq.grant_queue('q', 'public', 'claim');
SELECT idemq.grant_queue('q', '-', 'claim');
SELECT idemq.grant_queue('q', 4294967295::regrole, 'claim');
SELECT idemq.revoke_queue('q', 'idemq_worker', 'everything');

-- A role that holds grants is not dropped in passing; one of its name that comes after it has none of them; one renamed has none.
DROP ROLE idemq_worker;
DROP OWNED BY idemq_worker;
DROP ROLE idemq_worker;
SELECT role_name, privilege FROM idemq_internal.queue_grants ORDER BY 1;
SELECT count(*) FROM idemq.claim('q');
CREATE ROLE idemq_worker;
GRANT USAGE ON SCHEMA idemq TO idemq_worker;
SET ROLE idemq_worker;
SELECT count(*) FROM idemq.claim('q');
RESET ROLE;
SELECT idemq.grant_queue('q', 'idemq_worker', 'claim');
SET ROLE idemq_worker;
SELECT count(*) FROM idemq.claim('q');
RESET ROLE;
ALTER ROLE idemq_worker RENAME TO idemq_renamed;
SET ROLE idemq_renamed;
SELECT count(*) FROM idemq.claim('q');
RESET ROLE;
ALTER ROLE idemq_renamed RENAME TO idemq_worker;
SET ROLE idemq_worker;
SELECT count(*) FROM idemq.claim('q');
RESET ROLE;

-- reap without a queue takes back leases of one's own queues, and no others.
SELECT idemq.create_queue('theirs') > 0 AS made;
SELECT id AS theirs FROM idemq.enqueue('theirs', '1') \gset
SELECT id AS ours FROM idemq.enqueue('q', '1') \gset
SELECT outcome FROM unnest(ARRAY[:theirs, :ours]) id, idemq.claim_job(id, lease => '1 ms'); -- meant to expire
SELECT pg_sleep(0.01);
SET ROLE idemq_producer;
SELECT idemq.reap();
RESET ROLE;
SELECT count(*) FROM idemq.jobs WHERE status = 'running' AND id IN (:theirs, :ours);
SET ROLE idemq_worker;
SELECT idemq.reap(), idemq.reap();
RESET ROLE;
SELECT id = :theirs AS theirs, status FROM idemq.jobs WHERE id IN (:theirs, :ours) ORDER BY 1;
SELECT idemq.reap();
SELECT idemq.cancel(:ours), idemq.drop_queue('theirs', force => true);

-- Whoever makes a queue has USAGE of the schema by that, also when the group goes through which it came.
CREATE ROLE idemq_maker;
CREATE ROLE idemq_makers ROLE idemq_maker;
GRANT USAGE ON SCHEMA idemq TO idemq_makers;
GRANT EXECUTE ON FUNCTION idemq.create_queue TO idemq_makers;
SET ROLE idemq_maker;
SELECT idemq.create_queue('made') > 0 AS made;
RESET ROLE;
REVOKE idemq_makers FROM idemq_maker;
SET ROLE idemq_maker;
SELECT (idemq.enqueue('made', '1')).outcome;
SELECT idemq.create_queue('more');
SELECT idemq.drop_queue('made', force => true);
RESET ROLE;
DROP OWNED BY idemq_maker, idemq_makers;
DROP ROLE idemq_maker, idemq_makers;

-- create_queue is the DBA's to give away, with USAGE of the schema, which this role has; its creator administers the queue.
GRANT EXECUTE ON FUNCTION idemq.create_queue TO idemq_stranger;
SET ROLE idemq_stranger;
SELECT idemq.create_queue('mine') > 0 AS made;
SELECT (idemq.enqueue('mine', '1')).outcome;
SELECT idemq.commit(id, token) FROM idemq.claim('mine');
SELECT idemq.grant_queue('mine', 'idemq_producer', 'enqueue');
SELECT name FROM idemq.queues;
SELECT queue_id = :q FROM idemq.jobs;
RESET ROLE;
SELECT name, role_name, privilege FROM idemq_internal.queue_grants JOIN idemq.queues USING (queue_id) WHERE name = 'mine' ORDER BY 2;
SET ROLE idemq_stranger;
SELECT idemq.drop_queue('mine');
RESET ROLE;

-- A SECURITY DEFINER function lends its owner's privileges, and no others.
CREATE FUNCTION enqueue_for_all(payload jsonb) RETURNS text LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
	AS $$ SELECT outcome::text FROM idemq.enqueue('q', payload) $$;
ALTER FUNCTION enqueue_for_all OWNER TO idemq_producer;
SET ROLE idemq_stranger;
SELECT enqueue_for_all('1');
SELECT idemq.enqueue('q', '1');
RESET ROLE;
ALTER FUNCTION enqueue_for_all OWNER TO idemq_worker;
SET ROLE idemq_producer;
SELECT enqueue_for_all('1');
RESET ROLE;

-- Planted in the caller's path, nothing of the extension's own is taken for it.
CREATE SCHEMA evil;
GRANT ALL ON SCHEMA evil TO idemq_producer;
SET ROLE idemq_producer;
CREATE TABLE evil.jobs (id bigint);
CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'evil'; END $$;
CREATE FUNCTION evil.eq(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'evil, as %', current_user; END $$;
CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.eq);
CREATE FUNCTION evil.eq(bigint, bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'evil, as %', current_user; END $$;
CREATE OPERATOR evil.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.eq);
SET search_path = evil, pg_catalog, idemq, public;
SELECT (idemq.enqueue('q', '1', key => 'evil')).outcome;
SELECT (idemq.enqueue('q', '1', key => 'evil')).outcome;
SELECT count(*) FROM idemq.job(1000000000001);
RESET search_path;
RESET ROLE;
SET search_path = evil, pg_catalog, idemq, public;
SELECT (enqueue('q', '1', key => 'evil')).outcome;
SELECT count(*) FROM claim('q', 10);
SELECT count(idemq.cancel(id)) FROM idemq.jobs;
SELECT count(*) FROM job(1);
SELECT purge('q');
RESET search_path;

DROP SCHEMA evil CASCADE;
DROP FUNCTION enqueue_for_all;
REVOKE ALL ON FUNCTION idemq.create_queue FROM idemq_stranger;
DROP EXTENSION idemq;
DROP ROLE idemq_producer, idemq_worker, idemq_boss, idemq_stranger, idemq_outsider, idemq_group, idemq_member;
