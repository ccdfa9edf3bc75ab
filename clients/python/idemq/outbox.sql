-- The outbox of a database without idemq: one INSERT enqueues a job, and idemq-relay moves it to the server
-- with idemq.  Requires PostgreSQL 13 or later, but no superuser and no extension.  You can run it again: it keeps existing objects.
CREATE SCHEMA IF NOT EXISTS idemq_outbox;

-- The key ensures that a row becomes one job, however often it is sent.  It is random, because a sequence can repeat values after
-- a failover or a restore to an earlier time, and a row with the key of an earlier row would be lost.
CREATE TABLE IF NOT EXISTS idemq_outbox.jobs (
	id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	queue        text NOT NULL,
	payload      jsonb NOT NULL,
	key          text NOT NULL DEFAULT gen_random_uuid()::text,
	kind         text,
	priority     int,
	run_at       timestamptz,
	expires_at   timestamptz,
	group_key    text,
	max_attempts int,
	headers      jsonb,
	key_ttl      interval,
	on_duplicate text NOT NULL DEFAULT 'keep' CHECK (on_duplicate IN ('keep', 'ignore')),
	reply        boolean NOT NULL DEFAULT false,
	created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
	sent_at      timestamptz,
	job_id       bigint,
	finished_at  timestamptz,
	status       text,
	result       jsonb,
	error        text
);
-- Its order: the rows to send, by id, and then the sent rows, the oldest first.
CREATE INDEX IF NOT EXISTS jobs_sent_at ON idemq_outbox.jobs (sent_at NULLS FIRST, id);

COMMENT ON TABLE idemq_outbox.jobs IS 'jobs for a server with idemq. To enqueue a job, insert a row with queue, payload and any other arguments of idemq.enqueue. idemq-relay may send a row more than once, but each row becomes at most one job.';
COMMENT ON COLUMN idemq_outbox.jobs.key IS 'key of the job in its queue, random by default';
COMMENT ON COLUMN idemq_outbox.jobs.on_duplicate IS 'keep or ignore, as for idemq.enqueue. No other value is allowed, because its action would be repeated if the row is sent again.';
COMMENT ON COLUMN idemq_outbox.jobs.reply IS 'whether finished_at, status and result are written back to this row when the job finishes';
COMMENT ON COLUMN idemq_outbox.jobs.sent_at IS 'when the job was added to idemq or refused. NULL means that the row has not been sent yet.';
COMMENT ON COLUMN idemq_outbox.jobs.job_id IS 'id of the job in idemq. If the key was already in use, this is the id of the existing job.';
COMMENT ON COLUMN idemq_outbox.jobs.status IS 'refused if the job was refused. Otherwise, if reply is set, this is the final status of the job: completed, dead or cancelled.';
COMMENT ON COLUMN idemq_outbox.jobs.error IS 'why the job was refused, became dead or was cancelled';

-- Wakes the relay.  Without it, the relay finds a row within a second.
CREATE OR REPLACE FUNCTION idemq_outbox.wake_relay() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_catalog.pg_notify('idemq_outbox', '');
	RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS wake_relay ON idemq_outbox.jobs;
CREATE TRIGGER wake_relay AFTER INSERT ON idemq_outbox.jobs
	FOR EACH STATEMENT EXECUTE FUNCTION idemq_outbox.wake_relay();
