-- The kind of a job: a label by which a worker chooses what to do.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', retry_jitter => 0, lease => '1 h', max_attempts => 2);
SELECT idemq.create_queue('dead');
CREATE VIEW row AS SELECT status, key, kind, payload, rerun_kind FROM idemq.jobs ORDER BY id;

-- Every way to claim shows it, and none stands in the place of another column.
SELECT outcome FROM idemq.enqueue('q', '1', kind => 'mail');
SELECT outcome FROM idemq.enqueue('q', '2', headers => '"h"');
SELECT payload, headers, kind FROM idemq.claim('q', 2);
SELECT outcome, payload, headers, kind FROM idemq.commit_many_and_claim(array(SELECT id FROM idemq.jobs), array(SELECT token FROM idemq.jobs), queue => 'q');
SELECT outcome FROM idemq.enqueue('q', '3', kind => 'mail', headers => '"h"');
SELECT payload, headers, queue, kind FROM idemq.claim_any('{dead,q}');
SELECT outcome FROM idemq.enqueue('q', '4', kind => 'pdf', headers => '"h"');
SELECT payload, headers, kind FROM idemq.commit_and_claim((SELECT id FROM idemq.jobs WHERE status = 'running'), (SELECT token FROM idemq.jobs WHERE status = 'running'));
SELECT outcome, payload, headers, kind FROM idemq.commit_many_and_claim(array(SELECT id FROM idemq.jobs WHERE status = 'running'), array(SELECT token FROM idemq.jobs WHERE status = 'running'), queue => 'q');
SELECT (e).id FROM idemq.enqueue('q', '5', kind => 'pdf') e \gset
SELECT outcome, payload, result, retry_after, kind FROM idemq.claim_job(:id);
SELECT outcome, payload, result, retry_after IS NOT NULL AS later, kind FROM idemq.claim_job(:id);
SELECT idemq.commit(id, token, '"done"') FROM idemq.jobs WHERE id = :id;
SELECT outcome, payload, result, retry_after, kind FROM idemq.claim_job(:id);
SELECT outcome, payload, kind FROM idemq.acquire('q', 'k', '6');
SELECT kind, queue FROM idemq.current_job();
SELECT idemq.purge('q');
DELETE FROM idemq.jobs;

-- Many; by CALL; of a length.
SELECT ord, outcome FROM idemq.enqueue_many('q', '{1,2,3}', keys => '{a,b,NULL}', kinds => '{mail,NULL,pdf}') ORDER BY ord;
SELECT * FROM row;
CALL idemq.enqueue_job('q', '4', kind => 'call', id => 0);
SELECT kind FROM idemq.jobs WHERE payload = '4';
SELECT idemq.enqueue('q', '1', kind => '');
SELECT idemq.enqueue('q', '1', kind => repeat('x', 65));
SELECT idemq.enqueue_many('q', '{1,2}', kinds => '{mail}');
SELECT idemq.enqueue_many('q', '{1,2}', kinds => ARRAY['mail', repeat('x', 65)]);
SELECT outcome FROM idemq.enqueue('q', '5', kind => repeat('ü', 32));
SELECT payload, length(kind) FROM idemq.claim('q', 10);
SELECT idemq.purge('q');
DELETE FROM idemq.jobs;

-- A key is of one kind; a request that names none is of any.
SELECT outcome FROM idemq.enqueue('q', '1', key => 'k', kind => 'mail');
SELECT outcome FROM idemq.enqueue('q', '1', key => 'k', kind => 'mail');
SELECT outcome FROM idemq.enqueue('q', '1', key => 'k');
SELECT outcome FROM idemq.enqueue('q', '1', key => 'k', kind => 'pdf');
\set VERBOSITY default
SELECT outcome FROM idemq.enqueue('q', '1', key => 'k', kind => 'pdf');
\set VERBOSITY sqlstate
SELECT outcome FROM idemq.enqueue('q', '2', key => 'k', kind => 'mail');
SELECT outcome FROM idemq.enqueue('q', '1', key => 'k', kind => 'pdf', on_duplicate => 'ignore');
SELECT outcome FROM idemq.enqueue('q', '1', key => 'none');
SELECT outcome FROM idemq.enqueue('q', '1', key => 'none', kind => 'mail');
SELECT * FROM row;

-- It goes with the payload: replaced, waiting or blocked or retrying; asked for while it runs, and served.
SELECT outcome FROM idemq.enqueue('q', '2', key => 'k', kind => 'pdf', on_duplicate => 'replace');
SELECT outcome FROM idemq.enqueue('q', '2', key => 'none', on_duplicate => 'replace', kind => 'sms');
SELECT * FROM row;
SELECT outcome FROM idemq.enqueue('q', '3', key => 'none', on_duplicate => 'replace');
DELETE FROM idemq.jobs WHERE key = 'k';
SELECT * FROM row;
SELECT id, token FROM idemq.claim('q') \gset
SELECT outcome FROM idemq.enqueue('q', '4', key => 'none', kind => 'pdf', on_duplicate => 'rerun');
SELECT * FROM row;
SELECT idemq.commit(:id, :token);
SELECT * FROM row;
SELECT id, token FROM idemq.claim('q') \gset
SELECT outcome FROM idemq.enqueue('q', '5', key => 'none', kind => 'sms', on_duplicate => 'rerun');
SELECT outcome FROM idemq.enqueue('q', '6', key => 'none', on_duplicate => 'rerun');
SELECT idemq.fail(:id, :token, 'no', retry_in => '0');
SELECT * FROM row;
SELECT outcome FROM idemq.enqueue('q', '7', key => 'none', kind => 'mail', on_duplicate => 'rerun');
SELECT * FROM row;
SELECT idemq.commit(id, token) FROM idemq.claim('q');
SELECT outcome FROM idemq.enqueue('q', '8', key => 'none', kind => 'sms', on_duplicate => 'rerun');
SELECT * FROM row;
SELECT idemq.cancel(id) FROM idemq.jobs;
SELECT outcome FROM idemq.enqueue('q', '1', key => 'g', kind => 'mail', group_key => 'g');
SELECT outcome FROM idemq.enqueue('q', '2', key => 'g', kind => 'pdf', group_key => 'g', on_duplicate => 'replace');
SELECT * FROM row;
SELECT payload, kind FROM idemq.claim('q');
DELETE FROM idemq.jobs;

-- For people: a job, an error, what was decided; a schedule; a dead-letter record, and its job.
SELECT idemq.alter_queue('q', dead_letter_queue => 'dead');
SELECT outcome FROM idemq.enqueue('q', '1', kind => 'mail');
SELECT outcome FROM idemq.enqueue('q', '2', kind => 'pdf');
SELECT outcome FROM idemq.enqueue('q', '3');
SELECT idemq.fail(id, token, 'order 42 has no address', permanent => true) FROM idemq.claim('q', 2);
SELECT payload, kind FROM idemq.job_list WHERE queue = 'q' ORDER BY id;
SELECT queue, error, jobs, kinds FROM idemq.errors;
SELECT payload ->> 'id' IS NOT NULL AS id, payload -> 'kind' AS of, kind FROM idemq.job_list WHERE queue = 'dead' ORDER BY id;
SELECT idemq.retry(id), idemq.reschedule(id, run_at => 'tomorrow', priority => 3), idemq.cancel(id) FROM idemq.jobs WHERE payload = '1';
SELECT idemq.cancel(id) FROM idemq.jobs WHERE payload = '3';
SELECT action, details ->> 'kind' AS kind, (SELECT count(*) FROM jsonb_object_keys(details)) AS members FROM idemq.audit WHERE job_id IS NOT NULL ORDER BY id;
CALL idemq.tick();
SELECT idemq.schedule('nightly', '0 0 1 1 *', 'q', '9', kind => 'report') > now() AS soon;
SELECT idemq.schedule('nightly', '0 0 1 1 *', 'q', '9', kind => repeat('x', 65));
SELECT kind FROM idemq.schedules;
SELECT idemq.run_schedule_now('nightly') AS id \gset
SELECT kind, headers ->> 'schedule' AS schedule FROM idemq.job(:id);
SELECT idemq.schedule('nightly', '0 0 1 1 *', 'q', '9') > now() AS soon;
SELECT kind FROM idemq.schedules;
SELECT idemq.run_schedule_now('nightly') AS id \gset
SELECT kind FROM idemq.job(:id);

-- Written the long way as well.
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';
CREATE TRIGGER own BEFORE INSERT OR UPDATE ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION nothing();
DELETE FROM idemq.jobs;
SELECT outcome FROM idemq.enqueue('q', '1', key => 'k', kind => 'mail');
SELECT outcome FROM idemq.enqueue('q', '2', key => 'k', kind => 'pdf', on_duplicate => 'replace');
SELECT id, token, kind FROM idemq.claim('q') \gset
SELECT outcome FROM idemq.enqueue('q', '3', key => 'k', kind => 'sms', on_duplicate => 'rerun');
SELECT :'kind' AS claimed, kind, rerun_kind FROM idemq.jobs;
SELECT idemq.commit(:id, :token);
SELECT * FROM row;
SELECT * FROM idemq.check();
DROP EXTENSION idemq CASCADE;
DROP FUNCTION nothing;
