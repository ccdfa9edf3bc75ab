-- pause until a time: the clock alone resumes the queue; who says so; what is refused.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q') > 0 AS created;
SELECT id AS j FROM idemq.enqueue('q', '1', key => 'k') \gset
CREATE VIEW state AS SELECT q.paused, q.paused_until - clock_timestamp() BETWEEN '59 min' AND '61 min' AS in_an_hour,
	m.paused AS metrics, m.paused_until = q.paused_until AS until FROM idemq.queues q JOIN idemq.metrics m USING (queue_id) WHERE q.name = 'q';

SELECT idemq.pause('q', clock_timestamp() + '1 h');
SELECT * FROM state;
SELECT (SELECT count(*) FROM idemq.claim('q')), (SELECT count(*) FROM idemq.claim_any('{q}')), idemq.commit_once(:j);
SELECT outcome, retry_after = paused_until AS until FROM idemq.claim_job(:j), idemq.queues WHERE name = 'q';
SELECT regexp_replace(idemq.why(:j), 'until [^:]*\d\d:\d\d:\d\d[^:]*:', 'until TIME:') AS why;
-- Another replaces it, with or without a time; resume ends each.
SELECT idemq.pause('q');
SELECT * FROM state;
SELECT idemq.why(:j);
SELECT idemq.pause('q', 'infinity');
SELECT paused, paused_until FROM idemq.queues WHERE name = 'q';
SELECT idemq.pause('q', clock_timestamp() + '1 h');
SELECT idemq.resume('q');
SELECT * FROM state;
BEGIN;
SELECT idemq.pause('q', clock_timestamp() + '1 h');
SELECT count(*) FROM idemq.claim('q');
ROLLBACK;
SELECT * FROM state;

-- At its time it is over: for claims of all kinds, why and metrics; here no worker writes the row.
SELECT idemq.pause('q', clock_timestamp() + '150 ms'); -- meant to expire
SELECT pg_sleep(0.2);
SELECT * FROM state;
SELECT idemq.why(:j) ~ 'paused' AS paused;
SELECT outcome, idemq.release(id, token) FROM idemq.claim_job(:j);
SELECT outcome FROM idemq.acquire('q', 'k', '1');
SELECT idemq.resume('q');
SELECT * FROM state;

SELECT idemq.pause('q', now() - interval '1 min');
SELECT idemq.pause('q', '-infinity');
SELECT idemq.pause(NULL, now());
SELECT idemq.pause('nope', now() + interval '1 h');
BEGIN READ ONLY;
SELECT idemq.pause('q', now() + interval '1 h');
ROLLBACK;
-- It is no setting: alter_queue neither changes nor shows it.
SELECT idemq.pause('q', clock_timestamp() + '1 h');
SELECT idemq.alter_queue('q', max_attempts => 7);
SELECT * FROM state;
SELECT action, details ? 'until' AS until, details - 'until' AS rest FROM idemq.audit WHERE action <> 'create_queue' ORDER BY id;
SELECT * FROM idemq.check();
DROP VIEW state;
SELECT idemq.drop_queue('q', true);
DROP EXTENSION idemq;
