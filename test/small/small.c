/*
 * small.c
 *		Functions of arithmetic alone, over all small inputs; test/t/small.pl builds and runs it.
 *
 * The files are included, so that their static functions are reached, with lengths made small.  choose(n)
 * answers each number below n in turn: a test is run once for each sequence of answers that it can get.
 */
#include "postgres.h"

#include <limits.h>
#include <math.h>

#include "base/base.h"
#include "queue/queue.h"
#include "shared/queue_states/queue_states.h"
#include "worker/worker.h"

#undef HISTORY_LENGTH
#define HISTORY_LENGTH 4
#undef READ_AHEAD_LENGTH
#define READ_AHEAD_LENGTH 4
#undef READ_AHEAD_SPARE
#define READ_AHEAD_SPARE 1

#include "base/backoff.c"
#include "base/rates.c"
#include "base/token.c"
#include "shared/queue_states/scan_start.c"
#include "shared/queue_states/read_ahead.c"
#include "worker/retention_ranges.c"

#undef printf

#define MAX_CHOICES 64

static const char *test;
static int choices[MAX_CHOICES];
static int ways[MAX_CHOICES];
static int depth;
static int64 checked;
static int failed;

/* Answers a number below n: each, in one run of the test or another. */
static int
choose(int n)
{
	if (ways[depth] == 0)
		ways[depth] = n;
	return choices[depth++];
}

/* What must hold; the first three that do not are shown, with the choices. */
static void
check(bool holds, const char *what)
{
	checked++;
	if (holds || ++failed > 3)
		return;
	printf("# %s: %s:", test, what);
	for (int i = 0; i < depth; i++)
		printf(" %d", choices[i]);
	printf("\n");
}

static void
run(const char *name, void (*function) (void))
{
	static int number = 0;
	int64 runs = 0;
	int left;

	test = name;
	failed = 0;
	checked = 0;
	memset(choices, 0, sizeof(choices));
	memset(ways, 0, sizeof(ways));
	do
	{
		depth = 0;
		function();
		runs++;
		/* The last choice that has another answer; those behind it begin anew. */
		for (left = depth - 1; left >= 0 && choices[left] + 1 >= ways[left]; left--)
			choices[left] = ways[left] = 0;
		if (left >= 0)
			choices[left]++;
	} while (left >= 0);
	printf("%sok %d - %s\n", failed || checked == 0 ? "not " : "", ++number, name);
	printf("# figure: %s: %lld inputs, %lld checks\n", name, (long long) runs, (long long) checked);
}

/* ---- What the files call. */

static QueueInfo queue;
MemoryContext TopMemoryContext;

bool
idemq_qstate_lock(QueueState **qstate, int32 queue_id, LWLockMode mode)
{
	return true;
}

bool
LWLockAcquire(LWLock *lock, LWLockMode mode)
{
	return true;
}

void
LWLockRelease(LWLock *lock)
{
}

bool
#if PG_VERSION_NUM >= 190000
ItemPointerEquals(const ItemPointerData *a, const ItemPointerData *b)
#else
ItemPointerEquals(ItemPointer a, ItemPointer b)
#endif
{
	return memcmp(a, b, sizeof(ItemPointerData)) == 0;
}

int64
idemq_mono_now(void)
{
	return 0;
}

void *
MemoryContextAlloc(MemoryContext context, Size size)
{
	return malloc(size);
}

void *
repalloc(void *pointer, Size size)
{
	return realloc(pointer, size);
}

/* One queue, whose entry is all that the hash table of queues has. */
static QueueKeeps entry;
static bool has_entry;

HTAB *
hash_create(const char *name, long n, const HASHCTL *info, int flags)
{
	return (HTAB *) &entry;
}

void *
hash_search(HTAB *table, const void *key, HASHACTION action, bool *found)
{
	*found = has_entry;
	has_entry = true;
	return &entry;
}

int32 *
idemq_queue_ids(int wanted, int *count)
{
	static int32 id = 1;

	*count = 1;
	return &id;
}

bool
idemq_queue_by_id(int32 id, QueueInfo *info)
{
	*info = queue;
	return true;
}

/* ---- The history of lowerings. */

static ReadyKey
key(int n)
{
	return (ReadyKey){0, n};
}

static QueueState qstate;

#define KEYS 6
#define LOWERINGS 7

static void
history(void)
{
	const History *h = &qstate.history[0];
	int lowered[LOWERINGS + 1];
	int count = 1 + choose(LOWERINGS);
	bool merged = false;

	qstate.history[0].count = 0;
	qstate.seq = 0;
	qstate.scan_start[0] = key(KEYS + 1);
	qstate.read_ahead.count = 0;
	for (int i = 1; i <= count; i++)
	{
		lowered[i] = 1 + choose(KEYS);
		merged |= h->count == HISTORY_LENGTH && h->entries[HISTORY_LENGTH - 1].key.id < lowered[i];
		lower_locked(&qstate, 0, key(lowered[i]));
	}
	check(h->count <= HISTORY_LENGTH, "it is full at most");
	for (int i = 1; i < h->count; i++)
		check(h->entries[i - 1].seq < h->entries[i].seq && ready_key_less(h->entries[i - 1].key, h->entries[i].key), "both grow");
	for (int since = 0; since <= count; since++)
	{
		ScanStart view = {.seq = since, .qstate = &qstate};
		ReadyKey found = lowered_since(&qstate, &view, 0);
		int least = KEYS + 1;

		for (int i = since + 1; i <= count; i++)
			least = Min(least, lowered[i]);
		if (since == count)
			check(found.id == PG_INT64_MAX, "none since the last");
		else
			check(found.id <= least, "no greater than the least key since");
		if (!merged && since < count)
			check(found.id == least, "that key, as long as nothing is merged");
		for (int k = 1; k <= KEYS; k++)
			check(idemq_scan_start_lowered_since(&view, 1, 0, key(k)) || least > k, "what was lowered to is said");
		if (count <= 4)
		{
			ReadyKey scan_start = qstate.scan_start[0];
			static ReadAhead none;

			idemq_scan_start_advance(&view, 1, 0, key(KEYS + 1), &none);
			check(!ready_key_less(key(least), qstate.scan_start[0]), "an advance stays before it");
			check(!ready_key_less(qstate.scan_start[0], scan_start), "and goes on");
			qstate.scan_start[0] = scan_start;
		}
	}
}

/* ---- The read-ahead buffer. */

/* The index: of each key none, one or two entries; keys 1 to so many. */
#define INDEX_KEYS 5
static ReadyEntry entries[2 * INDEX_KEYS];
static int entry_count;

static void
make_index(int keys, int most)
{
	entry_count = 0;
	for (int k = 1; k <= keys; k++)
	{
		for (int n = choose(most + 1); n > 0; n--)
		{
			entries[entry_count].key = key(k);
			ItemPointerSet(&entries[entry_count].tid, k, n);
			entry_count++;
		}
	}
}

static bool
same_entry(const ReadyEntry *a, const ReadyEntry *b)
{
	return same_key(a->key, b->key) && ItemPointerEquals((ItemPointer) &a->tid, (ItemPointer) &b->tid);
}

/*
 * The index between two keys, the later one left out; false if it is more than a read-ahead buffer
 * has.
 */
static bool
make_read_ahead(ReadAhead *read_ahead, int from, int end, int priority)
{
	*read_ahead = (ReadAhead){.priority = priority, .from = key(from)};
	for (int i = 0; i < entry_count; i++)
	{
		if (entries[i].key.id < from || entries[i].key.id >= end)
			continue;
		if (read_ahead->count == READ_AHEAD_LENGTH)
			return false;
		read_ahead->entries[read_ahead->count++] = entries[i];
	}
	return true;
}

/*
 * Whether a read-ahead buffer, or a copy of one, has all entries from a key to its end, and no
 * others; what is below is old.
 */
static bool
has_all(const ReadyEntry *has, int count, ReadyKey from, ReadyKey end)
{
	int at = 0;

	while (at < count && ready_key_less(has[at].key, from))
		at++;
	for (int i = 0; i < entry_count; i++)
	{
		if (ready_key_less(entries[i].key, from) || !ready_key_less(entries[i].key, end))
			continue;
		if (at >= count || !same_entry(&has[at++], &entries[i]))
			return false;
	}
	return at == count;
}

static void
read_ahead_cut(void)
{
	ReadAhead read_ahead;
	ReadyKey end;
	int from, at;

	make_index(3, 2);
	from = 1 + choose(3);
	if (!make_read_ahead(&read_ahead, from, from + 1 + choose(4 - from + 1), 0))
		return;
	end = idemq_read_ahead_end(&read_ahead);
	check(has_all(read_ahead.entries, read_ahead.count, read_ahead.from, end), "so it is made");
	at = choose(6);
	idemq_read_ahead_cut(&read_ahead, choose(2), key(at));
	if (depth > 0 && choices[depth - 1] == 1)
		check(same_key(idemq_read_ahead_end(&read_ahead), end), "another priority's cut leaves it");
	else
	{
		check(read_ahead.count == 0 || !ready_key_less(key(at), idemq_read_ahead_end(&read_ahead)), "it ends at the key");
		check(has_all(read_ahead.entries, read_ahead.count, read_ahead.from, idemq_read_ahead_end(&read_ahead)), "with all before that");
		check(at < end.id || same_key(idemq_read_ahead_end(&read_ahead), end), "and loses none below the key");
	}
}

static void
read_ahead_copy(void)
{
	ReadAhead read_ahead;
	ReadAheadView view;
	ReadyKey scan_starts[IDEMQ_PRIORITIES];
	int from, scan_start, wanted, at;

	make_index(4, 2);
	from = 1 + choose(4);
	if (!make_read_ahead(&read_ahead, from, 1 + choose(5), 0))
		return;
	scan_starts[0] = key(scan_start = choose(6));
	wanted = 1 + choose(3);
	idemq_read_ahead_copy(&read_ahead, scan_starts, wanted, &view);
	check(view.count <= wanted + READ_AHEAD_SPARE, "no more than are wanted, and spare");
	check(view.count == 0 || scan_start >= from, "none where the scan start is before the buffer");
	check(same_key(view.end, idemq_read_ahead_end(&read_ahead)), "it knows the buffer's end");
	if (view.count > 0)
	{
		ReadyKey end = ready_key_after(view.entries[view.count - 1].key);

		check(has_all(view.entries, view.count, scan_starts[0], end), "all entries of its keys");
		check(view.left > 0 ? ready_key_less(end, view.end) : same_key(end, view.end), "what is left is behind it");
		int before = view.count;

		at = choose(6);
		idemq_read_ahead_view_cut(&view, 0, key(at));
		end = view.count > 0 ? ready_key_after(view.entries[view.count - 1].key) : scan_starts[0];
		check(view.count == 0 || !ready_key_less(key(at), end), "a copy is cut at a key");
		check(has_all(view.entries, view.count, scan_starts[0], end), "and has what is before");
		if (view.count < before)
			check(view.left == 0 && same_key(view.end, view.entries[view.count].key), "it ends where it was cut");
		else
			check(same_key(view.end, idemq_read_ahead_end(&read_ahead)), "or where the buffer ends");
	}
	for (int i = 0; i < entry_count; i++)
		check(!idemq_read_ahead_hides(&read_ahead, scan_starts, 0, &entries[i]), "what is in the index is not hidden");
	if (read_ahead.count > 1)
	{
		ReadyEntry gone = read_ahead.entries[0];

		memmove(read_ahead.entries, &read_ahead.entries[1], --read_ahead.count * sizeof(ReadyEntry));
		check(idemq_read_ahead_hides(&read_ahead, scan_starts, 0, &gone) == (scan_start >= from && scan_start <= gone.key.id), "one that is missing is");
	}
}

static void
read_ahead_install(void)
{
	ReadAhead read_ahead, fill, before;
	ReadyKey scan_starts[IDEMQ_PRIORITIES];
	int from, ahead_before, new, priority;
	bool joins;

	make_index(INDEX_KEYS, 2);
	from = 1 + choose(INDEX_KEYS);
	if (!make_read_ahead(&read_ahead, from, from + 1 + choose(INDEX_KEYS + 1 - from), 0))
		return;
	from = 1 + choose(INDEX_KEYS);
	priority = choose(2);
	if (!make_read_ahead(&fill, from, from + 1 + choose(INDEX_KEYS + 1 - from), priority))
		return;
	fill.file = choose(2);
	scan_starts[0] = key(choose(INDEX_KEYS + 1));
	scan_starts[1] = key(1);
	before = read_ahead;
	ahead_before = ahead(&read_ahead, scan_starts);
	joins = serves(&read_ahead, scan_starts) && priority == 0 && fill.file == read_ahead.file && same_key(idemq_read_ahead_end(&read_ahead), fill.from);
	new = fill.count - position(&fill, scan_starts[0]);
	idemq_read_ahead_install(&read_ahead, scan_starts, &fill);
	check(read_ahead.count <= READ_AHEAD_LENGTH, "it has room for no more");
	if (read_ahead.file == before.file && fill.file != before.file)
		check(read_ahead.count == before.count, "entries of another file do not join it");
	check(has_all(read_ahead.entries, read_ahead.count, read_ahead.from, idemq_read_ahead_end(&read_ahead)), "all entries of its range");
	check(ahead(&read_ahead, scan_starts) >= ahead_before, "and no fewer before the claims");
	if (joins && ahead_before + fill.count <= READ_AHEAD_LENGTH)
		check(ahead(&read_ahead, scan_starts) == ahead_before + new, "what joins it is added");
	if (!joins && !serves(&before, scan_starts) && fill.count > 0)
		check(read_ahead.count == fill.count && read_ahead.priority == priority, "one that serves nobody is replaced");
}

/* ---- GCRA. */

#define CALLS 4

static void
rate_burst(void)
{
	RateLimit limit = {1 + choose(3), 1 + choose(5), 1 + choose(3)};
	RateState state = {0};
	int64 now = 100;
	int64 at[CALLS], cost[CALLS];

	for (int i = 0; i < CALLS; i++)
	{
		RateState before, then;
		RateAnswer answer;
		int64 total = 0;

		now += choose(4);
		at[i] = now;
		cost[i] = choose(limit.burst + 2);
		before = state;
		answer = idemq_rate_call(&limit, &state, now, cost[i]);
		if (answer.allowed)
			check(answer.retry_after == 0, "nothing to wait for");
		else
		{
			if (cost[i] <= limit.burst)
			{
				then = before;
				check(idemq_rate_call(&limit, &then, now + answer.retry_after, cost[i]).allowed, "allowed when it says so");
				then = before;
				check(!idemq_rate_call(&limit, &then, now + answer.retry_after - 1, cost[i]).allowed, "and not before");
			}
			cost[i] = 0;
		}
		check(answer.remaining >= 0 && answer.remaining <= limit.burst, "remaining is within the burst");
		then = state;
		check(idemq_rate_call(&limit, &then, now, answer.remaining).allowed, "what remains is allowed");
		then = state;
		check(!idemq_rate_call(&limit, &then, now, answer.remaining + 1).allowed, "and no more");
		for (int j = i; j >= 0; j--)
		{
			total += cost[j];
			check(total * limit.period <= limit.burst * limit.period + limit.max_calls * (now - at[j]), "never more in any time");
		}
	}
}

/* The calls of a window, in steps of which some end a part or a period. */
static void
rate_window(void)
{
	static const int64 periods[] = {1, 15, 16, 40, 1000};
	RateLimit limit = {1 + choose(3), periods[choose(5)], 0};
	int64 part = (limit.period + RATE_PARTS - 1) / RATE_PARTS;
	int64 steps[] = {0, 1, part, limit.period - 1, limit.period, limit.period + part};
	RateState state = {0};
	int64 now = 5 * limit.period + choose(2);
	int64 at[CALLS], cost[CALLS];

	for (int i = 0; i < CALLS; i++)
	{
		RateState then;
		RateAnswer answer;
		int64 total = 0, counting = 0;

		now += steps[choose(6)];
		at[i] = now;
		cost[i] = choose(limit.max_calls + 1);
		answer = idemq_rate_call(&limit, &state, now, cost[i]);
		for (int j = 0; j < i; j++)
			counting += now < (at[j] / part + 1 + RATE_PARTS) * part ? cost[j] : 0;
		check(answer.allowed == (counting + cost[i] <= limit.max_calls), "allowed if it leaves the count within the limit");
		if (!answer.allowed)
		{
			then = state;
			check(idemq_rate_call(&limit, &then, now + answer.retry_after, cost[i]).allowed, "allowed when it says so");
			then = state;
			check(!idemq_rate_call(&limit, &then, now + answer.retry_after - 1, cost[i]).allowed, "and not before");
			cost[i] = 0;
		}
		else
		{
			check(answer.retry_after == 0, "nothing to wait for");
			check(answer.remaining == limit.max_calls - counting - cost[i], "what remains");
		}
		then = state;
		check(idemq_rate_call(&limit, &then, now, answer.remaining).allowed, "what remains is allowed");
		then = state;
		check(!idemq_rate_call(&limit, &then, now, answer.remaining + 1).allowed, "and no more");
		check(idemq_rate_unused_at(&state) > now || answer.remaining == limit.max_calls, "in use while it counts something");
		for (int j = i; j >= 0 && now - at[j] < limit.period; j--)
		{
			total += cost[j];
			check(total <= limit.max_calls, "never more in a period");
		}
	}
}

/* Used up at a time that is past, and then a change of the rule or the period. */
static void
rate_changes(void)
{
	static const RateLimit limits[] = {{3, 160, 0}, {3, 320, 0}, {2, 160, 0}, {3, 160, 3}, {3, 160, 1}};
	RateLimit first = limits[choose(5)];
	RateLimit second = limits[choose(5)];
	RateState state = {0};
	int64 now = 1000;
	int64 past = choose(3) * 50;
	RateAnswer answer;

	idemq_rate_use_up(&first, &state, now, now - past);
	answer = idemq_rate_call(&first, &state, now, 1);
	check(answer.allowed == (first.burst > 0 && past * first.max_calls >= first.period), "used up");
	if (choose(2))
		idemq_rate_use_up(&first, &state, now, now - past); /* does nothing twice */
	/* What the first limit counted counts. */
	answer = idemq_rate_call(&second, &state, now, 1);
	check((first.burst > 0) == (second.burst > 0) || !answer.allowed, "as used up after a change of the rule");
	now += 2 * second.period + second.period / 8;
	answer = idemq_rate_call(&second, &state, now, 1);
	check(answer.allowed, "not for longer than a period");
	check(idemq_rate_unused_at(&state) <= now + 2 * second.period, "nor does it stay in use");
}

/* Returns how many calls are allowed one after the other. */
static int
allowed_calls(const RateLimit *limit, RateState *state, int64 now)
{
	int n = 0;

	while (idemq_rate_call(limit, state, now, 1).allowed)
		n++;
	return n;
}

/* What no change of the limit forgets, and what no number of changes keeps for longer than a period. */
static void
rate_changed_often(void)
{
	RateLimit first = {3, 160, 0}, other = {choose(2) ? 1 : 100, 320, 0}, bucket = {3, 160, 1};
	RateState state = {0};
	int64 now = 1000;

	check(allowed_calls(&first, &state, now) == 3, "all of the limit");
	for (; now < 1000 + 160 + 10 + 20; now += 8)
	{
		(void) idemq_rate_call(&other, &state, now, 0);
		check(now >= 1000 + 160 || !idemq_rate_call(&first, &state, now, 1).allowed, "a period keeps its calls");
	}
	check(idemq_rate_call(&first, &state, now, 1).allowed, "and no longer");
	state = (RateState){0};
	(void) allowed_calls(&first, &state, now);
	(void) idemq_rate_call(&(RateLimit){1, 320, 0}, &state, now, 1);
	check(allowed_calls(&(RateLimit){3, 320, 0}, &state, now) == 0, "a low limit forgets no calls");
	/* The bucket is full before its calls are a period old. */
	state = (RateState){0};
	for (int i = 0; i < 3; i++)
		check(idemq_rate_call(&bucket, &state, now += 54, 1).allowed, "evenly");
	now += 56;
	check(allowed_calls(&first, &state, now) == 0, "used up after a change of the rule");
	check(allowed_calls(&first, &state, now + 170) == 3, "for a period");
}

/* A state that counts nothing is not in use. */
static void
rate_unused(void)
{
	RateLimit limit = {3, 160, choose(2)};
	RateState state = {0};

	(void) idemq_rate_call(&limit, &state, 1000, choose(2));
	(void) idemq_rate_call(&limit, &state, 1000, 0);
	check((idemq_rate_unused_at(&state) <= 1000) == (allowed_calls(&limit, &state, 1000) == (limit.burst ? limit.burst : 3)), "in use only while it counts something");
}

/* States that limits share. */
static void
rate_shared(void)
{
	static const RateLimit limits[] = {{1, 100, 0}, {3, 100, 0}, {7, 90, 0}, {40000, 100, 0}, {10, 100, 2}};
	RateLimit limit = limits[choose(5)];
	RateLimit other = limits[choose(5)];
	int64 most = limit.burst > 0 ? limit.burst : limit.max_calls;
	RateState shared = {0}, own;
	int64 allowed = 0;
	int64 of_other = choose(2);

	if (of_other)
		check(idemq_rate_call_shared(&other, &shared, 128, 1000, 1).allowed, "the first call");
	for (int i = 0; i < most + 1; i++)
		allowed += idemq_rate_call_shared(&limit, &shared, 128, 1000, 1).allowed;
	check(allowed <= most, "never more than the limit");
	check(of_other || allowed >= most - (most > RATE_SHARED_EXACT), "and all of it");
	idemq_rate_from_shared(&limit, &own, &shared, 1000);
	check(!idemq_rate_call(&limit, &own, 1000, 1).allowed || allowed + of_other < most, "what it counted counts in a state of its own");
	check(idemq_rate_call(&limit, &own, 1000 + 300, 1).allowed, "for a time");
	/* What was counted then counts as of then, not as of now. */
	if (limit.burst == 0 && limit.period == 100)
	{
		idemq_rate_from_shared(&limit, &own, &shared, 1095);
		check(!idemq_rate_call(&limit, &own, 1095, 1).allowed || allowed + of_other < most, "later, too");
		check(idemq_rate_call(&limit, &own, 1125, 1).allowed, "for no longer");
	}
}

/* The greatest that there are. */
static void
rate_greatest(void)
{
	static const int64 calls[] = {1, 2, 1000, INT_MAX};
	RateLimit limit = {calls[choose(4)], choose(2) ? RATE_MAX_PERIOD : 1, choose(2)};
	int64 now = choose(2) ? INT64CONST(2000000000000000000) : 1; /* 63 years */
	RateState state = {0};
	RateAnswer answer;

	if (limit.burst)
		limit.burst = limit.max_calls;
	answer = idemq_rate_call(&limit, &state, now, limit.max_calls);
	check(answer.allowed && answer.remaining == 0, "all at once");
	answer = idemq_rate_call(&limit, &state, now, 1);
	check(!answer.allowed && answer.retry_after > 0 && answer.retry_after <= limit.period + limit.period / RATE_PARTS + RATE_COUNTS, "then none");
	check(idemq_rate_call(&limit, &state, now + answer.retry_after, 1).allowed, "until it says");
}

/* ---- Backoff. */

static void
backoff(void)
{
	static const int64 bases[] = {0, 1, 7, 1000000, PG_INT64_MAX};
	static const double factors[] = {1, 1.5, 2, 10, 1e300};
	static const int64 maxes[] = {0, 1, 100, INT64CONST(3600000000), INT64CONST(4000000000000000000)};
	static const double jitters[] = {0, 0.25, 1};
	static const int attempts[] = {0, 1, 2, 3, 10, 100, INT_MAX - 1};
	static const double uniforms[] = {0, 0.5, 0.9999999};
	int64 base = bases[choose(5)];
	double factor = factors[choose(5)];
	int64 max = maxes[choose(5)];
	double jitter = jitters[choose(3)];
	int attempt = attempts[choose(7)];
	double uniform = uniforms[choose(3)];
	int64 delay = idemq_backoff(base, factor, max, jitter, attempt, uniform);

	check(delay >= 0 && delay <= max, "between none and the bound");
	check(delay <= idemq_backoff(base, factor, max, jitter, attempt + 1, uniform), "no shorter after another attempt");
	check(delay <= idemq_backoff(base, factor, max, jitter, attempt, 1), "nor with a greater dice");
	if (attempt <= 10 && base <= 1000000 && factor <= 10)
	{
		double exact = base;

		for (int i = 1; i < attempt; i++)
			exact *= factor;
		if (jitter == 0 || uniform == 0.5)
			check(delay == (int64) Min(exact, (double) max), "base * factor ^ (attempt - 1)");
		check(delay == max || fabs(delay - exact) <= exact * jitter + 1, "no further from that than jitter");
	}
}

/* ---- Tokens. */

static void
token_next(void)
{
	int64 row = choose(5);
	int64 last = choose(5);
	int64 now = choose(5);
	uint32 timeline = choose(2);
	int64 base = choose(3) * (INT64CONST(1) << TOKEN_TIMELINE_SHIFT);
	int64 token = idemq_token_next(row, last, IDEMQ_EPOCH + now, timeline, base);
	int64 clock = now + idemq_token_lead(base, timeline);

	check(token > row && token > base + last && token >= clock, "above all three");
	check(token == row + 1 || token == base + last + 1 || token == clock, "and no further");
}

/* Tokens of one job, whatever is lost in between. */
static void
token_lives(void)
{
	int64 row = 0, row_before = 0, last = 0, now = INT64CONST(10) << 41, base = 0, greatest = 0;
	uint32 timeline = 1;
	bool clock_is_back = false;

	for (int i = 0; i < 6; i++)
	{
		int64 token = idemq_token_next(row, last, IDEMQ_EPOCH + now, timeline, base);

		check(token > greatest, "greater than any before");
		greatest = token;
		last = token - base;
		row_before = row;
		row = token;
		/* A clock that stands still is that of a claim in the same microsecond. */
		switch (choose(clock_is_back ? 3 : 7))
		{
			case 0:
				break;
			case 1: /* a rollback: the row's is lost */
				row = row_before;
				break;
			case 2: /* time */
				now += 10;
				break;
			case 3: /* a crash; the last transactions are lost, too */
				last = 0;
				row = row_before;
				now += 10;
				break;
			case 4: /* a promotion, of a clock that is behind */
				last = 0;
				row = row_before;
				timeline++;
				now -= (INT64CONST(1) << 41) - 10;
				break;
			case 5: /* a copy: timelines begin anew, from a base that counts those before */
				base = idemq_token_lead(base, timeline);
				timeline = 1;
				last = 0;
				break;
			case 6: /* the clock is set back, the server goes on */
				now -= 1000;
				clock_is_back = true;
				break;
		}
	}
}

/* ---- Ranges of ids for retention. */

#define BLOCK (RANGE_ROWS / 2)	/* ids that are treated alike */
#define BLOCKS 4
#define SECOND USECS_PER_SEC

static bool there[BLOCKS];
static TimestampTz visit_by[BLOCKS];

/* Each row is in one range, which is visited in time; or it is among the new ids. */
static void
check_ranges(void)
{
	for (int i = 1; i < all.count; i++)
		check(all.ranges[i - 1].until <= all.ranges[i].from, "ranges are in order");
	for (int b = 0; b < BLOCKS; b++)
	{
		int in = 0;

		if (!there[b] || (b + 1) * BLOCK > known_ids)
			continue;
		for (int i = 0; i < all.count; i++)
		{
			IdRange *range = &all.ranges[i];

			if (range->from <= b * BLOCK && range->until >= (b + 1) * BLOCK)
			{
				in++;
				check(range->due <= visit_by[b], "it is visited in time");
			}
		}
		check(in == 1, "each row is in one range");
	}
}

static void
retention_ranges(void)
{
	TimestampTz now = 1000 * SECOND;
	int given = 0;

	all.count = left.count = left_rows = 0;
	known_ids = PG_INT64_MIN;
	known_at = DT_NOBEGIN;
	given_id = PG_INT64_MAX;
	retention_known = NULL;
	has_entry = keeps_changed = false;
	memset(there, 0, sizeof(there));
	memset(&queue, 0, sizeof(queue));
	queue.retention = queue.dead_retention = queue.idempotency_window = 3 * SECOND;

	for (int round = 0; round < 4; round++)
	{
		IdScan scan;

		/* A job is past its retention no earlier than that after it was given. */
		if (given < BLOCKS && choose(2))
		{
			visit_by[given] = now + 3 * SECOND;
			there[given++] = true;
		}
		if (round == 2 && choose(2))
		{
			queue.retention = SECOND;
			for (int b = 0; b < BLOCKS; b++)
				visit_by[b] = now + SECOND;
		}
		idemq_ranges_begin_pass(now, given * BLOCK - 1);
		if (all.count > 1 && choose(2))
			join_neighbours(&all);
		check_ranges();
		while (idemq_ranges_begin_visit(&scan))
		{
			IdScan whole = scan;
			int stop = choose(3);

			for (int b = 0; b < BLOCKS; b++)
			{
				if (!there[b] || b * BLOCK < whole.at || b * BLOCK >= whole.until)
					continue;
				/* A slice may end before any row. */
				if (stop-- == 1)
				{
					scan.at = b * BLOCK;
					goto cut;
				}
				there[b] = choose(2);
				visit_by[b] = now + (5 - b) * SECOND;
				/* The last one of them is the first to be visited again. */
				for (int id = b * BLOCK; there[b] && id < (b + 1) * BLOCK; id++)
					idemq_ranges_stays(id, visit_by[b] + (b + 1) * BLOCK - 1 - id);
			}
			scan.at = scan.until;
	cut:
			idemq_ranges_end_visit(&scan);
			if (!id_scan_is_over(&scan))
				break;
		}
		check_ranges();
		now += (1 + choose(2)) * SECOND;
	}
}

int
main(void)
{
	run("the history of lowerings", history);
	run("a read-ahead buffer is cut", read_ahead_cut);
	run("a read-ahead buffer is copied", read_ahead_copy);
	run("what a scan has read joins a read-ahead buffer", read_ahead_install);
	run("a rate with a burst (GCRA)", rate_burst);
	run("a rate in any period", rate_window);
	run("a rate that changes", rate_changes);
	run("a rate that changes often", rate_changed_often);
	run("a rate that counts nothing", rate_unused);
	run("rates that share a state", rate_shared);
	run("the greatest rates", rate_greatest);
	run("the backoff", backoff);
	run("the next token", token_next);
	run("the tokens of a job", token_lives);
	run("ranges of ids", retention_ranges);
	printf("1..15\n");
	return 0;
}
