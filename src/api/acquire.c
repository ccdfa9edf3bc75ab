/*
 * api/acquire.c
 *		SQL function acquire: a message that came from elsewhere (SQS, Kafka, a
 *		webhook) becomes a job, or finds its job, and is claimed, in one call.
 *
 * For a finished job, or one with a lease, reading is enough.  For all others an advisory
 * lock on the key is taken first, in a class of idemq's own and without waiting.  While
 * another transaction that claims the same key is open, the answer is "locked", with
 * nothing written, unless the job is finished.  A call that neither added nor claimed a job
 * releases the lock at once.  The lock is a short cut, not the guard: the unique index and
 * the lease decide, so a full lock table, or two keys with one hash, costs time and nothing
 * else.  (PostgreSQL itself needs a lock for a transaction that writes, and one for an INSERT
 * that gives way.  When not even these are free, a new key raises 53200, as any INSERT does.)
 *
 * An enqueue takes no such lock.  A dirty snapshot finds the index entry of one that is not
 * committed, and the answer is "locked", too.  Nothing waits here.
 */
#include "postgres.h"

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
#include "table/table.h"
#include "txn/txn.h"

/*
 * Fourth field of our lock tags, objsubid in pg_locks: "iq".  An application's
 * advisory locks have 1 or 2 there.
 */
#define ADVISORY_CLASS 0x6971

/* What became of the lock of a key. */
typedef enum KeyLock
{
	LOCK_MINE,	/* to the end of this transaction */
	LOCK_TAKEN, /* another session has it */
	LOCK_FULL	/* there is no room for it */
} KeyLock;

/* Returns whether another session has the lock of a key at this instant. */
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
	/* Reading takes the lock table's lock shared: sessions that want one key do not queue up. */
	if (has_holder(tag))
		return LOCK_TAKEN;
	if (compat_lock_if_free(tag, ExclusiveLock))
		return LOCK_MINE;
	return has_holder(tag) ? LOCK_TAKEN : LOCK_FULL;
}

/*
 * Adds the job of a new message, or finds that of a concurrent duplicate that came first, and sets
 * *id; returns OUTCOME_LOCKED while that one's transaction is open.
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

/* Fetches the job that answers for a key; false when the key is free. */
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

	/* Until a lease is known: one that begins now will have ended by then. */
	call->retry_after = idemq_now() + (call->lease > 0 ? call->lease : queue->lease);
	idemq_jobs_open(table);
	/* A job that cannot be taken needs no lock: many duplicates of few messages take none. */
	if (find_job(call, table, queue, key, payload) && idemq_job_is_settled(call))
		return idemq_claim_by_id_check(call, table);
	/* 64 bits of a keyed hash: whoever reads pg_locks cannot compute it. */
	hash = idemq_secret_hash((uint64) queue->id, VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key));
	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, (uint32) (hash >> 32), (uint32) hash, ADVISORY_CLASS);
	lock = lock_key(&tag);
	/* After the lock: the snapshot sees what its last holder did. */
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
	idemq_claim_by_id_args(fcinfo, 3, &call);
	idemq_jobs_check_writable();
	idemq_queue_by_name(name, PRIVILEGE_CLAIM, &queue);
	idemq_settings_check_lease(&queue, call.lease);
	outcome = acquire(&call, &table, &queue, key, PG_ARGISNULL(2) ? NULL : &payload);
	/* The message was dealt with before. */
	if (outcome == OUTCOME_COMPLETED || outcome == OUTCOME_DEAD || outcome == OUTCOME_CANCELLED)
		idemq_queue_count_refusal(&queue, COUNTER_DUPLICATES);
	answer = idemq_claim_result_row(fcinfo, &call, outcome);
	idemq_jobs_close(&table);
	return answer;
}
