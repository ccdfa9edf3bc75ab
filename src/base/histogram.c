/*
 * base/histogram.c
 *		Histograms of durations.  Pure arithmetic.
 *
 * There are four buckets per power of two.  Below 8 us, each bucket is one microsecond wide.  For a
 * longer time t, with e = floor(log2(t)),
 *
 *		bucket = 4 (e - 1) + floor(t / 2^(e-2)) mod 4
 *
 * so each bucket is [m 2^(e-2), (m+1) 2^(e-2)), where m is 4 to 7.  The value reported for a
 * bucket is its middle, which differs from the true time by at most 1/8 (12.5 %).  The last bucket
 * also counts all times of 2^41 us (25 days) or more.
 *
 * In a table (worker/history.c), a histogram is an int[] without the empty buckets at both ends:
 * the number of the first bucket, followed by the counts.
 */
#include "postgres.h"

#include <math.h>

#include "catalog/pg_type.h"
#include "port/pg_bitutils.h"
#include "utils/array.h"

#include "base/base.h"

#define EXACT_BUCKETS 8
#define MAX_EXPONENT (HISTOGRAM_BUCKETS / 4)

/* Returns the bucket of a duration in microseconds; a negative duration counts as 0. */
int
idemq_histogram_bucket(int64 usecs)
{
	int exponent;

	if (usecs < EXACT_BUCKETS)
		return (int) Max(usecs, 0);
	exponent = pg_leftmost_one_pos64((uint64) usecs);
	if (exponent > MAX_EXPONENT)
		return HISTOGRAM_BUCKETS - 1;
	return 4 * (exponent - 1) + (int) ((usecs >> (exponent - 2)) & 3);
}

/* Returns the middle of a bucket, in microseconds. */
static int64
bucket_middle(int bucket)
{
	int64 width;

	if (bucket < EXACT_BUCKETS)
		return bucket;
	width = INT64CONST(1) << (bucket / 4 - 1);
	return (4 + bucket % 4) * width + width / 2;
}

/*
 * Returns a quantile (0 to 1) in microseconds, rounded to the middle of a bucket; -1 if the
 * histogram is empty.
 */
int64
idemq_histogram_quantile(const uint64 *buckets, double quantile)
{
	uint64 total = 0;
	uint64 below = 0;
	uint64 rank;

	for (int i = 0; i < HISTOGRAM_BUCKETS; i++)
		total += buckets[i];
	if (total == 0)
		return -1;
	rank = Max((uint64) ceil(quantile * (double) total), 1);
	for (int i = 0; i < HISTOGRAM_BUCKETS - 1; i++)
	{
		below += buckets[i];
		if (below >= rank)
			return bucket_middle(i);
	}
	return bucket_middle(HISTOGRAM_BUCKETS - 1);
}

/* Returns how many durations are less than 2^exponent us; exponent is 3 to MAX_EXPONENT. */
uint64
idemq_histogram_below(const uint64 *buckets, int exponent)
{
	uint64 below = 0;

	for (int i = 0; i < 4 * (exponent - 1); i++)
		below += buckets[i];
	return below;
}

/* Returns the sum of all durations in microseconds, each rounded to the middle of its bucket. */
double
idemq_histogram_sum(const uint64 *buckets)
{
	double sum = 0;

	for (int i = 0; i < HISTOGRAM_BUCKETS; i++)
		sum += (double) buckets[i] * (double) bucket_middle(i);
	return sum;
}

/* Returns a histogram as int[]; NULL if it is empty.  Counts are limited to the largest int. */
ArrayType *
idemq_histogram_pack(const uint64 *buckets)
{
	Datum elements[1 + HISTOGRAM_BUCKETS];
	int first = 0;
	int last = HISTOGRAM_BUCKETS - 1;
	int count = 1;

	while (last >= 0 && buckets[last] == 0)
		last--;
	if (last < 0)
		return NULL;
	while (buckets[first] == 0)
		first++;
	elements[0] = Int32GetDatum(first);
	for (int i = first; i <= last; i++)
		elements[count++] = Int32GetDatum((int32) Min(buckets[i], PG_INT32_MAX));
	return construct_array(elements, count, INT4OID, sizeof(int32), true, TYPALIGN_INT);
}

/* Adds a histogram given as int[] to buckets; raises 22023 if the array is not a histogram. */
void
idemq_histogram_unpack(ArrayType *packed, uint64 *buckets)
{
	const int32 *elements = (const int32 *) ARR_DATA_PTR(packed);
	int count = ARR_NDIM(packed) == 1 ? ARR_DIMS(packed)[0] : 0;
	bool valid = count >= 1 && !array_contains_nulls(packed) && elements[0] >= 0 &&
				 elements[0] <= HISTOGRAM_BUCKETS - (count - 1);

	for (int i = 1; valid && i < count; i++)
	{
		valid = elements[i] >= 0;
		buckets[elements[0] + i - 1] += (uint64) elements[i];
	}
	if (!valid)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("counts is not a valid histogram"),
				 errhint(
					 "Pass wait_counts or run_counts from idemq.history, or a sum of them computed "
					 "with idemq.sum_counts.")));
}
