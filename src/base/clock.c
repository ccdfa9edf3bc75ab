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
 * With idemq.test_clock all of these are ahead of the server's clocks by the sum of what
 * idemq.advance_clock was given (api/advance_clock.c), and so is idemq_wall_now().  The sum is
 * added to CLOCK_MONOTONIC, and both clocks are ahead by it, so the offset between them does not
 * contain it: it is taken from the server's own clocks.  A deadline in mono stays what it is, and
 * passes sooner.  What measures how long something takes, or waits for another process, reads
 * idemq_stopwatch(), which is never ahead.
 *
 * The sum is in a file of the data directory, in microseconds.  The file is written durably before
 * the sum in memory grows: so no crash takes back a time that was seen.  Without the setting the
 * file is not used, and stays.
 *
 * Locks: advance_lock, for one advance at a time; the rest are atomics.
 */
#include "postgres.h"

#include <time.h>
#include <unistd.h>

#include "access/xact.h"
#include "access/xlog.h"
#include "port/atomics.h"
#include "storage/fd.h"
#include "storage/lwlock.h"
#include "utils/timestamp.h"

#include "base/base.h"

/* In the data directory, where every process of the server is. */
#define CLOCK_FILE "idemq_test_clock"
#define CLOCK_FILE_NEW CLOCK_FILE ".new"
/* The greatest sum.  The ids of a shard (table/jobs_id.c) last for 35 years. */
#define MOST_AHEAD (INT64CONST(3653) * USECS_PER_DAY)

typedef struct ClockShared
{
	LWLock advance_lock;		  /* held while the file and the sum change */
	pg_atomic_uint64 ahead;		  /* microseconds; grows, under advance_lock */
	pg_atomic_uint64 advanced_at; /* mono, by the new time: when the sum last grew */
	pg_atomic_flag told;		  /* the log says that the test clock is on */

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
	 * Neither clock is ahead here.  The wall clock is read first: a delay between the two reads then makes the
	 * offset too small, which the maximum forgets, and never too large.
	 */
	return wall - idemq_stopwatch();
}

/* Reads the sum that the file has; 0 when there is none. */
static int64
read_ahead(void)
{
	FILE *file = AllocateFile(CLOCK_FILE, PG_BINARY_R);
	long long usecs = -1;
	char end = '\0';

	if (file == NULL && errno == ENOENT)
		return 0;
	if (file == NULL)
		ereport(FATAL, errcode_for_file_access(),
				errmsg("could not open file \"%s\": %m", CLOCK_FILE));
	if (fscanf(file, "%lld%c", &usecs, &end) != 2 || end != '\n' || usecs < 0 || usecs > MOST_AHEAD)
		ereport(FATAL, errcode(ERRCODE_DATA_CORRUPTED),
				errmsg("file \"%s\" does not contain the test clock", CLOCK_FILE),
				errhint("Restore the file, or discard this server."));
	FreeFile(file);
	return usecs;
}

/* Writes the sum durably. */
static void
write_ahead(int64 usecs)
{
	FILE *file = AllocateFile(CLOCK_FILE_NEW, PG_BINARY_W);

	if (file == NULL || fprintf(file, "%lld\n", (long long) usecs) < 0 || FreeFile(file) != 0)
		ereport(ERROR, errcode_for_file_access(),
				errmsg("could not write file \"%s\": %m", CLOCK_FILE_NEW));
	(void) durable_rename(CLOCK_FILE_NEW, CLOCK_FILE, ERROR);
}

static void
init_clock(int tranche)
{
	LWLockInitialize(&shared->advance_lock, tranche);
	pg_atomic_init_u64(&shared->ahead, (uint64) read_ahead());
	pg_atomic_init_u64(&shared->advanced_at, 0);
	pg_atomic_init_flag(&shared->told);
	pg_atomic_init_u64(&shared->offset, (uint64) observed_offset());
	pg_atomic_init_u64(&shared->primary_since, 0);
	pg_atomic_init_u64(&shared->primary_mono, 0);
}

const ShmemPart idemq_clock_part = {.area = (void **) &shared,
									.size = sizeof(ClockShared),
									.tranche = "idemq clock",
									.init = init_clock};

/* Returns by how much idemq's clocks are ahead of the server's: 0 without idemq.test_clock. */
int64
idemq_clock_ahead(void)
{
	return unlikely(idemq_test_clock) ? (int64) pg_atomic_read_u64(&shared->ahead) : 0;
}

/* Returns by how much the test clock has moved on this server, also while it is off. */
int64
idemq_clock_known_ahead(void)
{
	return (int64) pg_atomic_read_u64(&shared->ahead);
}

/* Returns whether it is not yet in the log of this start that the test clock is on. */
bool
idemq_clock_is_news(void)
{
	return pg_atomic_test_set_flag(&shared->told);
}

/*
 * Moves idemq's clocks ahead, for good: after a crash they are ahead as well.  Raises 22008 when
 * the sum would be too great.
 */
void
idemq_clock_advance(int64 usecs)
{
	int64 ahead;

	LWLockAcquire(&shared->advance_lock, LW_EXCLUSIVE);
	ahead = (int64) pg_atomic_read_u64(&shared->ahead);
	if (usecs > MOST_AHEAD - ahead)
		ereport(ERROR, errcode(ERRCODE_DATETIME_VALUE_OUT_OF_RANGE),
				errmsg("the test clock cannot be more than %d days ahead",
					   (int) (MOST_AHEAD / USECS_PER_DAY)),
				errdetail("It is %.6f days ahead now.", (double) ahead / USECS_PER_DAY),
				errhint("Start again with a new server."));
	if (usecs > 0)
	{
		write_ahead(ahead + usecs);
		pg_atomic_write_u64(&shared->advanced_at, (uint64) (idemq_stopwatch() + ahead + usecs));
		/* A full barrier: who is woken after this reads the new time. */
		(void) pg_atomic_fetch_add_u64(&shared->ahead, usecs);
	}
	LWLockRelease(&shared->advance_lock);
}

/*
 * Returns when (mono) the test clock last moved, 0 for never: nobody can be late for what has come
 * due by that since before.
 */
int64
idemq_clock_advanced_at(void)
{
	return (int64) pg_atomic_read_u64(&shared->advanced_at);
}

/* Returns CLOCK_MONOTONIC in microseconds: for how long something takes. */
int64
idemq_stopwatch(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64) ts.tv_sec * USECS_PER_SEC + ts.tv_nsec / 1000;
}

/* Returns CLOCK_MONOTONIC in microseconds, ahead by the test clock: "mono". */
int64
idemq_mono_now(void)
{
	return idemq_stopwatch() + idemq_clock_ahead();
}

/* Returns the wall clock, ahead by the test clock. */
TimestampTz
idemq_wall_now(void)
{
	return GetCurrentTimestamp() + idemq_clock_ahead();
}

/*
 * Returns the time at which this transaction began, ahead by the test clock.  It stays the same
 * until the transaction ends, as now() does.
 */
TimestampTz
idemq_transaction_time(void)
{
	static TimestampTz began = 0;
	static int64 ahead = 0;
	TimestampTz start = GetCurrentTransactionStartTimestamp();

	if (unlikely(idemq_test_clock) && start != began)
	{
		ahead = idemq_clock_ahead();
		began = start;
	}
	return start + ahead;
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
