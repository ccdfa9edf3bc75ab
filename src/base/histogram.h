/*
 * base/histogram.h
 *		Histograms of lengths of time, on a logarithmic scale.
 */
#ifndef IDEMQ_BASE_HISTOGRAM_H
#define IDEMQ_BASE_HISTOGRAM_H

#include "c.h"

#define HISTOGRAM_BUCKETS 160
/* Longer times share a bucket: 2^41 us. */
#define HISTOGRAM_LIMIT (INT64CONST(1) << (HISTOGRAM_BUCKETS / 4 + 1))

extern int idemq_histogram_bucket(int64 usecs);
extern uint64 idemq_histogram_below(const uint64 *buckets, int exponent);
extern double idemq_histogram_sum(const uint64 *buckets);
extern int64 idemq_histogram_quantile(const uint64 *buckets, double quantile);

#endif
