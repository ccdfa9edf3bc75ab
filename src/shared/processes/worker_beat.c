/*
 * shared/processes/worker_beat.c
 *		What a background worker, and who calls it, leave for the sleeper that watches it
 *		(shared/processes/worker_watch.c): when it was called, when it moved last.
 *
 * Locks: none, atomics only.  Nothing here allocates or raises.
 */
#include "postgres.h"

#include "storage/latch.h"
#include "storage/proc.h"

#include "base/base.h"
#include "shared/processes/processes.h"

/* Returns since when (mono) a worker has not moved though it should; the future: it may sleep. */
int64
idemq_watch_still_since(Place *place)
{
	uint64 until = pg_atomic_read_u64(&place->asleep_until);
	uint64 called;
	uint64 beat;

	pg_read_barrier();
	called = pg_atomic_read_u64(&place->called_at);
	beat = pg_atomic_read_u64(&place->beat);
	if (until == PG_UINT64_MAX)
		return (int64) beat;
	if (called != 0)
		until = Min(until, called);
	/* It may fall asleep for no time at all. */
	until = Max(until, beat);
	return (int64) Min(until, (uint64) (PG_INT64_MAX - STUCK_AFTER));
}

/* Begins the watch over a new worker, or ends that over an old one. */
void
idemq_watch_begins(Place *place)
{
	pg_atomic_write_u64(&place->beat, (uint64) idemq_mono_now());
	pg_atomic_write_u64(&place->called_at, 0);
	pg_atomic_write_u32(&place->stuck, 0);
}

/* Has the watcher awake by the time at which the worker, from now on, would be stuck. */
static void
tell_watcher(Place *place, int64 now)
{
	uint32 watcher;

	pg_memory_barrier();
	watcher = pg_atomic_read_u32(&place->watcher);
	if (watcher != 0 && pg_atomic_read_u64(&place->watch_until) > (uint64) (now + STUCK_AFTER))
		SetLatch(&GetPGProcByNumber(watcher - 1)->procLatch);
}

/* Notes a call, before the worker's latch is set. */
void
idemq_watch_called(Place *place)
{
	uint64 none = 0;
	int64 now;

	if (pg_atomic_read_u64(&place->called_at) != 0)
		return;
	now = idemq_mono_now();
	if (pg_atomic_compare_exchange_u64(&place->called_at, &none, (uint64) now))
		tell_watcher(place, now);
}

/* Notes that the worker is awake and begins something. */
void
idemq_watch_moves(Place *place)
{
	int64 now = idemq_mono_now();

	pg_atomic_write_u64(&place->beat, (uint64) now);
	pg_memory_barrier(); /* see shared/processes/worker_watch.c on stuck */
	if (pg_atomic_read_u64(&place->called_at) != 0)
		pg_atomic_write_u64(&place->called_at, 0);
	if (pg_atomic_read_u32(&place->stuck) != 0)
		pg_atomic_write_u32(&place->stuck, 0);
	tell_watcher(place, now);
}
