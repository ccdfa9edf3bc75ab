-- 10,000 jobs, claimed and committed in batches of 100: every job exactly once.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
SELECT idemq.create_queue('q', lease => '1 h', retry_jitter => 0) AS q \gset
CREATE TABLE effects (job bigint, attempt int);
SELECT count(*), count(DISTINCT id), min(outcome), max(outcome)
FROM idemq.enqueue_many('q', (SELECT array_agg(jsonb_build_object('n', g) ORDER BY g) FROM generate_series(1, 10000) g),
	priorities => (SELECT array_agg(g % 10 ORDER BY g) FROM generate_series(1, 10000) g));

-- A worker: claim in one transaction, commit and effects in the next; on its way it
-- fails some, releases some, loses some and rolls some back.
CREATE PROCEDURE work(batch int) LANGUAGE plpgsql AS $$
DECLARE
	ids bigint[];
	tokens bigint[];
	n int := 0;
BEGIN
	LOOP
		SELECT array_agg(id), array_agg(token) INTO ids, tokens FROM idemq.claim('q', batch);
		EXIT WHEN ids IS NULL;
		COMMIT;
		n := n + 1;
		CASE n % 10
			WHEN 1 THEN PERFORM idemq.fail_many(ids[1:10], tokens[1:10], retry_in => '0');
			WHEN 2 THEN PERFORM idemq.release(ids[i], tokens[i]) FROM generate_subscripts(ids, 1) i;
			WHEN 3 THEN
				INSERT INTO effects SELECT id, 0 FROM idemq.commit_many(ids, tokens) WHERE outcome = 'committed';
				ROLLBACK;
			WHEN 4 THEN
				PERFORM idemq.heartbeat_many(ids[1:20], tokens[1:20], '1 us');
				COMMIT;
				PERFORM pg_sleep(0.001);
				PERFORM idemq.reap('q');
			ELSE NULL;
		END CASE;
		COMMIT;
		INSERT INTO effects SELECT c.id, j.attempt FROM idemq.commit_many(ids, tokens) c JOIN idemq.jobs j USING (id) WHERE outcome = 'committed';
		COMMIT;
	END LOOP;
END $$;
CALL work(100);

SELECT count(*) AS effects, count(DISTINCT job) AS jobs FROM effects;
SELECT status, count(*), count(DISTINCT token) AS tokens FROM idemq.jobs GROUP BY 1;
SELECT count(*) AS of_the_same_attempt FROM effects JOIN idemq.jobs ON id = job AND jobs.attempt = effects.attempt;
SELECT outcome, count(*) > 0 AS some FROM idemq.attempts GROUP BY 1 ORDER BY 1;
-- Each attempt either committed or is told of, released ones aside.
SELECT sum(attempt) = 10000 + (SELECT count(*) FROM idemq.attempts WHERE outcome <> 'released') AS adds_up FROM idemq.jobs;
SELECT count(*) FROM idemq.jobs WHERE ready_at IS NOT NULL OR finished_at IS NULL;
SELECT count(*) FROM idemq.claim('q', 100);
-- The indexes agree with the table.
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SELECT count(*) FROM idemq.jobs WHERE queue_id = :q AND priority = 3 AND ready_at IS NOT NULL;
SELECT count(*) FROM idemq.jobs WHERE finished_at > '2001-01-01';
SELECT count(*) FROM idemq.jobs WHERE id BETWEEN 1000000000001 AND 1000000010000;
RESET enable_seqscan;
RESET enable_bitmapscan;

-- One at a time, with the claim and the commit in one transaction: 1,000 more, behind 10,000 dead index entries.
SELECT count(idemq.enqueue('q', to_jsonb(g))) FROM generate_series(1, 1000) g;
DO $$
DECLARE
	c record;
BEGIN
	LOOP
		SELECT * INTO c FROM idemq.claim('q');
		EXIT WHEN NOT FOUND;
		PERFORM idemq.commit(c.id, c.token);
		INSERT INTO effects VALUES (c.id, c.attempt);
	END LOOP;
END $$;
SELECT count(*) AS effects, count(DISTINCT job) AS jobs FROM effects;
SELECT idemq.purge('q', 'completed');
SELECT (SELECT count(*) FROM idemq.jobs) AS jobs, (SELECT count(*) FROM idemq.attempts) AS attempts;
