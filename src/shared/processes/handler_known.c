/*
 * shared/processes/handler_known.c
 *		What is known of handlers: jobs that they have done, their last error, and why one
 *		cannot run.
 *
 * It is kept for as many handlers as there are entries; the least recently used one goes.
 * After a start that failed the next one is deferred: shared/processes/handler_registry.c.
 *
 * Locks: memory->lock, level 4, covers all of it.
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "storage/lwlock.h"

#include "base/base.h"
#include "shared/processes/processes.h"

/* After a failed start the next one is deferred for a second, doubled up to 2^6. */
#define FAILED_PAUSE USECS_PER_SEC
#define FAILED_DOUBLINGS 6
/* Handlers of which something is known. */
#define MAX_KNOWN 1024
/* The rate is that of the last so many buckets of so many microseconds; the last is under way. */
#define RATE_BUCKETS 6
#define RATE_BUCKET (10 * USECS_PER_SEC)

typedef struct Known
{
	HandlerKey key;	  /* queue_id 0: free */
	int64 used_at;	  /* mono */
	int failures;	  /* starts that failed in a row */
	int64 not_before; /* mono: of the next start */
	TimestampTz set_at;
	int64 bucket; /* number of the bucket under way */
	uint32 rates[RATE_BUCKETS];
	int64 begun; /* mono: since when jobs are counted */
	HandlerState state;
} Known;

typedef struct KnownMemory
{
	LWLock lock;
	Known known[MAX_KNOWN];
} KnownMemory;

static KnownMemory *memory = NULL;

static void
init_memory(int tranche)
{
	LWLockInitialize(&memory->lock, tranche);
}

const ShmemPart idemq_handlers_known_part = {.area = (void **) &memory,
											 .size = sizeof(KnownMemory),
											 .tranche = "idemq handlers known",
											 .init = init_memory};

/* Returns what is known of a handler; if nothing is, a new entry (create), or NULL.  Lock held. */
static Known *
known_of(HandlerKey key, bool create)
{
	Known *oldest = &memory->known[0];

	for (int i = 0; i < MAX_KNOWN; i++)
	{
		Known *known = &memory->known[i];

		if (known->key.database == key.database && known->key.queue_id == key.queue_id)
			return known;
		if (known->used_at < oldest->used_at)
			oldest = known;
	}
	if (!create)
		return NULL;
	memset(oldest, 0, sizeof(*oldest));
	oldest->key = key;
	oldest->begun = oldest->used_at = idemq_mono_now();
	return oldest;
}

/* Takes the lock; returns what is known of a handler, made if need be. */
static Known *
lock_known(HandlerKey key)
{
	LWLockAcquire(&memory->lock, LW_EXCLUSIVE);
	return known_of(key, true);
}

static void
unlock(void)
{
	LWLockRelease(&memory->lock);
}

/* Notes an error of a handler.  Lock held. */
static void
note_error(Known *known, const char *error)
{
	int length = pg_mbcliplen(error, (int) strlen(error), HANDLER_TEXT - 1);

	memcpy(known->state.error, error, length);
	known->state.error[length] = '\0';
	known->state.error_at = idemq_now();
}

/* Notes why a handler does not run, and counts the failure; returns when (mono) to look again. */
static int64
refuse(Known *known, const char *why)
{
	int64 again = idemq_mono_now() + (FAILED_PAUSE << Min(known->failures, FAILED_DOUBLINGS));

	if (why != NULL)
		note_error(known, why);
	else if (!known->state.refused)
		note_error(known, "one of its processes exited before it was ready: see the server log");
	known->state.refused = true;
	known->failures++;
	return again;
}

/* Notes why no process may run a handler; returns when (mono) to look again. */
int64
idemq_handler_refuse(HandlerKey key, const char *why)
{
	int64 again;

	again = refuse(lock_known(key), why);
	unlock();
	return again;
}

/* Notes that a process failed before it was ready, but not why; the next one is deferred. */
void
idemq_handler_defer_start(HandlerKey key, const char *why)
{
	Known *known = lock_known(key);

	known->not_before = refuse(known, why);
	unlock();
}

/* Empties the buckets that time has come to.  Lock held. */
static void
turn_buckets(Known *known, int64 now)
{
	int64 bucket = now / RATE_BUCKET;

	for (int64 b = Max(known->bucket + 1, bucket - RATE_BUCKETS + 1); b <= bucket; b++)
		known->rates[b % RATE_BUCKETS] = 0;
	known->bucket = bucket;
}

/* Counts jobs that a handler has done and attempts that failed; error: the last, or NULL. */
void
idemq_handler_note(HandlerKey key, int done, int failed, const char *error)
{
	int64 now = idemq_mono_now();
	Known *known = lock_known(key);

	known->used_at = now;
	turn_buckets(known, now);
	known->rates[known->bucket % RATE_BUCKETS] += (uint32) done;
	known->state.done += done;
	known->state.failed += failed;
	if (error != NULL)
		note_error(known, error);
	unlock();
}

/* Returns until when (mono) no process of a handler is to be started. */
int64
idemq_handler_paused_until(HandlerKey key)
{
	Known *known = lock_known(key);
	int64 until;

	known->used_at = idemq_mono_now();
	until = known->not_before;
	unlock();
	return until;
}

/* Notes whether a handler waits for a process. */
void
idemq_handler_note_waits(HandlerKey key, bool waits)
{
	lock_known(key)->state.waits = waits;
	unlock();
}

/* Notes that a process of a handler runs. */
void
idemq_handler_note_ready(HandlerKey key)
{
	Known *known = lock_known(key);

	known->failures = 0;
	known->state.refused = known->state.waits = false;
	unlock();
}

/* Notes when a handler was set: a new one is not deferred for the failures of the former. */
void
idemq_handler_note_set(HandlerKey key, TimestampTz set_at)
{
	Known *known = lock_known(key);

	if (known->set_at != set_at)
	{
		known->failures = 0;
		known->not_before = 0;
		known->state.refused = false;
		known->set_at = set_at;
	}
	unlock();
}

/* Forgets a handler: the queue has none any more. */
void
idemq_handler_forget(HandlerKey key)
{
	Known *known;

	LWLockAcquire(&memory->lock, LW_EXCLUSIVE);
	known = known_of(key, false);
	if (known != NULL)
		memset(known, 0, sizeof(*known));
	unlock();
}

/* Forgets the handlers of a dropped database. */
void
idemq_handlers_forget_database(Oid database)
{
	LWLockAcquire(&memory->lock, LW_EXCLUSIVE);
	for (int i = 0; i < MAX_KNOWN; i++)
	{
		if (memory->known[i].key.database == database)
			memset(&memory->known[i], 0, sizeof(Known));
	}
	unlock();
}

void
idemq_handler_state(HandlerKey key, HandlerState *state)
{
	int64 now = idemq_mono_now();
	int64 sum = 0;
	int64 span;
	Known *known;

	memset(state, 0, sizeof(*state));
	LWLockAcquire(&memory->lock, LW_EXCLUSIVE);
	known = known_of(key, false);
	if (known != NULL)
	{
		turn_buckets(known, now);
		*state = known->state;
		for (int i = 0; i < RATE_BUCKETS; i++)
			sum += known->rates[i];
		span = Min(now - known->begun, (RATE_BUCKETS - 1) * RATE_BUCKET + now % RATE_BUCKET);
		state->rate = (double) sum * USECS_PER_SEC / (double) Max(span, USECS_PER_SEC);
	}
	unlock();
}
