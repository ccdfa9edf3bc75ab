-- Topic: Topics

-- No foreign keys: see idemq_internal.queue_grants.
CREATE TABLE idemq_internal.topic_entries (
	topic      text COLLATE "C" PRIMARY KEY,
	created_at timestamptz NOT NULL
);
COMMENT ON TABLE idemq_internal.topic_entries IS 'one row per topic space, which is named after the first word of its topics; use idemq.topics to read the table and idemq.create_topic to change it';
COMMENT ON COLUMN idemq_internal.topic_entries.topic IS 'first word of the topics in the space';
COMMENT ON COLUMN idemq_internal.topic_entries.created_at IS 'when the topic space was created';

CREATE TABLE idemq_internal.topic_grants (
	topic     text COLLATE "C" NOT NULL,
	role_name name NOT NULL,
	privilege text NOT NULL CHECK (privilege IN ('publish', 'bind', 'admin')),
	role_oid  oid,
	PRIMARY KEY (topic, role_name, privilege)
);
COMMENT ON TABLE idemq_internal.topic_grants IS 'privileges that allow roles to publish to a topic space, bind queues to it or administer it; use idemq.grant_topic to change them';
COMMENT ON COLUMN idemq_internal.topic_grants.topic IS 'topic space: the first word of its topics';
COMMENT ON COLUMN idemq_internal.topic_grants.role_name IS 'role that holds the privilege';
COMMENT ON COLUMN idemq_internal.topic_grants.privilege IS 'privilege: publish, bind, or admin, which includes the other two';
COMMENT ON COLUMN idemq_internal.topic_grants.role_oid IS 'OID of the role with this name when the row was written; NULL means that no such role existed, so the role is identified by name only';

CREATE TABLE idemq_internal.topic_binding_entries (
	topic      text COLLATE "C" NOT NULL,
	pattern    text COLLATE "C" NOT NULL,
	queue_id   int NOT NULL,
	role_name  name NOT NULL,
	role_oid   oid,
	bound_at   timestamptz NOT NULL,
	refused_at timestamptz,
	when_full  text NOT NULL DEFAULT 'add' CHECK (when_full IN ('add', 'skip')),
	over_limit bigint NOT NULL DEFAULT 0,
	PRIMARY KEY (topic, pattern, queue_id, role_name)
);
COMMENT ON TABLE idemq_internal.topic_binding_entries IS 'one row per topic pattern, queue and binding role; use idemq.topic_bindings to read it and idemq.bind_topic to change it';
COMMENT ON COLUMN idemq_internal.topic_binding_entries.topic IS 'topic space: the first word of the pattern';
COMMENT ON COLUMN idemq_internal.topic_binding_entries.pattern IS 'topic pattern, in which * matches one word and # any number of words';
COMMENT ON COLUMN idemq_internal.topic_binding_entries.queue_id IS 'numeric id of the queue that gets the jobs';
COMMENT ON COLUMN idemq_internal.topic_binding_entries.role_name IS 'role whose privileges the binding uses';
COMMENT ON COLUMN idemq_internal.topic_binding_entries.role_oid IS 'OID of the role with this name when the row was written; NULL means that no such role existed, so the role is identified by name only';
COMMENT ON COLUMN idemq_internal.topic_binding_entries.bound_at IS 'when the queue was bound';
COMMENT ON COLUMN idemq_internal.topic_binding_entries.refused_at IS 'when the binding was last skipped, accurate to the minute';
COMMENT ON COLUMN idemq_internal.topic_binding_entries.when_full IS 'whether the queue gets a job if the queue or the group is full: add or skip';
COMMENT ON COLUMN idemq_internal.topic_binding_entries.over_limit IS 'number of jobs that this binding has added while the queue or the group was full, except those in topic_over_limit';

-- A publisher does not wait if another publisher has locked the binding's row.  Instead, it inserts a
-- row here.  The next publisher that gets the lock, or the next pass of retention
-- (idemq_internal.delete_by_time), adds these rows to the count in the binding's row
-- (src/api/publish.c).
CREATE TABLE idemq_internal.topic_over_limit (
	topic     text COLLATE "C" NOT NULL,
	pattern   text COLLATE "C" NOT NULL,
	queue_id  int NOT NULL,
	role_name name NOT NULL,
	job_id    bigint NOT NULL,
	PRIMARY KEY (topic, pattern, queue_id, role_name, job_id)
);
COMMENT ON TABLE idemq_internal.topic_over_limit IS 'one row per job that was published to a full queue or group and is not yet included in over_limit of its binding; idemq.topic_bindings shows the total';
COMMENT ON COLUMN idemq_internal.topic_over_limit.topic IS 'topic of the binding in idemq_internal.topic_binding_entries';
COMMENT ON COLUMN idemq_internal.topic_over_limit.pattern IS 'pattern of the binding';
COMMENT ON COLUMN idemq_internal.topic_over_limit.queue_id IS 'numeric id of the binding''s queue';
COMMENT ON COLUMN idemq_internal.topic_over_limit.role_name IS 'role of the binding';
COMMENT ON COLUMN idemq_internal.topic_over_limit.job_id IS 'id of the job';

SELECT pg_catalog.pg_extension_config_dump('idemq_internal.topic_entries', '');
SELECT pg_catalog.pg_extension_config_dump('idemq_internal.topic_grants', '');
SELECT pg_catalog.pg_extension_config_dump('idemq_internal.topic_binding_entries', '');
SELECT pg_catalog.pg_extension_config_dump('idemq_internal.topic_over_limit', '');

CREATE TRIGGER idemq_role_named BEFORE INSERT OR UPDATE OF role_name ON idemq_internal.topic_grants
	FOR EACH ROW EXECUTE FUNCTION idemq_internal.role_named('role_name', 'role_oid');
ALTER TABLE idemq_internal.topic_grants ENABLE ALWAYS TRIGGER idemq_role_named;
CREATE TRIGGER idemq_role_named BEFORE INSERT OR UPDATE OF role_name
	ON idemq_internal.topic_binding_entries
	FOR EACH ROW EXECUTE FUNCTION idemq_internal.role_named('role_name', 'role_oid');
ALTER TABLE idemq_internal.topic_binding_entries ENABLE ALWAYS TRIGGER idemq_role_named;
-- No policy: the views show what is to be seen.
ALTER TABLE idemq_internal.topic_entries ENABLE ROW LEVEL SECURITY;
ALTER TABLE idemq_internal.topic_grants ENABLE ROW LEVEL SECURITY;
ALTER TABLE idemq_internal.topic_binding_entries ENABLE ROW LEVEL SECURITY;
ALTER TABLE idemq_internal.topic_over_limit ENABLE ROW LEVEL SECURITY;

-- What the functions below ask of C: src/api/publish.c.
CREATE FUNCTION idemq_internal.check_space(topic text) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_check_space';
CREATE FUNCTION idemq_internal.lock_topic(topic text) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_lock_topic';
CREATE FUNCTION idemq_internal.topic_space(pattern text) RETURNS text
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_topic_space';
CREATE FUNCTION idemq_internal.topic(topic text, privilege text, keep boolean) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_topic';
CREATE FUNCTION idemq_internal.topic_may(topic text, role oid, privilege text) RETURNS boolean
	STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_topic_may';

CREATE FUNCTION idemq.create_topic(topic text) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper';
COMMENT ON FUNCTION idemq.create_topic(text)
	IS 'Create a topic space, which contains all topics that begin with the given word. The word begins with a letter or _, continues with letters, digits, _ and -, and has up to 48 bytes. The caller gets the publish, bind and admin privileges. Raises 42710 if the topic space already exists.';

CREATE FUNCTION idemq_internal.create_topic_impl(topic text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	-- With this lock, a concurrent ensure_topic waits, and then finds the space.
	PERFORM idemq_internal.check_space(topic), idemq_internal.lock_topic(topic);
	INSERT INTO idemq_internal.topic_entries (topic, created_at) VALUES (create_topic_impl.topic,
		idemq_internal.now())
		ON CONFLICT DO NOTHING;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'topic "%" already exists', topic USING ERRCODE = '42710',
			HINT =
				'Choose another name, or ask the administrator of the topic to grant you a privilege with '
				'idemq.grant_topic.';
	END IF;
	PERFORM idemq_internal.change_topic_grant(topic, idemq_internal.caller(), 'admin', true),
		idemq_internal.audit('create_topic', 0, '', jsonb_build_object('topic', topic));
END $$;

CREATE FUNCTION idemq.ensure_topic(topic text) RETURNS text
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_ensure_topic';
COMMENT ON FUNCTION idemq.ensure_topic(text)
	IS 'Create a topic space unless it exists. Returns created or unchanged. If the topic space exists, the call only reads, and requires any privilege on it. Otherwise, it requires EXECUTE on idemq.create_topic, and is recorded in idemq.audit as create_topic.';

CREATE FUNCTION idemq.drop_topic(topic text) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper';
COMMENT ON FUNCTION idemq.drop_topic(text) IS 'Drop a topic space and its grants and bindings. Jobs that have been published remain. Requires admin on the topic space.';

-- The space first, which waits for whoever makes one of the others and keeps it; then all that
-- names it.
CREATE FUNCTION idemq_internal.drop_topic_impl(topic text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	roles oid[];
BEGIN
	PERFORM idemq_internal.check_text('topic', drop_topic_impl.topic, 1024),
		idemq_internal.topic(drop_topic_impl.topic, 'admin', false);
	DELETE FROM idemq_internal.topic_entries WHERE topic = drop_topic_impl.topic;
	roles := ARRAY(SELECT role FROM idemq_internal.latest(
		'SELECT DISTINCT r.oid FROM idemq_internal.topic_grants g JOIN pg_roles r ON r.rolname = '
			'g.role_name WHERE g.topic = $1 ORDER BY 1',
		drop_topic_impl.topic) AS (role oid));
	PERFORM idemq_internal.lock_role(role) FROM unnest(roles) role;
	DELETE FROM idemq_internal.topic_binding_entries WHERE topic = drop_topic_impl.topic;
	DELETE FROM idemq_internal.topic_over_limit WHERE topic = drop_topic_impl.topic;
	DELETE FROM idemq_internal.topic_grants WHERE topic = drop_topic_impl.topic;
	PERFORM FROM idemq_internal.latest('SELECT true FROM idemq_internal.topic_grants
			WHERE topic = $1 UNION ALL
		SELECT true FROM idemq_internal.topic_binding_entries
			WHERE topic = $1 LIMIT 1', drop_topic_impl.topic) AS (is_left boolean);
	IF FOUND THEN
		RAISE EXCEPTION 'topic "%" has grants or bindings that this transaction cannot see',
			drop_topic_impl.topic
			USING ERRCODE = '40001', HINT = 'Run idemq.drop_topic in a READ COMMITTED transaction.';
	END IF;
	PERFORM idemq_internal.settle_usage(role) FROM unnest(roles) role;
	PERFORM idemq_internal.audit('drop_topic', 0, '',
		jsonb_build_object('topic', drop_topic_impl.topic));
END $$;

CREATE FUNCTION idemq.grant_topic(topic text, role regrole, privilege text) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper';
COMMENT ON FUNCTION idemq.grant_topic(text, regrole, text)
	IS 'Grant a role a privilege on a topic space: publish (to it), bind (queues to it) or admin. Requires admin on the topic space.';

CREATE FUNCTION idemq.revoke_topic(topic text, role regrole, privilege text) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper';
COMMENT ON FUNCTION idemq.revoke_topic(text, regrole, text)
	IS 'Revoke a privilege that was granted with idemq.grant_topic. A role''s bindings are skipped as long as the role does not have bind. Requires admin on the topic space.';

-- Writes or deletes a row of idemq_internal.topic_grants; returns whether that has changed
-- anything.
CREATE FUNCTION idemq_internal.change_topic_grant(topic text, role oid, privilege text,
	granted boolean) RETURNS boolean
	LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	name name := idemq_internal.lock_role(role);
	is_new boolean;
BEGIN
	IF granted THEN
		INSERT INTO idemq_internal.topic_grants AS g (topic, role_name, privilege)
			VALUES (change_topic_grant.topic, name, change_topic_grant.privilege)
			ON CONFLICT (topic, role_name, privilege) DO UPDATE SET role_oid = excluded.role_oid
			WHERE g.role_oid IS DISTINCT FROM excluded.role_oid;
	ELSE
		DELETE FROM idemq_internal.topic_grants WHERE topic = change_topic_grant.topic
			AND role_name = name
			AND privilege = change_topic_grant.privilege;
	END IF;
	is_new := FOUND;
	IF NOT granted AND NOT is_new THEN
		PERFORM idemq_internal.refuse_newer(EXISTS (SELECT FROM idemq_internal.latest('SELECT 1
			FROM idemq_internal.topic_grants
			WHERE topic = $1 AND role_name = $2 AND privilege = $3', topic, name,
				privilege) AS (one int)), 'grant');
	END IF;
	PERFORM idemq_internal.settle_usage(role);
	RETURN is_new;
END $$;

-- What idemq.grant_topic and idemq.revoke_topic do.
CREATE FUNCTION idemq_internal.decide_topic_grant(topic text, role oid, privilege text,
	granted boolean) RETURNS void
	LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idemq_internal.check_text('topic', topic, 1024), idemq_internal.given('role', role),
		idemq_internal.check_text('privilege', privilege, 64);
	IF privilege NOT IN ('publish', 'bind', 'admin') THEN
		RAISE EXCEPTION 'privilege must be publish, bind or admin, not "%"',
			privilege USING ERRCODE = '22023',
			HINT = 'The admin privilege includes the other two.';
	END IF;
	PERFORM idemq_internal.topic(topic, 'admin', granted);
	IF idemq_internal.change_topic_grant(topic, role, privilege, granted) THEN
		PERFORM idemq_internal.audit(CASE WHEN granted THEN 'grant_topic' ELSE 'revoke_topic' END,
			0, '',
			jsonb_build_object('topic', topic, 'role', pg_get_userbyid(role), 'privilege',
				privilege));
	END IF;
END $$;

CREATE FUNCTION idemq_internal.grant_topic_impl(topic text, role regrole, privilege text)
	RETURNS void
	LANGUAGE sql AS
	'SELECT idemq_internal.decide_topic_grant(topic, role, privilege, true)';
CREATE FUNCTION idemq_internal.revoke_topic_impl(topic text, role regrole, privilege text)
	RETURNS void
	LANGUAGE sql AS
	'SELECT idemq_internal.decide_topic_grant(topic, role, privilege, false)';

CREATE FUNCTION idemq.bind_topic(pattern text, queue text, when_full text DEFAULT 'add')
	RETURNS boolean
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper';
COMMENT ON FUNCTION idemq.bind_topic(text, text, text)
	IS 'Bind a queue to a topic pattern, so that the queue gets a job for each message published to a matching topic. Returns false if the role has already bound the queue to this pattern with the same when_full. Requires bind on the topic space and enqueue on the queue, both now and whenever a message is published.
- pattern: * matches one word, and # matches any number of words, including none. The first word must be a topic space.
- when_full: whether the queue still gets the job if the queue or the group is full: add (the default) or skip';

-- A binding is of the role that makes it, and as good as that role's rights are when something is
-- published (src/api/publish.c).  Two roles may bind one queue by one pattern; each binding stands
-- for itself, so that nobody takes another's away.
CREATE FUNCTION idemq_internal.bind_topic_impl(pattern text, queue text, when_full text)
	RETURNS boolean
	LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	space text := idemq_internal.topic_space(pattern);
	queue_number int;
	is_new boolean;
BEGIN
	PERFORM idemq_internal.check_text('when_full', bind_topic_impl.when_full, 16);
	IF bind_topic_impl.when_full NOT IN ('add', 'skip') THEN
		RAISE EXCEPTION 'when_full must be add or skip, not "%"', bind_topic_impl.when_full
			USING ERRCODE = '22023', HINT = 'Omit the argument to add jobs even if the queue is full.';
	END IF;
	PERFORM idemq_internal.topic(space, 'bind', false);
	queue_number := idemq_internal.queue(queue, 'enqueue', 'keep');
	PERFORM idemq_internal.topic(space, NULL, true);
	INSERT INTO idemq_internal.topic_binding_entries AS b (topic, pattern, queue_id, role_name,
		bound_at, when_full)
		VALUES (space, bind_topic_impl.pattern, queue_number,
			pg_get_userbyid(idemq_internal.caller()),
			idemq_internal.now(), bind_topic_impl.when_full)
		ON CONFLICT (topic, pattern, queue_id, role_name) DO UPDATE
		SET role_oid = excluded.role_oid, bound_at = excluded.bound_at, refused_at = NULL,
			when_full = excluded.when_full
		WHERE b.role_oid IS DISTINCT FROM excluded.role_oid
			OR b.when_full <> excluded.when_full;
	is_new := FOUND;
	IF is_new THEN
		PERFORM idemq_internal.audit('bind_topic', queue_number, queue,
			jsonb_build_object('pattern', bind_topic_impl.pattern)
				|| CASE WHEN bind_topic_impl.when_full = 'skip' THEN '{"when_full": "skip"}'
					ELSE '{}' END::jsonb);
	END IF;
	RETURN is_new;
END $$;

CREATE FUNCTION idemq.unbind_topic(pattern text, queue text) RETURNS boolean
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper';
COMMENT ON FUNCTION idemq.unbind_topic(text, text)
	IS 'Unbind a queue from a topic pattern. Removes the bindings of all roles if the caller has admin on the queue or the topic space, and the caller''s own bindings otherwise. Returns false if there were none. Raises 42501 if all bindings were made by other roles.';

-- A role that has lost its privileges may still end its binding.
CREATE FUNCTION idemq_internal.unbind_topic_impl(pattern text, queue text) RETURNS boolean
	LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	space text := idemq_internal.topic_space(pattern);
	queue_number int;
	role oid := idemq_internal.caller();
	may_end_all boolean;
	own name[];
	others bigint;
	ended boolean;
BEGIN
	PERFORM idemq_internal.check_text('queue', queue, 1024),
		idemq_internal.topic(space, NULL, false);
	queue_number := idemq_internal.queue(queue, 'any');
	may_end_all := idemq_internal.role_may(role, queue_number, 'admin')
		OR idemq_internal.topic_may(space, role, 'admin');
	SELECT array_agg(name) FILTER (WHERE is_own), count(*) FILTER (WHERE NOT is_own) INTO own,
		others
		FROM (SELECT b.name, may_end_all
				OR coalesce(pg_has_role(role, idemq_internal.role_of(b.name, b.role_oid), 'USAGE'),
					false) AS is_own
			FROM idemq_internal.latest('SELECT role_name, role_oid
				FROM idemq_internal.topic_binding_entries
				WHERE topic = $1 AND pattern = $2 AND queue_id = $3',
					space, unbind_topic_impl.pattern, queue_number)
				AS b (name name, role_oid oid)) x;
	IF own IS NULL AND others > 0 THEN
		RAISE EXCEPTION 'permission denied to unbind queue "%" from topic "%"', queue,
			space USING ERRCODE = '42501',
			DETAIL =
				'Only the role that made a binding and administrators of the queue or the topic space may remove it.',
			HINT = 'Ask that role or an administrator to call idemq.unbind_topic.';
	END IF;
	DELETE FROM idemq_internal.topic_binding_entries WHERE topic = space
		AND pattern = unbind_topic_impl.pattern
		AND queue_id = queue_number AND role_name = ANY (own);
	ended := FOUND;
	DELETE FROM idemq_internal.topic_over_limit WHERE topic = space
		AND pattern = unbind_topic_impl.pattern
		AND queue_id = queue_number AND role_name = ANY (own);
	IF ended THEN
		PERFORM idemq_internal.audit('unbind_topic', queue_number, queue,
			jsonb_build_object('pattern', unbind_topic_impl.pattern));
	END IF;
	RETURN ended;
END $$;

CREATE FUNCTION idemq.publish(
	topic text, payload jsonb, key text DEFAULT NULL, delay interval DEFAULT NULL,
	run_at timestamptz DEFAULT NULL, priority int DEFAULT 4, group_key text DEFAULT NULL,
	max_attempts int DEFAULT NULL, headers jsonb DEFAULT NULL, expires_in interval DEFAULT NULL,
	kind text DEFAULT NULL)
	RETURNS TABLE (queue text, id bigint, outcome idemq.outcome)
	ROWS 10 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_publish';
COMMENT ON FUNCTION idemq.publish(text, jsonb, text, interval, timestamptz, int, text, int, jsonb, interval, text)
	IS 'Publish a message by adding a job to each queue bound to a topic, in this transaction. Returns one row per queue, or no row if no queue is bound. Requires publish on the topic space.
- A binding is skipped if its role may no longer bind or enqueue; idemq.topic_bindings shows such bindings.
- If the queue (max_unfinished) or the group (group_max_unfinished) is full, the queue still gets the job, and over_limit in idemq.topic_bindings counts it. If when_full of the binding is skip, the queue gets no job instead.
- key: a repeated call returns the existing jobs with outcome duplicate, regardless of the payload
- The other arguments are the same as for idemq.enqueue.';

CREATE FUNCTION idemq.topic_matches(pattern text, topic text) RETURNS boolean
	IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_topic_matches';
COMMENT ON FUNCTION idemq.topic_matches(text, text)
	IS 'Return whether a topic matches a pattern. Raises 22023 if the pattern or the topic is invalid.';

-- Topic: Internal

CREATE FUNCTION idemq_internal.topic_privileges(topic text) RETURNS text[]
	STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper';
COMMENT ON FUNCTION idemq_internal.topic_privileges(text) IS 'Return which of the privileges publish, bind and admin the current role holds on a topic space. Use the view idemq.topics instead.';

CREATE FUNCTION idemq_internal.topic_privileges_impl(topic text) RETURNS text[] STABLE
	LANGUAGE sql AS $$
	SELECT idemq_internal.check_text('topic', topic, 1024);
	SELECT ARRAY(SELECT p FROM unnest('{publish,bind,admin}'::text[]) p
		WHERE idemq_internal.topic_may(topic, idemq_internal.caller(), p))
$$;

CREATE FUNCTION idemq_internal.topic_states()
	RETURNS TABLE (topic text, pattern text, queue_id int, role name, bound_at timestamptz,
		refused_at timestamptz,
		refusal text, when_full text, over_limit bigint)
	ROWS 10 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper';
COMMENT ON FUNCTION idemq_internal.topic_states()
	IS 'List the bindings that the caller has made or may remove. For pg_monitor, list all bindings. Use the view idemq.topic_bindings instead.';

-- Why a binding would be skipped is asked as idemq.publish does, at this moment.
CREATE FUNCTION idemq_internal.topic_states_impl()
	RETURNS TABLE (topic text, pattern text, queue_id int, role name, bound_at timestamptz,
		refused_at timestamptz,
		refusal text, when_full text, over_limit bigint)
	STABLE LANGUAGE sql AS $$
	SELECT b.topic, b.pattern, b.queue_id, b.role_name, b.bound_at, b.refused_at, CASE
			WHEN NOT EXISTS (SELECT FROM idemq_internal.topic_entries t
				WHERE t.topic = b.topic) THEN 'its topic space does not exist'
			WHEN r.role IS NULL THEN format('role "%s" was dropped or renamed', b.role_name)
			WHEN NOT idemq_internal.topic_may(b.topic, r.role, 'bind')
				THEN format('role "%s" may no longer bind to the topic space', b.role_name)
			WHEN NOT EXISTS (SELECT FROM idemq.queues q
				WHERE q.queue_id = b.queue_id) THEN 'its queue does not exist'
			WHEN NOT idemq_internal.role_may(r.role, b.queue_id, 'enqueue')
				THEN format('role "%s" may no longer enqueue to the queue', b.role_name) END,
		b.when_full, b.over_limit + (SELECT count(*) FROM idemq_internal.topic_over_limit o
			WHERE o.topic = b.topic AND o.pattern = b.pattern AND o.queue_id = b.queue_id
			AND o.role_name = b.role_name)
	FROM idemq_internal.caller() c(role), idemq_internal.topic_binding_entries b,
		LATERAL (SELECT idemq_internal.role_of(b.role_name, b.role_oid)) r(role)
	WHERE pg_has_role(c.role, 'pg_monitor', 'USAGE') OR pg_has_role(c.role, r.role, 'USAGE')
		OR idemq_internal.topic_may(b.topic, c.role, 'admin') OR idemq_internal.role_may(c.role,
			b.queue_id, 'admin')
	ORDER BY b.topic, b.pattern, b.queue_id, b.role_name
$$;

-- Topic: Topics

CREATE VIEW idemq.topics WITH (security_barrier) AS
	SELECT t.topic, p.privileges, t.created_at
	FROM idemq_internal.topic_entries t
		CROSS JOIN LATERAL (SELECT idemq_internal.topic_privileges(t.topic) AS privileges) p
	WHERE p.privileges OPERATOR(pg_catalog.<>) '{}'::pg_catalog.text[]
		OR pg_catalog.pg_has_role('pg_monitor', 'USAGE');
COMMENT ON VIEW idemq.topics IS 'one row per topic space that you may use; pg_monitor sees all topic spaces';
COMMENT ON COLUMN idemq.topics.topic IS 'first word of the topics in the space';
COMMENT ON COLUMN idemq.topics.privileges IS 'your privileges, any of publish, bind and admin';
COMMENT ON COLUMN idemq.topics.created_at IS 'when the topic space was created';

-- The function decides which bindings; the view reads the names as its owner.
CREATE VIEW idemq.topic_bindings WITH (security_barrier) AS
	SELECT s.topic, s.pattern, (SELECT q.name FROM idemq.queues q
			WHERE q.queue_id OPERATOR(pg_catalog.=) s.queue_id) AS queue,
		s.role, s.bound_at, s.refusal, s.refused_at, s.when_full, s.over_limit
	FROM idemq_internal.topic_states() s;
COMMENT ON VIEW idemq.topic_bindings IS 'one row per binding that you have made, or whose topic space or queue you administer; pg_monitor sees all bindings';
COMMENT ON COLUMN idemq.topic_bindings.topic IS 'topic space: the first word of the pattern';
COMMENT ON COLUMN idemq.topic_bindings.pattern IS 'topic pattern, in which * matches one word and # any number of words';
COMMENT ON COLUMN idemq.topic_bindings.queue IS 'queue that gets the jobs';
COMMENT ON COLUMN idemq.topic_bindings.role IS 'role that made the binding, and whose privileges it uses';
COMMENT ON COLUMN idemq.topic_bindings.bound_at IS 'when the queue was bound';
COMMENT ON COLUMN idemq.topic_bindings.refusal IS 'why idemq.publish would currently skip the binding; NULL means that the binding would not be skipped';
COMMENT ON COLUMN idemq.topic_bindings.refused_at IS 'when the binding was last skipped, accurate to the minute; NULL means that it has never been skipped';
COMMENT ON COLUMN idemq.topic_bindings.when_full IS 'whether the queue still gets a job if the queue (max_unfinished) or the group (group_max_unfinished) is full: add means that it does, and skip means that it does not';
COMMENT ON COLUMN idemq.topic_bindings.over_limit IS 'number of jobs that this binding has added while the queue or the group was full';
