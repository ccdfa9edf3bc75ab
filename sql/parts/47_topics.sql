-- Topic: Topics

-- No foreign keys: see idemq.queue_grants.
CREATE TABLE idemq.topic_entries (
	topic      text COLLATE "C" PRIMARY KEY,
	created_at timestamptz NOT NULL
);
COMMENT ON TABLE idemq.topic_entries IS 'one row a space of topics, by their first word; see idemq.topics, change it with idemq.create_topic';
COMMENT ON COLUMN idemq.topic_entries.topic IS 'first word of its topics';
COMMENT ON COLUMN idemq.topic_entries.created_at IS 'when it was created';

CREATE TABLE idemq.topic_grants (
	topic     text COLLATE "C" NOT NULL,
	role_name name NOT NULL,
	privilege text NOT NULL CHECK (privilege IN ('publish', 'bind', 'admin')),
	role_oid  oid,
	PRIMARY KEY (topic, role_name, privilege)
);
COMMENT ON TABLE idemq.topic_grants IS 'which roles may publish to a space of topics, bind queues to it and administer it; change it with idemq.grant_topic';
COMMENT ON COLUMN idemq.topic_grants.topic IS 'the space';
COMMENT ON COLUMN idemq.topic_grants.role_name IS 'the role';
COMMENT ON COLUMN idemq.topic_grants.privilege IS 'publish, bind, or admin, which includes both';
COMMENT ON COLUMN idemq.topic_grants.role_oid IS 'the role that had the name when the row was written; NULL when there was none: then the name alone decides';

CREATE TABLE idemq.topic_binding_entries (
	topic      text COLLATE "C" NOT NULL,
	pattern    text COLLATE "C" NOT NULL,
	queue_id   int NOT NULL,
	role_name  name NOT NULL,
	role_oid   oid,
	bound_at   timestamptz NOT NULL,
	refused_at timestamptz,
	PRIMARY KEY (topic, pattern, queue_id, role_name)
);
COMMENT ON TABLE idemq.topic_binding_entries IS 'one row a pattern of topics, a queue and the role that has bound it; see idemq.topic_bindings, change it with idemq.bind_topic';
COMMENT ON COLUMN idemq.topic_binding_entries.topic IS 'the space: the first word of the pattern';
COMMENT ON COLUMN idemq.topic_binding_entries.pattern IS 'which topics';
COMMENT ON COLUMN idemq.topic_binding_entries.queue_id IS 'the queue that gets a job';
COMMENT ON COLUMN idemq.topic_binding_entries.role_name IS 'the role by whose rights';
COMMENT ON COLUMN idemq.topic_binding_entries.role_oid IS 'the role that had the name when the row was written; NULL when there was none: then the name alone decides';
COMMENT ON COLUMN idemq.topic_binding_entries.bound_at IS 'when it was bound';
COMMENT ON COLUMN idemq.topic_binding_entries.refused_at IS 'when it was skipped last, to the minute';

SELECT pg_catalog.pg_extension_config_dump('idemq.topic_entries', '');
SELECT pg_catalog.pg_extension_config_dump('idemq.topic_grants', '');
SELECT pg_catalog.pg_extension_config_dump('idemq.topic_binding_entries', '');

CREATE TRIGGER idemq_role_named BEFORE INSERT OR UPDATE OF role_name ON idemq.topic_grants
	FOR EACH ROW EXECUTE FUNCTION idemq.role_named('role_name', 'role_oid');
ALTER TABLE idemq.topic_grants ENABLE ALWAYS TRIGGER idemq_role_named;
CREATE TRIGGER idemq_role_named BEFORE INSERT OR UPDATE OF role_name ON idemq.topic_binding_entries
	FOR EACH ROW EXECUTE FUNCTION idemq.role_named('role_name', 'role_oid');
ALTER TABLE idemq.topic_binding_entries ENABLE ALWAYS TRIGGER idemq_role_named;
-- No policy: the views show what is to be seen.
ALTER TABLE idemq.topic_entries ENABLE ROW LEVEL SECURITY;
ALTER TABLE idemq.topic_grants ENABLE ROW LEVEL SECURITY;
ALTER TABLE idemq.topic_binding_entries ENABLE ROW LEVEL SECURITY;

CREATE FUNCTION idemq.create_topic(topic text) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_create_topic';
COMMENT ON FUNCTION idemq.create_topic(text)
	IS 'create a space of topics, those whose first word is this: a letter or _ first, then letters, digits, _ and -, up to 48 bytes; the caller may then publish to it, bind queues to it and administer it; raises 42710 when there is one';

CREATE FUNCTION idemq.drop_topic(topic text) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_drop_topic';
COMMENT ON FUNCTION idemq.drop_topic(text) IS 'drop a space of topics with its grants and bindings; what was published stays; needs admin of it';

CREATE FUNCTION idemq.grant_topic(topic text, role regrole, privilege text) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_grant_topic';
COMMENT ON FUNCTION idemq.grant_topic(text, regrole, text)
	IS 'let a role publish to a space of topics, bind queues to it or administer it (publish | bind | admin); needs admin of it';

CREATE FUNCTION idemq.revoke_topic(topic text, role regrole, privilege text) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_revoke_topic';
COMMENT ON FUNCTION idemq.revoke_topic(text, regrole, text)
	IS 'take back what idemq.grant_topic gave; without bind the bindings that a role has made are skipped from now on; needs admin of it';

CREATE FUNCTION idemq.bind_topic(pattern text, queue text) RETURNS boolean
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_bind_topic';
COMMENT ON FUNCTION idemq.bind_topic(text, text)
	IS 'have a queue get a job of all that is published to topics of a pattern: * is one word, # any number of words, none too; its first word is a space; returns false when the role has bound it so before; needs bind on the topic and enqueue on the queue, now and whenever something is published';

CREATE FUNCTION idemq.unbind_topic(pattern text, queue text) RETURNS boolean
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_unbind_topic';
COMMENT ON FUNCTION idemq.unbind_topic(text, text)
	IS 'end the bindings of a queue by a pattern that the caller has made; all of them, with admin of the queue or of the topic; returns false when there was none, and raises 42501 when there are others'' alone';

CREATE FUNCTION idemq.publish(
	topic text, payload jsonb, key text DEFAULT NULL, delay interval DEFAULT NULL,
	run_at timestamptz DEFAULT NULL, priority int DEFAULT 4, group_key text DEFAULT NULL,
	max_attempts int DEFAULT NULL, headers jsonb DEFAULT NULL, expires_in interval DEFAULT NULL,
	kind text DEFAULT NULL)
	RETURNS TABLE (queue text, id bigint, outcome idemq.outcome)
	ROWS 10 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_publish';
COMMENT ON FUNCTION idemq.publish(text, jsonb, text, interval, timestamptz, int, text, int, jsonb, interval, text)
	IS 'add a job to each queue that is bound to a topic, in this transaction; returns a row a queue, none when no queue is bound; needs publish on the topic
- A binding whose role may not bind or enqueue any more is skipped: idemq.topic_bindings.
- key: the same call again answers the first jobs, outcome duplicate, whatever its payload
- The other arguments are those of idemq.enqueue.';

CREATE FUNCTION idemq.topic_matches(pattern text, topic text) RETURNS boolean
	IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_topic_matches';
COMMENT ON FUNCTION idemq.topic_matches(text, text)
	IS 'whether a queue that is bound by a pattern gets what is published to a topic: returns that, and raises 22023 for what is no pattern or no topic';

-- Topic: Inside

CREATE FUNCTION idemq.topic_privileges(topic text) RETURNS text[]
	STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_topic_privileges';
COMMENT ON FUNCTION idemq.topic_privileges(text) IS 'what the current role may do with a space of topics: returns publish, bind, admin, or some of them; use the view idemq.topics';

CREATE FUNCTION idemq.topic_states()
	RETURNS TABLE (topic text, pattern text, queue_id int, role name, bound_at timestamptz, refused_at timestamptz,
		refusal text)
	ROWS 10 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_topic_states';
COMMENT ON FUNCTION idemq.topic_states()
	IS 'the bindings that the caller has made, or may end; all for pg_monitor; use the view idemq.topic_bindings';

CREATE FUNCTION idemq.publish_counts(OUT calls bigint, OUT jobs bigint, OUT skipped bigint)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_publish_counts';
COMMENT ON FUNCTION idemq.publish_counts() IS 'what idemq.publish_calls shows; returns one row';

-- Topic: Topics

CREATE VIEW idemq.topics WITH (security_barrier) AS
	SELECT t.topic, p.privileges, t.created_at
	FROM idemq.topic_entries t CROSS JOIN LATERAL (SELECT idemq.topic_privileges(t.topic) AS privileges) p
	WHERE p.privileges OPERATOR(pg_catalog.<>) '{}'::pg_catalog.text[]
		OR pg_catalog.pg_has_role('pg_monitor', 'USAGE');
COMMENT ON VIEW idemq.topics IS 'one row a space of topics that you may use; pg_monitor sees all';
COMMENT ON COLUMN idemq.topics.topic IS 'first word of its topics';
COMMENT ON COLUMN idemq.topics.privileges IS 'what you may do: publish, bind, admin';
COMMENT ON COLUMN idemq.topics.created_at IS 'when it was created';

-- The function decides which bindings; the view reads the names as its owner.
CREATE VIEW idemq.topic_bindings WITH (security_barrier) AS
	SELECT s.topic, s.pattern, q.name AS queue, s.role, s.bound_at, s.refusal, s.refused_at
	FROM idemq.topic_states() s
	LEFT JOIN idemq.queues q ON q.queue_id OPERATOR(pg_catalog.=) s.queue_id;
COMMENT ON VIEW idemq.topic_bindings IS 'one row a binding that you have made, or that is of a topic or queue which you administer; pg_monitor sees all';
COMMENT ON COLUMN idemq.topic_bindings.topic IS 'the space';
COMMENT ON COLUMN idemq.topic_bindings.pattern IS 'which topics';
COMMENT ON COLUMN idemq.topic_bindings.queue IS 'the queue that gets a job';
COMMENT ON COLUMN idemq.topic_bindings.role IS 'the role that has bound it, by whose rights it counts';
COMMENT ON COLUMN idemq.topic_bindings.bound_at IS 'when it was bound';
COMMENT ON COLUMN idemq.topic_bindings.refusal IS 'why idemq.publish would skip it now; NULL: it would not';
COMMENT ON COLUMN idemq.topic_bindings.refused_at IS 'when it was skipped last, to the minute; NULL: never';

CREATE VIEW idemq.publish_calls AS SELECT calls, jobs, skipped FROM idemq.publish_counts();
COMMENT ON VIEW idemq.publish_calls IS 'calls of idemq.publish on the whole server since its start, one row; counted when answered, a rollback does not undo it';
COMMENT ON COLUMN idemq.publish_calls.calls IS 'calls';
COMMENT ON COLUMN idemq.publish_calls.jobs IS 'jobs that they have made';
COMMENT ON COLUMN idemq.publish_calls.skipped IS 'bindings that they have skipped: idemq.topic_bindings says which, and why';
