/*
 * job/new_job_keyed.c
 *		Enqueue with an idempotency key: the unique index jobs_key decides.
 *
 * A lookup comes first: a duplicate costs no more, and is known at each isolation
 * level.  When no job has the key, an insert decides (table/jobs_key.c); unless the
 * caller skips, it waits for a twin whose transaction is open.  If the key is taken
 * after all, another lookup with a fresh snapshot finds the job that has it.
 *
 * The key of a job that finished longer ago than the queue's window, or whose request
 * gave the key a time to live that is over, is free: the old job gives it up, in the
 * transaction of the new one.  An unfinished job keeps its key, however long it takes.
 *
 * An enqueue waits for a transaction that inserts the same key, within lock_timeout and
 * statement_timeout, and never for the worker of a committed job that has it, whose
 * transaction may be long; unless it is to write that job (replace, rerun).  A caller that
 * skips (acquire, the dead queue, nowait) waits for none: it first reads what is in doubt,
 * and a lost insert answers OUTCOME_LOCKED; a job that is to be replaced is locked first.
 *
 * READ COMMITTED always gets the right answer.  Above it, what was committed before the
 * call is known, though the transaction's snapshot may not see it; a twin that commits
 * during the call is 40001.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_collation.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "table/table.h"

/* Rounds of insert and lookup after which a trigger must be keeping the row out. */
#define MAX_TRIES 20

/* The job that has the key. */
typedef struct KeyHolder
{
	Job job;
	EnqueueAnswer answer;
	bool same_payload;
	bool other_kind; /* both have one, and they differ */
	bool expired;	 /* finished, and its key is free */
	bool own;		 /* this transaction's */
} KeyHolder;

/* Copies a job's stored result into the current memory context. */
static Datum
copy_result(const Job *job, bool *no_result)
{
	*no_result = job->row->tts_isnull[COL_RESULT];
	return *no_result ? (Datum) 0
					  : PointerGetDatum(PG_DETOAST_DATUM_COPY(job->row->tts_values[COL_RESULT]));
}

/* Returns whether a job has finished, and the time of its key is over. */
static bool
is_expired(const Job *job, const QueueInfo *queue, TimestampTz now)
{
	const TupleTableSlot *row = job->row;

	if (row->tts_isnull[COL_FINISHED_AT])
		return false;
	if (!row->tts_isnull[COL_KEY_EXPIRES_AT])
		return DatumGetTimestampTz(row->tts_values[COL_KEY_EXPIRES_AT]) <= now;
	return DatumGetTimestampTz(row->tts_values[COL_FINISHED_AT]) <= now - queue->idempotency_window;
}

/* Raises IQ003. */
static void
refuse_payload(const QueueInfo *queue, int64 id, const char *what, const char *hint)
{
	idemq_queue_count_refusal(queue, COUNTER_DUPLICATES);
	ereport(ERROR, (errcode(ERRCODE_IDEMQ_KEY_REUSED),
					errmsg("the key is taken by job %lld with another %s", (long long) id, what),
					errhint("%s", hint)));
}

/* Compares jsonb values: the order of their keys is of no matter. */
static bool
is_same_payload(const Job *job, Datum payload)
{
	Jsonb *first = DatumGetJsonbP(job->row->tts_values[COL_PAYLOAD]);
	Jsonb *second = DatumGetJsonbP(payload);

	return compareJsonbContainers(&first->root, &second->root) == 0;
}

/* A request without a kind is the same as one with: producers are deployed one by one. */
static bool
is_other_kind(const Job *job, const JobChange *columns)
{
	return (columns->set & COLUMN_BIT(COL_KIND)) != 0 && !job->row->tts_isnull[COL_KIND] &&
		   !DatumGetBool(DirectFunctionCall2Coll(texteq, C_COLLATION_OID,
												 job->row->tts_values[COL_KIND],
												 columns->values[COL_KIND]));
}

/* Looks the key up under the table's snapshot. */
static bool
find_holder(JobsTable *table, const QueueInfo *queue, const JobChange *columns, TimestampTz now,
			KeyHolder *holder)
{
	Job *job = &holder->job;

	if (!idemq_jobs_find_key(table, queue->id, columns->values[COL_KEY], job))
		return false;
	holder->answer.id = job->id;
	holder->answer.outcome = OUTCOME_DUPLICATE;
	holder->answer.status = job->status;
	holder->expired = is_expired(job, queue, now);
	holder->own = idemq_jobs_is_own(job);
	holder->answer.foreign = !holder->own;
	if (holder->expired)
		return true;
	holder->answer.result = copy_result(job, &holder->answer.no_result);
	holder->same_payload = is_same_payload(job, columns->values[COL_PAYLOAD]);
	holder->other_kind = is_other_kind(job, columns);
	return true;
}

/*
 * Looks up the job that answers for a key, under the table's snapshot; false when
 * the key is free.  payload, unless it is NULL, must be the job's: raises IQ003.
 */
bool
idemq_key_lookup(JobsTable *table, const QueueInfo *queue, Datum key, const Datum *payload,
				 Job *job)
{
	if (!idemq_jobs_find_key(table, queue->id, key, job) || is_expired(job, queue, idemq_now()))
		return false;
	if (payload != NULL && !is_same_payload(job, *payload))
		refuse_payload(queue, job->id, "payload", "Use another key, or pass no payload.");
	return true;
}

/* Takes the key from a job that finished, and whose key is free. */
static JobWrite
take_key(JobsTable *table, const Job *job, JobWait wait)
{
	JobChange change = {0};

	job_set_null(&change, COL_KEY);
	job_set_null(&change, COL_KEY_EXPIRES_AT);
	return idemq_jobs_update(table, job, &change, wait);
}

/*
 * Does with a duplicate what the producer wants; false when the holder, which is to be
 * replaced, is not what it was.
 */
static bool
handle_duplicate(JobsTable *table, const QueueInfo *queue, const KeyHolder *holder,
				 const JobChange *columns, DuplicateRule rule, bool replaced)
{
	switch (rule.policy)
	{
		case DUPLICATE_IGNORE:
			break;
		case DUPLICATE_ERROR:
			if (!holder->own)
				idemq_sync_rep_await();
			idemq_queue_count_refusal(queue, COUNTER_DUPLICATES);
			ereport(ERROR, (errcode(ERRCODE_IDEMQ_DUPLICATE_KEY),
							errmsg("the key is taken by job %lld", (long long) holder->answer.id),
							errhint("Use on_duplicate => 'keep' to get that job's answer.")));
		case DUPLICATE_REPLACE:
		case DUPLICATE_RERUN:
			idemq_tick_key_check(queue->id, columns->values[COL_KEY]);
			if (!replaced)
				break;
			if (!idemq_job_replace(table, queue, &holder->job, columns,
								   rule.policy == DUPLICATE_RERUN, rule.max_wait))
				return false;
			/* What attempts had done for another payload is void. */
			if (holder->job.token != 0)
				idemq_steps_void(holder->answer.id);
			break;
		case DUPLICATE_KEEP:
			if (!holder->same_payload || holder->other_kind)
				refuse_payload(queue, holder->answer.id, holder->same_payload ? "kind" : "payload",
							   "Use another key, or on_duplicate => 'ignore' or 'replace'.");
			break;
	}
	return true;
}

/*
 * Answers with the job that has the key; OUTCOME_LOCKED when it is to be changed,
 * another transaction holds its row, and the caller skips.  False when the holder is
 * not what it was: the caller looks it up again.
 */
static bool
settle_duplicate(JobsTable *table, const QueueInfo *queue, const KeyHolder *holder,
				 const JobChange *columns, DuplicateRule *rule, JobWait wait, EnqueueAnswer *answer)
{
	OnDuplicate policy = rule->policy;
	bool replaced = (policy == DUPLICATE_REPLACE || policy == DUPLICATE_RERUN) &&
					idemq_job_is_replaceable(&holder->job, policy == DUPLICATE_RERUN);

	if (policy == DUPLICATE_RERUN && !replaced)
	{
		*answer = holder->answer;
		answer->outcome = OUTCOME_RERUN;
		answer->holder = holder->job;
		return true;
	}
	if (replaced && wait != JOB_WAITS)
	{
		JobWrite held = idemq_jobs_lock(table, &holder->job, LockTupleNoKeyExclusive, wait);

		answer->outcome = OUTCOME_LOCKED;
		if (held != JOB_WRITTEN)
			return held == JOB_LOCKED;
	}
	*answer = holder->answer;
	if (handle_duplicate(table, queue, holder, columns, *rule, replaced))
	{
		if (policy == DUPLICATE_REPLACE || policy == DUPLICATE_RERUN)
			idemq_jobs_refresh(table); /* a batch may come to that key again */
		return true;
	}
	/* Claimed since the lookup: what is it now?  It may be given back, as it was, before that. */
	if (policy == DUPLICATE_REPLACE && IsolationUsesXactSnapshot())
		rule->policy = DUPLICATE_IGNORE;
	return false;
}

/* Notes and inserts the new job; false when its key is taken.  heir_of: had the key; or NULL. */
static bool
insert(JobsTable *table, const QueueInfo *queue, JobChange *columns, JobWait wait,
	   const Job *heir_of, JobStatus *status)
{
	idemq_tick_key_check(queue->id, columns->values[COL_KEY]);
	if ((columns->set & COLUMN_BIT(COL_ID)) == 0)
		job_set(columns, COL_ID, Int64GetDatum(idemq_jobs_next_id()));
	*status = idemq_new_job_note(queue, columns);
	return heir_of != NULL ? idemq_jobs_insert_heir(table, columns, heir_of)
						   : idemq_jobs_insert_keyed(table, columns, wait);
}

/*
 * Adds the job with those columns, key among them, or answers with the job that
 * has the key; OUTCOME_RERUN for one that the caller is to make run again, by the fetched
 * version in holder; OUTCOME_LOCKED, and nothing else in the answer, when a twin's
 * transaction is open and the caller skips.  The id is given here, unless it is among
 * the columns.  Raises IQ003, IQ004; 42501 for the key of another role's tick, or of a
 * published job; 40001 above READ COMMITTED.
 */
void
idemq_new_job_keyed(JobsTable *table, const QueueInfo *queue, JobChange *columns,
					DuplicateRule rule, JobWait wait, EnqueueAnswer *answer)
{
	TimestampTz now = idemq_now();
	JobStatus status;
	KeyHolder holder;
	bool added;

	if (!rule.is_published)
		idemq_topic_key_check(columns->values[COL_KEY]);
	/* A holder may come and go between the lookups, but not again and again. */
	for (int tries = 0;; tries++)
	{
		bool found = find_holder(table, queue, columns, now, &holder);

		CHECK_FOR_INTERRUPTS();
		if (tries > MAX_TRIES)
			idemq_jobs_refused();
		if (found && !holder.expired)
		{
			/* A twin that the transaction's snapshot does not see. */
			if (tries > 0 && IsolationUsesXactSnapshot() && !holder.own)
				idemq_jobs_refresh_or_raise(table);
			if (settle_duplicate(table, queue, &holder, columns, &rule, wait, answer))
				return;
			idemq_jobs_refresh_or_raise(table);
			/* Each time another has changed the job: that is no end of its own. */
			tries = 0;
			continue;
		}
		answer->outcome = OUTCOME_LOCKED;
		if (found)
		{
			JobWrite write = take_key(table, &holder.job, wait);

			if (write == JOB_LOCKED)
				return;
			if (write == JOB_CHANGED)
			{
				idemq_jobs_refresh_or_raise(table);
				continue;
			}
		}
		else if (wait != JOB_WAITS &&
				 idemq_jobs_key_in_doubt(table, queue->id, columns->values[COL_KEY]))
			return;
		added = insert(table, queue, columns, wait, found ? &holder.job : NULL, &status);
		if (found || !added)
			idemq_jobs_refresh(table); /* a batch may come to that key again */
		if (added)
			break;
	}
	*answer = (EnqueueAnswer){.id = DatumGetInt64(columns->values[COL_ID]),
							  .outcome = OUTCOME_ACCEPTED,
							  .status = status,
							  .no_result = true};
}
