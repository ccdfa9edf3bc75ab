/*
 * api/change_job.c
 *		Changing what becomes of a job: what cancel, retry, redrive and reschedule share.
 *
 * The caller decides by the job's latest version, and that very version is written.
 * If it changed in between, the caller decides again.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "lib/qunique.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "api/api.h"
#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "table/table.h"
#include "txn/txn.h"

/* Adds a member to an entry of the audit. */
static void
change_job_note(AuditEntry *entry, const char *name, const char *value)
{
	int n = 0;

	while (entry->members[n] != NULL)
		n += 2;
	Assert(n + 1 < (int) lengthof(entry->members));
	entry->members[n] = name;
	entry->members[n + 1] = value;
}

/*
 * Takes the record of a job's last death out of the dead-letter queue, since the job is ready
 * again.  Returns whether there was such a record, which is cancelled now.  The record loses its
 * key: the job may be cancelled before another attempt has begun, and that adds a record with this
 * key again.  The record stays if it is running or finished, if its row is held, or if it is in
 * another queue, which was the dead-letter queue when the job died.  Never waits.
 */
static bool
take_record_back(const QueueInfo *queue, int64 id, int64 token)
{
	EventArgs args = {.now = idemq_now()};
	JobChange keyless = {0};
	QueueInfo dead;
	JobsTable table;
	Job record;
	bool taken;

	if (queue->dead_letter_queue[0] == '\0' || !idemq_queue_find(queue->dead_letter_queue, &dead) ||
		!idemq_dead_letter_allowed(queue, &dead))
		return false;
	args.error = cstring_to_text(psprintf("job %lld was retried", (long long) id));
	job_set_null(&keyless, COL_KEY);
	idemq_jobs_open(&table);
	taken =
		idemq_jobs_find_key(&table, dead.id, idemq_dead_letter_key(queue, id, token), &record) &&
		idemq_transition_allowed(EVENT_EXPIRE, record.status) &&
		idemq_jobs_update(&table, &record, &keyless, JOB_SKIPS) == JOB_WRITTEN;
	if (taken)
	{
		int64 copy_id = record.id;

		idemq_jobs_refresh(&table);
		if (!idemq_jobs_fetch(&table, copy_id, &record) ||
			idemq_transition(&table, &record, &dead, EVENT_EXPIRE, &args, JOB_SKIPS) != JOB_WRITTEN)
			elog(ERROR, "job %lld was changed after this transaction had written it",
				 (long long) copy_id);
	}
	idemq_jobs_close(&table);
	return taken;
}

/*
 * Applies a decision to the latest version of a job.  *queue_id, if it is not NULL: the
 * job's queue, 0 when nothing was changed.
 */
Outcome
idemq_change_job(JobsTable *table, int64 id, const JobChanger *changer, int32 *queue_id)
{
	if (queue_id != NULL)
		*queue_id = 0;
	for (;;)
	{
		AuditEntry entry = changer->audit;
		EventArgs args = {0};
		QueueInfo queue;
		JobEvent event;
		JobWrite write;
		Outcome outcome;
		Job job;

		entry.queue = &queue;
		entry.job_id = id;
		if (!idemq_jobs_fetch(table, id, &job) ||
			!idemq_queue_allows(job.queue_id, changer->privileges, &queue))
			return OUTCOME_NOT_FOUND;
		args.now = args.ready_at = idemq_now();
		if (!changer->decide(&job, changer->arg, &args, &event, &outcome))
			return outcome;
		/* The write leaves nothing of the fetched row. */
		if (entry.action != NULL && !job.row->tts_isnull[COL_KIND])
			change_job_note(&entry, "kind", TextDatumGetCString(job.row->tts_values[COL_KIND]));
		/*
		 * The write may have to wait for the worker, so the worker is told first.  A call that does
		 * not wait does not wake it: it would stop for a job that is then left as it is.  Nor does a
		 * handler that cancels its own job in its own transaction: it would interrupt itself, and the
		 * rollback would undo the cancel.
		 */
		if ((event == EVENT_CANCEL || event == EVENT_RELEASE) && job.status == JOB_RUNNING)
			idemq_pending_note_cancel(queue.id, id, job.token,
									  changer->wait != JOB_SKIPS && !idemq_jobs_is_held_here(&job));
		write = idemq_transition(table, &job, &queue, event, &args, changer->wait);
		if (write == JOB_LOCKED)
			return OUTCOME_LOCKED;
		if (write == JOB_WRITTEN)
		{
			if (queue_id != NULL)
				*queue_id = queue.id;
			if ((event == EVENT_REDRIVE || event == EVENT_REDRIVE_GROUPED) &&
				take_record_back(&queue, id, job.token))
			{
				(*changer->dead_letter_records)++;
				change_job_note(&entry, "dead_letter_records", "1");
			}
			if (entry.action != NULL)
				idemq_audit(&entry);
			return outcome;
		}
		idemq_jobs_refresh_or_raise(table);
	}
}

/* As idemq_change_job, of argument id. */
Datum
idemq_change_one(FunctionCallInfo fcinfo, const JobChanger *changer)
{
	JobsTable table;
	Outcome outcome;

	idemq_arg_required(fcinfo, 0, "id");
	idemq_jobs_open(&table);
	outcome = idemq_change_job(&table, PG_GETARG_INT64(0), changer, NULL);
	idemq_jobs_close(&table);
	return idemq_outcome_datum(outcome);
}

/* How many jobs of a queue were changed together. */
typedef struct QueueChanged
{
	int32 queue_id;
	int64 jobs;
} QueueChanged;

/* Adds one to a queue's count; a call is about few queues. */
static List *
change_job_count_in(List *counts, int32 queue_id)
{
	QueueChanged *count;
	ListCell *lc;

	foreach(lc, counts)
	{
		count = lfirst(lc);
		if (count->queue_id == queue_id)
		{
			count->jobs++;
			return counts;
		}
	}
	count = palloc(sizeof(QueueChanged));
	*count = (QueueChanged){queue_id, 1};
	return lappend(counts, count);
}

/*
 * As idemq_change_job, for each of argument ids; returns a row for each id, in ascending order.
 * idemq.audit gets a row of that action for each queue whose jobs were changed.
 */
Datum
idemq_change_many(FunctionCallInfo fcinfo, const JobChanger *changer, const char *action)
{
	ArrayArg arg;
	int64 *ids;
	int count;
	List *counts = NIL;
	const ListCell *lc;
	ReturnSetInfo *set;
	JobsTable table;

	idemq_arg_array(fcinfo, 0, "ids", INT8OID, false, &arg);
	ids = palloc(Max(arg.count, 1) * sizeof(int64));
	for (int i = 0; i < arg.count; i++)
		ids[i] = DatumGetInt64(arg.values[i]);
	/* Each once, in ascending order: two batches never deadlock. */
	qsort(ids, arg.count, sizeof(int64), idemq_compare_int64);
	count = (int) qunique(ids, arg.count, sizeof(int64), idemq_compare_int64);
	set = idemq_srf_begin(fcinfo);
	idemq_jobs_open(&table);
	for (int i = 0; i < count; i++)
	{
		bool nulls[2] = {false};
		Datum values[2];
		Outcome outcome;
		int32 queue_id;

		CHECK_FOR_INTERRUPTS();
		outcome = idemq_change_job(&table, ids[i], changer, &queue_id);
		if (queue_id != 0)
			counts = change_job_count_in(counts, queue_id);
		values[0] = Int64GetDatum(ids[i]);
		values[1] = idemq_outcome_datum(outcome);
		tuplestore_putvalues(set->setResult, set->setDesc, values, nulls);
	}
	idemq_jobs_close(&table);
	foreach(lc, counts)
	{
		const QueueChanged *changed = lfirst(lc);
		QueueInfo queue;

		if (idemq_queue_by_id(changed->queue_id, &queue))
			idemq_audit(&(AuditEntry){.action = action, .queue = &queue, .jobs = changed->jobs});
	}
	return (Datum) 0;
}
