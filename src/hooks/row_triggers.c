/*
 * hooks/row_triggers.c
 *		Triggers on idemq's own tables, by which shared memory and caches follow
 *		rows that change by any other way than direct access: SPI, a DBA's
 *		statement, COPY, logical replication; and the OID beside each role's name.
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

/* What a version of a row of idemq.jobs says that memory follows. */
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

/* Raises 0A000 when called by anything but a trigger of that timing; for_row: for each row. */
static TriggerData *
trigger_data(FunctionCallInfo fcinfo, TriggerEvent timing, bool for_row)
{
	TriggerData *data = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo) || (data->tg_event & TRIGGER_EVENT_TIMINGMASK) != timing ||
		(for_row && !TRIGGER_FIRED_FOR_ROW(data->tg_event)))
		refuse();
	return data;
}

/* Reads a version.  A NULL has nothing to read where 8 bytes are passed by reference. */
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
 * Returns the state of the queue of a job's version; NULL when the queue has no state, or when its
 * row is not there yet.  A parallel restore may commit the queue before our jobs, and others may
 * work on it by then.  So what the jobs need is noted without a queue state, and our commit looks
 * for the state that the queue has then.
 */
static QueueState *
qstate_of(const JobVersion *version)
{
	QueueInfo queue;

	return idemq_queue_by_id(version->queue_id, &queue) ? queue.qstate : NULL;
}

/* Notes where a version stands in the ready index; taken: where it stood. */
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
 * Marks the group of a changed row: it may need a head now.  A job that is blocked without a
 * group waits for its parents, which may be done.
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
 * Follows a job into another queue.  As a child it waits there for its parents; one that waits
 * for an event asks for it again, since events are a queue's own.
 */
static void
note_move(const JobVersion *before, const JobVersion *after)
{
	QueueState *qstate;

	if (idemq_may_have_dependencies(qstate_of(before), after->id))
		idemq_jobs_moved_child(after->id, after->queue_id);
	if (after->status == JOB_PENDING)
		idemq_jobs_moved_event_wait(after->id);
	qstate = qstate_of(after);
	idemq_dependency_note(qstate, after->id);
	/* A queue that gets its state before our commit learns from the rows as they were. */
	if (qstate == NULL)
		idemq_pending_note(ACTION_ROWS, NULL, 0);
}

/*
 * Counts a version of a row in its group if the queue has group_max_unfinished.  is_new: the row was
 * inserted.
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

/* Counts a row that SQL wrote; a version is NULL when there is none. */
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

/* Notes that a job has its result, or is gone: sessions may sleep until then. */
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
 * jobs_changed(): row trigger of idemq.jobs.  In a database that follows another, where mostly
 * the apply worker writes, only results are noted: nobody reads the rest (job/follow.c).
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
		/* Our own claims do not see it any more, and pass its key; a rollback brings it back. */
		note_ready(before, true);
		/* The change ends the attempt, and so its lease entry. */
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
		/* A job that was set to running by hand has no lease entry: it must be searched for. */
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
 * dependencies_changed(): statement trigger of idemq.dependencies and idemq.children, for
 * rows that come by a restore, or by hand.
 */
SQL_FUNCTION(idemq_sql_dependencies_changed)
{
	(void) trigger_data(fcinfo, TRIGGER_EVENT_AFTER, false);
	if (!idemq_dependencies_is_writing() && !idemq_follows())
		idemq_pending_note(ACTION_ROWS, NULL, 0);
	return PointerGetDatum(NULL);
}

/* Notes that what was written changes a queue's settings; 0: all queues'. */
static void
note_settings(int32 queue_id)
{
	/* First: a rollback that finds the note forgets what was read since. */
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

static int32
row_triggers_queue_of(TriggerData *data, HeapTuple row)
{
	TupleDesc desc = RelationGetDescr(data->tg_relation);
	bool isnull;

	return DatumGetInt32(SPI_getbinval(row, desc, SPI_fnumber(desc, "queue_id"), &isnull));
}

/*
 * settings_changed(): row trigger of idemq.queues, idemq_internal.queue_grants and
 * idemq_internal.handler_entries, whose rows name the queue that has changed; also statement
 * trigger of their TRUNCATE, and of idemq_internal.clusters: then any queue may have changed.
 */
SQL_FUNCTION(idemq_sql_settings_changed)
{
	TriggerData *data = trigger_data(fcinfo, TRIGGER_EVENT_AFTER, false);

	if (TRIGGER_FIRED_FOR_ROW(data->tg_event))
	{
		int32 queue_id = row_triggers_queue_of(data, data->tg_trigtuple);

		note_settings(queue_id);
		/* A restore: its jobs, with the ids that they had, may come after a tick for this queue. */
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
	/* Truncated queues may come again with the same ids. */
	if (TRIGGER_FIRED_BY_TRUNCATE(data->tg_event) &&
		RelationGetRelid(data->tg_relation) == idemq_oids()->queues && !idemq_follows())
		idemq_pending_note(ACTION_FORGET, NULL, 0);
	return PointerGetDatum(NULL);
}

/*
 * holds_changed(): row and truncate trigger of idemq_internal.hold_entries.  Sessions read the queue
 * again, as after a change of its settings, but sessions waiting for its jobs are not woken: a new
 * hold gives them no job, and the worker wakes them when the hold ends.
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

/* Notes that a row of idemq.paused_groups has changed: its queue's settings, and its group. */
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
 * paused_groups_changed(): row trigger of idemq.paused_groups, and statement trigger of its TRUNCATE:
 * then any group may have been paused.
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

/* followers_changed(): row and truncate trigger of idemq_internal.followers. */
SQL_FUNCTION(idemq_sql_followers_changed)
{
	TriggerData *data = trigger_data(fcinfo, TRIGGER_EVENT_AFTER, false);

	idemq_pending_note(ACTION_SWITCH, NULL, 0);
	idemq_following_changed(RelationGetRelid(data->tg_relation));
	return PointerGetDatum(NULL);
}

/*
 * followers_local(): trigger of idemq_internal.followers before each row that an apply worker
 * writes.  The row is not written: a row of ours that comes back from a database that has
 * followed us would collide with the one that is here.
 */
SQL_FUNCTION(idemq_sql_followers_local)
{
	(void) trigger_data(fcinfo, TRIGGER_EVENT_BEFORE, true);
	return PointerGetDatum(NULL);
}

/* shard_changed(): row and truncate trigger of idemq.shard. */
SQL_FUNCTION(idemq_sql_shard_changed)
{
	(void) trigger_data(fcinfo, TRIGGER_EVENT_AFTER, false);
	idemq_jobs_ids_changed();
	return PointerGetDatum(NULL);
}

/*
 * schedules_changed(): statement trigger of idemq_internal.schedule_entries.  The worker knows what
 * it has written itself.
 */
SQL_FUNCTION(idemq_sql_schedules_changed)
{
	(void) trigger_data(fcinfo, TRIGGER_EVENT_AFTER, false);
	if (idemq_worker_self() == NULL)
		idemq_pending_note(ACTION_SCHEDULES, NULL, 0);
	return PointerGetDatum(NULL);
}

/*
 * role_named(name column, oid column): row trigger that writes a role's OID beside its name
 * (queue/roles.c), before each INSERT, a restore's too, and each UPDATE of the name.
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
