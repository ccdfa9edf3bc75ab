-- Queues, roles and ledgers of the chaos test of flows; README.md here.  :tenants is how many, :slow how
-- many times longer leases and retention are than where all is fast.

-- ---- The ledgers.  Each row is written by the transaction of which it tells.

-- What was asked for: nodes of graphs, by a key of their own.
CREATE TABLE nodes (key text PRIMARY KEY, tenant text, queue text, plan text, mode text, parents text[], job bigint);
CREATE INDEX ON nodes (job);
CREATE INDEX ON nodes USING gin (parents);
CREATE TABLE wants (flow text, tenant text, n bigint, part text, details jsonb, PRIMARY KEY (flow, n, part));
CREATE TABLE todo (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tenant text, at timestamptz, what text, details jsonb);
CREATE TABLE cancels (job bigint);
CREATE TABLE sent (tenant text, name text, payload jsonb, outcome text, first_payload jsonb, same_payload boolean);
CREATE TABLE published (tenant text, n bigint, topic text, expected text[], queue text, job bigint, outcome text);
CREATE TABLE requests (tenant text, key text, rev bigint, job bigint, outcome text, status text, attempt int, late interval);
CREATE TABLE debounced (tenant text, key text, PRIMARY KEY (tenant, key));
CREATE TABLE rights (tenant text PRIMARY KEY, allowed bool NOT NULL);
CREATE SEQUENCE numbers;

-- What was done.
CREATE TABLE claims (queue text, job bigint, token bigint, t0 timestamptz, t1 timestamptz, life timestamptz, worker text, PRIMARY KEY (job, token));
CREATE TABLE effects (seq bigint GENERATED ALWAYS AS IDENTITY, flow text, tenant text, n bigint, part text, job bigint, token bigint,
	value jsonb, missing text[], ended timestamptz);
CREATE INDEX ON effects (part) WHERE flow = 'graph';
CREATE TABLE deaths (flow text, part text, job bigint, missing text[]);
CREATE TABLE mended (key text PRIMARY KEY);
CREATE TABLE heard (job bigint, outcome text, payload jsonb);
CREATE TABLE admitted (t0 timestamptz, t1 timestamptz, life timestamptz);

-- Claims in the queues whose turns are judged: each try before it begins, in a transaction of its own; what it saw and
-- took, in the transaction of the claim.  A try of which there is no turn was rolled back, or is under way.
CREATE TABLE tries (try bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue text, slot int, begun timestamptz DEFAULT clock_timestamp());
CREATE TABLE turns (try bigint PRIMARY KEY, looked timestamptz, begun timestamptz, ended timestamptz, job bigint, name text, line_names text[], line_jobs bigint[], line_noted bool[]);

-- The world outside: companies that keep the key of a request.
CREATE TABLE bookings (key text PRIMARY KEY, n bigint, what text);
CREATE TABLE refusals (key text PRIMARY KEY);
CREATE TABLE undos (booking text, key text, PRIMARY KEY (booking, key));

-- What must never be seen.
CREATE TABLE excess (what text, at timestamptz DEFAULT clock_timestamp());
CREATE TABLE looks (at timestamptz DEFAULT clock_timestamp(), running int);

-- ---- What clients call

-- When this life of shared memory began: a crash of one session ends it, too.
CREATE FUNCTION life() RETURNS timestamptz LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
	AS $$ SELECT backend_start FROM pg_catalog.pg_stat_activity WHERE backend_type = 'checkpointer' $$;

-- Claims, and notes between which times it did.
CREATE FUNCTION take(queues text[], jobs int, worker text, attach bool) RETURNS SETOF idemq.claimed_queue_job LANGUAGE plpgsql AS $$
DECLARE
	job idemq.claimed_queue_job;
	t0 timestamptz := clock_timestamp();
BEGIN
	FOR job IN SELECT * FROM idemq.claim_any(queues, jobs, worker => worker, attach => attach) LOOP
		INSERT INTO claims VALUES (job.queue, job.id, job.token, t0, clock_timestamp(), CASE WHEN job.queue ~ 'limited' THEN life() END, worker);
		RETURN NEXT job;
	END LOOP;
END $$;

-- As take, one job of a queue, with the line before it: of each group the jobs that are promoted and not claimed.  A job is
-- noted when the end of the transaction that promoted it is over, its callbacks included: its lock goes after these.
CREATE FUNCTION take_turn(q text, this bigint, worker text, attach bool) RETURNS SETOF idemq.claimed_queue_job LANGUAGE plpgsql AS $$
DECLARE
	job idemq.claimed_queue_job;
	line record;
	looked timestamptz := clock_timestamp();
	t0 timestamptz;
BEGIN
	SELECT array_agg(group_key) AS names, array_agg(id) AS jobs,
		array_agg(xmin <> ALL (ARRAY(SELECT transactionid FROM pg_locks WHERE locktype = 'transactionid'))) AS noted INTO line
		FROM idemq.jobs WHERE queue_id = idemq.queue_id(q) AND status = 'pending' AND run_at IS NULL AND ready_at <= clock_timestamp();
	t0 := clock_timestamp();
	SELECT * INTO job FROM idemq.claim_any(ARRAY[q], 1, worker => worker, attach => attach);
	INSERT INTO turns VALUES (this, looked, t0, clock_timestamp(), job.id, CASE WHEN job.id IS NOT NULL THEN coalesce(job.group_key, '') END, line.names, line.jobs, line.noted);
	IF job.id IS NOT NULL THEN
		INSERT INTO claims VALUES (q, job.id, job.token, t0, clock_timestamp(), NULL, worker);
		RETURN NEXT job;
	END IF;
END $$;

-- A job more for a group, '' for none, of a queue whose turns are judged.
CREATE FUNCTION add_turn(q text, name text) RETURNS bigint LANGUAGE sql AS $$
	WITH want AS (INSERT INTO wants SELECT 'turns', 'turns', n, q || '.' || n, jsonb_build_object('group', name) FROM nextval('numbers') n RETURNING n, part)
	SELECT id FROM want, LATERAL idemq.enqueue(q, jsonb_build_object('tenant', 'turns', 'n', n, 'part', part), group_key => NULLIF(name, '')) $$;

-- The end of an attempt, and its effect.  missing: parents whose effects are not to be seen.
CREATE FUNCTION effect(flow text, tenant text, n bigint, part text, job bigint, job_token bigint, value jsonb, parents text[] DEFAULT '{}')
	RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	ended timestamptz := clock_timestamp();
BEGIN
	PERFORM idemq.commit(job, job_token, to_jsonb(part));
	INSERT INTO effects (flow, tenant, n, part, job, token, value, missing, ended)
		VALUES (flow, tenant, n, part, job, job_token, value, missing(parents), ended);
END $$;
CREATE FUNCTION missing(parents text[]) RETURNS text[] LANGUAGE sql AS
	$$ SELECT coalesce(array_agg(p), '{}') FROM unnest(parents) p WHERE NOT EXISTS (SELECT FROM effects e WHERE e.flow = 'graph' AND e.part = p) $$;

-- A company's answer to a request under a key: a request that comes too late is none.
CREATE FUNCTION book(booking text, n bigint, what text, until timestamptz, refuse bool) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_xact_lock(42, hashtext(booking));
	IF clock_timestamp() >= until THEN RETURN 'late'; END IF;
	IF refuse AND NOT EXISTS (SELECT FROM bookings WHERE key = booking) THEN
		INSERT INTO refusals VALUES (booking) ON CONFLICT DO NOTHING;
	END IF;
	IF EXISTS (SELECT FROM refusals WHERE key = booking) THEN RETURN 'refused'; END IF;
	INSERT INTO bookings VALUES (booking, n, what) ON CONFLICT DO NOTHING;
	RETURN 'booked';
END $$;
CREATE FUNCTION is_booked(booking text) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_xact_lock(42, hashtext(booking));
	RETURN EXISTS (SELECT FROM bookings WHERE key = booking);
END $$;

-- Brings back what holds up children that wait, with all that is in the way above them.
CREATE FUNCTION mend(share float8) RETURNS bigint LANGUAGE sql AS $$
	WITH RECURSIVE up AS (
		SELECT n.key, n.parents FROM nodes n JOIN idemq.jobs j ON j.id = n.job WHERE j.status = 'blocked' AND random() < share
		UNION SELECT p.key, p.parents FROM up JOIN nodes p ON p.key = ANY (up.parents)),
	gone AS (SELECT n.key, j.id FROM up JOIN nodes n USING (key) JOIN idemq.jobs j ON j.id = n.job WHERE j.status IN ('dead', 'cancelled')),
	noted AS (INSERT INTO mended SELECT key FROM gone ON CONFLICT DO NOTHING)
	SELECT count(*) FILTER (WHERE outcome = 'retrying') FROM (SELECT array_agg(id ORDER BY id) AS ids FROM gone) g, idemq.retry_many(ids) WHERE ids IS NOT NULL $$;

CREATE FUNCTION slow() RETURNS float8 LANGUAGE sql RETURN :slow;

-- alter_queue and ensure_queue change a queue's limits and times while the queue is in use.
CREATE FUNCTION alter_one(dice float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	q text := (SELECT name FROM idemq.queues WHERE name ~ '^t' ORDER BY random() LIMIT 1);
BEGIN
	IF q ~ 'grouped|permits' AND dice < 0.5 THEN
		PERFORM idemq.pause(q, clock_timestamp() + interval '200 ms', group_key => 'g' || (dice * 1000)::int % 3);
	ELSIF q ~ 'elastic' THEN
		IF dice < 0.5 THEN
			PERFORM idemq.ensure_queue(q, max_running => 2 + (dice * 1000)::int % 3);
		ELSE
			PERFORM idemq.alter_queue(q, max_running => 2 + (dice * 1000)::int % 3);
		END IF;
	ELSIF dice < 0.2 THEN
		PERFORM idemq.pause(q, clock_timestamp() + interval '200 ms');
	ELSIF dice < 0.6 THEN
		PERFORM idemq.alter_queue(q, lease => make_interval(secs => (0.8 + dice) * slow()), retry_base => '2 ms');
	ELSE
		PERFORM idemq.ensure_queue(q, retry_max => '20 ms', retry_jitter => dice, max_lease => '1 h');
	END IF;
END $$;

-- Takes from a role what its binding needs, or gives it back; publishers lock the row of rights.
CREATE FUNCTION toggle(t text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	now_allowed bool;
BEGIN
	UPDATE rights SET allowed = NOT allowed WHERE tenant = t RETURNING allowed INTO now_allowed;
	IF now_allowed THEN
		PERFORM idemq.grant_queue(t || '.fan4', t::regrole, 'enqueue');
	ELSE
		PERFORM idemq.revoke_queue(t || '.fan4', t::regrole, 'enqueue');
	END IF;
END $$;

-- ---- Tenants: roles that may use their own queues alone

SELECT set_config('flows.tenants', :'tenants', false);
DO $$
DECLARE
	t text;
	q text;
BEGIN
	FOR i IN 0 .. current_setting('flows.tenants')::int - 1 LOOP
		t := 't' || i;
		EXECUTE format('CREATE ROLE %I LOGIN', t);
		FOREACH q IN ARRAY '{graph,graph2,brief,events,fan1,fan2,fan3,fan4,seq,debounce,kinds,undo,trips,limited,elastic,grouped,permits}'::text[] LOOP
			PERFORM idemq.create_queue(t || '.' || q, lease => make_interval(secs => slow()), retry_base => '1 ms', retry_max => '20 ms', max_attempts => 1000000,
				retention => CASE WHEN q IN ('brief', 'seq') THEN '0' WHEN q IN ('graph', 'graph2', 'undo', 'trips') THEN '1 h' ELSE make_interval(secs => slow()) END,
				idempotency_window => CASE WHEN q IN ('graph', 'graph2', 'brief', 'seq', 'debounce', 'kinds') THEN make_interval(secs => slow()) ELSE '1 h' END,
				max_running => CASE q WHEN 'limited' THEN 3 WHEN 'elastic' THEN 4 END,
				group_max_running => CASE q WHEN 'permits' THEN 2 ELSE 1 END, group_rate_limit => CASE q WHEN 'permits' THEN 2 END,
				rate_limit => CASE q WHEN 'limited' THEN 6 END,
				dead_letter_queue => CASE q WHEN 'trips' THEN t || '.undo' END, dead_letter_cancelled => q = 'trips');
			PERFORM idemq.grant_queue(t || '.' || q, t::regrole, 'enqueue'), idemq.grant_queue(t || '.' || q, t::regrole, 'claim');
		END LOOP;
		PERFORM idemq.create_topic(t), idemq.grant_topic(t, t::regrole, 'publish'), idemq.grant_topic(t, t::regrole, 'bind');
		EXECUTE format('SET LOCAL ROLE %I', t);
		PERFORM idemq.bind_topic(t || p.pattern, t || '.' || p.queue) FROM (VALUES ('.#', 'fan1'), ('.*.x', 'fan2'), ('.a.#', 'fan3'), ('.#.x', 'fan3'), ('.*.*', 'fan4')) p (pattern, queue);
		RESET ROLE;
		INSERT INTO rights VALUES (t, true);
		INSERT INTO debounced SELECT t, 'd' || d FROM generate_series(0, 3) d;
		EXECUTE format('GRANT ALL ON ALL TABLES IN SCHEMA public TO %I', t);
		EXECUTE format('GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO %I', t);
		EXECUTE format('GRANT EXECUTE ON FUNCTION idemq.admit TO %I', t);
	END LOOP;
END $$;

-- ---- Queues whose turns are judged: a few tenants of very different sizes, each with jobs that wait all the time

SELECT idemq.create_queue(q, group_max_running => 4, lease => make_interval(secs => slow()), retry_base => '1 ms', retry_max => '20 ms', max_attempts => 1000000, retention => make_interval(secs => slow()))
	FROM unnest('{turns.single,turns.pair}'::text[]) q;
SELECT count(add_turn(q, name)) FROM unnest('{turns.single,turns.pair}'::text[]) q,
	(VALUES (1, 'whale', 100), (2, 'cow', 20), (3, 'cat', 6), (4, 'dog', 6), (5, '', 6)) g (place, name, jobs), generate_series(1, jobs) n;
