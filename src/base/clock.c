/*
 * base/clock.c
 *		One clock for the whole server, which never goes back while the server runs.
 *
 * Deadlines use CLOCK_MONOTONIC ("mono").  idemq_now() determines which jobs are due: it is
 * CLOCK_MONOTONIC plus the largest difference between the wall clock and CLOCK_MONOTONIC that was
 * seen since the server started.  Therefore, if an operator sets the wall clock back by hours,
 * jobs still become due, and no expired lease becomes valid again.  If an operator sets it
 * forward, scheduled jobs become due, but no lease expires early.
 *
 * If the wall clock jumps ahead and is corrected, idemq_now() stays ahead until the server
 * restarts, because low-water marks of FIFO groups, among others, rely on a time that never goes
 * back.  doc/operations/clocks.md says how a DBA corrects the times that were written while it was
 * ahead.
 *
 * With idemq.test_clock, all of these clocks, and idemq_wall_now(), are ahead of the server's
 * clocks by the sum of the intervals passed to idemq.advance_clock (api/advance_clock.c).  Both
 * the monotonic and the wall clock are ahead by this sum, so the offset between them does not
 * include it: the offset is computed from the server's own clocks.  A deadline in mono does not
 * change; it just passes sooner.  Code that measures how long something takes, or that waits for
 * another process, reads idemq_stopwatch(), which is never ahead.
 *
 * The sum is stored in a file in the data directory, in microseconds.  The file is written durably
 * before the sum in memory grows, so a crash never takes back a time that was seen.  If the setting
 * is off, the file is kept but not used.
 *
 * Locks: advance_lock, so that only one advance runs at a time; the rest are atomics.
 */
#include "postgres.h"

#include <ctype.h>
#include <time.h>
#include <unistd.h>

#include "access/xact.h"
#include "access/xlog.h"
#include "port/atomics.h"
#include "storage/fd.h"
#include "storage/lwlock.h"
#include "utils/timestamp.h"

#include "base/base.h"

/* Relative to the data directory, the working directory of every server process. */
#define CLOCK_FILE "idemq_test_clock"
#define CLOCK_FILE_NEW CLOCK_FILE ".new"
/* Maximum sum.  The ids of a shard (table/jobs_id.c) last for 35 years. */
#define MOST_AHEAD (INT64CONST(3653) * USECS_PER_DAY)

typedef struct ClockShared
{
	LWLock advance_lock;		  /* held while the file and the sum change */
	pg_atomic_uint64 ahead;		  /* microseconds; grows, under advance_lock */
	pg_atomic_uint64 advanced_at; /* mono, including the growth: when the sum last grew */
	pg_atomic_flag told;		  /* the log already says that the test clock is on */

	pg_atomic_uint64 offset;		/* TimestampTz minus mono, as int64; grows */
	pg_atomic_uint64 primary_since; /* TimestampTz; 0: not called yet (idemq_primary_since) */
	pg_atomic_uint64 primary_mono; /* the same time, of CLOCK_MONOTONIC; set before primary_since */
} ClockShared;

static ClockShared *clock_shared = NULL;

/* Returns the present offset between the server's own clocks. */
static int64
observed_offset(void)
{
	TimestampTz wall = GetCurrentTimestamp();

	/*
	 * A delay between the two reads makes the offset too small, which current_offset corrects by
	 * taking the maximum.  In the other order, the offset would be too large.
	 */
	return wall - idemq_stopwatch();
}

/*
 * Returns the sum from the file, or 0 if there is no file.  If the file cannot be read, raises an
 * error, unless the test clock is off; then the sum is not used, and 1 shows that the clock has
 * been ahead.
 */
static int64
read_clock_file(void)
{
	int level = idemq_test_clock ? FATAL : WARNING;
	FILE *file = AllocateFile(CLOCK_FILE, PG_BINARY_R);
	char text[32];
	char *end;
	size_t length;
	long long usecs;

	if (file == NULL && errno == ENOENT)
		return 0;
	if (file == NULL)
	{
		ereport(level, errcode_for_file_access(),
				errmsg("could not open file \"%s\": %m", CLOCK_FILE));
		return 1;
	}
	length = fread(text, 1, sizeof(text) - 1, file);
	FreeFile(file);
	text[length] = '\0';
	usecs = strtoll(text, &end, 10);
	/* strtoll returns the largest number if the digits do not fit. */
	if (!isdigit((unsigned char) text[0]) || end + 1 != text + length || *end != '\n' ||
		usecs > MOST_AHEAD)
	{
		ereport(level, errcode(ERRCODE_DATA_CORRUPTED),
				errmsg("invalid data in file \"%s\"", CLOCK_FILE),
				errhint("Restore the file, or discard this test server."));
		return 1;
	}
	return usecs;
}

static void
init_clock(int tranche)
{
	LWLockInitialize(&clock_shared->advance_lock, tranche);
	pg_atomic_init_u64(&clock_shared->ahead, (uint64) read_clock_file());
	pg_atomic_init_u64(&clock_shared->advanced_at, 0);
	pg_atomic_init_flag(&clock_shared->told);
	pg_atomic_init_u64(&clock_shared->offset, (uint64) observed_offset());
	pg_atomic_init_u64(&clock_shared->primary_since, 0);
	pg_atomic_init_u64(&clock_shared->primary_mono, 0);
}

const ShmemPart idemq_clock_part = {.area = (void **) &clock_shared,
									.size = sizeof(ClockShared),
									.tranche = "idemq clock",
									.init = init_clock};

/* Returns how far idemq's clocks are ahead of the server's; 0 if idemq.test_clock is off. */
int64
idemq_clock_ahead(void)
{
	return unlikely(idemq_test_clock) ? (int64) pg_atomic_read_u64(&clock_shared->ahead) : 0;
}

/* Returns how far the test clock has moved on this server, even if idemq.test_clock is off now. */
int64
idemq_clock_known_ahead(void)
{
	return (int64) pg_atomic_read_u64(&clock_shared->ahead);
}

/* Returns true once per server start, so that the test clock is logged only once. */
bool
idemq_clock_is_news(void)
{
	return pg_atomic_test_set_flag(&clock_shared->told);
}

/*
 * Moves idemq's clocks ahead permanently: they are still ahead after a crash.  Raises 22008 if the
 * sum would be too large.
 */
void
idemq_clock_advance(int64 usecs)
{
	int64 ahead;
	FILE *file;

	LWLockAcquire(&clock_shared->advance_lock, LW_EXCLUSIVE);
	ahead = (int64) pg_atomic_read_u64(&clock_shared->ahead);
	if (usecs > MOST_AHEAD - ahead)
		ereport(ERROR, errcode(ERRCODE_DATETIME_VALUE_OUT_OF_RANGE),
				errmsg("the test clock cannot be more than %d days ahead",
					   (int) (MOST_AHEAD / USECS_PER_DAY)),
				errdetail("The test clock is now %.6f days ahead.", (double) ahead / USECS_PER_DAY),
				errhint("Continue the tests on a new server."));
	if (usecs > 0)
	{
		file = AllocateFile(CLOCK_FILE_NEW, PG_BINARY_W);
		if (file == NULL || fprintf(file, "%lld\n", (long long) (ahead + usecs)) < 0 ||
			FreeFile(file) != 0)
			ereport(ERROR, errcode_for_file_access(),
					errmsg("could not write file \"%s\": %m", CLOCK_FILE_NEW));
		(void) durable_rename(CLOCK_FILE_NEW, CLOCK_FILE, ERROR);
		pg_atomic_write_u64(&clock_shared->advanced_at,
							(uint64) (idemq_stopwatch() + ahead + usecs));
		/* This is a full barrier, so a process that is woken afterwards reads the new time. */
		(void) pg_atomic_fetch_add_u64(&clock_shared->ahead, usecs);
	}
	LWLockRelease(&clock_shared->advance_lock);
}

/*
 * Returns when (mono) the test clock last moved; 0 for never.  Work that came due only because the
 * clock moved then counts as due since that moment, so that no process is reported as late for it.
 */
int64
idemq_clock_advanced_at(void)
{
	return (int64) pg_atomic_read_u64(&clock_shared->advanced_at);
}

/* Returns CLOCK_MONOTONIC in microseconds, for measuring how long something takes. */
int64
idemq_stopwatch(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64) ts.tv_sec * USECS_PER_SEC + ts.tv_nsec / 1000;
}

/* Returns "mono": CLOCK_MONOTONIC plus idemq_clock_ahead, in microseconds. */
int64
idemq_mono_now(void)
{
	return idemq_stopwatch() + idemq_clock_ahead();
}

/* Returns the wall clock plus idemq_clock_ahead. */
TimestampTz
idemq_wall_now(void)
{
	return GetCurrentTimestamp() + idemq_clock_ahead();
}

/*
 * Returns the start time of this transaction, plus idemq_clock_ahead at the first call in the
 * transaction.  Like now(), the result does not change during the transaction.  A parallel worker
 * would make its own first call, so idemq.now() and test_clock_ahead() are PARALLEL RESTRICTED.
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

/* Returns the largest offset seen so far, including the present one. */
static int64
current_offset(void)
{
	int64 seen = observed_offset();
	uint64 known = pg_atomic_read_u64(&clock_shared->offset);

	while (seen > (int64) known)
	{
		if (pg_atomic_compare_exchange_u64(&clock_shared->offset, &known, (uint64) seen))
			return seen;
	}
	return (int64) known;
}

/* Returns the time that determines which jobs are due; it never goes back while the server runs. */
TimestampTz
idemq_now(void)
{
	int64 offset = current_offset();

	return idemq_mono_now() + offset;
}

/* Converts a time of idemq_now to mono. */
int64
idemq_mono_from_timestamp(TimestampTz ts)
{
	return ts - current_offset();
}

/* Converts mono to a time of idemq_now. */
TimestampTz
idemq_timestamp_from_mono(int64 mono)
{
	return mono + current_offset();
}

/*
 * Returns the time of the first call of this function since this server became the primary, by its
 * start or its promotion.  On a standby, returns the current time.
 */
TimestampTz
idemq_primary_since(void)
{
	uint64 since = pg_atomic_read_u64(&clock_shared->primary_since);

	if (since == 0 && RecoveryInProgress())
		return idemq_now();
	if (since == 0)
	{
		uint64 now = (uint64) idemq_now();
		uint64 unset = 0;

		(void) pg_atomic_compare_exchange_u64(&clock_shared->primary_mono, &unset,
											  (uint64) idemq_mono_now());
		if (pg_atomic_compare_exchange_u64(&clock_shared->primary_since, &since, now))
			since = now;
	}
	return (TimestampTz) since;
}

/* Returns the same time as mono; call idemq_primary_since first. */
int64
idemq_primary_since_mono(void)
{
	return (int64) pg_atomic_read_u64(&clock_shared->primary_mono);
}

/*
 * Begins a transaction in a process that serves no client.  Without a statement's start time, now()
 * and pg_stat_activity.xact_start would be the start of the process.
 */
void
idemq_begin_transaction(void)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
}
