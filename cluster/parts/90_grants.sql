-- Nothing by default: cluster.grant_use gives what producers and workers need.  What they may
-- do in a queue is in the hands of the shards, to which each comes as itself.
REVOKE ALL ON ALL TABLES IN SCHEMA cluster FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA cluster FROM PUBLIC;
REVOKE ALL ON ALL ROUTINES IN SCHEMA cluster FROM PUBLIC;

CREATE FUNCTION cluster.grant_use(role regrole) RETURNS void LANGUAGE plpgsql
	SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	routine regprocedure;
BEGIN
	IF role IS NULL THEN
		RAISE EXCEPTION 'role must not be NULL' USING ERRCODE = 'null_value_not_allowed', HINT = 'Pass the name of a role.';
	END IF;
	EXECUTE format('GRANT USAGE ON SCHEMA cluster TO %s', role);
	EXECUTE format('GRANT USAGE ON FOREIGN SERVER idemq_cluster TO %s', role);
	FOR routine IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'cluster'::regnamespace
		AND p.prorettype NOT IN ('trigger'::regtype, 'event_trigger'::regtype)
		AND p.proname NOT IN ('init', 'set_shard_dsn', 'set_shard_state', 'check_shard', 'check_place', 'grant_use', 'revoke_use')
	LOOP
		EXECUTE format('GRANT EXECUTE ON ROUTINE %s TO %s', routine, role);
	END LOOP;
END $$;
COMMENT ON FUNCTION cluster.grant_use(regrole)
	IS 'Allow a role to call the shards through this router. The role also needs privileges on each queue (cluster.grant_queue) and its own user mapping, which you create with CREATE USER MAPPING FOR role SERVER idemq_cluster OPTIONS (user ..., password ...). Never create a mapping FOR PUBLIC. Only a superuser may call it.';

CREATE FUNCTION cluster.revoke_use(role regrole) RETURNS void LANGUAGE plpgsql
	SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF role IS NULL THEN
		RAISE EXCEPTION 'role must not be NULL' USING ERRCODE = 'null_value_not_allowed', HINT = 'Pass the name of a role.';
	END IF;
	EXECUTE format('REVOKE ALL ON ALL ROUTINES IN SCHEMA cluster FROM %s', role);
	EXECUTE format('REVOKE ALL ON FOREIGN SERVER idemq_cluster FROM %s', role);
	EXECUTE format('REVOKE ALL ON SCHEMA cluster FROM %s', role);
END $$;
COMMENT ON FUNCTION cluster.revoke_use(regrole) IS 'Revoke the privileges that were granted with cluster.grant_use.';
REVOKE ALL ON FUNCTION cluster.grant_use, cluster.revoke_use FROM PUBLIC;

-- PL/Proxy asks for USAGE of the server, and PostgreSQL lets whoever has that change his own user
-- mapping: to come to the shards as somebody else, wherever these ask for no password or the
-- router's system user knows it.

CREATE FUNCTION cluster.guard_mappings() RETURNS event_trigger LANGUAGE plpgsql
	SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	mapping text;
BEGIN
	-- The identity ends in the server's name; the catalog of mappings is not for everybody to read.
	SELECT c.object_identity INTO mapping FROM pg_event_trigger_ddl_commands() c
		WHERE c.object_type = 'user mapping' AND c.object_identity LIKE '% on server idemq\_cluster';
	IF mapping = 'public on server idemq_cluster' THEN
		RAISE EXCEPTION 'user mappings for server idemq_cluster cannot be created FOR PUBLIC' USING ERRCODE = 'insufficient_privilege',
			HINT = 'Create a user mapping for each role. With PUBLIC, all roles would connect to the shards as the same user.';
	ELSIF mapping IS NOT NULL AND NOT (SELECT pg_has_role(s.srvowner, 'USAGE') FROM pg_foreign_server s
		WHERE s.srvname = 'idemq_cluster')
	THEN
		RAISE EXCEPTION 'only the owner of server idemq_cluster may create or change its user mappings'
			USING ERRCODE = 'insufficient_privilege', HINT = 'Ask the owner to run CREATE or ALTER USER MAPPING.';
	END IF;
END $$;
COMMENT ON FUNCTION cluster.guard_mappings()
	IS 'event trigger function that prevents roles from choosing the user that they connect to the shards as, and that prevents mappings FOR PUBLIC';
CREATE EVENT TRIGGER idemq_cluster_mappings ON ddl_command_end
	WHEN TAG IN ('CREATE USER MAPPING', 'ALTER USER MAPPING') EXECUTE FUNCTION cluster.guard_mappings();
COMMENT ON EVENT TRIGGER idemq_cluster_mappings IS 'event trigger that lets only the owner of server idemq_cluster create and change its user mappings';
REVOKE ALL ON FUNCTION cluster.guard_mappings FROM PUBLIC;
