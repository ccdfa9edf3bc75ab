/*
 * base/rates.c
 *		Rate limits: arithmetic only, no clock and no lock, testable without a server.
 *
 * A limit without a burst is a sliding window: at most max_calls are allowed in any half-open
 * interval of one period, and all of them may come at once.  Calls are counted in parts of a
 * sixteenth of the period, and a call counts until one period after the end of its part.  So the
 * state keeps the counts of the newest part and of the sixteen before it.  In the long run at least
 * 16 of 17 calls of the limit are allowed (94 %), because a call counts for at most 17 parts.
 *
 * Proof of the limit: let a call be counted in part n, which ends at e.  Any half-open interval
 * of one period that contains the call begins no later than the call, so it ends before e + period, and
 * until then the call is in each sum that a later call is compared with.
 *
 * A limit with a burst is the generic cell rate algorithm (GCRA, virtual scheduling; ITU-T
 * Recommendation I.371, annex A), which spaces calls evenly once the burst is used up.  Its state
 * is one number, the theoretical arrival time (TAT): when the bucket will be full again.  A call
 * moves it by an increment of period / max_calls, and is allowed if it is then at most burst
 * increments later than now.  So at most burst + t / increment calls are allowed in any time t.  The
 * increment is rounded up: the limit is never exceeded, and missed by less than a nanosecond per call.
 *
 * A state that was counted under another period is converted: a window counts all that still
 * counts, each call as of the end of its former part, and a bucket keeps the number of calls that it
 * lacks.  After a change from one rule to the other the limit counts as used up, unless nothing was
 * counted in the last period.  So after a change a call may wait up to a period too long.
 */
#include "postgres.h"

#include "base/base.h"

/* Returns a * b / c, rounded up or down, RATE_MAX_PERIOD at most; a not negative, b and c positive. */
static int64
multiply_divide(int64 a, int64 b, int64 c, bool up)
{
#ifdef HAVE_INT128
	int128 product = (int128) a * b;

	if (up)
		product += c - 1;
	return (int64) Min(product / c, RATE_MAX_PERIOD);
#else
	/* a = q * c + r, so a * b / c = q * b + r * b / c; r * b is the part that may be long. */
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

/* Returns by how much a number of calls moves the TAT, in ns. */
static int64
increments(const RateLimit *limit, int64 calls)
{
	int64 increment = multiply_divide(limit->period, 1, limit->max_calls, true);

	return multiply_divide(increment, calls, 1, false);
}

/* Returns RateState.part of a state that this limit counts. */
static int64
part_of(const RateLimit *limit)
{
	return limit->burst > 0 ? -increments(limit, 1) : (limit->period + RATE_PARTS - 1) / RATE_PARTS;
}

/* Returns how far a limit with a burst lets the TAT be ahead. */
static int64
tolerance(const RateLimit *limit)
{
	return increments(limit, limit->burst);
}

static uint32 *
count_of(RateState *state, int64 part)
{
	return &state->counts[part % RATE_COUNTS];
}

/* Makes the part of that time the newest, unless a later one is. */
static void
advance(RateState *state, int64 now)
{
	int64 part = now / state->part;

	if (part - state->newest >= RATE_COUNTS)
		memset(state->counts, 0, sizeof(state->counts));
	else
		for (int64 i = state->newest + 1; i <= part; i++)
			*count_of(state, i) = 0;
	state->newest = Max(state->newest, part);
}

static int64
sum(const RateState *state)
{
	int64 total = 0;

	for (int i = 0; i < RATE_COUNTS; i++)
		total += state->counts[i];
	return total;
}

/* Returns when nothing that was counted will count any more, in ns; or an earlier time that is past. */
int64
idemq_rate_unused_at(const RateState *state)
{
	if (state->part <= 0)
		return state->newest;
	/* A state that was only asked, or from which all was taken back. */
	return sum(state) == 0 ? 0 : (state->newest + RATE_COUNTS) * state->part;
}

/*
 * Counts in the parts of a state, which is empty, what the parts of another have counted and still
 * counts: each at the end of its part, when its calls had all been made.  scale: for RATE_SHARED;
 * each sum that remains as parts expire is rounded up.
 */
static void
recount(RateState *state, const RateState *from, int64 scale, int64 now)
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
			*count_of(state, at / state->part) += (uint32) (scaled - before);
	}
}

/* Makes the state one that this limit has counted. */
static void
convert(const RateLimit *limit, RateState *state, int64 now)
{
	RateState from = *state;
	int64 part = part_of(limit);
	bool counts;

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
		advance(&from, now);
	if (from.part > 0 && part > 0)
	{
		recount(state, &from, RATE_SHARED, now);
		return;
	}
	/* No call of a bucket is later than its TAT, though it is full by then. */
	counts = from.part > 0 ? sum(&from) > 0
						   : from.part < 0 && from.newest > Max(now - limit->period, 0);
	if (counts && part > 0)
		*count_of(state, state->newest) = (uint32) limit->max_calls;
	else if (counts)
		state->newest = now + tolerance(limit);
}

/*
 * Counts the limit as used up at a time that is past: it is not known what was counted before.
 * Does nothing if it has counted as used up then or later.
 */
void
idemq_rate_use_up(const RateLimit *limit, RateState *state, int64 now, int64 at)
{
	if (at <= state->used_up_at)
		return;
	state->used_up_at = at;
	convert(limit, state, now);
	if (state->part < 0)
		state->newest = Max(state->newest, at + tolerance(limit));
	else
	{
		int64 part = at / state->part;

		advance(state, now);
		if (part > state->newest - RATE_COUNTS)
			*count_of(state, Min(part, state->newest)) = (uint32) limit->max_calls;
	}
}

static void
call_window(const RateLimit *limit, RateState *state, int64 now, int64 cost, RateAnswer *answer)
{
	int64 counted;

	advance(state, now);
	counted = sum(state);
	answer->allowed = counted + cost <= limit->max_calls;
	if (answer->allowed)
	{
		counted += cost;
		*count_of(state, state->newest) += (uint32) cost;
		answer->after = state->newest;
	}
	else
	{
		int64 part = Max(state->newest - RATE_PARTS, 0);
		int64 left = counted + cost;

		/* Parts stop counting one after the other, until there is room. */
		while ((left -= *count_of(state, part)) > limit->max_calls && part < state->newest)
			part++;
		answer->retry_after = (part + RATE_COUNTS) * state->part - now;
	}
	answer->remaining = Max(limit->max_calls - counted, 0);
}

static void
call_burst(const RateLimit *limit, RateState *state, int64 now, int64 cost, RateAnswer *answer)
{
	int64 latest = now + tolerance(limit);
	int64 wanted;

	/* After a change of the limit it could be emptier than empty: then it is empty. */
	answer->before = Min(state->newest, latest);
	state->newest = answer->before;
	wanted = Max(state->newest, now) + increments(limit, cost);
	answer->allowed = wanted <= latest;
	if (answer->allowed && cost > 0)
		state->newest = wanted;
	else if (!answer->allowed)
		answer->retry_after = wanted - latest;
	answer->after = state->newest;
	answer->remaining = Max(latest - Max(state->newest, now), 0) / increments(limit, 1);
}

/*
 * Answers a call of some cost (0: it only asks), and counts it if it is allowed.  now: in ns, of a
 * clock that does not go back, though calls may come in another order than their times.
 */
RateAnswer
idemq_rate_call(const RateLimit *limit, RateState *state, int64 now, int64 cost)
{
	RateAnswer answer = {0};

	convert(limit, state, now);
	if (state->part < 0)
		call_burst(limit, state, now, cost, &answer);
	else
		call_window(limit, state, now, cost, &answer);
	return answer;
}

/*
 * Takes back a call of cost 1 that was allowed and did not take place.  With a burst only if no
 * other call was counted since: nothing can be taken exactly out of a number on which others have
 * built.
 */
void
idemq_rate_undo(const RateLimit *limit, RateState *state, const RateAnswer *answer)
{
	if (state->part != part_of(limit))
		return;
	if (state->part < 0)
	{
		if (state->newest == answer->after)
			state->newest = answer->before;
	}
	else if (answer->after > state->newest - RATE_COUNTS && *count_of(state, answer->after) > 0)
		(*count_of(state, answer->after))--;
}

/* ---- States that several limits share. */

/* Returns the length of a window that keeps a limit, in ns: with a burst, the time in which it fills. */
int64
idemq_rate_window(const RateLimit *limit)
{
	return limit->burst > 0 ? Max(tolerance(limit), 1) : limit->period;
}

/*
 * Answers a call to a state that limits share whose windows are at most the given one: each counts
 * what part of its limit a call uses, so all together are limited as one of them.
 */
RateAnswer
idemq_rate_call_shared(const RateLimit *limit, RateState *state, int64 window, int64 now,
					   int64 cost)
{
	RateLimit shared = {.max_calls = RATE_SHARED, .period = window};
	int64 calls = limit->burst > 0 ? limit->burst : limit->max_calls;
	/* Rounded down, a limit of few calls is reached; rounded up, one of many is not exceeded. */
	int64 unit = calls < RATE_SHARED_EXACT ? RATE_SHARED / calls
										   : (RATE_SHARED + calls - 1) / calls;
	RateAnswer answer = idemq_rate_call(&shared, state, now, Min(cost * unit, RATE_SHARED));

	answer.remaining /= unit;
	return answer;
}

/* Counts a limit's shared state as used up, as idemq_rate_use_up. */
void
idemq_rate_use_up_shared(RateState *state, int64 window, int64 now, int64 at)
{
	RateLimit shared = {.max_calls = RATE_SHARED, .period = window};

	idemq_rate_use_up(&shared, state, now, at);
}

/* Makes a state for one limit of a shared state: what counts there counts here. */
void
idemq_rate_from_shared(const RateLimit *limit, RateState *state, const RateState *shared, int64 now)
{
	RateState from = *shared;

	memset(state, 0, sizeof(*state));
	if (from.part == 0)
		return;
	advance(&from, now);
	if (sum(&from) == 0)
		return;
	state->part = part_of(limit);
	if (state->part < 0)
		state->newest = now + multiply_divide(tolerance(limit), sum(&from), RATE_SHARED, true);
	else
		recount(state, &from, limit->max_calls, now);
}
