/*
 * job/promote.c
 *		Giving FIFO groups their heads: of each group that has none, the first job
 *		that is blocked becomes pending.
 *
 * A job of a group is enqueued blocked, without a ready_at, so that no claim meets it.
 * A transaction that enqueues or finishes one does not touch the others of its group, so
 * such transactions never wait for each other.  After its commit the group is marked
 * (shared/groups.c), and promoted here: by the worker in a transaction of its own, or by
 * a claim in the claim's.  Such a claim promotes no more heads than it wants jobs, since
 * other sessions see those groups as busy until its transaction ends.
 *
 * At most one job of a group is pending, failed or in processing.  Every way into
 * these from blocked is here, under the ownership of the group, which is taken before
 * the snapshot and lasts until the promotion is visible: so the snapshot shows the
 * head that there is, if there is one.  The floor, below which it is not looked for, is
 * read after each snapshot (the proof stands in shared/groups.c).  The ownership of a prepared transaction does
 * not outlive a restart, nor the end of another one: where there may be prepared
 * transactions, a promotion also searches for a head that is not committed, and leaves
 * such a group alone.
 *
 * No group is forgotten: of a group whose committed jobs have no head there is a mark, an
 * owner, a scan of its queue that is to come, or a session between its commit and its
 * callback.  idemq.check() proves both (groups.head, groups.headless), and that no job is
 * below its group's floor (groups.floor).
 *
 * The order is that of the ids: of two enqueues that overlap in time the one that
 * called first goes first, if both are committed when one of them is promoted; one
 * that commits later waits behind the head that there is.
 *
 * With group_running above 1 a group has no head but places (job/places.c says how
 * many, and why no more): its next job is promoted when there is a free one, and no other
 * job of it waits to be claimed.  One that is not due yet is promoted without a
 * place, so that it comes back when it is, and the next one follows at once.
 *
 * A job whose row another transaction holds is not waited for: its group is visited
 * again a moment later.  It is not passed over either.  A job that had expired when its
 * turn came is cancelled, and the next one follows.
 */
#include "postgres.h"

#include "access/twophase.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "job/places.h"
#include "job/promote.h"
#include "job/transition.h"
#include "table/jobs.h"
#include "table/jobs_group.h"
#include "txn/pending_groups.h"
#include "shared/group_table.h"
#include "shared/groups.h"
#include "base/clock.h"
#include "base/jitter.h"
#include "base/pace.h"

/* Groups taken in one go. */
#define PROMOTE_BATCH 256
/* Visits of a group whose first job changes each time. */
#define MAX_LOOKS 10
/* Jobs that are not due and make way for the next one, in one visit of a group with places. */
#define MAX_EARLY 100
/* Without a slot, a session scans all groups of a queue that often. */
#define SCAN_INTERVAL USECS_PER_SEC

/* Where this session's last scan stopped. */
static struct
{
	int32 queue_id;
	text *name; /* NULL: nowhere */
} left_off;

typedef enum Promotion
{
	PROMOTED,			/* it has a head now, which is not committed yet */
	PROMOTED_FOR_LATER, /* the same, but the head is not due yet */
	HAS_HEAD,			/* or no jobs */
	AT_LIMIT,			/* all its places are taken, and there is a next job */
	HELD,				/* the row of the next job is held, or a head is made but not committed */
	NOT_FOR_US			/* it changes all the time, or our snapshot must not see it */
} Promotion;

/*
 * Makes a blocked job its group's head: it is due at once, or at its run_at; sets *due.
 * From here on no head has an earlier ready_at than *now, and no job that is blocked a
 * lesser id.
 */
static JobWrite
make_head(JobsTable *table, const QueueInfo *queue, const Job *job, TimestampTz *now, bool *due)
{
	EventArgs args = {0};

	args.now = args.ready_at = *now = idemq_now();
	if (!job->row->tts_isnull[COL_RUN_AT])
		args.ready_at = Max(args.now, DatumGetTimestampTz(job->row->tts_values[COL_RUN_AT]));
	*due = args.ready_at == args.now;
	return idemq_transition(table, job, queue, EVENT_PROMOTE, &args, JOB_SKIPS);
}

/* Gives a group that this session owns a head, and sets *floor to what it is then. */
static Promotion
promote(JobsTable *table, const QueueInfo *queue, const GroupKey *key, Datum name,
		GroupFloor *floor)
{
	for (int looks = 0; looks < MAX_LOOKS;)
	{
		/* Read after the snapshot, which each round renews. */
		uint64 epoch = idemq_clock_epoch();
		GroupFloor from = idemq_pending_groups_floor(queue->slot, key);
		TimestampTz now;
		bool expired;
		bool due = true;
		JobWrite write;
		Job job;

		if (idemq_jobs_group_head(table, queue->id, name, from.heads, &job))
			return HAS_HEAD;
		if (max_prepared_xacts > 0 &&
			idemq_jobs_group_head_in_doubt(table, queue->id, name, from.heads))
			return HELD;
		if (!idemq_jobs_group_blocked(table, queue->id, name, from.blocked, &job) ||
			job.status != JOB_BLOCKED)
			return HAS_HEAD; /* or no jobs, or one written by hand, without a ready_at */
		now = idemq_now();
		expired = job_has_expired(&job, now);
		write = expired ? idemq_job_expire(table, &job, queue, now)
						: make_head(table, queue, &job, &now, &due);
		if (write == JOB_WRITTEN && !expired)
		{
			*floor = (GroupFloor){now, job.id, epoch};
			return due ? PROMOTED : PROMOTED_FOR_LATER;
		}
		if (write == JOB_LOCKED)
			return HELD;
		if (write == JOB_CHANGED)
			looks++;
		if (write == JOB_CHANGED && table->crosscheck != InvalidSnapshot)
			return NOT_FOR_US;
		idemq_jobs_refresh(table);
	}
	return NOT_FOR_US;
}

/* Counts the places of a group with a floor; returns what the floor may be after that. */
static GroupFloor
count_places(JobsTable *table, const QueueInfo *queue, Datum name, const GroupFloor *from,
			 GroupPlaces *places)
{
	/* In this order: without a correction of the clock in between, now is not below their times. */
	uint64 epoch = idemq_clock_epoch();
	TimestampTz now = idemq_now();
	bool is_known = from->heads != GROUP_NO_FLOOR.heads && from->epoch == epoch &&
					epoch == idemq_clock_epoch();
	GroupFloor floor = {GROUP_NO_FLOOR.heads, from->blocked, epoch};

	idemq_places_count(table, queue, name, from->heads, is_known ? now : DT_NOEND, places);
	if (places->last <= now)
		floor.heads = Min(places->first, now);
	return floor;
}

/*
 * Returns what a group with places needs by the table's snapshot: PROMOTED when *job is to have
 * one; sets *floor to what it may be then.
 */
static Promotion
find_next(JobsTable *table, const QueueInfo *queue, const GroupKey *key, Datum name, int64 passed,
		  GroupFloor *floor, Job *job)
{
	GroupFloor from = idemq_pending_groups_floor(queue->slot, key);
	GroupPlaces places;
	bool is_free;

	*floor = count_places(table, queue, name, &from, &places);
	if (places.next != 0)
		return HAS_HEAD;
	is_free = places.taken < queue->group_running;
	if (is_free && max_prepared_xacts > 0 && idemq_places_in_doubt(table, queue, name, from.heads))
		return HELD;
	/* Those that this visit has let pass are above the floor until it ends. */
	if (!idemq_jobs_group_blocked(table, queue->id, name, Max(from.blocked, passed), job) ||
		job->status != JOB_BLOCKED)
		return HAS_HEAD;
	return is_free ? PROMOTED : AT_LIMIT;
}

/*
 * Promotes the next job of a group with places, or expires it; *due: whether it has a place
 * now.  Returns JOB_WRITTEN with *due unset also for one that is not due, or expired.
 */
static JobWrite
give_place(JobsTable *table, const QueueInfo *queue, const Job *job, bool *due, bool *expired)
{
	TimestampTz now = idemq_now();

	*due = false;
	*expired = job_has_expired(job, now);
	if (*expired)
		return idemq_job_expire(table, job, queue, now);
	return make_head(table, queue, job, &now, due);
}

/*
 * As promote, of a group with places: its next job gets one if there is one.  Those before it
 * that are not due are promoted without.
 */
static Promotion
promote_next(JobsTable *table, const QueueInfo *queue, const GroupKey *key, Datum name,
			 GroupFloor *floor)
{
	Promotion promotion = NOT_FOR_US;
	int64 passed = PG_INT64_MIN;
	int early = 0;

	for (int looks = 0; looks < MAX_LOOKS && early < MAX_EARLY;)
	{
		GroupFloor next_floor;
		bool due;
		bool expired;
		JobWrite write;
		Job job;

		promotion = find_next(table, queue, key, name, passed, &next_floor, &job);
		if (promotion != PROMOTED)
			break;
		promotion = NOT_FOR_US;
		write = give_place(table, queue, &job, &due, &expired);
		if (write == JOB_LOCKED)
		{
			promotion = HELD;
			break;
		}
		if (write == JOB_CHANGED && table->crosscheck != InvalidSnapshot)
			break;
		if (write == JOB_CHANGED)
			looks++;
		else if (!expired)
		{
			*floor = next_floor;
			floor->blocked = job.id;
			if (due)
				return PROMOTED;
			passed = job.id + 1;
			early++;
		}
		idemq_jobs_refresh(table);
	}
	if (early == 0)
		return promotion;
	/* It is ours until we commit: what is left comes after that. */
	if (promotion != HAS_HEAD)
		idemq_pending_groups_note(queue->slot, queue->id, name, GROUP_KEEP_FLOOR);
	return PROMOTED_FOR_LATER;
}

/*
 * Promotes a group that this session owns, and gives it back unless this transaction has
 * written in it, now or before (again); returns whether it has a head now that can be claimed.
 */
static bool
promote_owned(JobsTable *table, const QueueInfo *queue, const GroupTaken *group, Datum name,
			  bool again)
{
	static const GroupRelease release[] = {[HAS_HEAD] = GROUP_DONE,
										   [AT_LIMIT] = GROUP_LIMITED,
										   [HELD] = GROUP_LATER,
										   [NOT_FOR_US] = GROUP_AGAIN};
	GroupFloor floor;
	Promotion promotion = idemq_has_places(queue)
							  ? promote_next(table, queue, &group->key, name, &floor)
							  : promote(table, queue, &group->key, name, &floor);

	if (promotion == PROMOTED || promotion == PROMOTED_FOR_LATER)
		idemq_pending_groups_note_floor(group, floor);
	else if (!again)
		idemq_pending_groups_done(queue->slot, group, release[promotion]);
	return promotion == PROMOTED;
}

/* Promotes the group of a name, unless another session is on it. */
static bool
promote_named(JobsTable *table, const QueueInfo *queue, Datum name)
{
	text *value = DatumGetTextPP(name);
	GroupTaken group;
	bool again = false;

	idemq_group_key(&group.key, queue->id, VARDATA_ANY(value), (int) VARSIZE_ANY_EXHDR(value));
	idemq_pending_groups_reserve(1);
	switch (idemq_group_own(queue->slot, &group))
	{
		case GROUP_BUSY:
			/* Its owner visits it, or will again; unless that is this transaction. */
			again = idemq_has_places(queue) && idemq_pending_groups_owns(&group.key);
			if (!again)
				return false;
			break;
		case GROUP_FULL:
			idemq_groups_want_scan(queue->slot, queue->id, true);
			return false;
		case GROUP_OWNED:
			break;
	}
	if (!again)
		idemq_pending_groups_note_owned(queue->slot, &group);
	idemq_jitter();
	/* A snapshot that is younger than our ownership. */
	idemq_jobs_refresh(table);
	return promote_owned(table, queue, &group, name, again);
}

/* Keeps the name of the group at which a scan stopped; NULL: none. */
static void
leave_off(int32 queue_id, Datum name)
{
	text *value = name == (Datum) 0 ? NULL : DatumGetTextPP(name);

	if (left_off.name != NULL)
		pfree(left_off.name);
	left_off.name = NULL;
	left_off.queue_id = queue_id;
	if (value != NULL)
		left_off.name = MemoryContextAlloc(TopMemoryContext, VARSIZE_ANY(value));
	if (value != NULL)
		memcpy(left_off.name, value, VARSIZE_ANY(value));
}

/*
 * Scans all groups of a queue, and promotes up to max that have no head.  Returns
 * how many; if these were not all, the queue is to be scanned again.  Begins behind
 * the group at which the last scan stopped, or many scans would take that many times
 * as long; at the end it goes on with the first.
 */
static int
scan_groups(JobsTable *table, const QueueInfo *queue, int max)
{
	MemoryContext context =
		AllocSetContextCreate(CurrentMemoryContext, "idemq group", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	bool resumed = left_off.name != NULL && left_off.queue_id == queue->id;
	Datum last = (Datum) 0;
	Datum name = resumed ? datumCopy(PointerGetDatum(left_off.name), false, -1) : (Datum) 0;
	int promoted = 0;
	Job job;

	leave_off(0, (Datum) 0);
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		if (promoted >= max)
		{
			leave_off(queue->id, name);
			idemq_groups_want_scan(queue->slot, queue->id, false);
			break;
		}
		if (!idemq_jobs_group_next(table, queue->id, name == (Datum) 0 ? NULL : &name, &job))
		{
			if (!resumed)
				break;
			resumed = false;
			name = (Datum) 0;
			continue;
		}
		last = name;
		name = PointerGetDatum(PG_DETOAST_DATUM_COPY(job.row->tts_values[COL_GROUP_KEY]));
		if (last != (Datum) 0)
			pfree(DatumGetPointer(last));
		if (job.status == JOB_BLOCKED || idemq_has_places(queue))
			promoted += promote_named(table, queue, name);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	return promoted;
}

/* Promotes up to max of the groups of a queue that are marked. */
static int
promote_marked(JobsTable *table, const QueueInfo *queue, int max)
{
	GroupTaken *groups = palloc(Min(max, PROMOTE_BATCH) * sizeof(GroupTaken));
	int promoted = 0;
	int taken = 0;
	int batch;
	int count;
	int marked;
	int size;
	int64 refused;

	/* Those that come back at once are left for the next call, or this would go on. */
	idemq_groups_usage(&marked, &size, &refused);
	do
	{
		batch = Min(max - promoted, PROMOTE_BATCH);
		idemq_pending_groups_reserve(batch);
		count = idemq_groups_take(queue->slot, queue->id, groups, batch);
		for (int i = 0; i < count; i++)
			idemq_pending_groups_note_owned(queue->slot, &groups[i]);
		if (count > 0)
			idemq_jobs_refresh(table);
		for (int i = 0; i < count; i++)
		{
			const GroupKey *key = &groups[i].key;
			Datum name = PointerGetDatum(cstring_to_text_with_len(key->name, key->length));

			CHECK_FOR_INTERRUPTS();
			promoted += promote_owned(table, queue, &groups[i], name, false);
		}
		taken += count;
	} while (count == batch && promoted < max && taken < marked);
	pfree(groups);
	return promoted;
}

/* Returns whether there may be groups to promote. */
bool
idemq_promote_wanted(const QueueInfo *queue)
{
	return queue->slot == NULL || idemq_groups_waiting(queue->slot);
}

/*
 * Promotes up to max heads that are due, of a queue's groups, in this transaction: of those
 * that are marked, or, where marks may be missing, of all.  Returns how many.
 */
int
idemq_promote_some(const QueueInfo *queue, int max)
{
	static Pace pace;
	JobsTable table;
	int promoted = 0;
	bool scan;

	if (queue->slot == NULL && !idemq_pace_is_due(&pace, queue->id, SCAN_INTERVAL))
		return 0;
	idemq_jobs_open(&table);
	idemq_pending_groups_note_scan(queue->slot, queue->id);
	scan = queue->slot == NULL || idemq_groups_take_scan(queue->slot, queue->id);
	if (!scan)
		idemq_pending_groups_note_scan(NULL, 0);
	if (queue->slot != NULL)
		promoted = promote_marked(&table, queue, max);
	if (scan && promoted < max)
	{
		/* Younger than the scan's being taken. */
		idemq_jobs_refresh(&table);
		promoted += scan_groups(&table, queue, max - promoted);
	}
	else if (scan)
		idemq_groups_want_scan(queue->slot, queue->id, false);
	idemq_pending_groups_note_scan(NULL, 0);
	idemq_jobs_close(&table);
	return promoted;
}

/*
 * Promotes the group of that name, if it has no head, or a place; false when that is not so,
 * or not known.
 */
bool
idemq_promote_group(const QueueInfo *queue, Datum name)
{
	JobsTable table;
	bool promoted;

	idemq_jobs_open(&table);
	promoted = promote_named(&table, queue, name);
	idemq_jobs_close(&table);
	return promoted;
}

/*
 * Has the next job promoted of a group of which one is being claimed, by whoever is first: at
 * once, since the lease entry says that it is.
 */
void
idemq_promote_later(const QueueInfo *queue, Datum name)
{
	text *value = DatumGetTextPP(name);
	GroupKey key;

	idemq_group_key(&key, queue->id, VARDATA_ANY(value), (int) VARSIZE_ANY_EXHDR(value));
	idemq_group_mark(queue->slot, &key, GROUP_KEEP_FLOOR);
}
