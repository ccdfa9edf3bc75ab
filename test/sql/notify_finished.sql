-- notify_finished in one session, without a background worker: the setting, and finished jobs that nobody announces.
-- t/notify_finished.pl tests what is announced.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
SELECT idemq.create_queue('q', notify_finished => true) > 0 AS created, idemq.create_queue('off') > 0 AS created_off;
SELECT name, notify_finished, declared FROM idemq.queues ORDER BY 1;
-- NULL leaves the setting as it is in alter_queue, and is refused in create_queue.
SELECT idemq.alter_queue('q', lease => '1 min');
SELECT idemq.create_queue('null', notify_finished => NULL);
SELECT name, notify_finished FROM idemq.queues ORDER BY 1;
SELECT idemq.alter_queue('q', notify_finished => false), idemq.alter_queue('off', notify_finished => true);
SELECT name, notify_finished FROM idemq.queues ORDER BY 1;
-- A declaration.
SELECT outcome, changes FROM idemq.ensure_queue('q', notify_finished => true);
SELECT outcome, changes FROM idemq.ensure_queue('q', notify_finished => true);
SELECT outcome, changes FROM idemq.ensure_queue('off', exact => true);
SELECT name, notify_finished FROM idemq.queues ORDER BY 1;
-- Only admin may change it.
CREATE ROLE regress_worker;
SELECT idemq.grant_queue('q', 'regress_worker', 'enqueue'), idemq.grant_queue('q', 'regress_worker', 'claim');
SET ROLE regress_worker;
SELECT idemq.alter_queue('q', notify_finished => false);
RESET ROLE;
-- More jobs than the ring keeps, in one transaction and in a savepoint that is rolled back.  The session does not wait for
-- anybody, and does not send NOTIFY itself.
LISTEN "idemq_finished:q";
SELECT count(idemq.enqueue('q', '1')) FROM generate_series(1, 1000);
BEGIN;
SELECT count(idemq.commit(id, token)) FROM idemq.claim('q', 500);
SAVEPOINT s;
SELECT count(idemq.cancel(id)) FROM idemq.jobs WHERE status = 'pending';
ROLLBACK TO s;
COMMIT;
SELECT status, count(*) FROM idemq.jobs GROUP BY 1 ORDER BY 1;
SELECT count(idemq.cancel(id)) FROM idemq.jobs WHERE status = 'pending';
SELECT * FROM idemq.check();
SELECT idemq.drop_queue('q', force => true), idemq.drop_queue('off');
DROP ROLE regress_worker;
