CREATE TABLE idemq.queues (
	queue_id           int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	name               text COLLATE "C" NOT NULL UNIQUE,
	lease              interval NOT NULL,
	max_attempts       int NOT NULL,
	retry_base         interval NOT NULL,
	retry_factor       float8 NOT NULL,
	retry_max          interval NOT NULL,
	retry_jitter       float8 NOT NULL,
	retention          interval NOT NULL,
	idempotency_window interval NOT NULL,
	max_running        int,
	rate_limit         int,
	rate_period        interval NOT NULL,
	dead_letter_queue  text COLLATE "C",
	dead_retention     interval NOT NULL,
	max_lease          interval NOT NULL,
	job_timeout        interval,
	group_max_running  int NOT NULL DEFAULT 1,
	group_rate_limit   int,
	group_rate_period  interval NOT NULL DEFAULT '1 second',
	dead_letter_cancelled boolean NOT NULL DEFAULT false,
	paused             boolean NOT NULL DEFAULT false,
	paused_until       timestamptz,
	created_at         timestamptz NOT NULL DEFAULT idemq.clock_timestamp(),
	dead_letter_role   name,
	dead_letter_role_oid oid,
	expect_workers     boolean NOT NULL DEFAULT true,
	rate_burst         int,
	group_rate_burst   int,
	max_hold_back      interval NOT NULL DEFAULT '1 h',
	max_unfinished     int,
	group_max_unfinished int,
	notify_finished    boolean NOT NULL DEFAULT false,
	declared           jsonb CHECK (pg_catalog.jsonb_typeof(declared) OPERATOR(pg_catalog.=) 'object')
);
COMMENT ON TABLE idemq.queues IS 'one row per queue, with its settings; use idemq.alter_queue to change them';
COMMENT ON COLUMN idemq.queues.queue_id IS 'numeric id of the queue, as used in idemq.jobs';
COMMENT ON COLUMN idemq.queues.name IS 'name of the queue';
COMMENT ON COLUMN idemq.queues.lease IS 'default duration of a lease, used unless the claim requests a different one';
COMMENT ON COLUMN idemq.queues.max_attempts IS 'maximum number of attempts before a job becomes dead; a change applies only to jobs enqueued later';
COMMENT ON COLUMN idemq.queues.retry_base IS 'wait after the first failed attempt';
COMMENT ON COLUMN idemq.queues.retry_factor IS 'factor by which the wait is multiplied after each further failed attempt';
COMMENT ON COLUMN idemq.queues.retry_max IS 'maximum wait between attempts';
COMMENT ON COLUMN idemq.queues.retry_jitter IS 'maximum fraction of the wait, from 0 to 1, that is added or subtracted at random';
COMMENT ON COLUMN idemq.queues.retention IS 'minimum time for which completed and cancelled jobs are kept';
COMMENT ON COLUMN idemq.queues.idempotency_window IS 'how long a key stays reserved after its job has finished, and how long an event remains valid after it is sent';
COMMENT ON COLUMN idemq.queues.max_running IS 'maximum number of jobs running at once; NULL means no limit';
COMMENT ON COLUMN idemq.queues.rate_limit IS 'maximum number of claims in any rate_period; NULL means no limit';
COMMENT ON COLUMN idemq.queues.rate_period IS 'period to which rate_limit applies';
COMMENT ON COLUMN idemq.queues.dead_letter_queue IS 'queue that gets a record of each job that dies; NULL means that dead jobs are not recorded in another queue';
COMMENT ON COLUMN idemq.queues.dead_retention IS 'minimum time for which dead jobs and their attempts are kept';
COMMENT ON COLUMN idemq.queues.max_lease IS 'maximum lease that a claim or heartbeat may request';
COMMENT ON COLUMN idemq.queues.job_timeout IS 'maximum duration of an attempt; NULL means no limit. Clients stop an attempt when this time has passed since the claim, and no lease extends beyond that time.';
COMMENT ON COLUMN idemq.queues.group_max_running IS 'maximum number of jobs in one group that run at once; 1 means that they run one at a time, in order';
COMMENT ON COLUMN idemq.queues.group_rate_limit IS 'maximum number of attempts per group that may start in any group_rate_period; NULL means no limit';
COMMENT ON COLUMN idemq.queues.group_rate_period IS 'period to which group_rate_limit applies';
COMMENT ON COLUMN idemq.queues.dead_letter_cancelled IS 'whether dead_letter_queue also gets records of jobs that were cancelled after an attempt had begun';
COMMENT ON COLUMN idemq.queues.expect_workers IS 'whether the queue should always have a worker; false means that it is normal for the queue to have none, for example because cron starts its workers';
COMMENT ON COLUMN idemq.queues.rate_burst IS 'size of the bucket for rate_limit, which refills at a constant rate (GCRA). NULL means that rate_limit applies to every window of length rate_period.';
COMMENT ON COLUMN idemq.queues.group_rate_burst IS 'size of the bucket for group_rate_limit, which refills at a constant rate (GCRA). NULL means that group_rate_limit applies to every window of length group_rate_period.';
COMMENT ON COLUMN idemq.queues.max_hold_back IS 'maximum duration of a hold (idemq.hold_back), counted from its beginning even if it is extended; 0 forbids holds';
COMMENT ON COLUMN idemq.queues.max_unfinished IS 'maximum number of unfinished jobs (blocked, pending, running and retrying); an enqueue that would exceed it raises IQ007; NULL means no limit';
COMMENT ON COLUMN idemq.queues.group_max_unfinished IS 'maximum number of unfinished jobs of one group; an enqueue that would exceed it raises IQ007; NULL means no limit';
COMMENT ON COLUMN idemq.queues.notify_finished IS 'whether the background worker announces the ids and statuses of finished jobs with NOTIFY, on the channel idemq_finished:<queue>';
COMMENT ON COLUMN idemq.queues.declared IS 'settings that calls of idemq.ensure_queue have named, each with the value declared last; null means no limit or none. NULL means that ensure_queue has never declared the queue.';
COMMENT ON COLUMN idemq.queues.paused IS 'whether the queue is paused with idemq.pause, so that no jobs can be claimed';
COMMENT ON COLUMN idemq.queues.paused_until IS 'when a paused queue resumes automatically; NULL means that the queue stays paused until idemq.resume is called';
COMMENT ON COLUMN idemq.queues.created_at IS 'when the queue was created';
COMMENT ON COLUMN idemq.queues.dead_letter_role IS 'role that set dead_letter_queue. When a job dies, this role must hold the enqueue privilege on that queue. NULL means that no privilege is checked.';
COMMENT ON COLUMN idemq.queues.dead_letter_role_oid IS 'OID of dead_letter_role when the row was written; NULL means that no such role existed, so the role is identified by name only';

-- Fixed width first, what a claim changes side by side, the payload last: a new version
-- then begins and ends as the old one does, and WAL has no more than what lies between.
-- priority and flags are where queue_id and max_attempts would be followed by padding.  flags
-- comes right before status, and most claims and commits leave it as it is.
-- A claim changes no indexed column, so that it is a HOT update; the fill factor leaves
-- its room.  Each job has three versions: enqueued, claimed, committed.  45 is enough while
-- pruning gives room back: 97 % of claims are HOT.  Below a third all three fit without,
-- so that a held snapshot changes nothing; every job pays for that.  8 clients, payloads of
-- 135 bytes: share of claims that are HOT, bytes of WAL a cycle, bytes of heap and indexes
-- a finished job; then the same under a snapshot held throughout:
--	30	100 %	406	980		100 %	413	999
--	35	100 %	421	839		 98 %	479	1,047
--	45	 97 %	430	703		 70 %	612	1,211
--	60	 94 %	462	578		 40 %	723	1,197
--	70	 90 %	481	557		 27 %	765	1,133
-- Autovacuum goes at full speed, since the jobs finished in a minute are as many dead
-- rows; it gives no space back, which would lock claims out while it does.
-- An id is beyond int from the first one on: a column that is too narrow for those that come
-- after a restart (src/table/jobs_id.c) fails on the first day.
CREATE TABLE idemq.jobs (
	id           bigint GENERATED BY DEFAULT AS IDENTITY (START 1000000000001),
	queue_id     int NOT NULL,
	priority     smallint NOT NULL,
	enqueued_at  timestamptz NOT NULL,
	expires_at   timestamptz,
	run_at       timestamptz,
	max_attempts int NOT NULL,
	flags        smallint NOT NULL DEFAULT 0,
	status       idemq.status NOT NULL,
	attempt      int NOT NULL DEFAULT 0,
	token        bigint NOT NULL DEFAULT 0,
	ready_at     timestamptz,
	claimed_at   timestamptz,
	deadline     timestamptz,
	renewed_at   timestamptz,
	finished_at  timestamptz,
	dead_at      timestamptz,
	key_expires_at timestamptz,
	rerun_at     timestamptz,
	worker       text,
	key          text COLLATE "C",
	group_key    text COLLATE "C",
	kind         text COLLATE "C",
	headers      jsonb,
	rerun_payload jsonb,
	rerun_headers jsonb,
	rerun_kind   text COLLATE "C",
	checkpoint   jsonb,
	result       jsonb,
	last_error   text,
	payload      jsonb NOT NULL,
	PRIMARY KEY (id)
) WITH (
	fillfactor = 45,
	toast_tuple_target = 128,
	autovacuum_vacuum_scale_factor = 0.02,
	autovacuum_vacuum_threshold = 5000,
	autovacuum_vacuum_insert_scale_factor = 0.2,
	autovacuum_analyze_scale_factor = 0.1,
	autovacuum_vacuum_cost_delay = 0,
	vacuum_truncate = off,
	toast.autovacuum_vacuum_scale_factor = 0.02,
	toast.autovacuum_vacuum_threshold = 5000,
	toast.autovacuum_vacuum_cost_delay = 0,
	toast.vacuum_truncate = off
);
COMMENT ON TABLE idemq.jobs IS 'one row per job, with the numeric id of its queue (the view idemq.job_list shows the name). Row-level security restricts the rows to queues that the role may claim from or administer.';
COMMENT ON COLUMN idemq.jobs.id IS 'job id, a bigint between 10^12 and 2^53. Ids are assigned in increasing order, with gaps after a restart, a promotion or a restore.';
COMMENT ON COLUMN idemq.jobs.queue_id IS 'numeric id of the job''s queue in idemq.queues';
COMMENT ON COLUMN idemq.jobs.enqueued_at IS 'when the job was enqueued';
COMMENT ON COLUMN idemq.jobs.priority IS 'priority of the job, from 0 (claimed first) to 9 (claimed last)';
COMMENT ON COLUMN idemq.jobs.max_attempts IS 'maximum number of attempts before the job becomes dead';
COMMENT ON COLUMN idemq.jobs.expires_at IS 'time at which the job is cancelled if it has not been claimed; NULL means that the job does not expire';
COMMENT ON COLUMN idemq.jobs.status IS 'state of the job';
COMMENT ON COLUMN idemq.jobs.flags IS 'additional state of the job, as a sum of flags. Use 0 in a row that you write by hand. A running job has flag 1 if its lease also ends with the session that claimed it, and flag 2 if a handler process claimed it. A running job has flag 4 if a heartbeat moved the deadline in this row and set renewed_at because the lease table was full. Any job has flag 8 if idemq.attempts contains rows for it. An unfinished job has flag 16 if its last counted attempt lost its lease. A pending or running job in a group has flag 32 if it has been promoted and counts towards group_max_running. A pending or retrying job in a group has flag 64 if it is waiting until ready_at only because of group_rate_limit or a hold (idemq.hold_back). The sum also includes 256 for each consecutive attempt, up to 3, that ended because its handler process ended. For each of these attempts whose process was asked to stop, the sum also includes 1024.';
COMMENT ON COLUMN idemq.jobs.attempt IS 'number of attempts that have begun, not counting released attempts';
COMMENT ON COLUMN idemq.jobs.claimed_at IS 'when the last attempt began';
COMMENT ON COLUMN idemq.jobs.finished_at IS 'when the job was completed or cancelled, or became dead';
COMMENT ON COLUMN idemq.jobs.dead_at IS 'when the job became dead, NULL otherwise; idemq.redrive processes jobs in this order';
COMMENT ON COLUMN idemq.jobs.key_expires_at IS 'when the key of a finished job becomes free, if key_ttl was given; NULL means that the queue''s idempotency_window applies';
COMMENT ON COLUMN idemq.jobs.rerun_at IS 'earliest time at which a running job will run again (on_duplicate => rerun); NULL means that no further run has been requested';
COMMENT ON COLUMN idemq.jobs.rerun_payload IS 'payload of the latest request to run again; it becomes the job''s payload when the current attempt ends';
COMMENT ON COLUMN idemq.jobs.rerun_headers IS 'headers of the latest request to run again';
COMMENT ON COLUMN idemq.jobs.rerun_kind IS 'kind of the latest request to run again';
COMMENT ON COLUMN idemq.jobs.worker IS 'name of the worker, as passed to the last claim';
COMMENT ON COLUMN idemq.jobs.key IS 'idempotency key of the job, unique within the queue';
COMMENT ON COLUMN idemq.jobs.group_key IS 'FIFO group of the job';
COMMENT ON COLUMN idemq.jobs.kind IS 'label that tells the worker which handler to use; NULL means that the job has no kind';
COMMENT ON COLUMN idemq.jobs.headers IS 'headers of the job, exactly as the producer passed them';
COMMENT ON COLUMN idemq.jobs.payload IS 'data that the worker needs to run the job';
COMMENT ON COLUMN idemq.jobs.checkpoint IS 'progress saved by an attempt with idemq.checkpoint';
COMMENT ON COLUMN idemq.jobs.result IS 'result stored by the last commit; a job that runs again keeps it until its next commit';
COMMENT ON COLUMN idemq.jobs.last_error IS 'why the last attempt ended: the error passed to idemq.fail, or a text from idemq such as "lease expired", "job_timeout reached" or "the worker''s session ended"';
COMMENT ON COLUMN idemq.jobs.token IS 'fencing token of the last attempt; the value never decreases';
COMMENT ON COLUMN idemq.jobs.ready_at IS 'position of the job in the ready index; NULL means that the job cannot be claimed because it is blocked or finished';
COMMENT ON COLUMN idemq.jobs.run_at IS 'earliest time at which a job in a group can be ready; NULL means that the job can be ready immediately. If group_max_running is greater than 1, the column also contains the time of the next retry, and the job does not hold a permit until then. If group_rate_limit or a hold delays the job, the column contains the time at which the job was due.';
COMMENT ON COLUMN idemq.jobs.deadline IS 'deadline of the lease, as set by the claim. A heartbeat moves the deadline in shared memory or, if the lease table is full, in this column.';
COMMENT ON COLUMN idemq.jobs.renewed_at IS 'when a heartbeat moved the deadline of a running job in this row because the lease table was full. The lease duration is then deadline - renewed_at. NULL means that no heartbeat has moved the deadline in this row, and the lease duration is deadline - claimed_at.';

CREATE INDEX jobs_ready ON idemq.jobs (queue_id, priority, ready_at, id)
	WITH (deduplicate_items = off) WHERE ready_at IS NOT NULL;
CREATE UNIQUE INDEX jobs_key ON idemq.jobs (queue_id, key) WHERE key IS NOT NULL;
-- None on finished_at: a commit would add to it.  Retention goes by id.
CREATE INDEX jobs_dead ON idemq.jobs (queue_id, dead_at, id) WHERE dead_at IS NOT NULL;
-- Of each group: its head, which has a ready_at, then those that are blocked.
CREATE INDEX jobs_group ON idemq.jobs (queue_id, group_key, ready_at, id)
	WHERE group_key IS NOT NULL AND finished_at IS NULL;

CREATE TABLE idemq.attempts (
	job_id     bigint NOT NULL,
	token      bigint NOT NULL,
	queue_id   int NOT NULL,
	attempt    int NOT NULL,
	worker     text,
	claimed_at timestamptz,
	ended_at   timestamptz NOT NULL,
	outcome    text NOT NULL,
	error      text,
	details    jsonb,
	PRIMARY KEY (job_id, token)
) WITH (
	autovacuum_vacuum_scale_factor = 0.02,
	autovacuum_vacuum_threshold = 5000,
	autovacuum_vacuum_cost_delay = 0,
	vacuum_truncate = off
);
COMMENT ON TABLE idemq.attempts IS 'one row per attempt that did not commit, that committed a job which then ran again, or whose details were stored by idemq.record_details';
COMMENT ON COLUMN idemq.attempts.job_id IS 'id of the job';
COMMENT ON COLUMN idemq.attempts.token IS 'token of the attempt';
COMMENT ON COLUMN idemq.attempts.queue_id IS 'numeric id of the job''s queue when the attempt was made';
COMMENT ON COLUMN idemq.attempts.attempt IS 'number of the attempt, starting from 1';
COMMENT ON COLUMN idemq.attempts.worker IS 'name of the worker, as passed to the claim';
COMMENT ON COLUMN idemq.attempts.claimed_at IS 'when the attempt began';
COMMENT ON COLUMN idemq.attempts.ended_at IS 'when the attempt ended';
COMMENT ON COLUMN idemq.attempts.error IS 'error passed to idemq.fail, or the reason why the lease ended';
COMMENT ON COLUMN idemq.attempts.details IS 'details passed to idemq.fail or idemq.record_details, for use by programs; the clients store captured logs in details->>''log''. If a completed job has run again, the column contains the result of the attempt that completed it.';
COMMENT ON COLUMN idemq.attempts.outcome IS 'how the attempt ended: failed, expired (its lease ended), released, cancelled, or committed (only if the job then ran again, or idemq.record_details stored details)';

-- No foreign key to idemq.queues, here and below: a parallel restore fills the tables in
-- any order.  Triggers of idemq.queues delete what hangs on a queue.
-- A role by name, which survives pg_dump and pg_restore, and by its OID at the time, by
-- which it is told from the next role of that name; NULL: the name alone decides.
CREATE TABLE idemq_internal.queue_grants (
	queue_id  int NOT NULL,
	role_name name NOT NULL,
	privilege text NOT NULL CHECK (privilege IN ('enqueue', 'claim', 'admin')),
	role_oid  oid,
	PRIMARY KEY (queue_id, role_name, privilege)
);
COMMENT ON TABLE idemq_internal.queue_grants IS 'privileges that allow roles to enqueue to, claim from or administer a queue; use idemq.grant_queue to change them';
COMMENT ON COLUMN idemq_internal.queue_grants.role_oid IS 'OID of the role with this name when the row was written; NULL means that no such role existed, so the role is identified by name only';

-- Each row is a pause (src/job/group_pause.c).  The second index finds the pauses that end next.
CREATE TABLE idemq.paused_groups (
	queue_id     int NOT NULL,
	group_key    text COLLATE "C" NOT NULL CHECK (group_key <> ''),
	paused_at    timestamptz NOT NULL DEFAULT idemq.clock_timestamp(),
	paused_until timestamptz,
	paused_by    name NOT NULL DEFAULT current_user,
	CONSTRAINT paused_groups_pkey PRIMARY KEY (queue_id, group_key)
) WITH (
	autovacuum_vacuum_scale_factor = 0.02,
	autovacuum_vacuum_threshold = 5000,
	autovacuum_vacuum_cost_delay = 0,
	vacuum_truncate = off
);
COMMENT ON TABLE idemq.paused_groups IS 'one row per paused group, with the numeric id of its queue; use idemq.pause and idemq.resume to change it. Row-level security shows only groups of queues that you may claim from or administer.';
COMMENT ON COLUMN idemq.paused_groups.queue_id IS 'numeric id of the queue in idemq.queues';
COMMENT ON COLUMN idemq.paused_groups.group_key IS 'key of the paused group';
COMMENT ON COLUMN idemq.paused_groups.paused_at IS 'when the group was paused';
COMMENT ON COLUMN idemq.paused_groups.paused_until IS 'when the group resumes automatically; NULL means that it stays paused until idemq.resume is called. A row whose time has passed has no effect.';
COMMENT ON COLUMN idemq.paused_groups.paused_by IS 'role that last called idemq.pause for the group';
CREATE INDEX paused_groups_until ON idemq.paused_groups (queue_id, paused_until)
	WHERE paused_until IS NOT NULL;

CREATE TABLE idemq_internal.seen (
	scope      text COLLATE "C" NOT NULL,
	key        text COLLATE "C" NOT NULL,
	expires_at timestamptz NOT NULL,
	visit_at   timestamptz NOT NULL GENERATED ALWAYS AS
		(pg_catalog.date_bin('1 minute', expires_at, '2000-01-01 00:00:00+00')) STORED,
	PRIMARY KEY (scope, key)
) WITH (
	autovacuum_vacuum_scale_factor = 0.02,
	autovacuum_vacuum_threshold = 5000,
	autovacuum_vacuum_cost_delay = 0,
	vacuum_truncate = off
);
COMMENT ON TABLE idemq_internal.seen IS 'keys recorded by idemq.once. There is one row per scope and key, which is kept until expires_at.';
COMMENT ON COLUMN idemq_internal.seen.visit_at IS 'expires_at rounded down to the minute, which is when retention visits the row';
-- By the minute, so that a key that is used again within it is a HOT update: each entry of a
-- hot key would stay for as long as a snapshot is held, and be read at each use.
CREATE INDEX seen_visit ON idemq_internal.seen (visit_at);

-- Roles and queues by name too: they may be gone by the time this is read.
CREATE TABLE idemq.audit (
	id           bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
	at           timestamptz NOT NULL,
	session_role name NOT NULL,
	role         name NOT NULL,
	action       text NOT NULL,
	queue_id     int NOT NULL,
	queue        text NOT NULL,
	job_id       bigint,
	jobs         bigint,
	details      jsonb,
	actor        text
);
COMMENT ON TABLE idemq.audit IS 'administrative calls that affect queues, topics, handlers, schedules and individual jobs, with their times and roles. Routine calls by producers and workers are not recorded. Row-level security lets administrators see only the rows for their own queues. The role pg_monitor sees all rows except those that name a group, a key or an error (cancel_matching, hold_back, pause, redrive, resume). Rows are kept for the time set by idemq.audit_retention.';
COMMENT ON COLUMN idemq.audit.id IS 'row id, assigned in increasing order';
COMMENT ON COLUMN idemq.audit.at IS 'when the function was called';
COMMENT ON COLUMN idemq.audit.session_role IS 'authenticated role (session_user)';
COMMENT ON COLUMN idemq.audit.role IS 'role whose privileges applied to the call (current_user)';
COMMENT ON COLUMN idemq.audit.action IS 'name of the function that was called; a call to cancel_by_key is recorded as cancel';
COMMENT ON COLUMN idemq.audit.queue_id IS 'numeric id of the queue; 0 means that the call affected a topic, not a queue';
COMMENT ON COLUMN idemq.audit.queue IS 'name of the queue';
COMMENT ON COLUMN idemq.audit.job_id IS 'id of the job that was affected, if the call can affect only one job';
COMMENT ON COLUMN idemq.audit.jobs IS 'number of jobs that were affected, if the call can affect several jobs';
COMMENT ON COLUMN idemq.audit.details IS 'details of the call, which depend on the function: for example, the old and new values of a setting, or a role and a privilege';
COMMENT ON COLUMN idemq.audit.actor IS 'end user named in the setting idemq.actor, limited to 200 characters; NULL means that the setting was empty. The name is not verified; the authenticated role is in session_role.';
CREATE INDEX audit_at ON idemq.audit (at);

-- The role is named as in idemq_internal.queue_grants.
CREATE TABLE idemq_internal.schedule_entries (
	name         text COLLATE "C" PRIMARY KEY,
	queue_id     int NOT NULL,
	cron         text NOT NULL,
	time_zone    text NOT NULL,
	payload      jsonb NOT NULL,
	priority     int NOT NULL,
	group_key    text,
	max_attempts int,
	headers      jsonb,
	expires_in   interval,
	kind         text,
	created_by   name NOT NULL,
	created_at   timestamptz NOT NULL,
	done_until   timestamptz NOT NULL,
	last_run     timestamptz,
	last_job     bigint,
	failed_at    timestamptz,
	last_error   text,
	created_by_oid oid,
	paused_at    timestamptz
);
COMMENT ON TABLE idemq_internal.schedule_entries IS 'one row per schedule; use idemq.schedule to change it, and the view idemq.schedules to read it';
COMMENT ON COLUMN idemq_internal.schedule_entries.done_until IS 'time up to which all ticks have been enqueued or permanently skipped';
COMMENT ON COLUMN idemq_internal.schedule_entries.paused_at IS 'when the schedule was paused; NULL means that it is not paused';

CREATE TABLE idemq_internal.ticker (
	one       boolean PRIMARY KEY DEFAULT true CHECK (one),
	called_at timestamptz NOT NULL
);
COMMENT ON TABLE idemq_internal.ticker IS 'time of the last call to idemq.tick, in at most one row; the row is not dumped because it describes this server';

-- Rows are added by the first claim of a timeline; none here, since a dump brings its own.
CREATE TABLE idemq_internal.clusters (
	system_identifier bigint,
	timeline          bigint,
	base              bigint,
	PRIMARY KEY (system_identifier, timeline, base)
);
COMMENT ON TABLE idemq_internal.clusters IS 'clusters in which this database has issued tokens; the rows ensure that tokens keep increasing after pg_upgrade and after a restore into another cluster';
COMMENT ON COLUMN idemq_internal.clusters.system_identifier IS 'system identifier of the cluster, as shown by pg_control_system(); 0 means that idemq.advance_tokens() wrote the row';
COMMENT ON COLUMN idemq_internal.clusters.timeline IS 'timeline of the cluster';
COMMENT ON COLUMN idemq_internal.clusters.base IS 'offset of this cluster''s tokens from the clock, to which 2^41 is added for each timeline';

-- Not dumped: a copy of a follower is none.  Of cluster and database, since a base backup
-- becomes another cluster, and a template another database.
CREATE TABLE idemq_internal.followers (
	system_identifier bigint,
	database          oid,
	since             timestamptz NOT NULL,
	taken_over_at     timestamptz,
	moved_to          text,
	PRIMARY KEY (system_identifier, database)
);
COMMENT ON TABLE idemq_internal.followers IS 'databases that follow another database through logical replication; use idemq.follow and idemq.take_over to change the rows. The rows are not dumped.';
COMMENT ON COLUMN idemq_internal.followers.system_identifier IS 'system identifier of the cluster, as shown by pg_control_system()';
COMMENT ON COLUMN idemq_internal.followers.database IS 'OID of the database, as in pg_database';
COMMENT ON COLUMN idemq_internal.followers.since IS 'when the database began to follow another database';
COMMENT ON COLUMN idemq_internal.followers.taken_over_at IS 'when the database took over; NULL means that it is still following another database';
COMMENT ON COLUMN idemq_internal.followers.moved_to IS 'server to which the database has moved permanently, as described in the call to idemq.retire; NULL means that the database has not moved';

-- Not dumped: a restored copy has to find out that it is one.  Owned by idemq.jobs: TRUNCATE
-- ... RESTART IDENTITY then makes ids look unknown, and ALTER TABLE ... OWNER takes it along.
CREATE SEQUENCE idemq.ids_since MINVALUE -9223372036854775808 START 0 OWNED BY
	idemq.jobs.enqueued_at;
COMMENT ON SEQUENCE idemq.ids_since IS 'value of idemq_internal.primary_since() for which the job id sequence was last checked; is_called shows whether that check is complete';

SELECT pg_catalog.pg_extension_config_dump('idemq_internal.clusters', '');
SELECT pg_catalog.pg_extension_config_dump('idemq.queues', '');
SELECT pg_catalog.pg_extension_config_dump('idemq.queues_queue_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('idemq.jobs', '');
SELECT pg_catalog.pg_extension_config_dump('idemq.jobs_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('idemq.attempts', '');
SELECT pg_catalog.pg_extension_config_dump('idemq.paused_groups', '');
SELECT pg_catalog.pg_extension_config_dump('idemq_internal.seen', '');
SELECT pg_catalog.pg_extension_config_dump('idemq_internal.queue_grants', '');
SELECT pg_catalog.pg_extension_config_dump('idemq_internal.schedule_entries', '');
SELECT pg_catalog.pg_extension_config_dump('idemq.audit', '');
SELECT pg_catalog.pg_extension_config_dump('idemq.audit_id_seq', '');

-- Topic: Internal

CREATE FUNCTION idemq_internal.primary_since() RETURNS bigint
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_primary_since';
COMMENT ON FUNCTION idemq_internal.primary_since() IS 'Return the time at which this server was first used as a primary after it was started or promoted, in microseconds since 2000-01-01.';

-- A server that has run since before there was a sequence has lost none of its ids.
SELECT pg_catalog.setval('idemq.ids_since', idemq_internal.primary_since(), false);

-- This trigger updates shared memory when anything other than table/jobs_write.c changes a row: an
-- UPDATE by a DBA, COPY, or logical replication, for which the trigger is ENABLE ALWAYS.
CREATE FUNCTION idemq_internal.jobs_changed() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_jobs_changed';
COMMENT ON FUNCTION idemq_internal.jobs_changed() IS 'row trigger on idemq.jobs that updates the scan start and the lease table at the end of the transaction';

CREATE TRIGGER idemq_jobs_changed AFTER INSERT OR UPDATE OR DELETE ON idemq.jobs
	FOR EACH ROW EXECUTE FUNCTION idemq_internal.jobs_changed();
ALTER TABLE idemq.jobs ENABLE ALWAYS TRIGGER idemq_jobs_changed;

CREATE FUNCTION idemq_internal.jobs_truncated() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_jobs_truncated';
COMMENT ON FUNCTION idemq_internal.jobs_truncated() IS 'truncate trigger on idemq.jobs; when the transaction ends, it discards all leases and the positions at which claims start to read';

CREATE TRIGGER idemq_jobs_truncated AFTER TRUNCATE ON idemq.jobs
	FOR EACH STATEMENT EXECUTE FUNCTION idemq_internal.jobs_truncated();
ALTER TABLE idemq.jobs ENABLE ALWAYS TRIGGER idemq_jobs_truncated;

CREATE FUNCTION idemq_internal.settings_changed() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_settings_changed';
COMMENT ON FUNCTION idemq_internal.settings_changed() IS 'trigger that makes every session reread the settings and grants of a queue that has changed';

-- For each row: logical replication fires no other triggers.
CREATE TRIGGER idemq_settings_changed AFTER INSERT OR UPDATE OR DELETE ON idemq.queues
	FOR EACH ROW EXECUTE FUNCTION idemq_internal.settings_changed();
ALTER TABLE idemq.queues ENABLE ALWAYS TRIGGER idemq_settings_changed;
CREATE TRIGGER idemq_settings_truncated AFTER TRUNCATE ON idemq.queues
	FOR EACH STATEMENT EXECUTE FUNCTION idemq_internal.settings_changed();
ALTER TABLE idemq.queues ENABLE ALWAYS TRIGGER idemq_settings_truncated;
CREATE TRIGGER idemq_settings_changed AFTER INSERT OR UPDATE OR DELETE
	ON idemq_internal.queue_grants
	FOR EACH ROW EXECUTE FUNCTION idemq_internal.settings_changed();
ALTER TABLE idemq_internal.queue_grants ENABLE ALWAYS TRIGGER idemq_settings_changed;
CREATE TRIGGER idemq_settings_truncated AFTER TRUNCATE ON idemq_internal.queue_grants
	FOR EACH STATEMENT EXECUTE FUNCTION idemq_internal.settings_changed();
ALTER TABLE idemq_internal.queue_grants ENABLE ALWAYS TRIGGER idemq_settings_truncated;

CREATE FUNCTION idemq_internal.paused_groups_changed() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_paused_groups_changed';
COMMENT ON FUNCTION idemq_internal.paused_groups_changed() IS 'row and truncate trigger on idemq.paused_groups that makes every session reread which groups are paused, and marks the group for a check';

CREATE TRIGGER idemq_paused_groups_changed AFTER INSERT OR UPDATE OR DELETE ON idemq.paused_groups
	FOR EACH ROW EXECUTE FUNCTION idemq_internal.paused_groups_changed();
ALTER TABLE idemq.paused_groups ENABLE ALWAYS TRIGGER idemq_paused_groups_changed;
CREATE TRIGGER idemq_paused_groups_truncated AFTER TRUNCATE ON idemq.paused_groups
	FOR EACH STATEMENT EXECUTE FUNCTION idemq_internal.paused_groups_changed();
ALTER TABLE idemq.paused_groups ENABLE ALWAYS TRIGGER idemq_paused_groups_truncated;

CREATE FUNCTION idemq_internal.queue_gone() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper';
COMMENT ON FUNCTION idemq_internal.queue_gone() IS 'row and truncate trigger on idemq.queues that deletes the grants, schedules, handlers, events, bindings, holds and paused groups of deleted queues';
-- There is no foreign key, since a parallel restore fills the tables in any order.  What one would
-- do besides is done where a row is made: grant_queue, schedule, set_handler and bind_topic hold
-- the queue's row, so the DELETE that fires this waits for them, and what they have committed is
-- there by now.  Rows that come by hand, and find no queue, are told of by idemq.check().  It does
-- not fire in an apply worker: the publisher's has, and its deletions come along.
CREATE FUNCTION idemq_internal.queue_gone_impl() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	what text;
BEGIN
	IF TG_RELID <> 'idemq.queues'::regclass OR TG_WHEN <> 'AFTER' THEN
		RAISE EXCEPTION 'this function can be called only by idemq''s own triggers'
			USING ERRCODE = '0A000', HINT = 'Do not call it or use it in a trigger.';
	END IF;
	FOREACH what IN ARRAY
		'{idemq_internal.queue_grants,idemq_internal.schedule_entries,'
		'idemq_internal.handler_entries,idemq.events,idemq_internal.topic_binding_entries,'
		'idemq_internal.topic_over_limit,'
		'idemq.producers,idemq_internal.hold_entries,'
		'idemq.paused_groups}'::text[] LOOP
		IF TG_LEVEL = 'STATEMENT' THEN
			EXECUTE format('DELETE FROM %s', what);
			CONTINUE;
		END IF;
		EXECUTE format('DELETE FROM %s WHERE queue_id = $1', what) USING OLD.queue_id;
		CONTINUE WHEN current_setting('transaction_isolation') LIKE 'read %';
		PERFORM
			FROM idemq_internal.latest(format('SELECT true FROM %s WHERE queue_id = $1 LIMIT 1',
			what), OLD.queue_id)
			AS (is_left boolean);
		IF FOUND THEN
			RAISE EXCEPTION 'queue % has grants, schedules, producers, events, bindings, holds, '
				'paused groups or a handler that this transaction cannot see',
				OLD.queue_id USING ERRCODE = '40001', HINT = 'Run the command in a READ COMMITTED transaction.';
		END IF;
	END LOOP;
	RETURN NULL;
END $$;

-- Not ALWAYS: to a subscriber the deletions come by replication.
CREATE TRIGGER idemq_queue_gone AFTER DELETE ON idemq.queues
	FOR EACH ROW EXECUTE FUNCTION idemq_internal.queue_gone();
CREATE TRIGGER idemq_queues_gone AFTER TRUNCATE ON idemq.queues
	FOR EACH STATEMENT EXECUTE FUNCTION idemq_internal.queue_gone();

CREATE FUNCTION idemq_internal.followers_changed() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_followers_changed';
COMMENT ON FUNCTION idemq_internal.followers_changed() IS 'row and truncate trigger on idemq_internal.followers that makes every backend check whether its database follows another database';

CREATE TRIGGER idemq_followers_changed AFTER INSERT OR UPDATE OR DELETE ON idemq_internal.followers
	FOR EACH ROW EXECUTE FUNCTION idemq_internal.followers_changed();
ALTER TABLE idemq_internal.followers ENABLE ALWAYS TRIGGER idemq_followers_changed;
CREATE TRIGGER idemq_followers_truncated AFTER TRUNCATE ON idemq_internal.followers
	FOR EACH STATEMENT EXECUTE FUNCTION idemq_internal.followers_changed();
ALTER TABLE idemq_internal.followers ENABLE ALWAYS TRIGGER idemq_followers_truncated;

CREATE FUNCTION idemq_internal.followers_local() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_followers_local';
COMMENT ON FUNCTION idemq_internal.followers_local() IS 'row trigger on idemq_internal.followers that skips rows from other servers; it fires only in apply workers';

CREATE TRIGGER idemq_followers_local BEFORE INSERT OR UPDATE OR DELETE ON idemq_internal.followers
	FOR EACH ROW EXECUTE FUNCTION idemq_internal.followers_local();
ALTER TABLE idemq_internal.followers ENABLE REPLICA TRIGGER idemq_followers_local;
-- Sessions read the base of tokens again when settings have changed (job/token_epoch.c).
CREATE TRIGGER idemq_settings_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE
	ON idemq_internal.clusters
	FOR EACH STATEMENT EXECUTE FUNCTION idemq_internal.settings_changed();
ALTER TABLE idemq_internal.clusters ENABLE ALWAYS TRIGGER idemq_settings_changed;

-- A restore writes the OIDs of its own server (hence ENABLE ALWAYS, for a subscriber).
CREATE FUNCTION idemq_internal.role_named() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_role_named';
COMMENT ON FUNCTION idemq_internal.role_named() IS 'row trigger that stores a role''s OID when the role''s name is written';

CREATE TRIGGER idemq_role_named BEFORE INSERT OR UPDATE OF role_name ON idemq_internal.queue_grants
	FOR EACH ROW EXECUTE FUNCTION idemq_internal.role_named('role_name', 'role_oid');
ALTER TABLE idemq_internal.queue_grants ENABLE ALWAYS TRIGGER idemq_role_named;
CREATE TRIGGER idemq_role_named BEFORE INSERT OR UPDATE OF dead_letter_role ON idemq.queues
	FOR EACH ROW
	EXECUTE FUNCTION idemq_internal.role_named('dead_letter_role', 'dead_letter_role_oid');
ALTER TABLE idemq.queues ENABLE ALWAYS TRIGGER idemq_role_named;
CREATE TRIGGER idemq_role_named BEFORE INSERT OR UPDATE OF created_by
	ON idemq_internal.schedule_entries
	FOR EACH ROW EXECUTE FUNCTION idemq_internal.role_named('created_by', 'created_by_oid');
ALTER TABLE idemq_internal.schedule_entries ENABLE ALWAYS TRIGGER idemq_role_named;

CREATE FUNCTION idemq_internal.may_see(queue_id int) RETURNS boolean
	STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_may_see';
COMMENT ON FUNCTION idemq_internal.may_see(int) IS 'Return whether the current role may claim from or administer a queue. Row-level security calls this function.';

CREATE FUNCTION idemq_internal.may_use(queue_id int) RETURNS boolean
	STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_may_use';
COMMENT ON FUNCTION idemq_internal.may_use(int) IS 'Return whether the current role holds any privilege on a queue. Row-level security calls this function.';

CREATE FUNCTION idemq_internal.may_administer(queue_id int) RETURNS boolean
	STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_may_administer';
COMMENT ON FUNCTION idemq_internal.may_administer(int) IS 'Return whether the current role may administer a queue. Row-level security calls this function.';

CREATE FUNCTION idemq_internal.may_enqueue(queue_id int) RETURNS boolean
	STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_may_enqueue';
COMMENT ON FUNCTION idemq_internal.may_enqueue(int) IS 'Return whether the current role may enqueue to a queue. Views call this function.';

ALTER TABLE idemq.jobs ENABLE ROW LEVEL SECURITY;
CREATE POLICY idemq_own_queues ON idemq.jobs FOR SELECT USING (idemq_internal.may_see(queue_id));
ALTER TABLE idemq.attempts ENABLE ROW LEVEL SECURITY;
CREATE POLICY idemq_own_queues ON idemq.attempts FOR SELECT
	USING (idemq_internal.may_see(queue_id));
ALTER TABLE idemq.queues ENABLE ROW LEVEL SECURITY;
CREATE POLICY idemq_own_queues ON idemq.queues FOR SELECT USING (idemq_internal.may_use(queue_id));
ALTER TABLE idemq.paused_groups ENABLE ROW LEVEL SECURITY;
CREATE POLICY idemq_own_queues ON idemq.paused_groups FOR SELECT
	USING (idemq_internal.may_see(queue_id));
-- No policy: pg_read_all_data reads nothing of these, pg_write_all_data writes nothing.
ALTER TABLE idemq_internal.queue_grants ENABLE ROW LEVEL SECURITY;
ALTER TABLE idemq_internal.seen ENABLE ROW LEVEL SECURITY;
ALTER TABLE idemq_internal.schedule_entries ENABLE ROW LEVEL SECURITY;
ALTER TABLE idemq_internal.ticker ENABLE ROW LEVEL SECURITY;
ALTER TABLE idemq_internal.clusters ENABLE ROW LEVEL SECURITY;
ALTER TABLE idemq_internal.followers ENABLE ROW LEVEL SECURITY;
ALTER TABLE idemq.audit ENABLE ROW LEVEL SECURITY;
-- pg_monitor sees no keys and errors: not the calls that were given a group key, the beginning of
-- a key or a pattern of errors.
CREATE POLICY idemq_own_queues ON idemq.audit FOR SELECT
	USING (pg_catalog.pg_has_role('pg_monitor', 'USAGE')
			AND (details OPERATOR(pg_catalog.?|) '{error,group_key,key_prefix}') IS NOT TRUE
		OR idemq_internal.may_administer(queue_id));
