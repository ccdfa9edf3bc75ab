/*
 * base/histogram.c
 *		Histograms of lengths of time: pure arithmetic.
 *
 * Four buckets a power of two.  Below 8 us a bucket is one microsecond; from
 * there on, with e = floor(log2(t)),
 *
 *		bucket = 4 (e - 1) + floor(t / 2^(e-2)) mod 4
 *
 * so that a bucket is [m 2^(e-2), (m+1) 2^(e-2)) with m from 4 to 7.  What is
 * reported is its middle, which is off by at most 1/8 (12.5 %) of the true time.
 * The last bucket also holds all that took 2^41 us (25 days) or longer.
 */
#include "postgres.h"

#include <math.h>

#include "port/pg_bitutils.h"

#include "base/base.h"

#define EXACT_BUCKETS 8
#define MAX_EXPONENT (HISTOGRAM_BUCKETS / 4)

/* Returns the bucket of a length of time in microseconds; a negative one counts as 0. */
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
 * Returns the least time, to the precision of a bucket, that a part (0 to 1) of
 * all did not exceed; -1 when there is none.
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

/* Returns how many took less than 2^exponent us, exactly; exponent from 3 to MAX_EXPONENT. */
uint64
idemq_histogram_below(const uint64 *buckets, int exponent)
{
	uint64 below = 0;

	for (int i = 0; i < 4 * (exponent - 1); i++)
		below += buckets[i];
	return below;
}

/* Returns how long all took together, in microseconds, each as the middle of its bucket. */
double
idemq_histogram_sum(const uint64 *buckets)
{
	double sum = 0;

	for (int i = 0; i < HISTOGRAM_BUCKETS; i++)
		sum += (double) buckets[i] * (double) bucket_middle(i);
	return sum;
}
