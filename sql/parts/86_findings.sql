-- What idemq.check() finds in rows and catalogs alone, of one part of the audit at a time, under
-- the one snapshot of its caller: of whatever is visible at once these rules hold, so no finding is
--   a race. jobs: every version of a row that is ever visible keeps them; a child's row and its
--     status are written together.
--   groups: the session that promoted a job had seen the ends of the attempts that made room for
--     it, so a snapshot that sees the promotion sees these.  What runs, or waits to be retried,
--     when group_max_running is lowered is not taken back.
--   steps: the sender of an event, with its name locked, wakes all who sleep for it.  A stored
--     answer, also a late one, ends a step; until call_until one may come by itself, and of a job
--     that is finished no other attempt will begin the step again.
--   others: queue and topic are held while a row that names them is made, and whoever deletes them
--     deletes it.  A subscriber may be without for a while, since each table is copied by itself:
--     it is not asked. A role is another's to drop; what it was given is void then, and the next of
--     that name has none of it.
--   clock: the time of an event is read before its row becomes visible.  now is read before the
--     snapshot, but the caller makes it late enough (src/observe/check.c).  A test clock may move
--     between the two, so the time is read again for each row that is found.
-- What is looked up for each row is a subquery of its own, not a join: with statistics from when
-- the tables were empty, a join may read all of the other table for each row.  Only the numbers of
-- queues are few enough for a hash.
CREATE FUNCTION idemq_internal.findings(part text, now timestamptz)
	RETURNS TABLE (severity text, invariant text, detail text)
	ROWS 10 STABLE LANGUAGE sql AS $$
	WITH broken_jobs (part, place, severity, invariant, what, id) AS (
		SELECT 'rows', 4, 'error', r.invariant, r.what, j.id
		FROM idemq.jobs j CROSS JOIN LATERAL (VALUES
			('jobs.queue', 'in a queue that does not exist',
				j.queue_id NOT IN (SELECT q.queue_id FROM idemq.queues q)),
			('jobs.priority', 'with a priority outside the range 0 to 9', j.priority NOT BETWEEN 0 AND 9),
			('jobs.ready_at',
				'pending, retrying or running without ready_at, or in another status with it',
				(j.status IN ('pending', 'retrying', 'running')) <> (j.ready_at IS NOT NULL)),
			('jobs.finished_at',
				'completed, dead or cancelled without finished_at, or in another status with it',
				(j.status IN ('completed', 'dead', 'cancelled')) <> (j.finished_at IS NOT NULL)),
			('jobs.dead_at', 'dead without dead_at, or in another status with it',
				(j.status = 'dead') <> (j.dead_at IS NOT NULL)),
			('jobs.lease', 'running without claimed_at, or without a later deadline',
				j.status = 'running'
				AND (j.deadline > greatest(j.claimed_at, j.renewed_at) AND j.claimed_at IS NOT NULL)
					IS NOT TRUE),
			('jobs.attempt',
				'with an attempt that its status does not allow, or above max_attempts',
				j.attempt NOT BETWEEN (j.status IN ('running', 'retrying'))::int
					AND j.max_attempts - (j.status IN ('retrying', 'pending', 'blocked'))::int),
			('jobs.flags', 'with flags that contradict the status or renewed_at: UPDATE idemq.jobs '
				'SET flags = 0, renewed_at = NULL',
				j.flags <> j.flags & CASE j.status WHEN 'running' THEN 3903 WHEN 'pending' THEN 3960
					WHEN 'retrying' THEN 3928 WHEN 'blocked' THEN 3864 ELSE 8 END
				OR j.flags & 96 <> 0 AND j.group_key IS NULL
				OR (j.flags & 4 <> 0) <> (j.renewed_at IS NOT NULL)),
			('jobs.token', 'with a token below zero, of 2^53 or more, or running without one',
				j.token NOT BETWEEN 0 AND 9007199254740991
					OR j.token = 0 AND j.status = 'running'),
			('jobs.rerun',
				'due to run once more but not running, or without the payload for it',
				j.rerun_at IS NOT NULL AND (j.status <> 'running' OR j.rerun_payload IS NULL)),
			('jobs.blocked', 'blocked without a group_key or a row in idemq.children',
				j.status = 'blocked' AND j.group_key IS NULL
				AND (SELECT true FROM idemq.children k WHERE k.job_id = j.id) IS NULL)
		) AS r (invariant, what, is_broken) WHERE r.is_broken
		UNION ALL
		SELECT DISTINCT 'tokens', 1, 'error', 'tokens.grow',
			'with a greater token in idemq.attempts than in the job', a.job_id
		FROM idemq.attempts a
		WHERE a.token > (SELECT j.token FROM idemq.jobs j WHERE j.id = a.job_id)
		UNION ALL
		SELECT DISTINCT 'steps', 1, 'error', 'steps.token',
			'with a greater token in idemq.steps than in the job', s.job_id
		FROM idemq.steps s
		WHERE s.token > (SELECT j.token FROM idemq.jobs j WHERE j.id = s.job_id)
		UNION ALL
		SELECT 'steps', 2, 'error', 'steps.event',
			'waiting for an event that has been sent: idemq.retry wakes it', s.job_id
		FROM idemq.steps s
		WHERE s.state = 'waiting'
			AND s.begun_at <= (SELECT e.sent_at FROM (SELECT e.sent_at FROM idemq.events e
				WHERE e.queue_id = s.queue_id AND e.name = s.name OFFSET 0) e)
			AND (SELECT j.token = s.token AND j.status = 'pending' AND j.ready_at > findings.now
				FROM idemq.jobs j WHERE j.id = s.job_id)
		UNION ALL
		SELECT DISTINCT 'steps', 3, 'warning', 'steps.unknown',
			'finished, but with a step that was begun and has no '
			'response: ask the other system, then call idemq.finish_step or idemq.refuse_step with the '
				'token in idemq.steps', s.job_id
		FROM idemq.steps s
		WHERE s.state = 'open' AND s.call_until <= findings.now
			AND (SELECT j.finished_at IS NOT NULL FROM idemq.jobs j WHERE j.id = s.job_id)
		UNION ALL
		SELECT 'groups', 1, 'error', 'groups.head',
			'not blocked, and more jobs of its group are not blocked than group_max_running '
			'allows: cancel all but the first', p.id
		FROM (
			SELECT j.id, queue_id, q.group_max_running, count(*) OVER g AS places,
				min(CASE WHEN q.group_max_running > 1 THEN j.ready_at ELSE coalesce(j.claimed_at,
					j.enqueued_at) END) OVER g AS since
			FROM idemq.jobs j CROSS JOIN LATERAL (SELECT q.group_max_running FROM idemq.queues q
				WHERE q.queue_id = j.queue_id OFFSET 0) q
			WHERE j.group_key <> '' AND j.finished_at IS NULL AND j.status <> 'blocked'
				AND (q.group_max_running = 1 OR j.status = 'running'
					OR j.flags & 32 <> 0)
			WINDOW g AS (PARTITION BY queue_id, j.group_key)) p
		WHERE p.places > p.group_max_running AND NOT EXISTS (SELECT FROM idemq.audit a
			WHERE a.queue_id = p.queue_id AND a.action = 'alter_queue'
				AND a.at > p.since - interval '1 min'
			AND (a.details #>> '{group_max_running,from}')::int >
				(a.details #>> '{group_max_running,to}')::int)
		UNION ALL
		SELECT 'children', 1, 'error', 'children.edges',
			'waiting for parents without a row in idemq.dependencies', k.job_id
		FROM idemq.children k WHERE (SELECT true FROM idemq.dependencies d
			WHERE d.child = k.job_id LIMIT 1) IS NULL
		UNION ALL
		SELECT 'children', 2, 'error', 'children.status',
			'with a row in idemq.children, but neither blocked nor cancelled', k.job_id
		FROM idemq.children k WHERE (SELECT j.status NOT IN ('blocked', 'cancelled')
			FROM idemq.jobs j WHERE j.id = k.job_id)
	), nobodys (invariant, role, rows) AS (
		-- What names a role that is not there, or one that has come after it.
		SELECT o.invariant, o.role, count(*) FROM (
			SELECT 'grants.role', role_name, role_oid FROM idemq_internal.queue_grants
			UNION ALL SELECT 'schedules.role', created_by, created_by_oid
				FROM idemq_internal.schedule_entries
			UNION ALL SELECT 'topics.role', role_name, role_oid FROM idemq_internal.topic_grants
			UNION ALL SELECT 'topics.role, bindings', role_name, role_oid
				FROM idemq_internal.topic_binding_entries
		) AS o (invariant, role, role_oid)
		WHERE (SELECT true FROM pg_roles r
			WHERE r.rolname = o.role AND coalesce(o.role_oid, r.oid) = r.oid) IS NULL
		GROUP BY 1, 2
	), orphans (invariant, rel, queue_id, rows) AS (
		SELECT o.invariant, o.rel, o.queue_id, count(*) FROM (
			SELECT 'grants.queue', 'idemq_internal.queue_grants', queue_id
				FROM idemq_internal.queue_grants
			UNION ALL SELECT 'schedules.queue', 'idemq_internal.schedule_entries', queue_id
				FROM idemq_internal.schedule_entries
			UNION ALL SELECT 'events.queue', 'idemq.events', queue_id FROM idemq.events
			UNION ALL SELECT 'producers.queue', 'idemq.producers', queue_id FROM idemq.producers
			UNION ALL SELECT 'paused_groups.queue', 'idemq.paused_groups', queue_id
				FROM idemq.paused_groups
			UNION ALL SELECT 'topics.queue', 'idemq_internal.topic_binding_entries', queue_id
				FROM idemq_internal.topic_binding_entries
			UNION ALL SELECT 'holds.queue', 'idemq_internal.hold_entries', queue_id
				FROM idemq_internal.hold_entries
		) AS o (invariant, rel, queue_id)
		WHERE o.queue_id NOT IN (SELECT q.queue_id FROM idemq.queues q)
		GROUP BY 1, 2, 3
	)
	SELECT f.severity, f.invariant, f.detail FROM (
		-- Of what jobs have in common that is wrong with them: how many, and the first of them.
		SELECT b.place, b.severity, b.invariant, format('%s: %s job%s (%s%s)', b.what, b.jobs,
			CASE WHEN b.jobs > 1 THEN 's' END, string_agg(b.id::text, ', ' ORDER BY b.id), CASE
				WHEN b.jobs > 10 THEN ', ...' END)
		FROM (
			SELECT *, count(*) OVER every AS jobs, row_number() OVER (every ORDER BY id) AS n
			FROM broken_jobs WHERE broken_jobs.part = findings.part
			WINDOW every AS (PARTITION BY place, severity, invariant, what)) b
		WHERE b.n <= 10 GROUP BY b.place, b.severity, b.invariant, b.what, b.jobs
		UNION ALL
		SELECT 0, 'warning', 'worker.stuck',
			format('the background worker, process %s, has made no progress for '
			'%s ms; check pg_stat_activity and pg_locks to see what it is waiting for', w.pid,
			floor(extract(epoch FROM w.stuck_for) * 1000)::bigint)
		FROM idemq_internal.worker_state() w WHERE part = 'rows' AND w.stuck_for IS NOT NULL
		UNION ALL
		SELECT 1, 'warning', invariant,
			format('grants (%s) of role "%s", which was dropped or renamed, have no effect: '
			'call idemq.grant_queue again, or DELETE FROM idemq_internal.queue_grants '
			'WHERE role_name = %2$L', rows, role)
		FROM nobodys WHERE part = 'rows' AND invariant = 'grants.role'
		UNION ALL
		SELECT 2, 'warning', invariant,
			format('schedules (%s) of role "%s", which was dropped or renamed, do not run: '
			'create them again with idemq.schedule, or drop them', rows, role)
		FROM nobodys WHERE part = 'rows' AND invariant = 'schedules.role'
		UNION ALL
		-- The first and the last id: all are of one shard.
		SELECT 3, 'error', 'ids.shard',
			format('job %s does not belong to shard %s, which is this database: it was written by '
			'hand, or idemq.shard was', j.id, s.shard)
		FROM idemq.shard s CROSS JOIN LATERAL (
			(SELECT id FROM idemq.jobs ORDER BY id LIMIT 1)
				UNION ALL (SELECT id FROM idemq.jobs ORDER BY id DESC LIMIT 1)) j
		WHERE part = 'rows' AND j.id >> 47 <> s.shard
		UNION ALL
		-- What claims and keys cannot do without, and what redrive and groups are slow without.
		SELECT 1, CASE WHEN w.vital THEN 'error' ELSE 'warning' END, 'indexes',
			format('index %s of idemq.jobs is '
			'missing or not valid: run REINDEX on it, or create it with the definition from the install script', w.name)
		FROM (VALUES
			('jobs_pkey', 'id', true, NULL, true),
			('jobs_ready', 'queue_id, priority, ready_at, id', false, '(ready_at IS NOT NULL)',
				true),
			('jobs_key', 'queue_id, key', true, '(key IS NOT NULL)', true),
			('jobs_dead', 'queue_id, dead_at, id', false, '(dead_at IS NOT NULL)', false),
			('jobs_group', 'queue_id, group_key, ready_at, id', false,
				'((group_key IS NOT NULL) AND (finished_at IS NULL))', false)
		) AS w (name, columns, is_unique, predicate, vital)
		WHERE part = 'catalog' AND NOT EXISTS (SELECT FROM pg_index i
			WHERE i.indrelid = 'idemq.jobs'::regclass
			AND i.indisvalid AND i.indisready AND (i.indisunique OR NOT w.is_unique)
			AND pg_get_expr(i.indpred, i.indrelid) IS NOT DISTINCT FROM w.predicate
			AND w.columns = (SELECT string_agg(pg_get_indexdef(i.indexrelid, k, true), ', '
				ORDER BY k)
				FROM generate_series(1, i.indnatts) k))
		UNION ALL
		SELECT 2, 'error', 'triggers',
			format('%s %s: ALTER TABLE %2$s ENABLE %sTRIGGER %s',
			w.what, rel, w.firing, w.name)
		FROM (VALUES
			('idemq_jobs_changed', '{idemq.jobs}'::text[], 'ALWAYS ',
				'shared memory does not reflect changes to'),
			('idemq_jobs_truncated', '{idemq.jobs}', 'ALWAYS ', 'shared memory does not reflect changes to'),
			('idemq_dependencies_changed', '{idemq.dependencies,idemq.children}', 'ALWAYS ',
				'shared memory does not reflect changes to'),
			('idemq_settings_changed', '{idemq.queues,idemq_internal.queue_grants,'
				'idemq_internal.clusters,idemq_internal.handler_entries}', 'ALWAYS ',
				'shared memory does not reflect changes to'),
			('idemq_settings_truncated', '{idemq.queues,idemq_internal.queue_grants,'
				'idemq_internal.handler_entries}', 'ALWAYS ',
				'shared memory does not reflect changes to'),
			('idemq_holds_changed', '{idemq_internal.hold_entries}', 'ALWAYS ',
				'shared memory does not reflect changes to'),
			('idemq_holds_truncated', '{idemq_internal.hold_entries}', 'ALWAYS ',
				'shared memory does not reflect changes to'),
			('idemq_paused_groups_changed', '{idemq.paused_groups}', 'ALWAYS ',
				'shared memory does not reflect changes to'),
			('idemq_paused_groups_truncated', '{idemq.paused_groups}', 'ALWAYS ',
				'shared memory does not reflect changes to'),
			('idemq_schedules_changed', '{idemq_internal.schedule_entries}', 'ALWAYS ',
				'shared memory does not reflect changes to'),
			('idemq_shard_changed', '{idemq.shard}', 'ALWAYS ', 'shared memory does not reflect changes to'),
			('idemq_shard_truncated', '{idemq.shard}', 'ALWAYS ', 'shared memory does not reflect changes to'),
			('idemq_followers_changed', '{idemq_internal.followers}', 'ALWAYS ',
				'shared memory does not reflect changes to'),
			('idemq_followers_truncated', '{idemq_internal.followers}', 'ALWAYS ',
				'shared memory does not reflect changes to'),
			('idemq_followers_local', '{idemq_internal.followers}', 'REPLICA ',
				'rows of the publisher replace those of'),
			('idemq_queue_gone', '{idemq.queues}', '',
				'grants, schedules, handlers, producers, holds and paused groups are not deleted with'),
			('idemq_queues_gone', '{idemq.queues}', '',
				'grants, schedules, handlers, producers, holds and paused groups are not deleted with'),
			('idemq_owner_named', '{idemq_internal.handler_entries}', 'ALWAYS ',
				'the OIDs of roles are not updated in'),
			('idemq_role_named',
				'{idemq.queues,idemq_internal.queue_grants,idemq_internal.schedule_entries,'
				'idemq_internal.handler_entries,idemq_internal.topic_grants,'
				'idemq_internal.topic_binding_entries}',
				'ALWAYS ', 'the OIDs of roles are not updated in')
		) AS w (name, rels, firing, what) CROSS JOIN unnest(w.rels) AS rel
		WHERE part = 'catalog' AND NOT EXISTS (SELECT FROM pg_trigger t
			WHERE t.tgrelid = rel::regclass AND t.tgname = w.name
			AND t.tgenabled = coalesce(nullif(left(w.firing, 1), ''), 'O')::"char")
		UNION ALL
		SELECT 3, 'error', 'row_security',
			format('every role that may read %s sees all rows: '
			'ALTER TABLE %1$s ENABLE ROW LEVEL SECURITY', c.oid::regclass)
		FROM pg_class c WHERE part = 'catalog' AND NOT c.relrowsecurity AND c.relkind = 'r'
			AND (c.relnamespace = 'idemq'::regnamespace AND c.relname = ANY (
				'{jobs,attempts,dependencies,children,steps,producers,queues,events,paused_groups}')
			OR c.relnamespace = 'idemq_internal'::regnamespace AND c.relname = ANY (
				'{database_uuid,queue_grants,seen,schedule_entries,ticker,handler_entries,'
				'topic_entries,topic_grants,topic_binding_entries,topic_over_limit,history_steps,'
				'worker_entries,hold_entries}'))
		UNION ALL
		SELECT 1, 'error', 'clock.future',
			format('%s rows of %s have times in the future, up to %s: discard this server if it '
			'has run with idemq.test_clock; otherwise its clock, or the clock of an earlier '
			'primary, was ahead', count(*), r.rel, max(r.at))
		FROM (
			SELECT 'idemq.jobs', greatest(enqueued_at, claimed_at, finished_at) FROM idemq.jobs
			UNION ALL SELECT 'idemq.queues', q.created_at FROM idemq.queues q
			UNION ALL SELECT 'idemq_internal.schedule_entries', greatest(created_at, done_until)
				FROM idemq_internal.schedule_entries
			UNION ALL SELECT 'idemq.events', sent_at FROM idemq.events
			UNION ALL SELECT 'idemq.audit', at FROM idemq.audit WHERE at > findings.now
			UNION ALL SELECT 'idemq_internal.history_steps', at FROM idemq_internal.history_steps
			UNION ALL SELECT 'idemq_internal.worker_entries', seen_at
				FROM idemq_internal.worker_entries) AS r (rel, at)
		WHERE part = 'clock' AND r.at > findings.now AND r.at > idemq.clock_timestamp()
			GROUP BY r.rel
		UNION ALL
		SELECT 1, 'warning', 'schedules.driver',
			format('no program has called idemq.tick() for 10 minutes, so '
			'schedules are waiting (%s): check the pg_cron job "idemq-tick"', count(*))
		FROM idemq_internal.schedule_entries
			WHERE part = 'driver' AND paused_at IS NULL
			AND created_at < findings.now - interval '10 min'
			AND NOT EXISTS (SELECT FROM idemq_internal.ticker
				WHERE called_at > findings.now - interval '10 min')
		HAVING count(*) > 0
		UNION ALL
		SELECT 1, 'error', invariant,
			format('rows (%s) belong to queue %s, which does not exist: restore idemq.queues, or '
			'DELETE FROM %s WHERE queue_id = %2$s', rows, queue_id, rel)
		FROM orphans WHERE part = 'others' AND invariant <> 'topics.queue'
		UNION ALL
		SELECT 2, 'error', invariant, format('%s bindings belong to queue %s, which does not exist: '
			'DELETE FROM %s WHERE queue_id = %2$s', rows, queue_id, rel)
		FROM orphans WHERE part = 'others' AND invariant = 'topics.queue'
		UNION ALL
		SELECT 2, 'warning', 'topics.role', format(CASE invariant
			WHEN 'topics.role' THEN '%s grants of role %I, which was dropped or renamed, have no effect: '
				'DELETE FROM idemq_internal.topic_grants WHERE role_name = %2$L'
			ELSE '%s bindings of role %I, which was dropped or renamed, are skipped: '
				'remove them with idemq.unbind_topic, and bind the queues again' END,
			rows, role)
		FROM nobodys WHERE part = 'others' AND invariant LIKE 'topics.role%'
		UNION ALL
		SELECT 2, 'error', 'topics.topic',
			format('%s grants and bindings belong to topic space %s, which does not exist: '
			'restore idemq_internal.topic_entries, or delete them', count(*), t.topic)
		FROM (SELECT topic FROM idemq_internal.topic_grants UNION ALL SELECT topic
			FROM idemq_internal.topic_binding_entries) t
		WHERE part = 'others' AND (SELECT true FROM idemq_internal.topic_entries e
			WHERE e.topic = t.topic) IS NULL GROUP BY t.topic
	) AS f (place, severity, invariant, detail)
	ORDER BY f.place, f.invariant, f.detail
	$$;

-- What idemq.check() suspects, of one kind, where memory knows more: src/observe/check_report.c
-- looks there, and then calls this again.  version: of what was seen of the job, or of its group.
--   tokens: from the token on, the greatest first.
--   groups: those in which a job is blocked, none waits to be claimed, and fewer are running
--     than may be; with the first of these jobs.  They have changed when they have other jobs, or
--     one was claimed.
CREATE FUNCTION idemq_internal.suspects(part text, most bigint, token bigint)
	RETURNS TABLE (queue_id int, group_key text, id bigint, version text)
	ROWS 10 STABLE LANGUAGE sql AS $$
	(SELECT j.queue_id, NULL, j.id, j.token::text FROM idemq.jobs j
		WHERE part = 'tokens' AND j.token >= suspects.token AND j.token < 9007199254740992
		ORDER BY j.token DESC LIMIT most)
	UNION ALL
	(SELECT queue_id, j.group_key, min(j.id) FILTER (WHERE j.status = 'blocked'),
			concat_ws(' ', count(*), max(j.id), max(j.token))
		FROM idemq.jobs j CROSS JOIN LATERAL (SELECT q.group_max_running FROM idemq.queues q
			WHERE q.queue_id = j.queue_id OFFSET 0) q
		CROSS
			JOIN LATERAL (SELECT j.status <> 'blocked'
			AND (q.group_max_running = 1 AND j.group_key <> ''
			OR j.status = 'running' OR j.flags & 32 <> 0) AS has_permit) p
		WHERE part = 'groups' AND j.group_key IS NOT NULL AND j.finished_at IS NULL
		GROUP BY 1, 2, q.group_max_running HAVING bool_or(j.status = 'blocked')
			AND (j.group_key = '' OR count(*) FILTER (WHERE p.has_permit) < q.group_max_running)
			AND NOT bool_or(p.has_permit AND j.status <> 'running')
			-- Paused groups need not be promoted while their row exists, even if its time has passed.
			AND NOT EXISTS (SELECT FROM idemq.paused_groups g
				WHERE g.queue_id = j.queue_id AND g.group_key = j.group_key)
		ORDER BY 1, 2 LIMIT most)
	$$;
