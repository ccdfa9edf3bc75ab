/*
 * base/backoff.c
 *		How long a job waits for its next attempt: arithmetic only, no
 *		state, testable without a server.
 */
#include "postgres.h"

#include <math.h>

#include "base/base.h"

/*
 * Returns the delay in microseconds before attempt + 1, attempt counting from 1:
 *
 *		min(max, base * factor^(attempt - 1) * (1 + jitter * (2 * uniform - 1)))
 *
 * with uniform in [0, 1): exponential backoff with proportional jitter, so that
 * jobs that failed together do not come back together.  The bound is applied
 * last: max is never exceeded, and never reached by overflow.
 */
int64
idemq_backoff(int64 base, double factor, int64 max, double jitter, int attempt, double uniform)
{
	double delay = (double) base * pow(factor, Max(attempt, 1) - 1);

	delay *= 1.0 + jitter * (2.0 * uniform - 1.0);
	if (!(delay < (double) max)) /* also infinity and NaN */
		return max;
	return delay < 0 ? 0 : (int64) delay;
}
