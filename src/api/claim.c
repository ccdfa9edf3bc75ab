/*
 * api/claim.c
 *		SQL functions that begin attempts: claim and claim_any claim from queues, claim_job claims
 *		one job by its id, and acquire claims the job of a key, and adds it first if necessary.
 *
 * job/claim_from_queue.c does the work for claim and claim_any, and job/claim_by_id.c for the other
 * two, which return a row of idemq.claim_result.
 *
 * acquire is for a message that comes from elsewhere, such as SQS, Kafka or a webhook, and never
 * waits.  If the key's job is finished, or has a lease, reading is enough.  Otherwise, acquire
 * first takes an advisory lock on the key, in a class of its own.  While another transaction that
 * is claiming the same key is open, the outcome is locked, and nothing is written.  A call that
 * has neither added nor claimed a job releases the lock at once.
 *
 * The lock only saves work.  The unique index and the lease decide, so a full lock table, or two
 * keys with the same hash, cost time but do no harm.  (PostgreSQL itself needs a lock for a
 * transaction that writes, and another one for an INSERT that finds a duplicate.  If no more locks
 * are available at all, a new key raises 53200, as any INSERT does.)  An enqueue takes no such
 * lock.  If the transaction of an enqueue has not committed, a dirty snapshot finds its index
 * entry, and the outcome is locked, too.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

#include "api/api.h"
#include "base/base.h"
#include "base/compat.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/leases/leases.h"
#include "table/table.h"
#include "txn/txn.h"

/*
 * Reads max_jobs, lease, worker and attach, which begin at argument n, and begins the set that is
 * returned.  Raises 22004, 22023, 25006.
 */
void
idemq_claim_args(FunctionCallInfo fcinfo, int n, ClaimCall *call)
{
	ReturnSetInfo *set;
	int wanted;

	idemq_jobs_check_writable();
	memset(call, 0, sizeof(*call));
	wanted = idemq_arg_int(fcinfo, n, "max_jobs", 1, IDEMQ_MAX_ARRAY);
	if (!PG_ARGISNULL(n + 1))
		call->lease = idemq_arg_interval(fcinfo, n + 1, "lease", 1);
	call->worker = idemq_arg_worker(fcinfo, n + 2);
	call->flags = idemq_arg_bool(fcinfo, n + 3, "attach") ? JOB_ATTACHED : 0;
	idemq_claim_begin(call, wanted);
	set = idemq_srf_begin(fcinfo);
	call->store = set->setResult;
	call->desc = set->setDesc;
}

/*
 * claim(queue text, max_jobs int, lease interval, worker text, attach bool)
 *		-> setof claimed job; 42501, IQ005, 22004, 22023.
 */
SQL_FUNCTION(idemq_sql_claim)
{
	char *queue = idemq_arg_text(fcinfo, 0, "queue", IDEMQ_MAX_NAME_ARG);
	ClaimCall call;

	idemq_claim_args(fcinfo, 1, &call);
	idemq_queue_by_name(queue, PRIVILEGE_CLAIM, &call.scan.queue);
	idemq_settings_check_lease(&call.scan.queue, call.lease);
	idemq_claim_from_queue(&call);
	return (Datum) 0;
}

/* claim_any(queues text[], ...) -> the columns of claim, and the queue's name; errors as claim. */
SQL_FUNCTION(idemq_sql_claim_any)
{
	QueueInfo *queue;
	ArrayArg queues;
	ClaimCall call;

	idemq_arg_array(fcinfo, 0, "queues", TEXTOID, false, &queues);
	idemq_claim_args(fcinfo, 1, &call);
	call.with_queue = true;
	queue = &call.scan.queue;
	for (int i = 0; i < queues.count; i++)
	{
		idemq_queue_by_name(TextDatumGetCString(queues.values[i]), PRIVILEGE_CLAIM, queue);
		idemq_settings_check_lease(queue, call.lease);
	}
	for (int i = 0; i < queues.count && call.claimed < call.wanted; i++)
	{
		idemq_queue_by_name(TextDatumGetCString(queues.values[i]), PRIVILEGE_CLAIM, queue);
		idemq_claim_from_queue(&call);
	}
	return (Datum) 0;
}

/* Positions in idemq.claim_result; the columns of claim begin at RESULT_CLAIM. */
#define RESULT_OUTCOME 0
#define RESULT_CLAIM 1
#define RESULT_ID 1
#define RESULT_DEADLINE 5
#define RESULT_RESULT (RESULT_CLAIM + CLAIM_KIND)
#define RESULT_RETRY_AFTER (RESULT_RESULT + 1)
#define RESULT_KIND (RESULT_RETRY_AFTER + 1)
#define RESULT_COLUMNS (RESULT_KIND + 1)

/* Returns a row of idemq.claim_result with an outcome. */
static Datum
claim_result_row(FunctionCallInfo fcinfo, const JobCall *call, Outcome outcome)
{
	Datum values[RESULT_COLUMNS] = {0};
	bool nulls[RESULT_COLUMNS];

	memset(nulls, true, sizeof(nulls));
	if (outcome == OUTCOME_CLAIMED || outcome == OUTCOME_CLAIMED_AGAIN)
	{
		idemq_claim_row_fill(&call->job, &call->args, values + RESULT_CLAIM, nulls + RESULT_CLAIM);
		/* idemq_claim_row_fill writes the kind into the position of the result. */
		values[RESULT_KIND] = values[RESULT_RESULT];
		nulls[RESULT_KIND] = nulls[RESULT_RESULT];
		nulls[RESULT_RESULT] = true;
	}
	else if (outcome == OUTCOME_COMPLETED)
		values[RESULT_RESULT] = idemq_job_document(&call->job, COL_RESULT, &nulls[RESULT_RESULT]);
	if (outcome == OUTCOME_LOCKED && call->retry_after != DT_NOEND)
	{
		values[RESULT_DEADLINE] = TimestampTzGetDatum(call->retry_after);
		nulls[RESULT_DEADLINE] = false;
	}
	if ((outcome == OUTCOME_LOCKED || outcome == OUTCOME_NOT_DUE) && call->retry_after != DT_NOEND)
	{
		values[RESULT_RETRY_AFTER] = TimestampTzGetDatum(call->retry_after);
		nulls[RESULT_RETRY_AFTER] = false;
	}
	if (outcome != OUTCOME_NOT_FOUND && call->id != 0)
	{
		values[RESULT_ID] = Int64GetDatum(call->id);
		nulls[RESULT_ID] = false;
	}
	values[RESULT_OUTCOME] = idemq_outcome_datum(outcome);
	nulls[RESULT_OUTCOME] = false;
	return idemq_row_datum(fcinfo, values, nulls);
}

/* Begins a claim: reads lease, worker and attach, which begin at argument n. */
static void
claim_by_id_args(FunctionCallInfo fcinfo, int n, JobCall *call)
{
	call->event = EVENT_CLAIM;
	call->retry_after = DT_NOEND;
	if (!PG_ARGISNULL(n))
		call->lease = idemq_arg_interval(fcinfo, n, "lease", 1);
	call->args.worker = idemq_arg_worker(fcinfo, n + 1);
	call->flags = idemq_arg_bool(fcinfo, n + 2, "attach") ? JOB_ATTACHED : 0;
	if (call->flags & JOB_ATTACHED)
		idemq_lease_attach_session();
}

/*
 * claim_job(id, lease, worker, attach) -> claim_result; 22004, 22023, 40001.
 */
SQL_FUNCTION(idemq_sql_claim_job)
{
	JobCall call = {0};
	JobsTable table;
	Datum answer;

	idemq_arg_required(fcinfo, 0, "id");
	call.id = PG_GETARG_INT64(0);
	claim_by_id_args(fcinfo, 1, &call);
	idemq_jobs_open(&table);
	answer = claim_result_row(fcinfo, &call, idemq_claim_by_id(&call, &table));
	idemq_jobs_close(&table);
	return answer;
}

/*
 * Fourth field of our lock tags, objsubid in pg_locks: "iq".  An application's
 * advisory locks have 1 or 2 there.
 */
#define ADVISORY_CLASS 0x6971

/* Result of an attempt to lock a key. */
typedef enum KeyLock
{
	LOCK_MINE,	/* we hold it until the end of this transaction */
	LOCK_TAKEN, /* another session holds it */
	LOCK_FULL	/* the lock table has no room for it */
} KeyLock;

/* Returns whether another session holds the lock of a key at this moment. */
static bool
has_holder(const LOCKTAG *tag)
{
	int holders = 0;

	pfree(GetLockConflicts(tag, ExclusiveLock, &holders));
	return holders > 0;
}

/* Tries to take the lock of a key. */
static KeyLock
lock_key(const LOCKTAG *tag)
{
	/* Readers share the lock table's lock, so sessions that want the same key do not queue up. */
	if (has_holder(tag))
		return LOCK_TAKEN;
	if (compat_lock_if_free(tag, ExclusiveLock))
		return LOCK_MINE;
	return has_holder(tag) ? LOCK_TAKEN : LOCK_FULL;
}

/*
 * Adds the job of a new message, or finds the job of a concurrent duplicate that was faster; sets
 * *id.  Returns OUTCOME_LOCKED if that duplicate's transaction is still open.
 */
static Outcome
acquire_add_job(JobsTable *table, QueueInfo *queue, text *key, const Datum *payload, int64 *id)
{
	JobChange columns;
	EnqueueAnswer answer;

	if ((queue->privileges & PRIVILEGE_ENQUEUE) == 0)
		idemq_queue_denied(queue->name, PRIVILEGE_ENQUEUE);
	idemq_queue_hold(queue, PRIVILEGE_CLAIM, AccessShareLock);
	idemq_queue_need_qstate(queue);
	idemq_new_job(&columns, queue, idemq_now(),
				  payload != NULL ? *payload
								  : DirectFunctionCall1(jsonb_in, CStringGetDatum("null")));
	job_set(&columns, COL_KEY, PointerGetDatum(key));
	idemq_new_job_keyed(table, queue, &columns,
						(DuplicateRule){.policy = payload != NULL ? DUPLICATE_KEEP
																  : DUPLICATE_IGNORE},
						JOB_SKIPS, &answer);
	if (answer.outcome == OUTCOME_ACCEPTED)
		idemq_pending_counts_event(queue->id, COUNTER_BIT(COUNTER_ENQUEUED));
	if (answer.outcome != OUTCOME_LOCKED)
		*id = answer.id;
	return answer.outcome;
}

/* Fetches the job that has a key; returns false if no job has it. */
static bool
find_job(JobCall *call, JobsTable *table, const QueueInfo *queue, text *key, const Datum *payload)
{
	call->fetched = idemq_key_lookup(table, queue, PointerGetDatum(key), payload, &call->job);
	call->id = call->fetched ? call->job.id : 0;
	return call->fetched;
}

/* Claims the job of a key, after adding it if the key is new; sets call->id. */
static Outcome
acquire(JobCall *call, JobsTable *table, QueueInfo *queue, text *key, const Datum *payload)
{
	Outcome outcome;
	KeyLock lock;
	LOCKTAG tag;
	uint64 hash;
	bool made = false;

	/* Used until a lease is known: a lease that begins now will have ended by then. */
	call->retry_after = idemq_now() + (call->lease > 0 ? call->lease : queue->lease);
	idemq_jobs_open(table);
	/* Checked without the lock first, because most calls may be duplicates. */
	if (find_job(call, table, queue, key, payload) && idemq_job_is_settled(call))
		return idemq_claim_by_id_check(call, table);
	/* 64 bits of a keyed hash, so that a user who reads pg_locks cannot compute it. */
	hash = idemq_secret_hash((uint64) queue->id, VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key));
	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, (uint32) (hash >> 32), (uint32) hash, ADVISORY_CLASS);
	lock = lock_key(&tag);
	/* After the lock, so that the snapshot sees the changes of the last holder. */
	idemq_jobs_refresh(table);
	if (find_job(call, table, queue, key, payload))
		outcome = lock == LOCK_TAKEN ? idemq_claim_by_id_check(call, table) : OUTCOME_DUPLICATE;
	else if (lock == LOCK_TAKEN)
		outcome = OUTCOME_LOCKED;
	else
	{
		outcome = acquire_add_job(table, queue, key, payload, &call->id);
		made = outcome == OUTCOME_ACCEPTED;
		idemq_jobs_refresh(table);
	}
	if (outcome == OUTCOME_DUPLICATE || outcome == OUTCOME_ACCEPTED)
	{
		call->retry_after = DT_NOEND;
		outcome = idemq_claim_by_id(call, table);
	}
	if (lock == LOCK_MINE && !made && outcome != OUTCOME_CLAIMED &&
		outcome != OUTCOME_CLAIMED_AGAIN)
		LockRelease(&tag, ExclusiveLock, false);
	return outcome;
}

/*
 * acquire(queue, key, payload, lease, worker, attach) -> claim_result: claimed,
 * claimed_again, locked, completed, dead, cancelled, blocked, not_due; IQ003,
 * IQ005, IQ007, 42501, 22004, 22023, 40001, 54000, 55P03.
 */
SQL_FUNCTION(idemq_sql_acquire)
{
	char *name = idemq_arg_text(fcinfo, 0, "queue", IDEMQ_MAX_NAME_ARG);
	JobCall call = {0};
	QueueInfo queue;
	JobsTable table;
	Outcome outcome;
	Datum payload = (Datum) 0;
	Datum answer;
	text *key;

	idemq_arg_required(fcinfo, 1, "key");
	key = PG_GETARG_TEXT_PP(1);
	idemq_check_key("key", VARSIZE_ANY_EXHDR(key));
	if (!PG_ARGISNULL(2))
		payload = PointerGetDatum(PG_DETOAST_DATUM(PG_GETARG_DATUM(2)));
	idemq_check_document("payload", payload, 0);
	claim_by_id_args(fcinfo, 3, &call);
	idemq_jobs_check_writable();
	idemq_queue_by_name(name, PRIVILEGE_CLAIM, &queue);
	idemq_settings_check_lease(&queue, call.lease);
	outcome = acquire(&call, &table, &queue, key, PG_ARGISNULL(2) ? NULL : &payload);
	/* The message was processed earlier. */
	if (outcome == OUTCOME_COMPLETED || outcome == OUTCOME_DEAD || outcome == OUTCOME_CANCELLED)
		idemq_queue_count_refusal(&queue, COUNTER_DUPLICATES);
	answer = claim_result_row(fcinfo, &call, outcome);
	idemq_jobs_close(&table);
	return answer;
}
