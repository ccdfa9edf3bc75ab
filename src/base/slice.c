/*
 * base/slice.c
 *		Limits work that consists of many units, for example jobs to reap, groups to promote or rows
 *		to delete.
 *
 * A slice is over after a certain time, or after SLICE_BYTES of WAL, whichever comes first.  So a
 * transaction with many small units takes little time, and one with large units writes little more
 * than one unit.  WAL measures everything that is written, including what a user's trigger writes.
 * A slice contains at least one unit, and its end is tested after each unit.  The size of a unit is
 * limited, because the size of a job is.
 */
#include "postgres.h"

#include "executor/instrument.h"

#include "base/base.h"

/* Begins a slice of that many microseconds; PG_INT64_MAX: a slice that is never over. */
void
idemq_slice_begin(Slice *slice, int64 time)
{
	bool bounded = time < PG_INT64_MAX;

	slice->until = bounded ? idemq_stopwatch() + time : PG_INT64_MAX;
	slice->bytes = bounded ? pgWalUsage.wal_bytes + SLICE_BYTES : PG_UINT64_MAX;
}

/* Returns whether a slice is over. */
bool
idemq_slice_is_over(const Slice *slice)
{
	return pgWalUsage.wal_bytes >= slice->bytes ||
		   (slice->until < PG_INT64_MAX && idemq_stopwatch() >= slice->until);
}
