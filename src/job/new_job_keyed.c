/*
 * job/new_job_keyed.c
 *		Enqueue with an idempotency key, which the unique index jobs_key enforces.
 *
 * First the key is looked up, so a duplicate costs no more than the lookup, and is found at each
 * isolation level.  If no job has the key, the result of an insert decides (table/jobs_key.c).  The
 * insert waits for a concurrent duplicate whose transaction is open, unless the caller skips.  If
 * the insert finds that the key is in use after all, another lookup, by a new snapshot, finds the
 * job that has it.
 *
 * The key is free if its job finished longer ago than the queue's idempotency window, or if the
 * request gave the key a time to live that has passed and the job has finished.  Then the
 * transaction of the new job removes the key from the old job.  An unfinished job keeps its key,
 * however long it takes.
 *
 * An enqueue waits for a transaction that is inserting the same key, within lock_timeout and
 * statement_timeout.  It never waits for the worker of a committed job that has the key, whose
 * transaction may be long, unless it must write that job (replace, rerun).  A caller that skips
 * (acquire, the dead-letter queue, nowait) waits for no transaction: it first checks whether an
 * open transaction is adding or removing the key, locks a job before it replaces it, and returns
 * OUTCOME_LOCKED if its insert loses.
 *
 * READ COMMITTED always gets the right result.  Above it, jobs committed before the call are found,
 * even if the transaction's snapshot does not see them; a concurrent duplicate that commits during
 * the call causes 40001.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_collation.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "table/table.h"

/* After this number of inserts and lookups, a trigger must be suppressing the row. */
#define MAX_TRIES 20

/* Returns whether a job has finished and its key may be used again. */
static bool
is_expired(const Job *job, const QueueInfo *queue, TimestampTz now)
{
	if (!job_has(job, COL_FINISHED_AT))
		return false;
	if (job_has(job, COL_KEY_EXPIRES_AT))
		return job_time(job, COL_KEY_EXPIRES_AT) <= now;
	return job_time(job, COL_FINISHED_AT) <= now - queue->idempotency_window;
}

/* Raises IQ003. */
static void
refuse_payload(const QueueInfo *queue, int64 id, const char *what, const char *hint)
{
	idemq_queue_count_refusal(queue, COUNTER_DUPLICATES);
	ereport(ERROR, errcode(ERRCODE_IDEMQ_KEY_REUSED),
			errmsg("the key is already used by job %lld with a different %s", (long long) id, what),
			errhint("%s", hint));
}

/*
 * Looks up the job that has a key, by the table's snapshot; returns false if the key is free.
 * Raises IQ003 if payload is not NULL and is not equal to the job's payload.
 */
bool
idemq_key_lookup(JobsTable *table, const QueueInfo *queue, Datum key, const Datum *payload,
				 Job *job)
{
	if (!idemq_jobs_find_key(table, queue->id, key, job) || is_expired(job, queue, idemq_now()))
		return false;
	if (payload != NULL && !idemq_same_document(job_value(job, COL_PAYLOAD), *payload))
		refuse_payload(queue, job->id, "payload", "Use another key, or pass no payload.");
	return true;
}

/*
 * Fills in *answer for the job that has the key, and does with the job what the rule says.  The
 * outcome is OUTCOME_LOCKED if the job must be written, but another transaction holds its row and
 * the caller skips.  Returns false if the job has changed since it was looked up.
 */
static bool
settle_duplicate(JobsTable *table, const QueueInfo *queue, const Job *job, const JobChange *columns,
				 const DuplicateRule *rule, JobWait wait, EnqueueAnswer *answer)
{
	bool own = idemq_jobs_is_own(job);
	bool reruns = rule->policy == DUPLICATE_RERUN;
	bool same_payload;
	JobWrite write = JOB_WRITTEN;

	*answer = (EnqueueAnswer){.id = job->id,
							  .outcome = OUTCOME_DUPLICATE,
							  .status = job->status,
							  .foreign = !own};
	if (job_has(job, COL_RESULT))
		answer->result = PointerGetDatum(PG_DETOAST_DATUM_COPY(job_value(job, COL_RESULT)));
	switch (rule->policy)
	{
		case DUPLICATE_IGNORE:
			return true;
		case DUPLICATE_ERROR:
			if (!own)
				idemq_sync_rep_await();
			idemq_queue_count_refusal(queue, COUNTER_DUPLICATES);
			ereport(ERROR, errcode(ERRCODE_IDEMQ_DUPLICATE_KEY),
					errmsg("the key is already used by job %lld", (long long) job->id),
					errhint("Use on_duplicate => 'keep' to get the existing job."));
		case DUPLICATE_KEEP:
			same_payload =
				idemq_same_document(job_value(job, COL_PAYLOAD), columns->values[COL_PAYLOAD]);
			/*
			 * No kind is equal to any kind, because producers are not all updated at the same time.
			 */
			if (!same_payload ||
				((columns->set & COLUMN_BIT(COL_KIND)) && job_has(job, COL_KIND) &&
				 !DatumGetBool(DirectFunctionCall2Coll(texteq, C_COLLATION_OID,
													   job_value(job, COL_KIND),
													   columns->values[COL_KIND]))))
				refuse_payload(queue, job->id, same_payload ? "kind" : "payload",
							   "Use another key, or on_duplicate => 'ignore' or 'replace'.");
			return true;
		case DUPLICATE_REPLACE:
		case DUPLICATE_RERUN:
			break;
	}
	idemq_tick_key_check(queue->id, columns->values[COL_KEY]);
	if (!idemq_job_is_replaceable(job, reruns))
	{
		if (reruns)
			answer->outcome = OUTCOME_RERUN;
		return true;
	}
	if (wait != JOB_WAITS)
		write = idemq_jobs_lock(table, job, LockTupleNoKeyExclusive, wait);
	if (write == JOB_WRITTEN)
		write = idemq_job_replace(table, queue, job, columns, reruns, rule->max_wait);
	if (write != JOB_WRITTEN)
	{
		answer->outcome = OUTCOME_LOCKED;
		return write == JOB_LOCKED;
	}
	/* The steps that attempts did for another payload are void. */
	if (job->token != 0)
		idemq_steps_void(job->id);
	idemq_jobs_refresh(table); /* the same key may come again in a batch */
	return true;
}

typedef enum KeyedStep
{
	KEYED_ADD,	/* add the job: there is room, or it is added nevertheless */
	KEYED_LOOK, /* look for a duplicate once more */
	KEYED_SKIP	/* do not add the job: the queue or the group is full */
} KeyedStep;

/*
 * Takes room for a job whose key is not in use; *looked_again: a duplicate was looked for once more
 * after the queue or the group was found to be full.  If one of them is full, raises IQ007 if the rule
 * is FULL_RAISES.
 */
static KeyedStep
take_keyed_room(JobsTable *table, const QueueInfo *queue, const JobChange *columns,
				const DuplicateRule *rule, JobWait wait, NewJobRoom *room, bool *looked_again)
{
	bool was_full = room->group != GROUP_ROOM_TAKEN;

	if (rule->when_full == FULL_UNASKED || room->has_in_queue ||
		(was_full && rule->when_full == FULL_ADDS))
		return KEYED_ADD;
	/* A duplicate needs no room, even while it waits for the transaction that has its key. */
	if (wait == JOB_WAITS && (queue->max_unfinished > 0 || queue->group_max_unfinished > 0) &&
		idemq_jobs_await_key(table, queue->id, columns->values[COL_KEY]))
		return KEYED_LOOK;
	if (idemq_new_job_room_take(table, queue, columns, room) || rule->when_full == FULL_ADDS)
		return KEYED_ADD;
	idemq_new_job_room_give_back(queue, columns, room);
	/*
	 * A duplicate needs no room.  So wait for an open transaction that is adding one, and look once
	 * more in case such a transaction has just committed.
	 */
	if ((wait == JOB_WAITS && idemq_jobs_await_key(table, queue->id, columns->values[COL_KEY])) ||
		!*looked_again)
	{
		*looked_again = true;
		return KEYED_LOOK;
	}
	if (rule->when_full == FULL_RAISES)
		idemq_new_job_room_refuse(queue, columns, room);
	return KEYED_SKIP;
}

/*
 * Adds a job with these columns, which include a key; or, if a job has that key, fills in *answer
 * for that job, and replaces it if the rule says so.  With OUTCOME_RERUN, the caller must make that
 * job run again (idemq_new_job_or_rerun).  For a caller that skips, the outcome is OUTCOME_LOCKED,
 * and nothing else is done, if a concurrent duplicate's transaction is open, or another transaction
 * holds a row that must be written.  The new job gets its id here, unless the columns have it.
 * Raises IQ003 and IQ004; IQ007 for a new job of a full queue or group; 42501 for a reserved key,
 * or the key of another role's tick; 40001 above READ COMMITTED.
 */
void
idemq_new_job_keyed(JobsTable *table, const QueueInfo *queue, JobChange *columns,
					DuplicateRule rule, JobWait wait, EnqueueAnswer *answer)
{
	TimestampTz now = idemq_now();
	Datum key = columns->values[COL_KEY];
	bool added = false;
	JobStatus status = JOB_PENDING;
	NewJobRoom room = {0};
	bool looked_again = false;

	if (!rule.is_ours)
		idemq_reserved_key_check(key);
	/* A job with the key may appear and disappear between two lookups, but not again and again. */
	for (int tries = 0; !added; tries++)
	{
		Job job;
		bool found = idemq_jobs_find_key(table, queue->id, key, &job);

		CHECK_FOR_INTERRUPTS();
		if (tries > MAX_TRIES)
			idemq_jobs_refused();
		if (found && !is_expired(&job, queue, now))
		{
			/* A concurrent duplicate that the transaction's snapshot does not see. */
			if (tries > 0 && IsolationUsesXactSnapshot() && !idemq_jobs_is_own(&job))
				idemq_jobs_refresh_or_raise(table);
			if (settle_duplicate(table, queue, &job, columns, &rule, wait, answer))
			{
				idemq_new_job_room_give_back(queue, columns, &room);
				return;
			}
			idemq_jobs_refresh_or_raise(table);
			/* Another transaction has changed the job, which does not count as a try. */
			tries = 0;
			continue;
		}
		*answer = (EnqueueAnswer){.outcome = OUTCOME_LOCKED};
		if (!found && wait != JOB_WAITS && idemq_jobs_key_in_doubt(table, queue->id, key))
		{
			idemq_new_job_room_give_back(queue, columns, &room);
			return;
		}
		switch (take_keyed_room(table, queue, columns, &rule, wait, &room, &looked_again))
		{
			case KEYED_ADD:
				break;
			case KEYED_LOOK:
				idemq_jobs_refresh(table);
				tries = 0;
				continue;
			case KEYED_SKIP:
				answer->full = true;
				return;
		}
		if (found)
		{
			JobChange change = {0};
			JobWrite write;

			/* That job has finished: remove its key. */
			job_set_null(&change, COL_KEY);
			job_set_null(&change, COL_KEY_EXPIRES_AT);
			write = idemq_jobs_update(table, &job, &change, wait);

			if (write == JOB_LOCKED)
			{
				idemq_new_job_room_give_back(queue, columns, &room);
				return;
			}
			if (write == JOB_CHANGED)
			{
				idemq_jobs_refresh_or_raise(table);
				continue;
			}
		}
		idemq_tick_key_check(queue->id, key);
		if ((columns->set & COLUMN_BIT(COL_ID)) == 0)
			job_set(columns, COL_ID, Int64GetDatum(idemq_jobs_next_id()));
		status = idemq_new_job_note(queue, columns);
		added = found ? idemq_jobs_insert_successor(table, columns, &job)
					  : idemq_jobs_insert_keyed(table, columns, wait);
		if (found || !added)
			idemq_jobs_refresh(table); /* the same key may come again in a batch */
	}
	*answer = (EnqueueAnswer){.id = DatumGetInt64(columns->values[COL_ID]),
							  .outcome = OUTCOME_ACCEPTED,
							  .status = status,
							  .full = room.group != GROUP_ROOM_TAKEN};
}
