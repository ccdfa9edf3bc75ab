/*
 * base/clock.c
 *		One clock for the whole server that does not go back by itself.
 *
 * Deadlines are kept in CLOCK_MONOTONIC.  What is due is decided by
 * idemq_now(): CLOCK_MONOTONIC plus the greatest difference to the wall clock
 * seen since the server started.  An operator who sets the wall clock back by
 * hours therefore neither stops the queues nor revives a lease; one who sets
 * it forward makes scheduled jobs due, and reaps nothing.
 *
 * After a jump ahead that was corrected it stays ahead.  idemq_clock_correct, which the
 * DBA calls (api/clock_corrected.c), sets it back to the wall clock.  What relies on a
 * time that never goes back, as the floors of FIFO groups do, keeps the epoch of
 * the clock beside the time: an epoch that is not idemq_clock_epoch() any more, or
 * CLOCK_EPOCH_NONE, is of a time that may be ahead.  A caller that reads the epoch before
 * it reads the time never notes a former time under a newer epoch; and who has read an
 * epoch knows that what became visible before has times of that epoch, or former ones.
 *
 * Locks: a spinlock for each other's corrections; the rest is atomics.
 */
#include "postgres.h"

#include <time.h>

#include "access/xact.h"
#include "access/xlog.h"
#include "port/atomics.h"
#include "storage/spin.h"
#include "utils/timestamp.h"

#include "base/base.h"

typedef struct ClockShared
{
	slock_t correcting;				/* held while the offset is set back */
	pg_atomic_uint64 offset;		/* TimestampTz minus mono, as int64; grows, or is corrected */
	pg_atomic_uint64 epoch;			/* corrections, times two; odd: in the middle of one */
	pg_atomic_uint64 primary_since; /* TimestampTz; 0: not yet asked as a primary */
	pg_atomic_uint64 primary_mono;	/* the same, of CLOCK_MONOTONIC; set before */
} ClockShared;

static ClockShared *shared = NULL;

static int64
observed_offset(void)
{
	TimestampTz wall = GetCurrentTimestamp();

	/*
	 * The wall clock first: a delay between the two reads then makes the offset
	 * too small, which the maximum forgets, never too large.
	 */
	return wall - idemq_mono_now();
}

static void
init_clock(int tranche)
{
	SpinLockInit(&shared->correcting);
	pg_atomic_init_u64(&shared->offset, (uint64) observed_offset());
	pg_atomic_init_u64(&shared->epoch, 2);
	pg_atomic_init_u64(&shared->primary_since, 0);
	pg_atomic_init_u64(&shared->primary_mono, 0);
}

const ShmemPart idemq_clock_part = {.area = (void **) &shared,
									.size = sizeof(ClockShared),
									.init = init_clock};

/* Returns CLOCK_MONOTONIC in microseconds. */
int64
idemq_mono_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64) ts.tv_sec * USECS_PER_SEC + ts.tv_nsec / 1000;
}

/* Returns the offset between the two clocks, moved up if the wall clock ran ahead. */
static int64
current_offset(void)
{
	int64 seen = observed_offset();
	uint64 known = pg_atomic_read_u64(&shared->offset);

	while (seen > (int64) known)
	{
		if (pg_atomic_compare_exchange_u64(&shared->offset, &known, (uint64) seen))
			return seen;
	}
	return (int64) known;
}

/*
 * Returns the clock's epoch: no time that idemq_now() answers in it is less than an earlier
 * one; CLOCK_EPOCH_NONE while it is being corrected.
 */
uint64
idemq_clock_epoch(void)
{
	uint64 epoch = pg_atomic_read_u64(&shared->epoch);

	pg_memory_barrier(); /* before the caller reads the time */
	return epoch % 2 == 0 ? epoch : CLOCK_EPOCH_NONE;
}

/* Sets the clock back to the wall clock, and begins another epoch. */
void
idemq_clock_correct(void)
{
	int64 offset = observed_offset();

	SpinLockAcquire(&shared->correcting);
	(void) pg_atomic_fetch_add_u64(&shared->epoch, 1);
	(void) pg_atomic_exchange_u64(&shared->offset, (uint64) offset);
	(void) pg_atomic_fetch_add_u64(&shared->epoch, 1);
	SpinLockRelease(&shared->correcting);
}

/* Returns the time of day by which jobs become due; never less than before in the same epoch. */
TimestampTz
idemq_now(void)
{
	int64 offset = current_offset();

	return idemq_mono_now() + offset;
}

/* Returns a time of day as a reading of CLOCK_MONOTONIC. */
int64
idemq_mono_from_timestamp(TimestampTz ts)
{
	return ts - current_offset();
}

/* Returns a reading of CLOCK_MONOTONIC as a time of day. */
TimestampTz
idemq_timestamp_from_mono(int64 mono)
{
	return mono + current_offset();
}

/*
 * Returns when this server was first asked as a primary since its start or its
 * promotion; now, on a standby.
 */
TimestampTz
idemq_primary_since(void)
{
	uint64 since = pg_atomic_read_u64(&shared->primary_since);

	if (since == 0 && RecoveryInProgress())
		return idemq_now();
	if (since == 0)
	{
		uint64 now = (uint64) idemq_now();
		uint64 unset = 0;

		(void) pg_atomic_compare_exchange_u64(&shared->primary_mono, &unset,
											  (uint64) idemq_mono_now());
		if (pg_atomic_compare_exchange_u64(&shared->primary_since, &since, now))
			since = now;
	}
	return (TimestampTz) since;
}

/* Returns the reading of CLOCK_MONOTONIC of then; to be called after idemq_primary_since. */
int64
idemq_primary_since_mono(void)
{
	return (int64) pg_atomic_read_u64(&shared->primary_mono);
}

/*
 * Begins a transaction of a process without a client, now: its now(), and its xact_start in
 * pg_stat_activity, would be those of the process's own start otherwise.
 */
void
idemq_begin_transaction(void)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
}
