-- check(): an entry that a search has made, and whose row has another token, is reported when nobody takes it back.
-- slow: check() waits for ten seconds whether the search goes on
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
SELECT idemq.create_queue('q', lease => '1 h', max_attempts => 3) > 0 AS created;
SELECT idemq.enqueue('q', '1');
-- A row of a running job that no session has claimed, and of which nobody is told: claim_job makes its entry.
ALTER TABLE idemq.jobs DISABLE TRIGGER idemq_jobs_changed;
UPDATE idemq.jobs SET status = 'running', attempt = 1, token = 7, claimed_at = now(), deadline = now() + interval '1 h';
ALTER TABLE idemq.jobs ENABLE ALWAYS TRIGGER idemq_jobs_changed;
SELECT idemq.recount() AS counted;
SELECT outcome FROM idemq.claim_job(1000000000001);
SELECT count(*) FROM idemq.claim('q');
SELECT * FROM idemq.check();
-- A row whose token is not its lease's: both sides say so.
ALTER TABLE idemq.jobs DISABLE TRIGGER idemq_jobs_changed;
UPDATE idemq.jobs SET token = 8 WHERE id = 1000000000001;
ALTER TABLE idemq.jobs ENABLE ALWAYS TRIGGER idemq_jobs_changed;
SELECT invariant, detail FROM idemq.check();
ALTER TABLE idemq.jobs DISABLE TRIGGER idemq_jobs_changed;
UPDATE idemq.jobs SET token = 7 WHERE id = 1000000000001;
ALTER TABLE idemq.jobs ENABLE ALWAYS TRIGGER idemq_jobs_changed;
SELECT * FROM idemq.check();
