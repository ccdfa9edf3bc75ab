/*
 * job/new_job.c
 *		A new job: the columns that each one has, and adding it without a key.
 *
 * Before its row is written, the job is noted for shared memory: after the commit the scan start is
 * lowered to it; or its group is marked, since it may need a head; or the job itself is marked,
 * since all its parents may be done.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "table/table.h"
#include "txn/txn.h"

/* Sets the columns that every new job has. */
void
idemq_new_job(JobChange *columns, const QueueInfo *queue, TimestampTz now, Datum payload)
{
	columns->set = 0;
	job_set(columns, COL_QUEUE_ID, Int32GetDatum(queue->id));
	job_set(columns, COL_ENQUEUED_AT, TimestampTzGetDatum(now));
	job_set(columns, COL_PRIORITY, Int16GetDatum(IDEMQ_DEFAULT_PRIORITY));
	job_set(columns, COL_MAX_ATTEMPTS, Int32GetDatum(queue->max_attempts));
	job_set(columns, COL_FLAGS, Int16GetDatum(0));
	job_set(columns, COL_STATUS, ObjectIdGetDatum(idemq_oids()->status[JOB_PENDING]));
	job_set(columns, COL_ATTEMPT, Int32GetDatum(0));
	job_set(columns, COL_TOKEN, Int64GetDatum(0));
	job_set(columns, COL_READY_AT, TimestampTzGetDatum(now));
	job_set(columns, COL_PAYLOAD, payload);
}

/*
 * Notes what shared memory must do after the commit of a job that is about to be written: lower the
 * scan start to its key, or mark its group or the job itself, and note when it expires.  The
 * columns include its id.  Returns the status of the job.
 */
JobStatus
idemq_new_job_note(const QueueInfo *queue, const JobChange *columns)
{
	int64 id = DatumGetInt64(columns->values[COL_ID]);
	int priority = DatumGetInt16(columns->values[COL_PRIORITY]);
	ReadyKey key;

	if (columns->set & COLUMN_BIT(COL_EXPIRES_AT))
		idemq_pending_ready_note_expiry(queue->qstate, queue->id,
										DatumGetTimestampTz(columns->values[COL_EXPIRES_AT]));
	if (columns->set & COLUMN_BIT(COL_GROUP_KEY))
	{
		idemq_pending_groups_note(queue->qstate, queue->id, columns->values[COL_GROUP_KEY], id);
		return JOB_BLOCKED;
	}
	if ((columns->set & COLUMN_BIT(COL_READY_AT)) == 0)
	{
		idemq_pending_dependency_note_blocked(queue->qstate, queue->id, id);
		return JOB_BLOCKED;
	}
	key.id = id;
	key.ready_at = DatumGetTimestampTz(columns->values[COL_READY_AT]);
	idemq_pending_ready_note(queue->qstate, queue->id, priority, key);
	return JOB_PENDING;
}

/* Adds a job with these columns, which have no key and no id.  Returns its status. */
JobStatus
idemq_new_job_insert(JobsTable *table, const QueueInfo *queue, JobChange *columns)
{
	JobStatus status;

	job_set(columns, COL_ID, Int64GetDatum(idemq_jobs_next_id()));
	status = idemq_new_job_note(queue, columns);
	idemq_jobs_insert(table, columns);
	return status;
}
