/*
 * hooks/row_triggers.c
 *		Triggers on idemq's own tables, by which shared memory and caches follow
 *		rows that change by any other way than direct access: SPI, a DBA's
 *		statement, COPY, logical replication.
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "executor/spi.h"
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

PG_FUNCTION_INFO_V1(idemq_sql_v2_jobs_changed);
PG_FUNCTION_INFO_V1(idemq_sql_v2_jobs_truncated);
PG_FUNCTION_INFO_V1(idemq_sql_v2_dependencies_changed);
PG_FUNCTION_INFO_V1(idemq_sql_v2_settings_changed);
PG_FUNCTION_INFO_V1(idemq_sql_v2_schedules_changed);
PG_FUNCTION_INFO_V1(idemq_sql_v2_followers_changed);
PG_FUNCTION_INFO_V1(idemq_sql_v2_followers_local);
PG_FUNCTION_INFO_V1(idemq_sql_v2_shard_changed);

/* Raises 0A000 when called by anything but the trigger that it is for. */
static TriggerData *
trigger_data(FunctionCallInfo fcinfo, bool on_jobs)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	Oid wanted = idemq_oids()->jobs;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_AFTER(data->tg_event) ||
		(on_jobs &&
		 (!TRIGGER_FIRED_FOR_ROW(data->tg_event) || RelationGetRelid(data->tg_relation) != wanted)))
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("this function is for idemq's own triggers only"),
						errhint("Do not call it, and do not use it in a trigger.")));
	return data;
}

/* What is NULL may not be read: where 8 bytes are passed by reference there are none. */
static Datum
column(Relation rel, HeapTuple tuple, JobColumn which, bool *isnull)
{
	return SPI_getbinval(tuple, RelationGetDescr(rel), which + 1, isnull);
}

/*
 * Returns the slot of a queue; NULL when it has none.  That of a queue whose row is not there
 * yet, too: a restore in parallel may commit it before our jobs, and others work on it by then.
 * So what they need is noted without a slot, and finds at the commit the one that there is.
 */
static QueueSlot *
slot_of(int32 queue_id)
{
	QueueInfo queue;

	return idemq_queue_by_id(queue_id, &queue) ? queue.slot : NULL;
}

/* Notes when a job expires, of a row that was written; blocked ones, too. */
static void
note_expiry(Relation rel, HeapTuple row)
{
	bool isnull;
	bool running = true;
	int32 queue_id = DatumGetInt32(column(rel, row, COL_QUEUE_ID, &isnull));
	Datum expires_at = column(rel, row, COL_EXPIRES_AT, &isnull);

	(void) column(rel, row, COL_FINISHED_AT, &running);
	if (!isnull && running)
		idemq_pending_ready_note_expiry(slot_of(queue_id), queue_id,
										DatumGetTimestampTz(expires_at));
}

/* Notes one version of a changed row: where it stands, or with taken stood, in the ready index. */
static void
note_version(Relation rel, HeapTuple tuple, bool taken)
{
	int32 queue_id;
	int16 priority;
	Datum ready_at;
	ReadyKey key;
	bool isnull;

	queue_id = DatumGetInt32(column(rel, tuple, COL_QUEUE_ID, &isnull));
	ready_at = column(rel, tuple, COL_READY_AT, &isnull);
	if (isnull)
		return;
	key.ready_at = DatumGetTimestampTz(ready_at);
	key.id = DatumGetInt64(column(rel, tuple, COL_ID, &isnull));
	priority = DatumGetInt16(column(rel, tuple, COL_PRIORITY, &isnull));
	if (priority < 0 || priority >= IDEMQ_PRIORITIES)
		return;
	if (taken)
		idemq_pending_ready_note_taken(slot_of(queue_id), queue_id, priority, key);
	else
		idemq_pending_ready_note(slot_of(queue_id), queue_id, priority, key);
}

/* Ends the lease entry of an attempt that the change ended. */
static void
note_end_of_attempt(Relation rel, HeapTuple old_row, HeapTuple new_row)
{
	Oid processing = idemq_oids()->status[JOB_PROCESSING];
	bool isnull;
	int32 queue_id = DatumGetInt32(column(rel, old_row, COL_QUEUE_ID, &isnull));
	int64 id = DatumGetInt64(column(rel, old_row, COL_ID, &isnull));
	int64 token = DatumGetInt64(column(rel, old_row, COL_TOKEN, &isnull));

	if (DatumGetObjectId(column(rel, old_row, COL_STATUS, &isnull)) != processing)
		return;
	if (new_row != NULL &&
		DatumGetObjectId(column(rel, new_row, COL_STATUS, &isnull)) == processing &&
		DatumGetInt64(column(rel, new_row, COL_TOKEN, &isnull)) == token &&
		DatumGetInt32(column(rel, new_row, COL_QUEUE_ID, &isnull)) == queue_id)
		return;
	idemq_pending_note_end(slot_of(queue_id), queue_id, id, token);
}

/* Notes a job that finished without having been in an attempt. */
static void
note_finished(Relation rel, HeapTuple old_row, HeapTuple new_row)
{
	bool running = true;
	bool isnull;

	(void) column(rel, old_row, COL_FINISHED_AT, &running);
	(void) column(rel, new_row, COL_FINISHED_AT, &isnull);
	if (running && !isnull)
	{
		int32 queue_id = DatumGetInt32(column(rel, new_row, COL_QUEUE_ID, &isnull));

		idemq_pending_note_finished(slot_of(queue_id), queue_id,
									DatumGetInt64(column(rel, new_row, COL_ID, &isnull)));
	}
}

/* Notes that a row is gone, for sessions that wait for the job's result. */
static void
note_gone(Relation rel, HeapTuple row)
{
	bool running = true;

	(void) column(rel, row, COL_FINISHED_AT, &running);
	if (running)
		idemq_pending_note(ACTION_GONE, NULL, 0);
}

/* Asks for a search if a job was put in processing by hand, without a lease entry. */
static void
note_begin_of_attempt(Relation rel, HeapTuple tuple)
{
	bool isnull;
	int32 queue_id = DatumGetInt32(column(rel, tuple, COL_QUEUE_ID, &isnull));
	int64 id = DatumGetInt64(column(rel, tuple, COL_ID, &isnull));
	int64 token = DatumGetInt64(column(rel, tuple, COL_TOKEN, &isnull));
	Lease lease;

	if (DatumGetObjectId(column(rel, tuple, COL_STATUS, &isnull)) !=
		idemq_oids()->status[JOB_PROCESSING])
		return;
	if (idemq_lease_get(id, &lease) && lease.token == token && lease.queue_id == queue_id)
		return;
	idemq_pending_note(ACTION_RECOVER, slot_of(queue_id), queue_id);
}

static JobStatus
status_of(Relation rel, HeapTuple row)
{
	bool isnull;

	return idemq_status_from_oid(DatumGetObjectId(column(rel, row, COL_STATUS, &isnull)));
}

/*
 * Marks the group of a changed row: it may need a head now.  One that is blocked without a group
 * waits for its parents, which may be done.
 */
static void
note_group(Relation rel, HeapTuple row)
{
	bool alone;
	bool isnull;
	Datum name = column(rel, row, COL_GROUP_KEY, &alone);
	int32 queue_id = DatumGetInt32(column(rel, row, COL_QUEUE_ID, &isnull));

	if (!alone)
		idemq_pending_groups_note(slot_of(queue_id), queue_id, name, GROUP_DROP_FLOOR);
	else if (status_of(rel, row) == JOB_BLOCKED)
		idemq_pending_dependency_note_blocked(slot_of(queue_id), queue_id,
											  DatumGetInt64(column(rel, row, COL_ID, &isnull)));
}

/*
 * Follows a job into another queue: what it waits for as a child; or for an event, of which it
 * asks again, since events are a queue's own.
 */
static void
note_move(Relation rel, HeapTuple old_row, HeapTuple new_row)
{
	bool isnull;
	int32 old_id = DatumGetInt32(column(rel, old_row, COL_QUEUE_ID, &isnull));
	int32 queue_id = DatumGetInt32(column(rel, new_row, COL_QUEUE_ID, &isnull));
	int64 id = DatumGetInt64(column(rel, new_row, COL_ID, &isnull));
	QueueSlot *slot;

	if (queue_id == old_id)
		return;
	if (idemq_may_have_dependencies(slot_of(old_id), id))
		idemq_jobs_moved_child(id, queue_id);
	if (status_of(rel, new_row) == JOB_PENDING)
		idemq_jobs_moved_waiter(id);
	slot = slot_of(queue_id);
	idemq_dependency_note(slot, id);
	/* One that gets its slot before our commit learns from the rows of before. */
	if (slot == NULL)
		idemq_pending_note(ACTION_ROWS, NULL, 0);
}

/* Follows the deletion of a row that may have parents or children. */
static void
note_dependency_gone(Relation rel, HeapTuple row)
{
	bool isnull;
	int64 id = DatumGetInt64(column(rel, row, COL_ID, &isnull));
	int32 queue_id = DatumGetInt32(column(rel, row, COL_QUEUE_ID, &isnull));

	if (idemq_may_have_dependencies(slot_of(queue_id), id))
		idemq_dependency_gone(id, status_of(rel, row));
}

/* Counts a row that SQL wrote; old_row or new_row is NULL when there is none. */
static void
count_row(Relation rel, HeapTuple old_row, HeapTuple new_row)
{
	int32 queue_ids[2] = {0, 0};
	int statuses[2] = {NO_ROW, NO_ROW};
	HeapTuple rows[] = {old_row, new_row};
	bool isnull;

	for (int i = 0; i < (int) lengthof(rows); i++)
	{
		if (rows[i] == NULL)
			continue;
		queue_ids[i] = DatumGetInt32(column(rel, rows[i], COL_QUEUE_ID, &isnull));
		statuses[i] =
			idemq_status_from_oid(DatumGetObjectId(column(rel, rows[i], COL_STATUS, &isnull)));
	}
	if (queue_ids[0] == queue_ids[1])
		idemq_pending_counts_row(queue_ids[0], statuses[0], statuses[1]);
	else
	{
		idemq_pending_counts_row(queue_ids[0], statuses[0], NO_ROW);
		idemq_pending_counts_row(queue_ids[1], NO_ROW, statuses[1]);
	}
}

/* Notes what sessions wait for that sleep until a job has its result. */
static void
note_result(const TriggerData *data)
{
	if (TRIGGER_FIRED_BY_UPDATE(data->tg_event))
		note_finished(data->tg_relation, data->tg_trigtuple, data->tg_newtuple);
	else if (TRIGGER_FIRED_BY_DELETE(data->tg_event))
		note_gone(data->tg_relation, data->tg_trigtuple);
}

/*
 * jobs_changed(): row trigger of idemq.jobs.  In a database that follows another, which
 * is to say mostly in its apply worker, nobody reads the rest: see job/follow.c.
 */
Datum
idemq_sql_v2_jobs_changed(PG_FUNCTION_ARGS)
{
	TriggerData *data = trigger_data(fcinfo, true);
	Relation rel = data->tg_relation;

	note_result(data);
	if (idemq_follows())
		return PointerGetDatum(NULL);
	note_group(rel, data->tg_trigtuple);
	if (TRIGGER_FIRED_BY_UPDATE(data->tg_event))
	{
		note_version(rel, data->tg_trigtuple, true);
		note_version(rel, data->tg_newtuple, false);
		note_expiry(rel, data->tg_newtuple);
		note_end_of_attempt(rel, data->tg_trigtuple, data->tg_newtuple);
		note_begin_of_attempt(rel, data->tg_newtuple);
		note_group(rel, data->tg_newtuple);
		note_move(rel, data->tg_trigtuple, data->tg_newtuple);
		count_row(rel, data->tg_trigtuple, data->tg_newtuple);
	}
	else if (TRIGGER_FIRED_BY_INSERT(data->tg_event))
	{
		note_version(rel, data->tg_trigtuple, false);
		note_expiry(rel, data->tg_trigtuple);
		note_begin_of_attempt(rel, data->tg_trigtuple);
		count_row(rel, NULL, data->tg_trigtuple);
	}
	else
	{
		/* Our own claims do not see it any more, and pass its key: it may come back. */
		note_version(rel, data->tg_trigtuple, true);
		note_end_of_attempt(rel, data->tg_trigtuple, NULL);
		note_dependency_gone(rel, data->tg_trigtuple);
		count_row(rel, data->tg_trigtuple, NULL);
	}
	return PointerGetDatum(NULL);
}

/* jobs_truncated(): statement trigger of idemq.jobs. */
Datum
idemq_sql_v2_jobs_truncated(PG_FUNCTION_ARGS)
{
	(void) trigger_data(fcinfo, false);
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
Datum
idemq_sql_v2_dependencies_changed(PG_FUNCTION_ARGS)
{
	(void) trigger_data(fcinfo, false);
	if (!idemq_dependencies_is_writing() && !idemq_follows())
		idemq_pending_note(ACTION_ROWS, NULL, 0);
	return PointerGetDatum(NULL);
}

/* Notes that a queue changes, of which a row was written; 0: all. */
static void
note_settings(int32 queue_id)
{
	/* First: a rollback that finds the note forgets what was read since. */
	idemq_pending_note(ACTION_SETTINGS, NULL, queue_id);
	idemq_queue_cache_changed(queue_id);
}

static int32
queue_of(TriggerData *data, HeapTuple row)
{
	TupleDesc desc = RelationGetDescr(data->tg_relation);
	bool isnull;

	return DatumGetInt32(SPI_getbinval(row, desc, SPI_fnumber(desc, "queue_id"), &isnull));
}

/*
 * settings_changed(): row trigger of idemq.queues, idemq.queue_grants and idemq.handler_entries,
 * which names the queue; statement trigger of their TRUNCATE, and of idemq.clusters: any queue.
 */
Datum
idemq_sql_v2_settings_changed(PG_FUNCTION_ARGS)
{
	TriggerData *data = trigger_data(fcinfo, false);

	if (TRIGGER_FIRED_FOR_ROW(data->tg_event))
	{
		int32 queue_id = queue_of(data, data->tg_trigtuple);

		note_settings(queue_id);
		/* A restore, whose jobs may come after a tick for this queue, with ids that they had. */
		if (TRIGGER_FIRED_BY_INSERT(data->tg_event) &&
			RelationGetRelid(data->tg_relation) == idemq_oids()->queues &&
			!idemq_settings_is_inserting() && !idemq_follows())
			idemq_jobs_ids_unknown();
		if (TRIGGER_FIRED_BY_UPDATE(data->tg_event) &&
			queue_of(data, data->tg_newtuple) != queue_id)
			note_settings(queue_of(data, data->tg_newtuple));
		return PointerGetDatum(NULL);
	}
	note_settings(0);
	/* Truncated queues may come again with the same ids. */
	if (TRIGGER_FIRED_BY_TRUNCATE(data->tg_event) &&
		RelationGetRelid(data->tg_relation) == idemq_oids()->queues && !idemq_follows())
		idemq_pending_note(ACTION_FORGET, NULL, 0);
	return PointerGetDatum(NULL);
}

/* followers_changed(): row and truncate trigger of idemq.followers. */
Datum
idemq_sql_v2_followers_changed(PG_FUNCTION_ARGS)
{
	TriggerData *data = trigger_data(fcinfo, false);

	idemq_pending_note(ACTION_SWITCH, NULL, 0);
	idemq_following_changed(RelationGetRelid(data->tg_relation));
	return PointerGetDatum(NULL);
}

/*
 * followers_local(): trigger of idemq.followers before each row that an apply worker
 * writes, which is not written: a row of ours that comes back from a database which has
 * followed us would collide with the one that is here.
 */
Datum
idemq_sql_v2_followers_local(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_BEFORE(data->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(data->tg_event))
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("this function is for idemq's own triggers only"),
						errhint("Do not call it, and do not use it in a trigger.")));
	return PointerGetDatum(NULL);
}

/* shard_changed(): row and truncate trigger of idemq.shard. */
Datum
idemq_sql_v2_shard_changed(PG_FUNCTION_ARGS)
{
	(void) trigger_data(fcinfo, false);
	idemq_jobs_ids_changed();
	return PointerGetDatum(NULL);
}

/*
 * schedules_changed(): statement trigger of idemq.schedule_entries.  The worker knows what it
 * has written itself.
 */
Datum
idemq_sql_v2_schedules_changed(PG_FUNCTION_ARGS)
{
	(void) trigger_data(fcinfo, false);
	if (idemq_place_mine() == NULL)
		idemq_pending_note(ACTION_SCHEDULES, NULL, 0);
	return PointerGetDatum(NULL);
}
