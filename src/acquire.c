/*
 * acquire.c
 *		SQL function acquire: a message that came from elsewhere (SQS, Kafka, a
 *		webhook) becomes a job, or finds its job, and is claimed, in one call.
 *
 * In front stands an advisory lock on the key, in a class of idemq's own, taken
 * without waiting: while somebody is in the middle of a transaction on the same
 * key, the answer is "locked", with no row touched and nothing written.  The lock
 * is a short cut, not the guard: the unique index and the lease decide, so that a
 * full lock table or two keys with one hash cost time and nothing else.
 *
 * An enqueue takes no such lock.  One that is not committed is seen in the index
 * by a look at what is in doubt, and answered "locked" too; only one that begins
 * after that look is waited for.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

#include "args.h"
#include "claim_job.h"
#include "clock.h"
#include "compat.h"
#include "keyed.h"

PG_FUNCTION_INFO_V1(idemq_sql_acquire);

/*
 * Fourth field of our lock tags, objsubid in pg_locks: "iq".  An application's
 * advisory locks have 1 or 2 there.
 */
#define ADVISORY_CLASS 0x6971

/* Names the lock of a key: 64 bits of its hash. */
static void
set_tag(LOCKTAG *tag, int32 queue_id, const text *key)
{
	uint64 hash = hash_bytes_extended((const unsigned char *) VARDATA_ANY(key),
									  VARSIZE_ANY_EXHDR(key), (uint64) queue_id);

	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) (hash >> 32), (uint32) hash, ADVISORY_CLASS);
}

/*
 * Returns whether somebody else is in the middle of a transaction on a key; if
 * not, the lock is ours to the end of this transaction, or there is no room for it.
 */
static bool
is_locked(int32 queue_id, const text *key)
{
	LOCKTAG tag;
	int holders = 0;

	set_tag(&tag, queue_id, key);
	if (compat_lock_if_free(&tag, ExclusiveLock))
		return false;
	pfree(GetLockConflicts(&tag, ExclusiveLock, &holders));
	return holders > 0;
}

/* Adds the job of a message that is new, or finds the twin that was faster. */
static int64
add_job(JobsTable *table, const QueueInfo *queue, text *key, const Datum *payload)
{
	JobChange columns;
	EnqueueAnswer answer;

	if ((queue->privileges & PRIVILEGE_ENQUEUE) == 0)
		idemq_queue_denied(queue->name, PRIVILEGE_ENQUEUE);
	idemq_new_job(&columns, queue, idemq_now(),
				  payload != NULL ? *payload
								  : DirectFunctionCall1(jsonb_in, CStringGetDatum("null")));
	job_set(&columns, COL_KEY, PointerGetDatum(key));
	idemq_enqueue_keyed(table, queue, &columns, payload != NULL ? DUPLICATE_KEEP : DUPLICATE_IGNORE,
						&answer);
	return answer.id;
}

/* Claims the job of a key, which is made if it is new; sets call->id. */
static Outcome
acquire(JobCall *call, JobsTable *table, const QueueInfo *queue, text *key, const Datum *payload)
{
	call->retry_after = idemq_now() + (call->lease > 0 ? call->lease : queue->lease);
	if (is_locked(queue->id, key))
		return OUTCOME_LOCKED;
	if (!idemq_key_lookup(table, queue, PointerGetDatum(key), payload, &call->id))
	{
		if (idemq_jobs_key_in_doubt(table, queue->id, PointerGetDatum(key)))
			return OUTCOME_LOCKED;
		call->id = add_job(table, queue, key, payload);
		idemq_jobs_refresh(table);
	}
	call->retry_after = DT_NOEND;
	return idemq_job_call(call, table);
}

/*
 * acquire(queue, key, payload, lease, worker, attach) -> claim_result: claimed,
 * claimed_again, locked, completed, dead, cancelled, blocked, not_due; IQ003,
 * IQ005, 42501, 22004, 22023, 40001.
 */
Datum
idemq_sql_acquire(PG_FUNCTION_ARGS)
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
	idemq_job_call_args(fcinfo, 3, &call);
	idemq_jobs_check_writable();
	idemq_queue_by_name(name, PRIVILEGE_CLAIM, &queue);
	idemq_queue_lock(queue.id, AccessShareLock);
	idemq_queue_by_name(name, PRIVILEGE_CLAIM, &queue);
	idemq_jobs_open(&table);
	outcome = acquire(&call, &table, &queue, key, PG_ARGISNULL(2) ? NULL : &payload);
	answer = idemq_job_answer(fcinfo, &call, outcome);
	idemq_jobs_close(&table);
	return answer;
}
