-- The outbox of a database that has no idemq: one INSERT enqueues a job, and idemq-relay moves it to the server
-- that has.  PostgreSQL 13 or later, no superuser, no extension.  It may run again: what is there stays.
CREATE SCHEMA IF NOT EXISTS idemq_outbox;

-- The key is what makes a row one job, however often it is sent.  It is random: a sequence is given out anew after
-- a failover or a restore to an earlier time, and a key that was another row's would lose this one.
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
-- In its order: what is to be sent, by id; then what was sent, the oldest first.
CREATE INDEX IF NOT EXISTS jobs_sent_at ON idemq_outbox.jobs (sent_at NULLS FIRST, id);

COMMENT ON TABLE idemq_outbox.jobs IS 'jobs for idemq on another server: insert queue and payload, and any other arguments of idemq.enqueue; idemq-relay sends each row once';
COMMENT ON COLUMN idemq_outbox.jobs.key IS 'key of the job in its queue; by default a random one';
COMMENT ON COLUMN idemq_outbox.jobs.on_duplicate IS 'keep or ignore, as for idemq.enqueue; other values would repeat their action when a row is sent again';
COMMENT ON COLUMN idemq_outbox.jobs.reply IS 'whether finished_at, status and result are written back to this row when the job finishes';
COMMENT ON COLUMN idemq_outbox.jobs.sent_at IS 'when the job was added to idemq or refused; NULL means that it is still to be sent';
COMMENT ON COLUMN idemq_outbox.jobs.job_id IS 'id of the job in idemq; if the key was taken, the id of the existing job';
COMMENT ON COLUMN idemq_outbox.jobs.status IS 'refused, or if reply is set: completed, dead or cancelled';
COMMENT ON COLUMN idemq_outbox.jobs.error IS 'why the job was refused, became dead or was cancelled';

-- Wakes the relay.  Without it a row is found within a second.
CREATE OR REPLACE FUNCTION idemq_outbox.wake_relay() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_catalog.pg_notify('idemq_outbox', '');
	RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS wake_relay ON idemq_outbox.jobs;
CREATE TRIGGER wake_relay AFTER INSERT ON idemq_outbox.jobs
	FOR EACH STATEMENT EXECUTE FUNCTION idemq_outbox.wake_relay();
