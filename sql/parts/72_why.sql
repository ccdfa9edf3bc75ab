-- What other rows than its own say of a job, for idemq.why(), in words; NULL: nothing.  Of a step
-- only whether its attempt goes on tells whether somebody will answer it.
CREATE FUNCTION idemq_internal.why_rows(id bigint, now timestamptz, OUT steps text, OUT event text,
	OUT parent text, OUT dead text)
	STABLE LANGUAGE sql SET datestyle = 'ISO' AS $$
	SELECT
		(SELECT string_agg(format('; its step "%s" ', s.name) || CASE
			WHEN j.status = 'running' AND s.token = j.token
				THEN format('is open: its request may last until %s', s.call_until)
			ELSE format('is unknown: an attempt that began it at %s ended without a response; ',
				s.begun_at) || CASE
				WHEN why_rows.now < s.call_until THEN format('its request may still arrive until %s',
					s.call_until)
				WHEN j.finished_at IS NULL THEN 'the next attempt must ask the other system'
				ELSE format('ask the other system, then call idemq.finish_step(%s, %s, ...) or '
					'idemq.refuse_step', j.id, s.token)
			END END, '' ORDER BY s.begun_at, s.name)
		FROM (SELECT * FROM idemq.steps s WHERE s.job_id = j.id AND s.state = 'open'
			ORDER BY s.begun_at, s.name LIMIT 3) s WHERE j.token <> 0),
		(SELECT format('has been waiting for event "%s" since %s, and waits until %s at most; '
			'call idemq.send_event(%L, %1$L) to make it ready now',
				s.name, s.begun_at, j.ready_at, q.name)
			FROM idemq.steps s JOIN idemq.queues q ON q.queue_id = j.queue_id
			WHERE s.job_id = j.id AND s.state = 'waiting' AND s.token = j.token
				AND j.status = 'pending'),
		CASE
			WHEN c.job_id IS NULL
				THEN format('blocked by a manual change and not in a group, so it will never run; call idemq.cancel(%s) '
					'to end the job', j.id)
			WHEN p.id IS NULL
				THEN 'its parents are done: the background worker or the next claim makes it '
				'pending'
			WHEN p.gone
				THEN format('its parent, job %s, no longer exists: the background worker or the next '
					'claim cancels it', p.id)
			WHEN p.status NOT IN ('dead', 'cancelled')
				THEN format('waits for its parent, job %s, which is %s%s: see idemq.why(%1$s)', p.id,
					p.status, CASE WHEN p.status IN ('pending', 'retrying')
						AND p.ready_at > why_rows.now
						THEN format(' and not due before %s', p.ready_at) END)
			WHEN c.on_parent_failure = 'cancel'
				THEN format('its parent, job %s, is %s: the background worker or the '
				'next claim cancels it', p.id, p.status)
			ELSE format('waits for its parent, job %s, which is %s: call idemq.retry(%1$s) to make that job '
				'ready again', p.id, p.status)
		END,
		(SELECT format('it records a dead job of queue "%s" and waits for a person: to remove it, '
			'call idemq.retry for the original job', min(d.name))
			FROM idemq.queues q JOIN idemq.queues d ON d.dead_letter_queue = q.name
			WHERE q.queue_id = j.queue_id AND j.key ~ '^@dead:[0-9]+:[0-9]+:[0-9]+$' HAVING count(*) > 0)
	FROM idemq.jobs j
	-- Without any edge they are still to be restored.
	LEFT JOIN idemq.children c ON c.job_id = j.id
		AND EXISTS (SELECT FROM idemq.dependencies d WHERE d.child = c.job_id)
	LEFT JOIN LATERAL (
		-- The first that is not done; see src/table/jobs_dependencies.c.
		SELECT * FROM (
			SELECT d.parent AS id, o.id IS NULL AS gone, coalesce(o.status::text, d.gone_as::text,
				'completed') AS status, o.ready_at
			FROM idemq.dependencies d LEFT JOIN LATERAL (
				SELECT o.id, o.status, o.ready_at FROM idemq.jobs o WHERE o.id = d.parent OFFSET 0) o ON true
			WHERE (d.child, d.parent) >= (j.id, c.waits_for)
				AND (d.child, d.parent) <= (j.id, 9223372036854775807)
			ORDER BY d.child, d.parent OFFSET 0) x
		WHERE x.status <> 'completed'
			AND (c.on_parent_failure <> 'run' OR NOT x.gone AND x.status NOT IN ('dead',
				'cancelled'))
		LIMIT 1) p ON true
	WHERE j.id = why_rows.id
	$$;
