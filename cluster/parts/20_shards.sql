-- How a shard is called.  Each call has two functions: cluster.at_NAME, in PL/Proxy, runs it on
-- one shard with the caller's user mapping; cluster.NAME finds the shard, and answers for it.
-- All are SECURITY INVOKER: PL/Proxy connects as whoever is the current user.

CREATE FUNCTION cluster.is_lost(state text, said text) RETURNS boolean IMMUTABLE LANGUAGE sql
	SET search_path = pg_catalog, pg_temp
	AS $$SELECT state = 'XX000' AND (said LIKE 'PL/Proxy function %' OR said LIKE '% REMOTE (null): %')
		OR state LIKE '08%' OR state IN ('57P01', '57P02', '57P03', '57P05')$$;
COMMENT ON FUNCTION cluster.is_lost(text, text)
	IS 'part of cluster.again: return whether the call failed because the connection to the shard broke, and not because the shard refused the call; PL/Proxy has no SQLSTATE for this';

CREATE FUNCTION cluster.again(
	shard int, state text, said text, detail text, hint text, tries int, began timestamptz, repeatable boolean)
	RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	lost boolean := cluster.is_lost(state, said);
	waits_until timestamptz;
	moving boolean;
BEGIN
	IF state = '55000' OR (lost AND repeatable) THEN
		SELECT began + s.patience INTO waits_until FROM cluster.settings s;
		LOOP
			SELECT s.state = 'moving' INTO moving FROM cluster.shards s WHERE s.shard = again.shard;
			EXIT WHEN moving IS NOT TRUE OR clock_timestamp() > waits_until;
			PERFORM pg_sleep(0.02);
		END LOOP;
		-- It is locked by nobody else, so that opening it receives what has changed: the place
		-- of the shard is in the foreign server, which PL/Proxy has in its cache.
		PERFORM pg_relation_size('cluster.map_version');
		IF moving THEN
			RAISE EXCEPTION 'shard % is being moved', shard USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'This call has had no effect, so run the transaction again. If the move was abandoned, run cluster.set_shard_state(shard, ''up'').';
		ELSIF tries = 1 THEN
			RETURN;
		END IF;
	END IF;
	IF lost THEN
		RAISE EXCEPTION 'could not connect to shard %', shard USING ERRCODE = 'connection_failure',
			DETAIL = regexp_replace(said, '^PL/Proxy function [^ ]+: ', ''),
			HINT = CASE WHEN repeatable THEN 'Repeat the call; it is safe to do so.'
				ELSE 'Unless the connection was refused, the call may have taken effect. Repeat calls that have a key, and check jobs whose id you know.' END;
	END IF;
	RAISE EXCEPTION '%', regexp_replace(said, '^[^ ]+\(\d+\): \[[^]]*\] REMOTE [^:]*: ', '') USING ERRCODE = state,
		DETAIL = concat_ws(' ', regexp_replace(nullif(detail, ''), '^Remote detail: ', ''), format('(Shard %s.)', shard)),
		HINT = coalesce(regexp_replace(nullif(hint, ''), '^Remote hint: ', ''), 'See doc/operations/cluster.md.');
END $$;
COMMENT ON FUNCTION cluster.again(int, text, text, text, text, int, timestamptz, boolean)
	IS 'Handle an error from a shard. Returns if the call should be tried again because the shard has moved, or because the connection broke and repeating the call is safe. Waits while the shard is moving. Otherwise raises the shard''s error, or 08006.';

CREATE TYPE cluster.enqueue_result AS (id bigint, outcome text, status text, result jsonb);
CREATE TYPE cluster.claim_result AS (
	outcome text, id bigint, token bigint, attempt int, max_attempts int, deadline timestamptz, payload jsonb, key text,
	group_key text, checkpoint jsonb, enqueued_at timestamptz, headers jsonb, result jsonb, retry_after timestamptz, kind text);
CREATE TYPE cluster.job AS (
	id bigint, queue text, priority int, enqueued_at timestamptz, expires_at timestamptz, run_at timestamptz,
	max_attempts int, flags int, status text, attempt int, token bigint, ready_at timestamptz, claimed_at timestamptz,
	deadline timestamptz, renewed_at timestamptz, finished_at timestamptz, dead_at timestamptz, key_expires_at timestamptz, rerun_at timestamptz,
	worker text, key text, group_key text, kind text, headers jsonb, rerun_payload jsonb, rerun_headers jsonb,
	rerun_kind text, checkpoint jsonb, result jsonb, last_error text, payload jsonb);
CREATE TYPE cluster.flow AS (
	jobs bigint, waiting bigint, blocked bigint, running bigint, retrying bigint, completed bigint, dead bigint,
	cancelled bigint, done bigint, progress float8, begun_at timestamptz, ended_at timestamptz, eta interval,
	held_up_by bigint, held_up_why text, slowest bigint, slowest_kind text, slowest_for interval, failed_ids bigint[],
	roots bigint[], cut boolean);
COMMENT ON TYPE cluster.flow IS 'result of cluster.flow, with the same columns as the result of idemq.flow';
CREATE TYPE cluster.status_and_result AS (status text, result jsonb);
COMMENT ON TYPE cluster.status_and_result IS 'result of cluster.result';
COMMENT ON TYPE cluster.enqueue_result IS 'result of cluster.enqueue, with the same columns as idemq.enqueue_result';
COMMENT ON TYPE cluster.claim_result IS 'result of cluster.acquire, with the same columns as idemq.claim_result';
COMMENT ON TYPE cluster.job IS 'job with the name of its queue and the columns of idemq.jobs';

-- args and returns as CREATE FUNCTION takes them; columns: what the shard returns, by remote, in
-- which (*) stands for all arguments; route: an expression, the shard; or all, or a query of the
-- shards, which are asked one after the other.
CREATE FUNCTION cluster.make_call(
	name text, args text, returns text, columns text, remote text, route text, repeatable text, guard text)
	RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $make$
DECLARE
	is_of_one boolean := route <> 'all' AND route NOT LIKE 'SELECT %';
	names text := (SELECT string_agg(split_part(btrim(a, E' \t\n'), ' ', 1), ', ' ORDER BY i)
		FROM unnest(regexp_split_to_array(nullif(args, ''), E',\\s+')) WITH ORDINALITY u(a, i));
	-- The shard itself says whether it is the one that the map means, before anything happens.
	call text := format('cluster.at_%s(at_shard%s%s)', name, CASE WHEN is_of_one THEN ', cluster.shard_count()' END,
		(SELECT string_agg(', $' || i, '' ORDER BY i) FROM generate_series(1, cardinality(regexp_split_to_array(nullif(args, ''), E',\\s+'))) i));
	-- Of one shard: as it says; a row a shard otherwise.
	body text := CASE
		WHEN returns = 'void' THEN format('PERFORM FROM %s; RETURN;', call)
		WHEN returns LIKE 'SETOF %' THEN format('RETURN QUERY SELECT * FROM %s; RETURN;', call)
		ELSE format('RETURN (SELECT x.answer FROM %s x);', call) END;
	failed text := 'GET STACKED DIAGNOSTICS said = MESSAGE_TEXT, more = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
				tries := tries + 1;
				PERFORM cluster.again(at_shard, SQLSTATE, said, more, hint, tries, began, ' || repeatable || ');';
	variables text := 'began timestamptz := clock_timestamp();
		tries int := 0;
		said text;
		more text;
		hint text;';
BEGIN
	EXECUTE format('CREATE FUNCTION cluster.at_%s(at_shard int%s%s) RETURNS %s LANGUAGE plproxy AS %L', name,
		CASE WHEN is_of_one THEN ', of_shards int' END, ', ' || nullif(args, ''), columns,
		format('CLUSTER ''idemq_cluster''; RUN ON at_shard; SELECT %s%s;', replace(remote, '(*)', '(' || coalesce(names, '') || ')'),
			CASE WHEN is_of_one THEN ' WHERE (SELECT idemq.assert_shard(at_shard, of_shards))' END));
	EXECUTE format('COMMENT ON FUNCTION cluster.at_%s IS %L', name,
		format('part of cluster.%s: make the call on one shard', name));
	IF is_of_one THEN
		EXECUTE format('CREATE FUNCTION cluster.%s(%s) RETURNS %s LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS %L',
			name, args, returns, format('
	#variable_conflict use_column
	DECLARE
		at_shard int;
		%s
	BEGIN
		%s at_shard := %s;
		LOOP
			BEGIN
				%s
			EXCEPTION WHEN OTHERS THEN
				%s
			END;
		END LOOP;
	END', variables, guard, route, body, failed));
	ELSE
		EXECUTE format('CREATE FUNCTION cluster.%s(%s) RETURNS TABLE (shard int, %s, error text) LANGUAGE plpgsql
			SET search_path = pg_catalog, pg_temp AS %L',
			name, args, returns, format('
	#variable_conflict use_column
	DECLARE
		at_shard int;
		%s
	BEGIN
		FOR at_shard IN %s LOOP
			tries := 0;
			began := clock_timestamp();
			BEGIN
				LOOP
					BEGIN
						RETURN QUERY SELECT at_shard, x.*, NULL::text FROM %s x;
						EXIT;
					EXCEPTION WHEN OTHERS THEN
						%s
					END;
				END LOOP;
			EXCEPTION WHEN OTHERS THEN
				GET STACKED DIAGNOSTICS more = PG_EXCEPTION_DETAIL;
				shard := at_shard;
				error := concat_ws('' '', SQLSTATE || '':'', SQLERRM || ''.'', more);
				RETURN NEXT;
				error := NULL;
			END;
		END LOOP;
	END', variables, CASE route WHEN 'all' THEN '0 .. cluster.shard_count() - 1' ELSE route END, call, failed));
	END IF;
END $make$;
