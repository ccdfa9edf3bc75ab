/*
 * base/slice.c
 *		A bound on a piece of work that is made of units: jobs to take back, heads of
 *		groups, rows to delete.
 *
 * A slice is over after a time, or after SLICE_BYTES of WAL, whichever comes first: a
 * transaction of many small units is short, and one of large units writes little more
 * than one of them.  WAL stands for all that is written, by a user's trigger too.  A
 * slice does one unit at least, and asks after each; a unit is bounded by the limits on
 * what a job may be.
 */
#include "postgres.h"

#include "executor/instrument.h"

#include "base/base.h"

/* Begins a slice of so many microseconds; PG_INT64_MAX: one that is never over. */
void
idemq_slice_begin(Slice *slice, int64 time)
{
	bool bounded = time < PG_INT64_MAX;

	slice->until = bounded ? idemq_stopwatch() + time : PG_INT64_MAX;
	slice->bytes = bounded ? pgWalUsage.wal_bytes + SLICE_BYTES : PG_UINT64_MAX;
}

bool
idemq_slice_is_over(const Slice *slice)
{
	return pgWalUsage.wal_bytes >= slice->bytes ||
		   (slice->until < PG_INT64_MAX && idemq_stopwatch() >= slice->until);
}
