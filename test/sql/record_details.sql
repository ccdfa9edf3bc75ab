-- record_details: rows of idemq.attempts for attempts that have completed their jobs, and who may read them.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
SELECT idemq.create_queue('q') > 0 AS made, idemq.create_queue('gone', retention => '0') > 0 AS made;
CREATE FUNCTION attempts_of(text) RETURNS TABLE (outcome text, details jsonb, flagged boolean, ended boolean) LANGUAGE sql AS $$
	SELECT a.outcome, a.details, j.flags & 8 <> 0, a.ended_at = j.finished_at FROM idemq.attempts a JOIN idemq.jobs j ON j.id = a.job_id WHERE j.key = $1 $$;

-- In the transaction that completes the job, and later; again replaces them.
SELECT id FROM idemq.enqueue('q', '1', key => 'a') \gset
SELECT token FROM idemq.claim_job(:id) \gset
SELECT idemq.record_details(ARRAY[:id], ARRAY[:token], ARRAY['{"log": "too early"}'::jsonb]);
BEGIN;
SELECT idemq.commit(:id, :token, '"done"');
SELECT idemq.record_details(ARRAY[:id], ARRAY[:token], ARRAY['{"log": "one"}'::jsonb]);
COMMIT;
SELECT * FROM attempts_of('a');
SELECT idemq.record_details(ARRAY[:id, NULL], ARRAY[:token, 1], ARRAY['{}', '{}']::jsonb[]);
SELECT idemq.record_details(ARRAY[:id, :id], ARRAY[:token, :token], ARRAY['{"log": "two"}', '{"log": "three"}']::jsonb[]);
SELECT idemq.record_details(ARRAY[:id], ARRAY[:token], ARRAY[NULL]::jsonb[]);
SELECT idemq.record_details(ARRAY[:id], ARRAY[:token + 1], ARRAY['{}']::jsonb[]);
SELECT * FROM attempts_of('a');
-- A repeated commit still says that it was committed, and a rollback leaves nothing.
SELECT idemq.try_commit(:id, :token);
BEGIN;
SELECT idemq.record_details(ARRAY[:id], ARRAY[:token], ARRAY['{"log": "undone"}'::jsonb]);
ROLLBACK;
SELECT * FROM attempts_of('a');
SELECT idemq.record_details(ARRAY[:id], NULL, '{}');
SELECT idemq.record_details(ARRAY[:id], ARRAY[:token], NULL);
SELECT idemq.record_details(ARRAY[:id], ARRAY[:token], '{}');
-- The job runs again: its row of the commit contains the result, and takes no more details.
SELECT outcome FROM idemq.enqueue('q', '1', key => 'a', on_duplicate => 'rerun');
SELECT idemq.record_details(ARRAY[:id], ARRAY[:token], ARRAY['{"log": "late"}'::jsonb]);
SELECT outcome, details FROM attempts_of('a');
SELECT idemq.try_commit(:id, :token);

-- A job that is not kept, and one that has failed.
SELECT id FROM idemq.enqueue('gone', '1') \gset
SELECT token FROM idemq.claim_job(:id) \gset
SELECT idemq.commit(:id, :token);
SELECT idemq.record_details(ARRAY[:id], ARRAY[:token], ARRAY['{}'::jsonb]);
SELECT id FROM idemq.enqueue('q', '1', key => 'b') \gset
SELECT token FROM idemq.claim_job(:id) \gset
SELECT idemq.fail(:id, :token, 'no', permanent => true, details => '{"log": "of a failure"}');
SELECT idemq.record_details(ARRAY[:id], ARRAY[:token], ARRAY['{}'::jsonb]);
SELECT outcome, details FROM attempts_of('b');

-- A dead-letter record has details that are short enough, or what is left of them without the log.
SELECT idemq.create_queue('letters') > 0 AS made, idemq.create_queue('dies', max_attempts => 1, dead_letter_queue => 'letters') > 0 AS made;
SELECT count(*) FROM (SELECT idemq.enqueue('dies', '1') FROM generate_series(1, 3)) e;
SELECT idemq.fail(c.id, c.token, 'no', details => d.details) FROM (SELECT *, row_number() OVER () FROM idemq.claim('dies', 3)) c
	JOIN (VALUES (1, '{"type": "E", "log": "short"}'::jsonb), (2, jsonb_build_object('type', 'E', 'log', repeat('x', 16000))),
	(3, jsonb_build_object('type', repeat('x', 16000), 'log', 'short'))) d (n, details) ON d.n = c.row_number;
SELECT a->'details' AS details FROM idemq.claim('letters', 3), jsonb_array_elements(payload->'attempts') a;

-- Only a worker of the queue stores them.  Who may not see the payload may not see them.
CREATE ROLE regress_details_worker;
CREATE ROLE regress_details_producer;
CREATE ROLE regress_details_other;
GRANT USAGE ON SCHEMA idemq TO regress_details_worker, regress_details_producer, regress_details_other;
SELECT idemq.create_queue('other') > 0 AS made;
SELECT idemq.grant_queue('q', 'regress_details_worker', 'claim'), idemq.grant_queue('q', 'regress_details_producer', 'enqueue'),
	idemq.grant_queue('other', 'regress_details_other', 'admin');
SELECT id FROM idemq.enqueue('q', '1', key => 'c') \gset
SELECT token FROM idemq.claim_job(:id) \gset
SELECT idemq.commit(:id, :token);
SET ROLE regress_details_producer;
SELECT idemq.record_details(ARRAY[:id], ARRAY[:token], ARRAY['{"log": "a stranger''s"}'::jsonb]);
SET ROLE regress_details_worker;
SELECT idemq.record_details(ARRAY[:id], ARRAY[:token], ARRAY['{"log": "of a worker"}'::jsonb]);
RESET ROLE;
CREATE FUNCTION seen() RETURNS TABLE (payloads bigint, logs bigint) LANGUAGE sql AS $$
	SELECT (SELECT count(payload) FROM idemq.jobs), (SELECT count(details) FROM idemq.attempts) $$;
SET ROLE regress_details_worker;
SELECT * FROM seen();
SET ROLE regress_details_producer;
SELECT * FROM seen();
SET ROLE regress_details_other;
SELECT * FROM seen();
SET ROLE pg_monitor;
SELECT count(*) FROM idemq.attempts;
RESET ROLE;
SELECT * FROM idemq.check() WHERE severity = 'error';
DROP OWNED BY regress_details_worker, regress_details_producer, regress_details_other;
DROP ROLE regress_details_worker, regress_details_producer, regress_details_other;
