/*
 * shared/processes/due_times.c
 *		Due times: when the background worker must next do each kind of work for a queue.
 *
 * A queue state has one due time per DueKind, which is never later than the first thing to do of
 * that kind.  A due time of 0 means "look at once", because it is not known what is due, or since
 * when.
 *
 * No due time is lost.  A session that needs something to be done first makes it visible to others:
 * by a commit, or by changing an entry or a list under its lock (each a full barrier).  Then it
 * lowers the due time (idemq_due_by), marks the queue state and wakes the worker (worker_call.c).
 * The worker, or another session that does the work, first takes the due time: it sets the due time
 * to "never" (a full barrier), then looks for work, and then lowers the due time to what remains to
 * be done.
 *
 *		session							worker, or another session
 *		1 makes its work visible		1 sets the due time to never
 *		2 lowers the due time,			2 looks for work
 *		  unless it is low enough		3 lowers the due time to what is left
 *
 * If the session's step 2 comes after the other's step 1, the due time remains for the next look.
 * Otherwise the session's step 1 came first, too, and the other's step 2 finds the work.  So if a
 * due time is already low enough, no write and no call are necessary.  Therefore a busy queue whose
 * leases end later than the first one does not wake the worker for each claim.
 *		Model: test/model/worker.pml, with worker_call.c.
 *
 * If the worker fails after its step 1, it sets the due time to 0 (worker/task_runner.c).  A worker
 * that starts sets some of them to 0 (worker/tasks.c).
 *
 * Two kinds are written under the lock that protects what they stand for, so the holder of the lock
 * knows the exact time, and may also raise it: DUE_GROUPS under the groups lock
 * (shared/groups/groups.c), and DUE_RECOVERY under the queue state's lock
 * (shared/leases/recovery_point.c).
 *
 * Locks: none, only atomics.  These functions are called after commit and abort, so they neither
 * allocate nor raise errors.
 */
#include "postgres.h"

#include "base/base.h"
#include "shared/processes/processes.h"

/* Converts a due time to mono: some kinds are timestamps. */
static int64
due_mono(DueKind kind, uint64 when)
{
	if (when < DUE_NEVER && (kind == DUE_READY || kind == DUE_EXPIRY))
		return idemq_mono_from_timestamp((TimestampTz) when);
	return (int64) when;
}

/* Returns the due time (mono) of a kind; PG_INT64_MAX: never. */
int64
idemq_due_at(QueueState *qstate, DueKind kind)
{
	return due_mono(kind, pg_atomic_read_u64(&qstate->due[kind]));
}

/*
 * Lowers the due time of a kind to a time, and makes sure that the worker is awake by then.  The
 * time is mono, or a timestamp for DUE_READY and DUE_EXPIRY.  Does nothing if qstate is NULL, or if
 * the time never comes.
 */
void
idemq_due_by(QueueState *qstate, DueKind kind, int64 when)
{
	uint64 wanted = (uint64) Max(when, 0);
	uint64 known;

	IDEMQ_STOP("idemq_due_by");
	if (qstate == NULL)
		return;
	known = pg_atomic_read_u64(&qstate->due[kind]);
	while (wanted < known)
	{
		if (pg_atomic_compare_exchange_u64(&qstate->due[kind], &known, wanted))
		{
			idemq_worker_need_for_queue(qstate, due_mono(kind, wanted));
			break;
		}
	}
}

/*
 * Like idemq_due_by, for a delay in microseconds from now; does nothing if a due time is set
 * already.
 */
void
idemq_due_in(QueueState *qstate, DueKind kind, int64 delay)
{
	if (qstate != NULL && pg_atomic_read_u64(&qstate->due[kind]) == DUE_NEVER)
		idemq_due_by(qstate, kind, idemq_mono_now() + delay);
}

/* Takes the due time of a kind, before the caller does the work; returns whether one was set. */
bool
idemq_due_take(QueueState *qstate, DueKind kind)
{
	return pg_atomic_exchange_u64(&qstate->due[kind], DUE_NEVER) != DUE_NEVER;
}
