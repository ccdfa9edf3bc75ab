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
	EXECUTE format('GRANT USAGE ON SCHEMA cluster TO %s', role);
	EXECUTE format('GRANT USAGE ON FOREIGN SERVER idemq_cluster TO %s', role);
	FOR routine IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'cluster'::regnamespace
		AND p.prorettype <> 'trigger'::regtype
		AND p.proname NOT IN ('init', 'set_shard_dsn', 'set_shard_state', 'check_shard', 'grant_use', 'revoke_use')
	LOOP
		EXECUTE format('GRANT EXECUTE ON ROUTINE %s TO %s', routine, role);
	END LOOP;
END $$;
COMMENT ON FUNCTION cluster.grant_use(regrole)
	IS 'let a role call the shards through this router, as itself: it also needs CREATE USER MAPPING FOR role SERVER idemq_cluster OPTIONS (user ..., password ...), never one FOR PUBLIC, and its rights on each queue (cluster.grant_queue); a superuser''s';

CREATE FUNCTION cluster.revoke_use(role regrole) RETURNS void LANGUAGE plpgsql
	SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	EXECUTE format('REVOKE ALL ON ALL ROUTINES IN SCHEMA cluster FROM %s', role);
	EXECUTE format('REVOKE ALL ON FOREIGN SERVER idemq_cluster FROM %s', role);
	EXECUTE format('REVOKE ALL ON SCHEMA cluster FROM %s', role);
END $$;
COMMENT ON FUNCTION cluster.revoke_use(regrole) IS 'take back what cluster.grant_use gave';
REVOKE ALL ON FUNCTION cluster.grant_use, cluster.revoke_use FROM PUBLIC;
