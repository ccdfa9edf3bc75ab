/*
 * hooks/row_triggers.c
 *		Triggers on idemq's own tables.  They note how shared memory and caches must change when
 *		rows are written through SQL: by idemq's SPI statements, a DBA, COPY or logical
 *		replication.  Direct access (table/) fires no triggers, and notes its own changes.  Also
 *		the trigger that stores the OID of a role next to its name.
 *
 * At the end of the transaction, txn/at_end.c applies the notes.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "utils/acl.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/groups/groups.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"
#include "table/table.h"
#include "txn/txn.h"

/* The columns of a row version of idemq.jobs that shared memory reflects. */
typedef struct JobVersion
{
	int32 queue_id;
	int64 id;
	int64 token;
	JobStatus status;
	int16 priority;
	bool is_ready; /* ready_at is not NULL */
	bool is_grouped;
	bool is_finished;
	TimestampTz ready_at;
	TimestampTz expires_at; /* DT_NOEND: never */
	Datum group;
} JobVersion;

pg_noreturn static void
refuse(void)
{
	ereport(ERROR, errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			errmsg("this function can be called only by idemq's own triggers"),
			errhint("Do not call the function directly, and do not use it in your own triggers."));
}

/*
 * Returns the data of the trigger that calls a function.  Raises 0A000 if its caller is not a
 * trigger with that timing, or if for_row is true and it is not a row trigger.
 */
static TriggerData *
trigger_data(FunctionCallInfo fcinfo, TriggerEvent timing, bool for_row)
{
	TriggerData *data = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo) || (data->tg_event & TRIGGER_EVENT_TIMINGMASK) != timing ||
		(for_row && !TRIGGER_FIRED_FOR_ROW(data->tg_event)))
		refuse();
	return data;
}

/*
 * Reads a row version.  Columns that may be NULL are read only if they are not, because the Datum
 * of a NULL is not a valid pointer for a type that is passed by reference.
 */
static void
read_version(Relation rel, HeapTuple tuple, JobVersion *version)
{
	TupleDesc desc = RelationGetDescr(rel);
	bool isnull;
	Datum value;

#define column(which) (value = SPI_getbinval(tuple, desc, (which) + 1, &isnull))
	version->queue_id = DatumGetInt32(column(COL_QUEUE_ID));
	version->id = DatumGetInt64(column(COL_ID));
	version->token = DatumGetInt64(column(COL_TOKEN));
	version->status = idemq_status_from_oid(DatumGetObjectId(column(COL_STATUS)));
	version->priority = DatumGetInt16(column(COL_PRIORITY));
	version->group = column(COL_GROUP_KEY);
	version->is_grouped = !isnull;
	(void) column(COL_FINISHED_AT);
	version->is_finished = !isnull;
	(void) column(COL_READY_AT);
	version->is_ready = !isnull;
	version->ready_at = isnull ? DT_NOEND : DatumGetTimestampTz(value);
	(void) column(COL_EXPIRES_AT);
	version->expires_at = isnull ? DT_NOEND : DatumGetTimestampTz(value);
#undef column
}

/*
 * Returns the state of a job's queue, or NULL if the queue has no state or is not visible yet.  In
 * a parallel restore, another transaction may add the queue and commit first, and sessions may
 * already use the queue.  Therefore, changes are noted even without a queue state; our commit then
 * looks for the state that the queue has at that time.
 */
static QueueState *
qstate_of(const JobVersion *version)
{
	QueueInfo queue;

	return idemq_queue_by_id(version->queue_id, &queue) ? queue.qstate : NULL;
}

/* Notes the ready-index key of a version; taken: of a version that is no longer the current one. */
static void
note_ready(const JobVersion *version, bool taken)
{
	ReadyKey key = {version->ready_at, version->id};

	if (!version->is_ready || version->priority < 0 || version->priority >= IDEMQ_PRIORITIES)
		return;
	if (taken)
		idemq_pending_ready_note_taken(qstate_of(version), version->queue_id, version->priority,
									   key);
	else
		idemq_pending_ready_note(qstate_of(version), version->queue_id, version->priority, key);
}

/*
 * Marks the group of a changed row, because the group may now need a head.  A job that is blocked
 * without a group waits for its parents, which may have finished, so the job is marked instead.
 */
static void
row_triggers_note_group(const JobVersion *row)
{
	if (row->is_grouped)
		idemq_pending_groups_note(qstate_of(row), row->queue_id, row->group, GROUP_DROP_LOW_WATER);
	else if (row->status == JOB_BLOCKED)
		idemq_pending_dependency_note_blocked(qstate_of(row), row->queue_id, row->id);
}

/*
 * Notes that a job has moved to another queue.  A child waits there for its parents.  A job that
 * waits for an event looks for it again, because each queue has its own events.
 */
static void
note_move(const JobVersion *before, const JobVersion *after)
{
	QueueState *qstate;

	if (idemq_may_have_dependencies(qstate_of(before), after->id))
		idemq_dependency_child_moved(after->id, after->queue_id);
	if (after->status == JOB_PENDING)
		idemq_event_wait_moved(after->id);
	qstate = qstate_of(after);
	idemq_dependency_note(qstate, after->id);
	/*
	 * If the queue gets its state before our commit, that state reflects the rows without our
	 * change.
	 */
	if (qstate == NULL)
		idemq_pending_note(ACTION_ROWS, NULL, 0);
}

/*
 * If the queue has group_max_unfinished, adds count (1 or -1) for a row version to the room taken
 * in its group.  version NULL: does nothing.  is_new: the row was inserted.
 */
static void
count_in_group(const JobVersion *version, int count, bool is_new)
{
	if (version == NULL || !version->is_grouped || version->is_finished)
		return;
	if (idemq_queue_limits_groups(version->queue_id))
		idemq_pending_group_room_row(version->queue_id, version->group, count, is_new);
	else
		idemq_pending_group_room_miss(version->queue_id);
}

/*
 * Counts a written row in gauges and groups; before is NULL after INSERT, after is NULL after
 * DELETE.
 */
static void
count_row(const JobVersion *before, const JobVersion *after)
{
	count_in_group(before, -1, false);
	count_in_group(after, 1, before == NULL);
	if (before != NULL && after != NULL && before->queue_id == after->queue_id)
		idemq_pending_counts_row(before->queue_id, before->status, after->status);
	else
	{
		if (before != NULL)
			idemq_pending_counts_row(before->queue_id, before->status, NO_ROW);
		if (after != NULL)
			idemq_pending_counts_row(after->queue_id, NO_ROW, after->status);
	}
}

/*
 * If a job has finished or was deleted, notes that sessions that wait for its result must wake up.
 */
static void
note_result(const JobVersion *before, const JobVersion *after)
{
	if (before == NULL || before->is_finished)
		return;
	if (after == NULL)
		idemq_pending_note(ACTION_GONE, NULL, 0);
	else if (after->is_finished)
	{
		QueueInfo queue;
		bool known = idemq_queue_by_id(after->queue_id, &queue);
		bool announces = known && queue.notify_finished && job_status_is_finished(after->status);

		idemq_pending_note_finished(known ? queue.qstate : NULL, after->queue_id, after->id,
									announces ? after->status : NOT_ANNOUNCED);
	}
}

/*
 * jobs_changed(): row trigger of idemq.jobs.  In a database that follows another one, where mostly
 * the apply worker writes, only results are noted, because nothing else in shared memory is used
 * there (job/follow.c).
 */
SQL_FUNCTION(idemq_sql_jobs_changed)
{
	TriggerData *data = trigger_data(fcinfo, TRIGGER_EVENT_AFTER, true);
	Relation rel = data->tg_relation;
	bool inserted = TRIGGER_FIRED_BY_INSERT(data->tg_event);
	bool updated = TRIGGER_FIRED_BY_UPDATE(data->tg_event);
	Lease lease;
	JobVersion versions[2];
	JobVersion *before = inserted ? NULL : &versions[0];
	JobVersion *after = inserted || updated ? &versions[1] : NULL;

	if (RelationGetRelid(rel) != idemq_oids()->jobs)
		refuse();
	if (before != NULL)
		read_version(rel, data->tg_trigtuple, before);
	if (after != NULL)
		read_version(rel, updated ? data->tg_newtuple : data->tg_trigtuple, after);
	note_result(before, after);
	if (idemq_follows())
		return PointerGetDatum(NULL);
	if (before != NULL)
	{
		row_triggers_note_group(before);
		/*
		 * Our transaction's claims do not see this version, and may move the scan start past its
		 * key.  A rollback makes the version current again, and then lowers the scan start.
		 */
		note_ready(before, true);
		/* The change has ended the attempt, so its lease entry must go. */
		if (before->status == JOB_RUNNING &&
			!(after != NULL && after->status == JOB_RUNNING && after->token == before->token &&
			  after->queue_id == before->queue_id))
			idemq_pending_note_end(qstate_of(before), before->queue_id, before->id, before->token,
								   NOT_ANNOUNCED, true);
	}
	if (after != NULL)
	{
		row_triggers_note_group(after);
		note_ready(after, false);
		if (!after->is_finished && after->expires_at != DT_NOEND)
			idemq_pending_ready_note_expiry(qstate_of(after), after->queue_id, after->expires_at);
		/*
		 * Someone has set status to running, so the job has no lease entry: recovery must adopt
		 * it.
		 */
		if (after->status == JOB_RUNNING &&
			!(idemq_lease_get(after->id, &lease) && lease.token == after->token &&
			  lease.queue_id == after->queue_id))
			idemq_pending_note(ACTION_RECOVER, qstate_of(after), after->queue_id);
	}
	if (before != NULL && after == NULL &&
		idemq_may_have_dependencies(qstate_of(before), before->id))
		idemq_dependency_gone(before->id, before->status);
	if (before != NULL && after != NULL && before->queue_id != after->queue_id)
		note_move(before, after);
	count_row(before, after);
	return PointerGetDatum(NULL);
}

/* jobs_truncated(): statement trigger of idemq.jobs. */
SQL_FUNCTION(idemq_sql_jobs_truncated)
{
	(void) trigger_data(fcinfo, TRIGGER_EVENT_AFTER, false);
	if (!idemq_follows())
	{
		idemq_pending_note(ACTION_FORGET, NULL, 0);
		idemq_dependency_all_gone();
	}
	return PointerGetDatum(NULL);
}

/*
 * dependencies_changed(): statement trigger of idemq.dependencies and idemq.children, for rows that
 * idemq did not write itself, for example in a restore.
 */
SQL_FUNCTION(idemq_sql_dependencies_changed)
{
	(void) trigger_data(fcinfo, TRIGGER_EVENT_AFTER, false);
	if (!idemq_dependencies_is_writing() && !idemq_follows())
		idemq_pending_note(ACTION_ROWS, NULL, 0);
	return PointerGetDatum(NULL);
}

/* Notes that this transaction has changed the settings of a queue; 0: of any queue. */
static void
note_settings(int32 queue_id)
{
	/*
	 * First, so that a rollback to a savepoint also undoes what is read into the cache from now
	 * on.
	 */
	idemq_pending_note(ACTION_SETTINGS, NULL, queue_id);
	idemq_queue_cache_changed(queue_id);
}

/* Notes that this transaction has changed a hold of a queue or of one of its groups. */
static void
note_holds(int32 queue_id)
{
	/* First, as in note_settings. */
	idemq_pending_note(ACTION_HOLDS, NULL, queue_id);
	idemq_queue_cache_changed(queue_id);
}

/* Returns the column queue_id of a row of the trigger's table. */
static int32
row_triggers_queue_of(TriggerData *data, HeapTuple row)
{
	TupleDesc desc = RelationGetDescr(data->tg_relation);
	bool isnull;

	return DatumGetInt32(SPI_getbinval(row, desc, SPI_fnumber(desc, "queue_id"), &isnull));
}

/*
 * settings_changed(): row trigger of idemq.queues, idemq_internal.queue_grants and
 * idemq_internal.handler_entries, whose rows contain the id of the changed queue.  Also statement
 * trigger for TRUNCATE of these tables, and of idemq_internal.clusters, which may change any queue.
 */
SQL_FUNCTION(idemq_sql_settings_changed)
{
	TriggerData *data = trigger_data(fcinfo, TRIGGER_EVENT_AFTER, false);

	if (TRIGGER_FIRED_FOR_ROW(data->tg_event))
	{
		int32 queue_id = row_triggers_queue_of(data, data->tg_trigtuple);

		note_settings(queue_id);
		/*
		 * In a restore, a tick may add a job to the queue before the queue's old jobs are added,
		 * which keep their ids.
		 */
		if (TRIGGER_FIRED_BY_INSERT(data->tg_event) &&
			RelationGetRelid(data->tg_relation) == idemq_oids()->queues &&
			!idemq_settings_is_inserting() && !idemq_follows())
			idemq_jobs_ids_unknown();
		if (TRIGGER_FIRED_BY_UPDATE(data->tg_event) &&
			row_triggers_queue_of(data, data->tg_newtuple) != queue_id)
			note_settings(row_triggers_queue_of(data, data->tg_newtuple));
		return PointerGetDatum(NULL);
	}
	note_settings(0);
	/* Queues with the same ids may be added later, for example by a restore. */
	if (TRIGGER_FIRED_BY_TRUNCATE(data->tg_event) &&
		RelationGetRelid(data->tg_relation) == idemq_oids()->queues && !idemq_follows())
		idemq_pending_note(ACTION_FORGET, NULL, 0);
	return PointerGetDatum(NULL);
}

/*
 * holds_changed(): row and TRUNCATE trigger of idemq_internal.hold_entries.  Sessions read the
 * queue again, as after a change of its settings.  Sessions that wait for its jobs are not woken,
 * because a new hold makes no job ready, and the worker wakes them when the hold ends.
 */
SQL_FUNCTION(idemq_sql_holds_changed)
{
	TriggerData *data = trigger_data(fcinfo, TRIGGER_EVENT_AFTER, false);
	int32 queue_id;

	if (!TRIGGER_FIRED_FOR_ROW(data->tg_event))
	{
		note_settings(0);
		return PointerGetDatum(NULL);
	}
	queue_id = row_triggers_queue_of(data, data->tg_trigtuple);
	note_holds(queue_id);
	if (TRIGGER_FIRED_BY_UPDATE(data->tg_event) &&
		row_triggers_queue_of(data, data->tg_newtuple) != queue_id)
		note_holds(row_triggers_queue_of(data, data->tg_newtuple));
	return PointerGetDatum(NULL);
}

/* Notes a changed row of idemq.paused_groups, in the settings of its queue and for its group. */
static void
note_pause(TriggerData *data, HeapTuple row)
{
	TupleDesc desc = RelationGetDescr(data->tg_relation);
	int32 queue_id = row_triggers_queue_of(data, row);
	bool isnull;
	Datum group = SPI_getbinval(row, desc, SPI_fnumber(desc, "group_key"), &isnull);

	note_settings(queue_id);
	if (!idemq_follows())
		idemq_pending_groups_note_pause(idemq_qstate_find(MyDatabaseId, queue_id), queue_id, group);
}

/*
 * paused_groups_changed(): row trigger of idemq.paused_groups.  Also statement trigger for its
 * TRUNCATE, after which any group may have been paused before.
 */
SQL_FUNCTION(idemq_sql_paused_groups_changed)
{
	TriggerData *data = trigger_data(fcinfo, TRIGGER_EVENT_AFTER, false);

	if (RelationGetRelid(data->tg_relation) != idemq_oids()->paused_groups)
		refuse();
	if (TRIGGER_FIRED_FOR_ROW(data->tg_event))
	{
		note_pause(data, data->tg_trigtuple);
		if (TRIGGER_FIRED_BY_UPDATE(data->tg_event))
			note_pause(data, data->tg_newtuple);
		return PointerGetDatum(NULL);
	}
	note_settings(0);
	if (!idemq_follows())
		idemq_pending_note(ACTION_ROWS, NULL, 0);
	return PointerGetDatum(NULL);
}

/* followers_changed(): row and TRUNCATE trigger of idemq_internal.followers. */
SQL_FUNCTION(idemq_sql_followers_changed)
{
	TriggerData *data = trigger_data(fcinfo, TRIGGER_EVENT_AFTER, false);

	idemq_pending_note(ACTION_SWITCH, NULL, 0);
	idemq_following_changed(RelationGetRelid(data->tg_relation));
	return PointerGetDatum(NULL);
}

/*
 * followers_local(): BEFORE trigger of idemq_internal.followers for rows that an apply worker
 * writes.  It skips each row.  Otherwise, our own row, replicated back by a database that has
 * followed this one, would conflict with the row that is here.
 */
SQL_FUNCTION(idemq_sql_followers_local)
{
	(void) trigger_data(fcinfo, TRIGGER_EVENT_BEFORE, true);
	return PointerGetDatum(NULL);
}

/* shard_changed(): row and TRUNCATE trigger of idemq.shard. */
SQL_FUNCTION(idemq_sql_shard_changed)
{
	(void) trigger_data(fcinfo, TRIGGER_EVENT_AFTER, false);
	idemq_jobs_ids_changed();
	return PointerGetDatum(NULL);
}

/*
 * schedules_changed(): statement trigger of idemq_internal.schedule_entries.  It tells the worker
 * to read the schedules again, unless this process is the worker, which remembers its own changes.
 */
SQL_FUNCTION(idemq_sql_schedules_changed)
{
	(void) trigger_data(fcinfo, TRIGGER_EVENT_AFTER, false);
	if (idemq_worker_self() == NULL)
		idemq_pending_note(ACTION_SCHEDULES, NULL, 0);
	return PointerGetDatum(NULL);
}

/*
 * role_named(name column, oid column): BEFORE trigger that stores the OID of a role next to its
 * name (queue/roles.c), on each INSERT, including those of a restore, and on each UPDATE of the
 * name.
 */
SQL_FUNCTION(idemq_sql_role_named)
{
	TriggerData *data = trigger_data(fcinfo, TRIGGER_EVENT_BEFORE, true);
	TupleDesc desc = RelationGetDescr(data->tg_relation);
	HeapTuple row = data->tg_trigtuple;
	int attno;
	bool isnull;
	Datum name;
	Oid role = InvalidOid;
	Datum value;

	if (TRIGGER_FIRED_BY_DELETE(data->tg_event) || data->tg_trigger->tgnargs != 2)
		refuse();
	if (TRIGGER_FIRED_BY_UPDATE(data->tg_event))
		row = data->tg_newtuple;
	name = SPI_getbinval(row, desc, SPI_fnumber(desc, data->tg_trigger->tgargs[0]), &isnull);
	if (!isnull)
		role = get_role_oid(NameStr(*DatumGetName(name)), true);
	attno = SPI_fnumber(desc, data->tg_trigger->tgargs[1]);
	value = ObjectIdGetDatum(role);
	isnull = !OidIsValid(role);
	return PointerGetDatum(heap_modify_tuple_by_cols(row, desc, 1, &attno, &value, &isnull));
}
