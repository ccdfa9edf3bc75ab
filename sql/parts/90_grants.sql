-- Nothing by default; then what is safe for every role that may use the schema.  Not
-- PUBLIC: idemq.grant_queue gives that with the first privilege on a queue, and the
-- functions check these.  Only the DBA can grant the right to create queues, even with ensure_queue:
--   GRANT USAGE ON SCHEMA idemq TO app_owner;
--   GRANT EXECUTE ON FUNCTION idemq.create_queue TO app_owner;
-- and so are once and admit, since all roles that have them share keys and buckets,
-- and apply_retention, which is for all queues.
REVOKE ALL ON ALL TABLES IN SCHEMA idemq FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA idemq FROM PUBLIC;
REVOKE ALL ON ALL ROUTINES IN SCHEMA idemq FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA idemq_internal FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA idemq_internal FROM PUBLIC;
REVOKE ALL ON ALL ROUTINES IN SCHEMA idemq_internal FROM PUBLIC;
-- Nobody may name what is in it: what the default privileges of the role that runs this have granted is revoked.
DO $$
DECLARE
	role text;
BEGIN
	FOR role IN
		SELECT DISTINCT CASE WHEN a.grantee OPERATOR(pg_catalog.=) 0 THEN 'PUBLIC'
				ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)::text) END
			FROM pg_catalog.pg_namespace AS n, pg_catalog.aclexplode(n.nspacl) AS a
			WHERE n.nspname OPERATOR(pg_catalog.=) 'idemq_internal'
			AND a.grantee OPERATOR(pg_catalog.<>) n.nspowner
	LOOP
		EXECUTE pg_catalog.format('REVOKE ALL ON SCHEMA idemq_internal FROM %s', role);
	END LOOP;
END $$;

-- PostgreSQL checks EXECUTE on a function that a policy or a view calls as the role that reads.
-- So each of these is granted to the roles that may read what calls it.  No role has USAGE on
-- idemq_internal, so none of them can name the function.
GRANT EXECUTE ON FUNCTION
	idemq_internal.may_see, idemq_internal.may_use, idemq_internal.may_administer,
	idemq_internal.may_enqueue, idemq_internal.may_change_schedule, idemq_internal.next_run,
	idemq_internal.leases, idemq_internal.queue_metrics, idemq_internal.handler_states,
	idemq_internal.topic_privileges, idemq_internal.topic_states,
	idemq_internal.error_pattern, idemq_internal.error_sqlstate, idemq_internal.error_fingerprint
	TO PUBLIC;
GRANT EXECUTE ON FUNCTION
	idemq_internal.memory_usage, idemq_internal.server_counts, idemq_internal.worker_state,
	idemq_internal.task_counts, idemq_internal.timing_buckets
	TO pg_monitor;

-- advance_clock is also for the DBA to grant.
GRANT EXECUTE ON FUNCTION idemq.now, idemq.clock_timestamp, idemq.test_clock_ahead TO PUBLIC;
GRANT USAGE ON SCHEMA idemq TO pg_monitor;
GRANT SELECT ON idemq.jobs, idemq.attempts, idemq.steps, idemq.audit, idemq.queues,
	idemq.paused_groups, idemq.paused_group_list, idemq.metrics,
	idemq.running_jobs, idemq.history, idemq.queue_privileges TO PUBLIC;
-- The list of workers; idemq.report_worker checks the right to claim itself.
GRANT SELECT ON idemq.workers TO PUBLIC;
GRANT EXECUTE ON FUNCTION idemq.report_worker TO PUBLIC;
GRANT EXECUTE ON FUNCTION idemq.percentile, idemq.sum_counts TO PUBLIC;
-- Of the whole server.
GRANT SELECT ON idemq.memory, idemq.admissions, idemq.once_calls, idemq.publish_calls,
	idemq.background_worker TO pg_monitor;
-- idemq.tick is for the owner alone: it drives the schedules.
GRANT SELECT ON idemq.schedules TO PUBLIC;
GRANT EXECUTE ON FUNCTION
	idemq.schedule, idemq.unschedule, idemq.pause_schedule, idemq.resume_schedule, idemq.next_tick,
	idemq.last_tick
	TO PUBLIC;
GRANT EXECUTE ON FUNCTION
	idemq.alter_queue, idemq.ensure_queue, idemq.drop_queue, idemq.pause, idemq.resume, idemq.purge,
	idemq.grant_queue, idemq.revoke_queue,
	idemq.enqueue, idemq.enqueue_many, idemq.cancel, idemq.cancel_many, idemq.cancel_matching,
		idemq.retry,
	idemq.redrive,
	idemq.claim, idemq.claim_any, idemq.claim_job,
	idemq.heartbeat, idemq.heartbeat_many, idemq.validate,
	idemq.commit, idemq.try_commit, idemq.commit_many, idemq.commit_once,
	idemq.commit_and_claim, idemq.commit_many_and_claim,
	idemq.fail, idemq.fail_many, idemq.record_details, idemq.release, idemq.release_many, idemq.hold_back,
	idemq.checkpoint, idemq.assert_current, idemq.hold_claimed, idemq.reap,
	idemq.job, idemq.why,
	idemq.acquire, idemq.cancel_by_key, idemq.queue_id, idemq.job_by_key, idemq.fence
	TO PUBLIC;
GRANT EXECUTE ON PROCEDURE idemq.enqueue_job, idemq.commit_job, idemq.fail_job TO PUBLIC;
GRANT EXECUTE ON PROCEDURE idemq.wait, idemq.wait_any, idemq.wait_result TO PUBLIC;
GRANT EXECUTE ON PROCEDURE idemq.begin_step TO PUBLIC;
GRANT EXECUTE ON FUNCTION idemq.finish_step, idemq.refuse_step TO PUBLIC;
-- A whole table is read: the owner's, and the monitor's.
GRANT EXECUTE ON FUNCTION idemq.recount TO pg_monitor;
-- Of all queues; it shows ids and counts, no payload, key or error.
GRANT EXECUTE ON FUNCTION idemq.check, idemq.report TO pg_monitor;
-- For people.
GRANT SELECT ON idemq.errors, idemq.job_errors, idemq.job_list TO PUBLIC;
GRANT EXECUTE ON FUNCTION
	idemq.progress, idemq.queue_name, idemq.retry_many, idemq.reschedule
	TO PUBLIC;
-- Figures for machines: of all queues, and of the whole server.
GRANT SELECT ON idemq.prometheus, idemq.prometheus_names, idemq.maintenance_tasks TO pg_monitor;
GRANT EXECUTE ON FUNCTION idemq.prometheus_text TO pg_monitor;
-- For operators; each asks for itself.
GRANT EXECUTE ON FUNCTION idemq.revoke_lease, idemq.run_schedule_now TO PUBLIC;
-- A handler is a process of the server, so only the DBA can grant EXECUTE on set_handler, which ensure_handler also requires.
GRANT SELECT ON idemq.handlers TO PUBLIC;
GRANT EXECUTE ON FUNCTION idemq.drop_handler, idemq.ensure_handler, idemq.current_job TO PUBLIC;
-- Topics.  Only the DBA can grant EXECUTE on create_topic, which ensure_topic also requires.
GRANT SELECT ON idemq.topics, idemq.topic_bindings TO PUBLIC;
GRANT EXECUTE ON FUNCTION
	idemq.ensure_topic, idemq.drop_topic, idemq.grant_topic, idemq.revoke_topic, idemq.bind_topic, idemq.unbind_topic,
	idemq.publish, idemq.topic_matches
	TO PUBLIC;
-- Events.
GRANT SELECT ON idemq.holds TO PUBLIC;
GRANT SELECT ON idemq.events TO PUBLIC;
GRANT EXECUTE ON FUNCTION idemq.await_event, idemq.send_event TO PUBLIC;
-- Producers that number what they send.
GRANT SELECT ON idemq.producers TO PUBLIC;
GRANT EXECUTE ON FUNCTION idemq.enqueue_sequenced, idemq.forget_producer TO PUBLIC;
-- Which shard this is; set_shard and retire are the owner's.
GRANT SELECT ON idemq.shard TO PUBLIC;
GRANT EXECUTE ON FUNCTION idemq.assert_shard, idemq.shard_of, idemq.result TO PUBLIC;
-- Parents and children; idemq.parents asks for itself.
GRANT SELECT ON idemq.dependencies, idemq.children TO PUBLIC;
GRANT EXECUTE ON FUNCTION idemq.parents, idemq.add_parents, idemq.enqueue_graph,
	idemq.flow_ids, idemq.flow, idemq.flow_jobs TO PUBLIC;
GRANT EXECUTE ON PROCEDURE idemq.wait_results, idemq.wait_for_room TO PUBLIC;
