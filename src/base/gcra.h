/*
 * base/gcra.h
 *		Admission: arithmetic only.
 */
#ifndef IDEMQ_BASE_GCRA_H
#define IDEMQ_BASE_GCRA_H

#define NSECS_PER_USEC INT64CONST(1000)
/* The longest period: a century.  Times are nanoseconds, and stay far from overflow. */
#define GCRA_MAX_PERIOD INT64CONST(3155760000000000000)

/* A limit: so many calls in a period, which is also how many may come at once. */
typedef struct GcraLimit
{
	int64 max_calls; /* 1 or more */
	int64 period;	 /* ns, 1 to GCRA_MAX_PERIOD */
} GcraLimit;

typedef struct GcraAnswer
{
	bool allowed;
	int64 tat;		   /* ns: what to store when allowed */
	int64 remaining;   /* calls that may follow at once */
	int64 retry_after; /* ns until the same call is allowed; 0 when it is */
} GcraAnswer;

/* Returns the limit of so many calls in a period of microseconds, a century at most. */
static inline GcraLimit
idemq_gcra_limit(int64 max_calls, int64 period)
{
	return (GcraLimit){max_calls, Min(period, GCRA_MAX_PERIOD / NSECS_PER_USEC) * NSECS_PER_USEC};
}

/* Returns in how many microseconds, rounded up, a call that was refused is allowed. */
static inline int64
idemq_gcra_retry_after(const GcraAnswer *answer)
{
	return (answer->retry_after + NSECS_PER_USEC - 1) / NSECS_PER_USEC;
}

extern GcraAnswer idemq_gcra(const GcraLimit *limit, int64 tat, int64 now, int64 cost);

#endif
