/*
 * base/gcra.c
 *		Admission by the generic cell rate algorithm: arithmetic only, no state,
 *		testable without a server.
 *
 * After ITU-T Recommendation I.371, annex A (virtual scheduling).  A bucket is one
 * number, its theoretical arrival time (TAT): when it will be full again.  A call
 * of some cost moves it by cost * period / max_calls; it is allowed when the TAT
 * is then no later than now + period.  So max_calls may come at once, and never
 * more than max_calls + rate * t in any time t.  The increment is rounded up: the
 * limit is never exceeded, and missed by less than a nanosecond a call.
 */
#include "postgres.h"

#include "base/base.h"

/* Returns a * b / c, rounded up or down, without overflow in between; a, b, c positive. */
static int64
multiply_divide(int64 a, int64 b, int64 c, bool up)
{
#ifdef HAVE_INT128
	int128 product = (int128) a * b;

	if (up)
		product += c - 1;
	return (int64) (product / c);
#else
	/* a = q * c + r, so a * b / c = q * b + r * b / c; r * b is the part that may be long. */
	int64 q = a / c;
	int64 r = a % c;
	long double part = (long double) r * b / c;
	int64 whole = (int64) part;

	if (up && (long double) whole < part)
		whole++;
	return q * b + whole;
#endif
}

/*
 * Answers a call of some cost (0: it only asks) to a bucket.  now: in ns, of any
 * clock that does not go back.  tat: the bucket's; 0, or any time past, is a full one.
 */
GcraAnswer
idemq_gcra(const GcraLimit *limit, int64 tat, int64 now, int64 cost)
{
	int64 latest = now + limit->period;
	int64 wanted = Max(tat, now);
	GcraAnswer answer = {0};

	if (cost > 0)
		wanted += multiply_divide(limit->period, cost, limit->max_calls, true);
	answer.allowed = wanted <= latest;
	answer.tat = answer.allowed ? wanted : tat;
	if (!answer.allowed)
		answer.retry_after = wanted - latest;
	if (Max(answer.tat, now) < latest)
		answer.remaining =
			multiply_divide(latest - Max(answer.tat, now), limit->max_calls, limit->period, false);
	return answer;
}
