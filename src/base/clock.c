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
 * When the wall clock jumps ahead and is corrected, idemq_now() stays ahead until the server
 * restarts: floors of FIFO groups, among others, rely on a time that never goes back.  A DBA
 * corrects what was written meanwhile (doc/operations/backup-replication-failover.md, Clocks).
 *
 * Locks: none, atomics only.
 */
#include "postgres.h"

#include <time.h>

#include "access/xact.h"
#include "access/xlog.h"
#include "port/atomics.h"
#include "utils/timestamp.h"

#include "base/base.h"

typedef struct ClockShared
{
	pg_atomic_uint64 offset;		/* TimestampTz minus mono, as int64; grows */
	pg_atomic_uint64 primary_since; /* TimestampTz; 0: not yet asked as a primary */
	pg_atomic_uint64 primary_mono;	/* the same moment in CLOCK_MONOTONIC; set before it */
} ClockShared;

static ClockShared *shared = NULL;

static int64
observed_offset(void)
{
	TimestampTz wall = GetCurrentTimestamp();

	/*
	 * The wall clock is read first: a delay between the two reads then makes the
	 * offset too small, which the maximum forgets, and never too large.
	 */
	return wall - idemq_mono_now();
}

static void
init_clock(int tranche)
{
	pg_atomic_init_u64(&shared->offset, (uint64) observed_offset());
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

/* Returns the time of day by which jobs become due; never less than before, in this run. */
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

/* Returns that moment as a reading of CLOCK_MONOTONIC; to be called after idemq_primary_since. */
int64
idemq_primary_since_mono(void)
{
	return (int64) pg_atomic_read_u64(&shared->primary_mono);
}

/*
 * Begins a transaction in a process without a client, at the time of now: otherwise now(),
 * and xact_start in pg_stat_activity, would be when the process started.
 */
void
idemq_begin_transaction(void)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
}
