-- Random calls in random transactions and savepoints, with some rolled back.
-- After each transaction: what a claim hands out is what the table says is ready,
-- in that order, and perhaps some whose lease is over; and who holds a job, holds it.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\if :{?seed}
\else
\set seed 0.15
\endif
SELECT setseed(:seed);
SELECT idemq.create_queue('q', lease => '1 h', retry_jitter => 0, max_attempts => 4);
SELECT idemq.create_queue('gone', lease => '1 h', retry_jitter => 0, retention => '0');
CREATE TABLE wrong (step int, what text, detail text);
CREATE TABLE done (call text);

CREATE FUNCTION pick(n int) RETURNS int LANGUAGE sql VOLATILE AS $$ SELECT floor(random() * n)::int $$;
CREATE FUNCTION some_queue() RETURNS text LANGUAGE sql VOLATILE AS $$ SELECT CASE WHEN random() < 0.7 THEN 'q' ELSE 'gone' END $$;

-- One random call.
CREATE FUNCTION call_something() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	call int := pick(19);
	job idemq.jobs;
	queue text := some_queue();
BEGIN
	-- A job to do it to: one that is running, more often than not.
	SELECT * INTO job FROM idemq.jobs WHERE call >= 5 AND (status = 'running') = (random() < 0.7) ORDER BY random() LIMIT 1;
	IF call >= 5 AND job.id IS NULL THEN
		RETURN 'nothing';
	END IF;
	CASE call
		WHEN 0, 1 THEN RETURN 'enqueue ' || (idemq.enqueue(queue, '1', priority => pick(3),
			run_at => CASE pick(4) WHEN 0 THEN '2001-01-01'::timestamptz + pick(1000) * interval '1 day' WHEN 1 THEN '2100-01-01' END)).outcome;
		WHEN 2 THEN RETURN 'enqueue with a key ' || (idemq.enqueue('q', '1', key => 'k' || pick(20), priority => pick(3),
			run_at => CASE pick(3) WHEN 0 THEN '2001-01-01' WHEN 1 THEN '2100-01-01' END::timestamptz,
			on_duplicate => CASE pick(2) WHEN 0 THEN 'keep' ELSE 'replace' END)).outcome;
		WHEN 3 THEN RETURN 'enqueue_many ' || (SELECT count(*) FROM idemq.enqueue_many(queue, '{1,1,1}', priorities => ARRAY[pick(3), pick(3), pick(3)]));
		WHEN 4 THEN RETURN 'claim ' || (SELECT count(*) > 0 FROM idemq.claim(queue, 1 + pick(4), lease => CASE pick(3) WHEN 0 THEN '1 us'::interval END));
		WHEN 5 THEN RETURN 'claim_job ' || (SELECT outcome FROM idemq.claim_job(job.id, lease => CASE pick(3) WHEN 0 THEN '1 us'::interval END));
		WHEN 6, 7 THEN RETURN 'try_commit ' || idemq.try_commit(job.id, job.token, '1');
		WHEN 8 THEN RETURN 'commit_many ' || (SELECT string_agg(DISTINCT outcome::text, ' ' ORDER BY outcome::text) FROM (SELECT array_agg(id) AS ids, array_agg(token) AS tokens
			FROM (SELECT * FROM idemq.jobs ORDER BY random() LIMIT 3) j) s, idemq.commit_many(ids, tokens));
		WHEN 9 THEN RETURN 'fail ' || idemq.fail(job.id, job.token, 'x', CASE pick(2) WHEN 0 THEN '0' ELSE '1 day' END::interval);
		WHEN 10 THEN RETURN 'fail for good ' || idemq.fail(job.id, job.token, 'x', permanent => true);
		WHEN 11 THEN RETURN 'release ' || idemq.release(job.id, job.token, CASE pick(3) WHEN 0 THEN '1 day' END::interval);
		WHEN 12 THEN RETURN 'cancel ' || idemq.cancel(job.id);
		WHEN 13 THEN RETURN 'retry ' || idemq.retry(job.id);
		WHEN 14 THEN RETURN 'commit_once ' || idemq.commit_once(job.id);
		WHEN 15 THEN PERFORM idemq.redrive(queue, 2); RETURN 'redrive';
		WHEN 16 THEN
			-- By hand.
			CASE pick(4)
				WHEN 0 THEN UPDATE idemq.jobs SET priority = pick(3) WHERE id = job.id;
				WHEN 1 THEN UPDATE idemq.jobs SET ready_at = '2001-01-01' WHERE id = job.id AND ready_at IS NOT NULL;
				WHEN 2 THEN DELETE FROM idemq.jobs WHERE id = job.id;
				ELSE UPDATE idemq.jobs SET status = 'pending', ready_at = coalesce(ready_at, now()), finished_at = NULL WHERE id = job.id;
			END CASE;
			RETURN 'by hand';
		WHEN 17 THEN RETURN 'reap ' || (idemq.reap() > 0);
		ELSE
			PERFORM FROM idemq.jobs WHERE id = job.id FOR SHARE;
			RETURN 'share ' || idemq.heartbeat(job.id, job.token);
	END CASE;
END $$;

-- Some calls, each perhaps in a savepoint, nested, perhaps rolled back.
CREATE FUNCTION call_some(depth int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 0 .. pick(3) LOOP
		IF depth < 3 AND random() < 0.4 THEN
			BEGIN
				PERFORM call_some(depth + 1);
				IF random() < 0.4 THEN
					RAISE SQLSTATE 'UNDO0';
				END IF;
			EXCEPTION WHEN SQLSTATE 'UNDO0' THEN NULL;
			END;
		ELSE
			INSERT INTO done SELECT call_something();
		END IF;
	END LOOP;
END $$;

-- Compares what idemq says with the table; undone.
CREATE FUNCTION check_all(step int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	over bigint[];
	ready bigint[];
	claimed bigint[];
	bad text;
BEGIN
	SELECT string_agg(id || ' ' || idemq.validate(id, token), ', ') INTO bad FROM idemq.jobs
	WHERE status = 'running' AND idemq.validate(id, token) NOT IN ('current', 'expired');
	IF bad IS NOT NULL THEN
		INSERT INTO wrong VALUES (step, 'not held', bad);
	END IF;
	SELECT string_agg(id || ' ' || idemq.heartbeat(id, token), ', ') INTO bad FROM idemq.jobs
	WHERE status <> 'running' AND idemq.heartbeat(id, token) = 'current';
	IF bad IS NOT NULL THEN
		INSERT INTO wrong VALUES (step, 'still held', bad);
	END IF;
	over := ARRAY(SELECT id FROM idemq.jobs WHERE status = 'running' AND idemq.validate(id, token) = 'expired');
	ready := ARRAY(SELECT id FROM idemq.jobs WHERE status IN ('pending', 'retrying') AND ready_at <= clock_timestamp() ORDER BY queue_id, priority, ready_at, id);
	BEGIN
		claimed := ARRAY(SELECT id FROM idemq.claim_any('{q,gone}', 1000000));
		RAISE SQLSTATE 'UNDO0';
	EXCEPTION WHEN SQLSTATE 'UNDO0' THEN NULL;
	END;
	IF ARRAY(SELECT id FROM unnest(claimed) WITH ORDINALITY u(id, ord) WHERE id <> ALL (over) ORDER BY ord) <> ready THEN
		INSERT INTO wrong VALUES (step, 'claimed', claimed::text || ' instead of ' || ready::text || ', over ' || over::text);
	END IF;
END $$;

CREATE PROCEDURE run(steps int) LANGUAGE plpgsql AS $$
BEGIN
	FOR step IN 1 .. steps LOOP
		PERFORM call_some(0);
		-- Inside the transaction, after it, and after its rollback.
		IF random() < 0.3 THEN
			PERFORM check_all(step);
		END IF;
		IF random() < 0.3 THEN
			ROLLBACK;
		ELSE
			COMMIT;
		END IF;
		IF random() < 0.5 THEN
			PERFORM check_all(step);
			IF random() < 0.5 THEN ROLLBACK; ELSE COMMIT; END IF;
		END IF;
		IF step % 100 = 0 THEN
			DELETE FROM idemq.jobs WHERE status NOT IN ('pending', 'running', 'retrying');
			DELETE FROM idemq.jobs WHERE id IN (SELECT id FROM idemq.jobs ORDER BY random() OFFSET 30);
		END IF;
		COMMIT;
	END LOOP;
END $$;
CALL run(1500);
SELECT * FROM wrong ORDER BY step LIMIT 5;
-- What is over is taken back, sooner or later.
DO $$
BEGIN
	FOR i IN 1 .. 500 LOOP
		PERFORM idemq.reap();
		EXIT WHEN NOT EXISTS (SELECT FROM idemq.jobs WHERE idemq.validate(id, token) = 'expired');
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;
SELECT count(*) FROM idemq.jobs WHERE idemq.validate(id, token) = 'expired';
-- It was not the same call all the time.
SELECT count(DISTINCT call) > 35 AS many_outcomes FROM done;
