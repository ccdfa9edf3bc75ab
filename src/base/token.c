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
 *   - a clock set back: the row's own token covers it.
 * Tokens stay below 2^53 for some 280 years, so that JSON and JavaScript
 * carry them unharmed.
 */
#include "postgres.h"

#include "base/clock.h"
#include "base/token.h"

#define TOKEN_TIMELINE_SHIFT 41

/*
 * Returns the next token of a job: the greatest of the row's token + 1, the
 * last one issued on this server + 1, and the clock with the timeline.
 */
int64
idemq_token_next(int64 row_token, int64 last_issued, TimestampTz now, uint32 timeline)
{
	int64 clock = (now - IDEMQ_EPOCH) + ((int64) timeline << TOKEN_TIMELINE_SHIFT);
	int64 next = Max(row_token, last_issued) + 1;

	return Max(next, clock);
}
