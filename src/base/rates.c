/*
 * base/rates.c
 *		Rate limits.  Pure arithmetic, without a clock or a lock, which can be tested without a
 *		server.
 *
 * A limit without a burst is a sliding window: at most max_calls are allowed in any half-open
 * interval of one period, and all of them may come at once.  The period is divided into 16 parts,
 * and calls are counted per part.  A call counts until one period after the end of its part, so
 * the state has the counts of the newest part and of the 16 before it.  A call counts for at most
 * 17 parts, so in the long run at least 16 of 17 calls that the limit permits are allowed (94 %).
 *
 * Proof of the limit: let a call be counted in a part that ends at e.  A half-open interval of one
 * period that contains the call begins no later than the call, so it ends before e + period.  Until
 * then, the call is included in each sum with which a later call is compared.
 *
 * A limit with a burst is the generic cell rate algorithm (GCRA, virtual scheduling; ITU-T
 * Recommendation I.371, annex A), which spaces calls evenly after the burst is used up.  Its state
 * is the theoretical arrival time (TAT), the time at which the bucket will be full again.  A call
 * moves the TAT by an increment of period / max_calls, and is allowed if the TAT is then at most
 * burst increments later than now.  So at most burst + t / increment calls are allowed in any time
 * t.  The increment is rounded up to a nanosecond, so the limit is never exceeded.
 *
 * If the settings of a limit have changed, its state is converted.  A window gets all calls that
 * still count, each as of the end of its former part.  A bucket keeps the number of calls by which it is below full.
 * After a change from a window to a bucket or back, the limit counts as used up, unless no call
 * was counted in the last period.  So a call may have to wait for up to one period too long after
 * a change.
 */
#include "postgres.h"

#include "base/base.h"

/* Returns min(a * b / c, RATE_MAX_PERIOD), rounded up or down, for a >= 0, b > 0 and c > 0. */
static int64
multiply_divide(int64 a, int64 b, int64 c, bool up)
{
#ifdef HAVE_INT128
	int128 product = (int128) a * b;

	if (up)
		product += c - 1;
	return (int64) Min(product / c, RATE_MAX_PERIOD);
#else
	/* a = q * c + r, so a * b / c = q * b + r * b / c, where r * b may not fit into an int64. */
	int64 q = a / c;
	int64 r = a % c;
	long double part = (long double) r * b / c;
	int64 whole = (int64) part;

	if ((long double) q * b + part >= (long double) RATE_MAX_PERIOD)
		return RATE_MAX_PERIOD;
	if (up && (long double) whole < part)
		whole++;
	return q * b + whole;
#endif
}

/* Returns by how many ns a number of calls moves the TAT. */
static int64
rate_increments(const RateLimit *limit, int64 calls)
{
	int64 increment = multiply_divide(limit->period, 1, limit->max_calls, true);

	return multiply_divide(increment, calls, 1, false);
}

/* Returns the RateState.part that belongs to a limit. */
static int64
rate_part(const RateLimit *limit)
{
	return limit->burst > 0 ? -rate_increments(limit, 1)
							: (limit->period + RATE_PARTS - 1) / RATE_PARTS;
}

/* Returns how many ns the TAT may be ahead of now, for a limit with a burst. */
static int64
rate_tolerance(const RateLimit *limit)
{
	return rate_increments(limit, limit->burst);
}

/* Returns where the calls of a part are counted. */
static uint32 *
rate_count(RateState *state, int64 part)
{
	return &state->counts[part % RATE_COUNTS];
}

/* Makes the part that contains now the newest one, unless a later part already is. */
static void
rate_advance(RateState *state, int64 now)
{
	int64 part = now / state->part;

	if (part - state->newest >= RATE_COUNTS)
		memset(state->counts, 0, sizeof(state->counts));
	else
		for (int64 i = state->newest + 1; i <= part; i++)
			*rate_count(state, i) = 0;
	state->newest = Max(state->newest, part);
}

/* Returns how many calls a window counts now. */
static int64
rate_sum(const RateState *state)
{
	int64 total = 0;

	for (int i = 0; i < RATE_COUNTS; i++)
		total += state->counts[i];
	return total;
}

/*
 * Returns the time in ns from which the state will have no effect.  If it has none already, may
 * return any earlier time.
 */
int64
idemq_rate_unused_at(const RateState *state)
{
	if (state->part <= 0)
		return state->newest;
	/* It is empty if calls were only tested (cost 0). */
	return rate_sum(state) == 0 ? 0 : (state->newest + RATE_COUNTS) * state->part;
}

/*
 * Counts the calls of another state, which still count, in an empty state with other parts: each
 * at the end of its part, when it had certainly been made.  The counts are multiplied by scale /
 * RATE_SHARED. The sum of the newest parts is rounded up, for any number of parts, so it stays
 * correct as older parts expire.
 */
static void
rate_recount(RateState *state, const RateState *from, int64 scale, int64 now)
{
	int64 latest = Max(now, from->newest * from->part);
	int64 counted = 0;
	int64 scaled = 0;

	state->newest = latest / state->part;
	for (int64 i = from->newest; i >= Max(from->newest - RATE_PARTS, 0); i--)
	{
		int64 at = i < from->newest ? (i + 1) * from->part - 1 : latest;
		int64 before = scaled;

		counted += from->counts[i % RATE_COUNTS];
		scaled = Min(multiply_divide(counted, scale, RATE_SHARED, true), PG_UINT32_MAX);
		if (at / state->part > state->newest - RATE_COUNTS)
			*rate_count(state, at / state->part) += (uint32) (scaled - before);
	}
}

/* Converts the state of a limit that was counted under other settings. */
static void
rate_convert(const RateLimit *limit, RateState *state, int64 now)
{
	RateState from = *state;
	int64 part = rate_part(limit);
	bool has_calls;

	if (from.part == part)
		return;
	state->part = part;
	if (from.part < 0 && part < 0)
	{
		if (from.newest > now)
			state->newest = now + multiply_divide(from.newest - now, -part, -from.part, true);
		return;
	}
	memset(state->counts, 0, sizeof(state->counts));
	state->newest = part > 0 ? now / part : 0;
	if (from.part > 0)
		rate_advance(&from, now);
	if (from.part > 0 && part > 0)
	{
		rate_recount(state, &from, RATE_SHARED, now);
		return;
	}
	/*
	 * No call of a bucket is later than its TAT, so without a TAT in the last period, none is in
	 * it.
	 */
	has_calls = from.part > 0 ? rate_sum(&from) > 0
							  : from.part < 0 && from.newest > Max(now - limit->period, 0);
	if (has_calls && part > 0)
		*rate_count(state, state->newest) = (uint32) limit->max_calls;
	else if (has_calls)
		state->newest = now + rate_tolerance(limit);
}

/*
 * Counts the limit as used up at the past time at, because the calls until then are not known.
 * Does nothing if this was done before for the same time or a later one.
 */
void
idemq_rate_use_up(const RateLimit *limit, RateState *state, int64 now, int64 at)
{
	if (at <= state->used_up_at)
		return;
	state->used_up_at = at;
	rate_convert(limit, state, now);
	if (state->part < 0)
		state->newest = Max(state->newest, at + rate_tolerance(limit));
	else
	{
		int64 part = at / state->part;

		rate_advance(state, now);
		if (part > state->newest - RATE_COUNTS)
			*rate_count(state, Min(part, state->newest)) = (uint32) limit->max_calls;
	}
}

/* Makes a call at a limit without a burst. */
static void
call_window(const RateLimit *limit, RateState *state, int64 now, int64 cost, RateAnswer *answer)
{
	int64 counted;

	rate_advance(state, now);
	counted = rate_sum(state);
	answer->allowed = counted + cost <= limit->max_calls;
	if (answer->allowed)
	{
		counted += cost;
		*rate_count(state, state->newest) += (uint32) cost;
	}
	else
	{
		int64 part = Max(state->newest - RATE_PARTS, 0);
		int64 left = counted + cost;

		/* The oldest parts stop counting first.  Find the one after which there is room. */
		while ((left -= *rate_count(state, part)) > limit->max_calls && part < state->newest)
			part++;
		answer->retry_after = (part + RATE_COUNTS) * state->part - now;
	}
	answer->remaining = Max(limit->max_calls - counted, 0);
}

/* Makes a call at a limit with a burst. */
static void
call_burst(const RateLimit *limit, RateState *state, int64 now, int64 cost, RateAnswer *answer)
{
	int64 latest = now + rate_tolerance(limit);
	int64 wanted;

	/* If the burst was lowered, the TAT may be too far ahead; at most, the bucket is empty. */
	state->newest = Min(state->newest, latest);
	wanted = Max(state->newest, now) + rate_increments(limit, cost);
	answer->allowed = wanted <= latest;
	if (answer->allowed && cost > 0)
		state->newest = wanted;
	else if (!answer->allowed)
		answer->retry_after = wanted - latest;
	answer->remaining = Max(latest - Max(state->newest, now), 0) / rate_increments(limit, 1);
}

/*
 * Makes a call: returns whether it is allowed, and counts it if so.  cost 0 only tests whether a
 * call is allowed.  now: in ns, of a clock that does not go back.  Concurrent calls may come in a
 * different order than their times.
 */
RateAnswer
idemq_rate_call(const RateLimit *limit, RateState *state, int64 now, int64 cost)
{
	RateAnswer answer = {0};

	rate_convert(limit, state, now);
	if (state->part < 0)
		call_burst(limit, state, now, cost, &answer);
	else
		call_window(limit, state, now, cost, &answer);
	return answer;
}

/* ---- States shared by several limits. */

/*
 * Returns the length in ns of a window that is sufficient to enforce a limit: its period, or with
 * a burst the time in which the bucket fills.
 */
int64
idemq_rate_window(const RateLimit *limit)
{
	return limit->burst > 0 ? Max(rate_tolerance(limit), 1) : limit->period;
}

/*
 * Makes a call at a state that several limits share.  window: at least idemq_rate_window of each
 * of them.  A call counts as the fraction of its limit that it uses, and the fractions of all
 * limits together are limited to 1.
 */
RateAnswer
idemq_rate_call_shared(const RateLimit *limit, RateState *state, int64 window, int64 now,
					   int64 cost)
{
	RateLimit shared = {.max_calls = RATE_SHARED, .period = window};
	int64 calls = limit->burst > 0 ? limit->burst : limit->max_calls;
	/*
	 * Rounded down for a limit of few calls, so that it is reached; otherwise up, so that it
	 * holds.
	 */
	int64 unit = calls < RATE_SHARED_EXACT ? RATE_SHARED / calls
										   : (RATE_SHARED + calls - 1) / calls;
	RateAnswer answer = idemq_rate_call(&shared, state, now, Min(cost * unit, RATE_SHARED));

	answer.remaining /= unit;
	return answer;
}

/* Like idemq_rate_use_up, for a shared state. */
void
idemq_rate_use_up_shared(RateState *state, int64 window, int64 now, int64 at)
{
	RateLimit shared = {.max_calls = RATE_SHARED, .period = window};

	idemq_rate_use_up(&shared, state, now, at);
}

/* Makes a state for one limit from a shared state, whose calls all count as calls of this limit. */
void
idemq_rate_from_shared(const RateLimit *limit, RateState *state, const RateState *shared, int64 now)
{
	RateState from = *shared;

	memset(state, 0, sizeof(*state));
	if (from.part == 0)
		return;
	rate_advance(&from, now);
	if (rate_sum(&from) == 0)
		return;
	state->part = rate_part(limit);
	if (state->part < 0)
		state->newest = now +
						multiply_divide(rate_tolerance(limit), rate_sum(&from), RATE_SHARED, true);
	else
		rate_recount(state, &from, limit->max_calls, now);
}
