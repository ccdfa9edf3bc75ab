/*
 * shared/processes/worker_watch.c
 *		Noticing that a background worker does not move: it waits in a lock or a user's
 *		trigger, is stopped, or is at one long piece of work.
 *
 * A worker that is awake notes each piece of work that it begins (beat).  One that sleeps
 * should wake when it said that it would (asleep_until), or when it is called (called_at:
 * the first call since it was awake).  STUCK_AFTER later it counts as stuck.
 *
 * One sleeper of the database watches: the one that has put itself, by compare-and-swap,
 * into the place's watcher.  It wakes when the worker would be stuck, and the others sleep
 * on.  Nobody polls: while the worker has nothing to do, it sleeps for ever, and so does its
 * watcher.  While there is work the watcher wakes once in STUCK_AFTER.
 *
 *		watcher							who calls the worker, and the worker when it wakes
 *		1 watch_until = never			1 writes called_at, or beat
 *		2 full barrier, reads the		2 full barrier, reads watch_until: sets the
 *		  worker's times				  watcher's latch, if it is later than
 *		3 watch_until = then			  STUCK_AFTER from now
 *		4 sleeps on its latch
 *
 * What a caller writes after the watcher has read is seen to need an earlier time than
 * watch_until, or meets a watcher that is awake and reads again.
 *
 * There is a watcher while there is a sleeper: a sleeper sets its bit in the place's set of
 * sleepers (shared/sleepers/wake.c), full barrier, and takes the office if it is vacant; who leaves the
 * office leaves it vacant, full barrier, and wakes one of the set, which then looks.  One that
 * was woken and leaves wakes the next.
 *
 * What a watcher does about a stuck worker: it says so (stuck), in the log too, once in
 * SAID_PAUSE, and once in HELP_PAUSE it wakes one sleeper of each queue that has something
 * due.  That one does its own queue's work, with its own role's rights, in a transaction of
 * its own (api/wait.c), as all do where there is no worker; no tenant works for another.  A
 * queue without a sleeper has its leases taken back by its next claim.  The worker takes
 * stuck back when it moves: it writes beat, full barrier, reads stuck; the watcher sets
 * stuck, full barrier, reads beat, and takes stuck back itself if that has moved: or a
 * worker that falls asleep for long would pass for stuck until it wakes.  All slots are
 * visited for this: once in HELP_PAUSE, by one.
 *
 * Locks: none, atomics only.  idemq_watch_leave neither allocates nor raises.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/base.h"
#include "base/compat.h"
#include "shared/groups/groups.h"
#include "shared/processes/processes.h"
#include "shared/sleepers/sleepers.h"
#include "shared/slots/slots.h"

/* While it is stuck, its work is handed out that often. */
#define HELP_PAUSE (USECS_PER_SEC / 2)
/* The log is told of a worker that has been stuck for SAID_AFTER, once in SAID_PAUSE. */
#define SAID_AFTER (2 * USECS_PER_SEC)
#define SAID_PAUSE USECS_PER_MINUTE

/* The place in whose set of sleepers this session is; -1: none. */
static int joined = -1;

/* Returns this database's place if its worker runs; NULL otherwise. */
static Place *
watched_place(int *index)
{
	Place *place;

	*index = idemq_worker_place_index();
	place = *index < 0 ? NULL : idemq_place_at(*index);
	return place == NULL || place->state != PLACE_RUNNING ? NULL : place;
}

/* Returns whether the worker of this database was found stuck, by a sleeper. */
bool
idemq_worker_is_stuck(void)
{
	int index;
	Place *place = watched_place(&index);

	return place != NULL && pg_atomic_read_u32(&place->stuck) != 0;
}

/* Returns the process of this database's worker; 0: none runs. */
pid_t
idemq_worker_pid(void)
{
	int index;
	Place *place = watched_place(&index);

	return place == NULL ? 0 : place->pid;
}

/* Returns the worker's process if it is stuck, and since when (mono); 0: it is not. */
pid_t
idemq_worker_stuck_since(int64 *since)
{
	int index;
	Place *place = watched_place(&index);

	if (place == NULL)
		return 0;
	*since = idemq_watch_still_since(place);
	/* One that sleeps until it is called is still since the end of time. */
	return idemq_mono_now() - *since >= SAID_AFTER ? place->pid : 0;
}

/* Wakes a sleeper of a queue that has something due; it does it. */
static void
hand_out(const SlotView *view, void *arg)
{
	QueueSlot *slot = view->slot;
	int64 now = *(int64 *) arg;
	Sleepers *sleepers = idemq_sleepers_of_queue(slot);

	if (!idemq_sleepers_any(sleepers))
		return;
	if (pg_atomic_read_u64(&slot->next_deadline) <= (uint64) now ||
		pg_atomic_read_u64(&slot->next_due) <= (uint64) idemq_timestamp_from_mono(now) ||
		idemq_groups_due_at(slot) <= now || view->next_recovery <= now)
		(void) idemq_sleepers_wake(sleepers, 1);
}

/* Tells the log, now and then. */
static void
say(Place *place, int64 since, int64 now)
{
	uint64 said = pg_atomic_read_u64(&place->said_at);

	if (now - since < SAID_AFTER || (said != 0 && now - (int64) said < SAID_PAUSE) ||
		!pg_atomic_compare_exchange_u64(&place->said_at, &said, (uint64) now))
		return;
	ereport(LOG,
			(errcode(ERRCODE_OBJECT_IN_USE),
			 errmsg("idemq's background worker of the database, process %d, has not moved for "
					"%lld ms",
					(int) place->pid, (long long) ((now - since) / 1000)),
			 errdetail("Sessions in idemq.wait do what is due of their queues meanwhile; NOTIFY "
					   "and retention wait."),
			 errhint("See what it does and waits for in pg_stat_activity and pg_locks.")));
}

/* Does what a watcher does; returns when (mono) to look again. */
static int64
watch(Place *place)
{
	for (;;)
	{
		int64 since;
		int64 now;
		int64 again;

		(void) pg_atomic_exchange_u64(&place->watch_until, PG_UINT64_MAX);
		since = idemq_watch_still_since(place);
		now = idemq_mono_now();
		again = since + STUCK_AFTER;
		if (again <= now)
		{
			(void) pg_atomic_exchange_u32(&place->stuck, 1);
			/* It moved after we had looked, and perhaps saw nothing to take back. */
			if (idemq_watch_still_since(place) > since)
			{
				pg_atomic_write_u32(&place->stuck, 0);
				continue;
			}
			idemq_for_each_slot(MyDatabaseId, hand_out, &now);
			say(place, since, now);
			again = now + HELP_PAUSE;
		}
		(void) pg_atomic_exchange_u64(&place->watch_until, (uint64) again);
		/* What moves it since has seen watch_until, or is seen here. */
		if (idemq_watch_still_since(place) + STUCK_AFTER >= Min(again, since + STUCK_AFTER))
			return again;
	}
}

/*
 * To be called by a sleeper before it sleeps: it watches the worker, unless another does.
 * Returns when (mono) to call again; PG_INT64_MAX: when its latch is set.
 */
int64
idemq_watch_look(void)
{
	int index;
	Place *place = watched_place(&index);
	uint32 me = (uint32) IDEMQ_MY_PROC_NUMBER + 1;
	uint32 watcher;

	if (place == NULL)
		return PG_INT64_MAX;
	if (joined != index)
		idemq_watch_leave();
	if (joined != index || !idemq_sleepers_waits(idemq_sleepers_of_place(index)))
		(void) idemq_sleepers_join(idemq_sleepers_of_place(index));
	joined = index;
	pg_memory_barrier();
	watcher = pg_atomic_read_u32(&place->watcher);
	if (watcher == 0 && pg_atomic_compare_exchange_u32(&place->watcher, &watcher, me))
		watcher = me;
	return watcher == me ? watch(place) : PG_INT64_MAX;
}

/* To be called by a sleeper that sleeps no more: another one watches from here on. */
void
idemq_watch_leave(void)
{
	uint32 me = (uint32) IDEMQ_MY_PROC_NUMBER + 1;
	Sleepers *sleepers;
	bool woken;

	if (joined < 0)
		return;
	sleepers = idemq_sleepers_of_place(joined);
	woken = idemq_sleepers_leave(sleepers);
	if (pg_atomic_compare_exchange_u32(&idemq_place_at(joined)->watcher, &me, 0) || woken)
		(void) idemq_sleepers_wake(sleepers, 1);
	joined = -1;
}
