/*
 * job/dead_letter.c
 *		Dead-letter queues: when a job dies, the same transaction adds a job to the dead-letter queue of
 *		the job's queue.  With dead_letter_cancelled, this also happens when a job is cancelled of which
 *		an attempt has begun, because the effects of that attempt may have to be undone.
 *
 * The dead job itself stays where it is.  The payload of the added job is a dead-letter record: the
 * queue, id, key, group_key, kind, payload, headers, checkpoint, error, steps and attempts of the
 * dead job.  The added job also has the dead job's headers and kind, so that a trace continues and
 * a worker finds the right handler.  The key of the added job contains the token of the last
 * attempt.  So each death is recorded once, even if the dead job is brought back, and is cancelled
 * before another attempt has begun.
 *
 * The record contains the steps as they are at the time of the death, not as the snapshot of a
 * cancel at REPEATABLE READ shows them, because steps booked since then must also be undone.  The
 * answer to an open step may still arrive later, from a worker whose token has become stale
 * (table/steps.c).  A worker that undoes such a step waits for its call_until, and reads
 * idemq.steps again.
 *
 * The size of a dead-letter record is bounded, because a single job could otherwise keep its queue
 * from being reaped.  The record contains the latest MAX_ATTEMPTS attempts, the first MAX_STEPS
 * steps, and the first MAX_ERROR characters of each error.  Longer documents of attempts and steps
 * are left out.  Payload and headers are left out if they have more than MAX_DOCUMENTS bytes as
 * text, and so is the checkpoint if it is too long together with them.
 *
 * Each death checks that the role that set the dead-letter queue may still enqueue there.  The role
 * of a handler, a schedule or a binding is checked in the same way.
 *
 * When a job is brought back, its dead-letter record is cancelled (api/change_job.c).
 *
 * A death never fails because its job cannot be added to the dead-letter queue.  If that queue does
 * not exist, the role may not enqueue there, or its own dead jobs would come back, a warning says
 * that nothing was added.
 *
 * Locks: a lock that keeps the dead-letter queue from being dropped, from before the dead job's row
 * is written until the end of the transaction.
 *
 * Dead-letter queues do not form a cycle.  A session that sets the dead_letter_queue of a queue
 * locks that setting in exclusive mode, and locks the same setting of each queue in the chain that
 * begins at the new dead-letter queue in shared mode, until the end of its transaction.  It takes
 * these locks in the order of ids, so two sessions that would close a cycle together wait for each
 * other and do not deadlock.  It follows the chain again until the chain contains exactly the
 * locked queues.  Suppose that a cycle were closed nevertheless.  Of the sessions that made its
 * settings, take the one that was the last to lock its own setting.  It followed the chain under
 * its locks, and found an end; so at that time a queue in the chain had a setting different from
 * the one in the cycle.  The session that changed that setting locked it in exclusive mode.  If it
 * did so before, it had committed, and the chain was followed past that queue.  If it did so after,
 * the session that we took was not the last one.  Removing a dead_letter_queue closes no cycle, and
 * locks nothing.  A name that no queue has yet ends a chain; when that queue is created, its own
 * chain is followed, back to its name.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "table/table.h"
#include "txn/txn.h"

#define MAX_ATTEMPTS "100"
#define MAX_ERROR "10000"
/* Details with a log that a client has captured are usually too long. */
#define OR_WITHOUT_LOG                                                                             \
	"WHEN jsonb_typeof(a.details) = 'object' AND length((a.details - 'log')::text) <= " MAX_ERROR  \
	" THEN a.details - 'log' "
#define MAX_STEPS "100"
/* base/documents.c relies on this limit. */
#define MAX_DOCUMENTS DOCUMENT_MOST
/* Maximum number of queues in a chain; a longer chain counts as a cycle. */
#define MAX_CHAIN 32
/* The lock is on the queue's setting dead_letter_queue, not on the queue (idemq_queue_lock). */
#define SETTING_LOCK 1

/* The queues whose dead_letter_queue a circle would go through. */
typedef struct Chain
{
	int count;
	int32 ids[MAX_CHAIN + 1];
} Chain;

/*
 * $1: the dead job, whose row has been written; $2: its queue; $3: which of the job's documents the
 * record gets (Documents); $4: the error.  Attempts are in the order of their tokens, which
 * increase even if a clock is set back, and steps in the order of their last calls.
 */
static SqlStatement describe_death =
	{.text =
		 "SELECT jsonb_build_object('queue', $2, 'id', j.id, 'key', j.key, "
		 "'group_key', nullif(j.group_key, ''), 'payload', CASE WHEN $3 > 0 THEN j.payload END, "
		 "'headers', CASE WHEN $3 > 0 THEN j.headers END, 'enqueued_at', j.enqueued_at, "
		 "'died_at', j.finished_at, 'kind', j.kind, "
		 "'checkpoint', CASE WHEN $3 > 1 THEN j.checkpoint END, 'status', j.status, "
		 "'steps', coalesce((SELECT jsonb_agg(jsonb_build_object('name', s.name, "
		 "'state', s.state, 'begun_at', s.begun_at, 'call_until', s.call_until, "
		 "'answered_at', s.answered_at, 'effect_key', s.effect_key, 'request', "
		 "CASE WHEN length(s.request::text) <= " MAX_ERROR " THEN s.request END, 'response', "
		 "CASE WHEN length(s.response::text) <= " MAX_ERROR " THEN s.response END, "
		 "'error', left(s.error, " MAX_ERROR ")) ORDER BY s.at, s.name) "
		 "FROM (SELECT *, coalesce(begun_at, answered_at) AS at FROM idemq.steps "
		 "WHERE job_id = $1 ORDER BY at, name LIMIT " MAX_STEPS ") s), '[]'), "
		 "'last_error', left($4, " MAX_ERROR "), 'attempts', coalesce((SELECT jsonb_agg("
		 "jsonb_build_object('attempt', a.attempt, 'worker', a.worker, 'claimed_at', a.claimed_at, "
		 "'ended_at', a.ended_at, 'outcome', a.outcome, 'error', left(a.error, " MAX_ERROR "), "
		 "'details', CASE WHEN length(a.details::text) <= " MAX_ERROR
		 " THEN a.details " OR_WITHOUT_LOG "END) "
		 "ORDER BY a.token) FROM (SELECT * FROM idemq.attempts WHERE job_id = $1 "
		 "ORDER BY token DESC LIMIT " MAX_ATTEMPTS ") a), '[]')) "
		 "FROM idemq.jobs j WHERE j.id = $1",
	 .types = {INT8OID, TEXTOID, INT4OID, TEXTOID},
	 .few = true,
	 .fields = SQL_SCALAR(Datum)};

/*
 * Returns whether the chain of dead-letter queues that begins at queue "from" contains the queue
 * "name". chain: gets the queues up to there; may be NULL.
 */
static bool
leads_to(const char *from, const char *name, Chain *chain)
{
	QueueInfo queue = {0};

	strlcpy(queue.dead_letter_queue, from, sizeof(queue.dead_letter_queue));
	for (int i = 0; i < MAX_CHAIN; i++)
	{
		if (strcmp(queue.dead_letter_queue, name) == 0)
			return true;
		if (queue.dead_letter_queue[0] == '\0' ||
			!idemq_queue_find(queue.dead_letter_queue, &queue))
			return false;
		if (chain != NULL)
			chain->ids[chain->count++] = queue.id;
	}
	return true;
}

/*
 * Like leads_to, for the queue whose dead_letter_queue is being set; its id is 0 if it is being
 * created.  Locks the settings on which the result depends, as the top of this file describes.
 */
static bool
leads_to_for_good(const char *from, const char *name, int32 id)
{
	Chain locked = {0};

	for (;;)
	{
		Chain chain = {0};
		bool leads = leads_to(from, name, &chain);

		if (id != 0)
			chain.ids[chain.count++] = id;
		qsort(chain.ids, chain.count, sizeof(int32), idemq_compare_int32);
		if (chain.count == locked.count &&
			memcmp(chain.ids, locked.ids, chain.count * sizeof(int32)) == 0)
			return leads;
		for (int i = 0; i < locked.count; i++)
			UnlockDatabaseObject(idemq_oids()->queues, (Oid) locked.ids[i], SETTING_LOCK,
								 locked.ids[i] == id ? ExclusiveLock : ShareLock);
		for (int i = 0; i < chain.count; i++)
			LockDatabaseObject(idemq_oids()->queues, (Oid) chain.ids[i], SETTING_LOCK,
							   chain.ids[i] == id ? ExclusiveLock : ShareLock);
		locked = chain;
	}
}

/*
 * Checks the new dead_letter_queue of a queue, whose id is 0 if it does not exist yet, and keeps
 * the dead-letter queue from being dropped until the end of the transaction.  Raises 22023 for the
 * queue itself and for one whose own dead jobs would come back to it, IQ005 if it does not exist,
 * and 42501 if the current role may not enqueue to it.
 */
void
idemq_dead_letter_check(const char *queue, int32 queue_id, const char *dead_letter_queue)
{
	QueueInfo dead;

	if (strcmp(queue, dead_letter_queue) == 0)
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("queue \"%s\" cannot be its own dead_letter_queue", queue),
				errhint("Create another queue, and use it for dead jobs."));
	idemq_queue_by_name(dead_letter_queue, PRIVILEGE_ENQUEUE | PRIVILEGE_ADMIN, &dead);
	idemq_queue_lock(dead.id, AccessShareLock);
	idemq_queue_by_name(dead_letter_queue, PRIVILEGE_ENQUEUE | PRIVILEGE_ADMIN, &dead);
	if (leads_to_for_good(dead.name, queue, queue_id))
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("dead jobs of queue \"%s\" would return to queue \"%s\"", dead_letter_queue,
					   queue),
				errhint("Remove the dead_letter_queue setting from the last queue of the chain."));
}

/*
 * Returns whether a job that enters a status gets a dead-letter record.  With
 * dead_letter_cancelled, a cancelled job gets one if an attempt of it has begun.
 */
bool
idemq_dead_letter_wants(const QueueInfo *queue, const Job *job, JobStatus becomes)
{
	if (queue->dead_letter_queue[0] == '\0')
		return false;
	return becomes == JOB_DEAD ||
		   (becomes == JOB_CANCELLED && queue->dead_letter_cancelled && job->token != 0);
}

/* Returns whether the role that set the dead-letter queue of a queue may enqueue there now. */
bool
idemq_dead_letter_allowed(const QueueInfo *queue, const QueueInfo *dead)
{
	const char *name = NameStr(queue->dead_letter_role);
	QueueInfo unused;
	Oid role;

	if (name[0] == '\0')
		return true;
	role = idemq_role_of(name, queue->dead_letter_role_oid);
	return OidIsValid(role) &&
		   idemq_queue_allows_role(dead->id, role, PRIVILEGE_ENQUEUE | PRIVILEGE_ADMIN, &unused);
}

/*
 * Must be called before a job of the queue becomes dead or is cancelled.  Sets *dead to the queue's
 * dead-letter queue, and keeps it from being dropped.  If there is none, or the role that set it
 * may not enqueue there, dead->id is 0.  Returns false if the dead-letter queue is being dropped
 * and the caller does not wait.
 */
bool
idemq_dead_letter_hold(const QueueInfo *queue, JobWait wait, QueueInfo *dead)
{
	QueueInfo latest = *queue;

	while (idemq_queue_find(latest.dead_letter_queue, dead) &&
		   idemq_dead_letter_allowed(&latest, dead))
	{
		if (wait == JOB_WAITS)
			idemq_queue_lock(dead->id, AccessShareLock);
		else if (!idemq_queue_try_lock(dead->id, AccessShareLock))
			return false;
		/* It may have been dropped or replaced before we had the lock. */
		if (!idemq_queue_by_id(queue->id, &latest) ||
			(strcmp(latest.dead_letter_queue, dead->name) == 0 &&
			 idemq_queue_by_id(dead->id, dead) && idemq_dead_letter_allowed(&latest, dead)))
			return true;
	}
	memset(dead, 0, sizeof(*dead));
	strlcpy(dead->name, latest.dead_letter_queue, sizeof(dead->name));
	return true;
}

/* Returns whether a record can be added to the dead-letter queue; warns if it cannot. */
static bool
can_be_added(const Job *job, const QueueInfo *queue, const QueueInfo *dead, const char *status)
{
	QueueInfo other;
	const char *why;
	int code;

	if (dead->name[0] == '\0')
		return false;
	if (dead->id != 0)
	{
		if (!leads_to(dead->dead_letter_queue, queue->name, NULL))
			return true;
		code = ERRCODE_INVALID_PARAMETER_VALUE;
		why = psprintf("because its own dead jobs would return to queue \"%s\"", queue->name);
	}
	else if (idemq_queue_find(dead->name, &other))
	{
		code = ERRCODE_INSUFFICIENT_PRIVILEGE;
		why =
			psprintf("because role \"%s\" may not enqueue to it", NameStr(queue->dead_letter_role));
	}
	else
	{
		code = ERRCODE_IDEMQ_NO_SUCH_QUEUE;
		why = "because that queue does not exist";
	}
	ereport(
		WARNING, errcode(code),
		errmsg("%s job %lld was not added to queue \"%s\" %s", status, (long long) job->id,
			   dead->name, why),
		errdetail("The original job is still in queue \"%s\" with status %s.", queue->name, status),
		errhint(
			"Choose another dead-letter queue: SELECT idemq.alter_queue('%s', dead_letter_queue => "
			"'...').",
			queue->name));
	return false;
}

/* How much of a job's documents its dead-letter record gets. */
typedef enum Documents
{
	DOCUMENTS_NONE,
	DOCUMENTS_FIRST, /* payload and headers */
	DOCUMENTS_ALL	 /* with the checkpoint */
} Documents;

/* Returns which of a job's documents fit into the record; warns about those that do not. */
static Documents
documents_that_fit(const Job *job, const char *status)
{
	static const JobColumn columns[] = {COL_PAYLOAD, COL_HEADERS, COL_CHECKPOINT};
	Datum documents[lengthof(columns)];
	Documents fit = DOCUMENTS_ALL;

	for (int i = 0; i < (int) lengthof(columns); i++)
		documents[i] = job_value(job, columns[i]); /* 0 where it is NULL */
	if (idemq_documents_fit(documents, lengthof(columns), MAX_DOCUMENTS))
		return fit;
	fit = idemq_documents_fit(documents, 2, MAX_DOCUMENTS) ? DOCUMENTS_FIRST : DOCUMENTS_NONE;
	ereport(
		WARNING, errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
		fit == DOCUMENTS_NONE
			? errmsg("payload and headers of %s job %lld were omitted from its dead-letter record "
					 "because they are too long",
					 status, (long long) job->id)
			: errmsg(
				  "checkpoint of %s job %lld was omitted from its dead-letter record because it is "
				  "too long",
				  status, (long long) job->id),
		fit == DOCUMENTS_NONE
			? errdetail("Their combined length as text exceeds %zu bytes.", MAX_DOCUMENTS)
			: errdetail(
				  "The combined length of payload, headers and checkpoint as text exceeds %zu "
				  "bytes.",
				  MAX_DOCUMENTS),
		fit == DOCUMENTS_NONE ? errhint("Read the omitted values from the original %s job.", status)
							  : errhint("Read the checkpoint from the original %s job.", status));
	return fit;
}

/* Returns the key of a dead-letter record; producers cannot use this key (job/kept_key.c). */
Datum
idemq_dead_letter_key(const QueueInfo *queue, int64 id, int64 token)
{
	return CStringGetTextDatum(psprintf(DEAD_LETTER_KEY_MARK "%d:%lld:%lld", queue->id,
										(long long) id, (long long) token));
}

/*
 * Adds a record of a job that died or was cancelled in this transaction to the dead-letter queue
 * that idemq_dead_letter_hold has set, if any. job: as it was before; idemq.attempts already has
 * the end of its attempt.  Ends the command; never waits.
 */
void
idemq_dead_letter_add(const Job *job, const QueueInfo *queue, const QueueInfo *dead,
					  JobStatus status, text *error)
{
	const char *name = idemq_status_name(status);
	MemoryContext context;
	MemoryContext old;
	JobsTable table;
	JobChange columns;
	EnqueueAnswer answer;
	Datum values[4];
	Datum record;

	if (!can_be_added(job, queue, dead, name))
		return;
	/* A reaper may add thousands of records, each of them long. */
	context = AllocSetContextCreate(CurrentMemoryContext, "idemq dead job", ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(context);
	values[0] = Int64GetDatum(job->id);
	values[1] = CStringGetTextDatum(queue->name);
	values[2] = Int32GetDatum(documents_that_fit(job, name));
	values[3] = PointerGetDatum(error);
	/* Makes the new row visible to the statement. */
	CommandCounterIncrement();
	if (!idemq_spi_row(&describe_death, values, &record, sizeof(record)))
		elog(ERROR, "dead job %lld no longer exists", (long long) job->id);
	idemq_new_job(&columns, dead, idemq_now(), record);
	job_set(&columns, COL_KEY, idemq_dead_letter_key(queue, job->id, job->token));
	if (job_has(job, COL_HEADERS))
		job_set(&columns, COL_HEADERS, job_value(job, COL_HEADERS));
	if (job_has(job, COL_KIND))
		job_set(&columns, COL_KIND, job_value(job, COL_KIND));
	idemq_jobs_open(&table);
	idemq_new_job_keyed(&table, dead, &columns,
						(DuplicateRule){.policy = DUPLICATE_IGNORE,
										.is_ours = true,
										.when_full = FULL_UNASKED},
						JOB_SKIPS, &answer);
	if (answer.outcome == OUTCOME_LOCKED)
	{
		/*
		 * An open transaction is adding a job with that key: add the record without a key instead
		 * of waiting.
		 */
		columns.set &= ~(COLUMN_BIT(COL_KEY) | COLUMN_BIT(COL_ID));
		(void) idemq_new_job_insert(&table, dead, &columns);
	}
	idemq_jobs_close(&table);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	if (answer.outcome != OUTCOME_DUPLICATE)
		idemq_pending_counts_event(dead->id, COUNTER_BIT(COUNTER_ENQUEUED));
}
