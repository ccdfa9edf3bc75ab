/*
 * base/token.c
 *		Fencing tokens: arithmetic only, no state, testable without a server.
 *
 * Invariant: a token is greater than every token issued for the same job
 * before it, whatever was lost in between:
 *   - a rollback loses the row's counter: the last issued one covers it;
 *   - a crash loses the last issued one (and, with asynchronous commit, the
 *     row's): the clock covers it;
 *   - a promotion may bring a clock that is behind: the timeline covers it,
 *     2^41 microseconds (25 days) of clock error for each promotion;
 *   - a dump, pg_upgrade or a restore begins timelines anew: the base covers it;
 *     job/token_epoch.c makes it from the timelines of the clusters before;
 *   - a clock set back: the row's own token covers it.
 * Tokens stay below 2^53 for some 280 years, less 25 days for each promotion and
 * copy, so that JSON and JavaScript carry them unharmed.
 */
#include "postgres.h"

#include "base/base.h"

#define TOKEN_TIMELINE_SHIFT 41

/* Returns what a cluster's base and timeline add to the clock. */
int64
idemq_token_lead(int64 base, uint32 timeline)
{
	return base + ((int64) timeline << TOKEN_TIMELINE_SHIFT);
}

/*
 * Returns the next token of a job: the greatest of the row's token + 1, the last one
 * issued on this server + 1, and the clock with the timeline; base is added to these
 * two.  last_issued is of all databases, each with a base of its own, so it has none.
 */
int64
idemq_token_next(int64 row_token, int64 last_issued, TimestampTz now, uint32 timeline, int64 base)
{
	int64 clock = (now - IDEMQ_EPOCH) + idemq_token_lead(0, timeline);

	return Max(row_token + 1, base + Max(last_issued + 1, clock));
}
