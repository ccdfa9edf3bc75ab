/*
 * base/backoff.c
 *		How long a job waits for its next attempt.  Pure arithmetic, which can be tested without a
 *		server.
 */
#include "postgres.h"

#include <math.h>

#include "base/base.h"

/*
 * Returns the delay in microseconds between an attempt (from 1) and the next one:
 *
 *		min(max, base * factor^(attempt - 1) * (1 + jitter * (2 * uniform - 1)))
 *
 * This is exponential backoff with proportional jitter, so that jobs that failed at the same time
 * are not retried at the same time.  base and max are in microseconds; uniform is a random number
 * in [0, 1).  The delay is never longer than max, even with jitter or if the power overflows.
 */
int64
idemq_backoff(int64 base, double factor, int64 max, double jitter, int attempt, double uniform)
{
	double delay = (double) base * pow(factor, Max(attempt, 1) - 1);

	delay *= 1.0 + jitter * (2.0 * uniform - 1.0);
	if (!(delay < (double) max)) /* also true for infinity and NaN */
		return max;
	return delay < 0 ? 0 : (int64) delay;
}
