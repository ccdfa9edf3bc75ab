/*
 * base/token.c
 *		Fencing tokens.  Pure arithmetic, which can be tested without a server.
 *
 * Invariant: a token is greater than every token issued earlier for the same job, even if some
 * state was lost in between:
 *	- A rollback loses the token in the row.  The last issued token is greater.
 *	- A crash loses the last issued token, and with asynchronous commit also the token in the row.
 *	  The clock is greater than both.
 *	- After a promotion, the new primary's clock may be behind.  The timeline adds 2^41 microseconds
 *	  (25 days) for each promotion, which covers a clock error of that size.
 *	- After a dump, pg_upgrade or a restore, timelines start again from 1.  The base covers this:
 *	  job/token_epoch.c computes it from the timelines of the earlier clusters.
 *	- If the clock is set back, the token in the row is still greater.
 *
 * Tokens stay below 2^53 for some 280 years, minus 25 days for each promotion and copy, so JSON and
 * JavaScript represent them exactly.
 */
#include "postgres.h"

#include "base/base.h"

#define TOKEN_TIMELINE_SHIFT 41

/* Returns the sum of a cluster's base and of what its timeline adds to the clock. */
int64
idemq_token_lead(int64 base, uint32 timeline)
{
	return base + ((int64) timeline << TOKEN_TIMELINE_SHIFT);
}

/*
 * Returns the next token of a job, which is the largest of:
 *	- the token in the row + 1
 *	- base + the last token issued on this server + 1.  last_issued does not include a base,
 *	  because it applies to all databases, and each of them has its own base.
 *	- base + the clock + the timeline's part
 */
int64
idemq_token_next(int64 row_token, int64 last_issued, TimestampTz now, uint32 timeline, int64 base)
{
	int64 clock = (now - IDEMQ_EPOCH) + idemq_token_lead(0, timeline);

	return Max(row_token + 1, base + Max(last_issued + 1, clock));
}
