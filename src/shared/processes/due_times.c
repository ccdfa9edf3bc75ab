/*
 * shared/processes/due_times.c
 *		When the background worker is to do what for a queue: an array of times in its state,
 *		one for each DueKind, each no later than the first thing that it stands for.
 *
 * No time is lost.  A session that has something done later first makes it so that others find
 * it (a commit, an entry put under a partition's lock, a list changed under its own: each a
 * full barrier).  Then it lowers the time (idemq_due_by), marks the queue state and calls the
 * worker (shared/processes/due_queues.c, worker_call.c).  The worker, or another session that does
 * the work, begins by taking the time: it sets the time to never (full barrier), then looks, and
 * lowers the time to when there is more to do.
 *
 *		session							worker, or another session
 *		1 makes it to be found			1 sets the time to never
 *		2 lowers the time, unless it	2 looks
 *		  is low enough					3 lowers the time to what is left
 *
 * If the session's 2 comes after the other's 1, the time is there for the next look.  If it comes
 * before, its 1 does too, and the other's 2 finds what it made.  So a time that is low enough
 * already needs neither a write nor a call: a busy queue, whose leases end later than the first,
 * wakes nobody for each claim.
 *		Model: test/model/worker.pml, with due_queues.c and worker_call.c.
 *
 * 0 says "look at once": it is not known since when something is due, or what.  A worker that
 * failed after its 1 sets the time to 0 (worker/task_runner.c); one that starts sets some of
 * them so, to begin with (worker/tasks.c).
 *
 * Two kinds are written under a lock that covers what they stand for; its holder knows the time
 * and may raise it: DUE_GROUPS under the groups' lock (shared/groups/groups.c),
 * DUE_RECOVERY under the queue state's (shared/leases/recovery_point.c).  They are read as
 * the others.
 *
 * Locks: none, atomics only.  All of it is called after commit and abort: nothing here
 * allocates or raises.
 */
#include "postgres.h"

#include "base/base.h"
#include "shared/processes/processes.h"

/* Returns when (mono) a time of that kind is: some kinds are times of day. */
static int64
mono_of(DueKind kind, uint64 when)
{
	if (when < DUE_NEVER && (kind == DUE_READY || kind == DUE_EXPIRY))
		return idemq_mono_from_timestamp((TimestampTz) when);
	return (int64) when;
}

/* Returns when (mono) there is something of that kind to do; PG_INT64_MAX: never. */
int64
idemq_due_at(QueueState *qstate, DueKind kind)
{
	return mono_of(kind, pg_atomic_read_u64(&qstate->due[kind]));
}

/*
 * Notes that there is something of that kind to do from a time on, and has the worker awake by
 * then.  The time is mono, a time of day for DUE_READY and DUE_EXPIRY.  Does nothing without a
 * queue state, or for a time that never comes.
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
			idemq_worker_need_for_queue(qstate, mono_of(kind, wanted));
			break;
		}
	}
}

/* As idemq_due_by, for so many microseconds from now, unless there is something to do already. */
void
idemq_due_in(QueueState *qstate, DueKind kind, int64 delay)
{
	if (qstate != NULL && pg_atomic_read_u64(&qstate->due[kind]) == DUE_NEVER)
		idemq_due_by(qstate, kind, idemq_mono_now() + delay);
}

/* Takes the time of a kind, before the work that is due; returns whether there was one. */
bool
idemq_due_take(QueueState *qstate, DueKind kind)
{
	return pg_atomic_exchange_u64(&qstate->due[kind], DUE_NEVER) != DUE_NEVER;
}
