-- Topic: Queues

-- Both take the settings in the order of src/queue/queue_settings.c.
CREATE FUNCTION idemq.create_queue(
	name text,
	lease interval DEFAULT '30 s',
	max_attempts int DEFAULT 20,
	retry_base interval DEFAULT '1 s',
	retry_factor float8 DEFAULT 2,
	retry_max interval DEFAULT '1 h',
	retry_jitter float8 DEFAULT 0.2,
	retention interval DEFAULT '1 day',
	idempotency_window interval DEFAULT '1 day',
	max_running int DEFAULT NULL,
	rate_limit int DEFAULT NULL,
	rate_period interval DEFAULT '1 s',
	dead_queue text DEFAULT NULL,
	dead_retention interval DEFAULT '30 days',
	max_lease interval DEFAULT '1 day',
	job_timeout interval DEFAULT NULL,
	dead_queue_cancelled boolean DEFAULT false,
	group_running int DEFAULT 1,
	group_rate int DEFAULT NULL,
	group_period interval DEFAULT '1 second')
	RETURNS int LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_create_queue';
COMMENT ON FUNCTION idemq.create_queue
	IS 'create a queue; returns its queue_id; the caller may then enqueue, claim and administer it; raises 42710 when there is one of that name
- name: [A-Za-z_][A-Za-z0-9_.-]*, up to 48 bytes
- max_running: so many jobs may be in processing at once; NULL: no limit
- rate_limit: so many claims may begin in rate_period; NULL: no limit
- max_lease: no claim or heartbeat may ask for a longer lease, and lease may not be longer
- job_timeout: an attempt may run so long, and heartbeats do not extend its lease beyond it
- dead_queue_cancelled: dead_queue also gets the jobs that are cancelled after an attempt has begun
- group_running: so many jobs of one group may be in processing at once; 1 for strict order
- group_rate: so many jobs of one group may start in group_period; NULL: no limit';

CREATE FUNCTION idemq.alter_queue(
	name text,
	lease interval DEFAULT NULL,
	max_attempts int DEFAULT NULL,
	retry_base interval DEFAULT NULL,
	retry_factor float8 DEFAULT NULL,
	retry_max interval DEFAULT NULL,
	retry_jitter float8 DEFAULT NULL,
	retention interval DEFAULT NULL,
	idempotency_window interval DEFAULT NULL,
	max_running int DEFAULT NULL,
	rate_limit int DEFAULT NULL,
	rate_period interval DEFAULT NULL,
	dead_queue text DEFAULT NULL,
	dead_retention interval DEFAULT NULL,
	max_lease interval DEFAULT NULL,
	job_timeout interval DEFAULT NULL,
	dead_queue_cancelled boolean DEFAULT NULL,
	group_running int DEFAULT NULL,
	group_rate int DEFAULT NULL,
	group_period interval DEFAULT NULL)
	RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_alter_queue';
COMMENT ON FUNCTION idemq.alter_queue
	IS 'change a queue''s settings from the next call on; NULL leaves one as it is, 0 takes max_running, rate_limit, group_rate or job_timeout away, and '''' dead_queue; jobs already enqueued keep their max_attempts, and jobs in processing their leases; raises 22023 when lease would be longer than max_lease; needs admin';

CREATE FUNCTION idemq.drop_queue(name text, force boolean DEFAULT false)
	RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_drop_queue';
COMMENT ON FUNCTION idemq.drop_queue(text, boolean)
	IS 'drop a queue with its jobs; raises 55006 while it has unfinished jobs, and 2BP01 when it is another''s dead_queue, unless force; needs admin';

CREATE FUNCTION idemq.pause(name text, until timestamptz DEFAULT NULL) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_pause';
COMMENT ON FUNCTION idemq.pause(text, timestamptz)
	IS 'let a queue accept jobs but hand out none, until idemq.resume, or until a time, when it resumes by itself; a second pause replaces the first; raises 22023 for a time that is over; needs admin';

CREATE FUNCTION idemq.resume(name text) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_resume';
COMMENT ON FUNCTION idemq.resume(text) IS 'let a paused queue hand out jobs again, and wake the sessions that wait for them; needs admin';

CREATE FUNCTION idemq.purge(name text, status idemq.status DEFAULT NULL) RETURNS bigint
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_purge';
COMMENT ON FUNCTION idemq.purge(text, idemq.status)
	IS 'delete a queue''s jobs of one status, or all but those in processing, whatever their age, and with them their keys; returns how many; a job that another open transaction holds stays; needs admin';

CREATE FUNCTION idemq.apply_retention(max_jobs int DEFAULT 100000) RETURNS bigint
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_apply_retention';
COMMENT ON FUNCTION idemq.apply_retention(int)
	IS 'delete finished jobs of all queues past their retention, with their attempts, what idemq.once need not remember, events whose time is over, and old rows of idemq.audit: what the background worker does by itself; visits all jobs once; returns how many went, max_jobs at most, by id';

CREATE FUNCTION idemq.clock_corrected() RETURNS bigint
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_clock_corrected';
COMMENT ON FUNCTION idemq.clock_corrected()
	IS 'after the server''s clock had jumped ahead and was corrected: make jobs become due by the corrected clock at once; returns how many jobs it corrected
- The time by which jobs become due is set back for the whole server.
- The jobs of this database that were written meanwhile are corrected, so that they wait no longer than they would have.
- Call it again until it answers 0: a job that another open transaction holds is left as it is.';

CREATE FUNCTION idemq.grant_queue(name text, role regrole, privilege text) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_grant_queue';
COMMENT ON FUNCTION idemq.grant_queue(text, regrole, text)
	IS 'let a role enqueue to, claim from or administer (enqueue | claim | admin) a queue; needs admin';

CREATE FUNCTION idemq.revoke_queue(name text, role regrole, privilege text) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_revoke_queue';
COMMENT ON FUNCTION idemq.revoke_queue(text, regrole, text) IS 'take back what idemq.grant_queue gave; it ends at once, and says so: the role''s schedules, its handler and its topic bindings of the queue, and the queue as dead_queue of others, if that role set it; needs admin';

CREATE FUNCTION idemq.queue_id(queue text) RETURNS int
	STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_queue_id';
COMMENT ON FUNCTION idemq.queue_id(text) IS 'a queue''s id, as in idemq.jobs; raises IQ005 when there is no such queue';
