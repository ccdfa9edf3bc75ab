/*
 * worker/retention_ranges.c
 *		Which ids are to be visited, and when, for jobs past their retention.
 *
 * No index says when jobs finished: each commit would pay for it.  Ids are given in the
 * order of time, more or less, so the jobs of one stretch of time are a range of ids.  A
 * range is visited next at the earliest of these times of its jobs:
 *
 *		new ids				when they were given, plus the shortest retention of any queue: no
 *							job is past its retention earlier; and not before SETTLE_TIME, in
 *							which the row of an id may still be on its way to the table
 *		a finished job		when its retention is over
 *		an unfinished one	its retention from now on, since it may finish at once; or,
 *							if that is later, a sixteenth of its age: so one that has waited
 *							for an hour, or is deferred for a month, is visited now and then
 *		one that a transaction holds, or whose deletion is refused: the next pass, or some
 *							minutes later
 *		a row in doubt		since its transaction is open: as an unfinished one
 *
 * A visit reads the range's rows, deletes those that are past their retention, and makes
 * new ranges of those that stay, RANGE_ROWS in each.  So a job that finishes long after its
 * neighbours keeps a range of its own, and is deleted in time; what was between ranges
 * is gone.  Visits are deferred by a sixteenth of the retention, so that a range whose jobs
 * finish one by one has some 16 visits in a retention and not one for each job.  Neither that
 * nor the sixteenth of an age is more than MAX_LATE.
 *
 * The passes miss a row with an id below the new ids that is not there yet when its range is
 * visited (an id taken and not written for longer than a retention and SETTLE_TIME, a restore,
 * a DBA's INSERT), and one that a DBA's UPDATE has made older.  The sweep (worker/retention.c)
 * finds these.  A change of a queue's retention, and ids that begin anew, have all visited
 * again.  A job that an open transaction finishes is visited as unfinished: late by no more
 * than that transaction is long.
 *
 * Memory is bounded: at MAX_RANGES, neighbours are joined two by two.  They are visited
 * more often than they would be alone, and split when they are.
 *
 * All is local to this process, and begins anew with it: at the least id.
 * Locks: none.
 */
#include "postgres.h"

#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "queue/queue.h"
#include "worker/worker.h"

/* Rows that stay in one range; ranges; how late a visit may be. */
#define RANGE_ROWS 1024
#define MAX_RANGES 65536
#define MAX_LATE (10 * USECS_PER_MINUTE)
#define LATE_SHARE 16
/* Between an id and its row: more than a busy machine takes for that. */
#define SETTLE_TIME USECS_PER_SEC

/* Kinds of finished jobs, which a queue keeps for different times, as bits. */
#define KIND_KEYED 1
#define KIND_DEAD 2
#define KINDS 4

/* What a queue keeps jobs of each kind for. */
typedef struct QueueKeeps
{
	int32 queue_id; /* hash key */
	int64 keeps[KINDS];
} QueueKeeps;

typedef struct IdRange
{
	int64 from;
	int64 until;
	TimestampTz due;
} IdRange;

typedef struct RangeList
{
	IdRange *ranges; /* in the order of ids */
	int count;
	int room;
} RangeList;

static RangeList all;
/* The ranges that the present visit has left so far; the last one is open, with so many rows. */
static RangeList left;
static int left_rows;
/* The range that is being visited, or the one with which the pass goes on. */
static int next_range;
static TimestampTz pass_began;
/* Ids below this are in a range, or were visited; the others were given after known_at. */
static int64 known_ids = PG_INT64_MIN;
static TimestampTz known_at = DT_NOBEGIN;
/* The last id given at given_at: the ids up to it are known when SETTLE_TIME has passed. */
static int64 given_id = PG_INT64_MAX;
static TimestampTz given_at;
/* Of QueueKeeps: the queues as the last pass knew them. */
static HTAB *retention_known = NULL;
/* A queue keeps jobs for another time than before: all is to be visited again. */
static bool keeps_changed = false;

static int64
keep_of(const QueueInfo *queue, int kind)
{
	int64 keep = (kind & KIND_DEAD) ? queue->dead_retention : queue->retention;

	return (kind & KIND_KEYED) ? Max(keep, queue->idempotency_window) : keep;
}

/*
 * Returns for how long a finished job is kept: for its queue's retention, a dead one for
 * dead_retention; with a key, for the time in which the key answers, if that is longer:
 * until its own key_expires_at, or for the queue's idempotency window.
 */
int64
idemq_retention_of(const Job *job, const QueueInfo *queue)
{
	const TupleTableSlot *row = job->row;
	int kind = job->status == JOB_DEAD ? KIND_DEAD : 0;

	if (row->tts_isnull[COL_KEY])
		return keep_of(queue, kind);
	if (row->tts_isnull[COL_KEY_EXPIRES_AT])
		return keep_of(queue, kind | KIND_KEYED);
	return Max(keep_of(queue, kind), DatumGetTimestampTz(row->tts_values[COL_KEY_EXPIRES_AT]) -
										 DatumGetTimestampTz(row->tts_values[COL_FINISHED_AT]));
}

/* Returns when to visit a job that is not finished, of a queue that may be unknown. */
TimestampTz
idemq_retention_visit_unfinished(const Job *job, const QueueInfo *queue, TimestampTz now)
{
	int64 age = now - DatumGetTimestampTz(job->row->tts_values[COL_ENQUEUED_AT]);
	int64 late = Min(Max(age, 0) / LATE_SHARE, MAX_LATE);
	bool in_window = !job->row->tts_isnull[COL_KEY] && job->row->tts_isnull[COL_KEY_EXPIRES_AT];
	int kind = in_window ? KIND_KEYED : 0;

	if (queue == NULL)
		return now + late;
	return now + Max(late, Min(keep_of(queue, kind), keep_of(queue, kind | KIND_DEAD)));
}

/* Returns when to visit a finished job, which is kept for so long since it finished. */
TimestampTz
idemq_retention_visit_finished(TimestampTz finished_at, int64 keep, TimestampTz now)
{
	return Max(finished_at + keep, now + Min(keep / LATE_SHARE, MAX_LATE));
}

/* Reads the queues' settings; returns the shortest time for which any queue keeps jobs. */
static int64
retention_follow_settings(void)
{
	HASHCTL info = {.keysize = sizeof(int32), .entrysize = sizeof(QueueKeeps)};
	int64 shortest = PG_INT64_MAX;
	int count;
	int32 *ids = idemq_queue_ids(0, &count);

	if (retention_known == NULL)
		retention_known =
			hash_create("idemq retention of queues", 64, &info, HASH_ELEM | HASH_BLOBS);
	for (int i = 0; i < count; i++)
	{
		QueueKeeps *keeps;
		QueueInfo queue;
		bool found;

		if (!idemq_queue_by_id(ids[i], &queue))
			continue;
		keeps = hash_search(retention_known, &ids[i], HASH_ENTER, &found);
		for (int kind = 0; kind < KINDS; kind++)
		{
			int64 keep = keep_of(&queue, kind);

			shortest = Min(shortest, keep);
			keeps_changed |= found && keep != keeps->keeps[kind];
			keeps->keeps[kind] = keep;
		}
	}
	return shortest;
}

/* Makes room for so many ranges in a list. */
static void
retention_reserve(RangeList *list, int room)
{
	if (room <= list->room)
		return;
	list->room = Max(Max(room, 64), 2 * list->room);
	if (list->ranges == NULL)
		list->ranges = MemoryContextAlloc(TopMemoryContext, list->room * sizeof(IdRange));
	else
		list->ranges = repalloc(list->ranges, list->room * sizeof(IdRange));
}

/* Adds a range behind the last one of a list. */
static IdRange *
add_range(RangeList *list, int64 from, TimestampTz due)
{
	retention_reserve(list, list->count + 1);
	list->ranges[list->count] = (IdRange){from, from, due};
	return &list->ranges[list->count++];
}

/* Joins neighbours two by two. */
static void
join_neighbours(RangeList *list)
{
	int count = 0;

	for (int i = 0; i < list->count; i += 2)
	{
		IdRange range = list->ranges[i];

		if (i + 1 < list->count)
		{
			range.until = list->ranges[i + 1].until;
			range.due = Min(range.due, list->ranges[i + 1].due);
		}
		list->ranges[count++] = range;
	}
	list->count = count;
}

/* Forgets all ranges: all ids are new again. */
static void
begin_anew(void)
{
	all.count = 0;
	known_ids = PG_INT64_MIN;
	known_at = DT_NOBEGIN;
	keeps_changed = false;
}

/* Adds the new ids up to given_id, to the last range if that stays small. */
static void
add_new_ids(TimestampTz due)
{
	IdRange *last = all.count > 0 ? &all.ranges[all.count - 1] : NULL;

	if (given_id < known_ids)
		return;
	if (last == NULL || last->until != known_ids || given_id - last->from >= RANGE_ROWS)
		last = add_range(&all, known_ids, due);
	last->until = known_ids = given_id + 1;
	last->due = Min(last->due, due);
}

/*
 * Begins a pass: reads the queues' settings, and sets what is to be visited.  last_id: the
 * last id that was given before now, 0 for none.
 */
void
idemq_ranges_begin_pass(TimestampTz now, int64 last_id)
{
	int64 shortest;

	IDEMQ_STOP("idemq_ranges_begin_pass");
	shortest = retention_follow_settings();
	/* Also at our first pass. */
	if (last_id < given_id)
	{
		begin_anew();
		given_id = last_id;
		given_at = now;
	}
	else if (keeps_changed)
		begin_anew();
	/* Those that were there before our first pass may be of any age. */
	if ((now - given_at >= SETTLE_TIME || now < given_at) &&
		(known_ids == PG_INT64_MIN || shortest < PG_INT64_MAX))
	{
		add_new_ids(known_at + shortest);
		known_at = given_at;
		given_id = last_id;
		given_at = now;
	}
	if (all.count > MAX_RANGES)
		join_neighbours(&all);
	pass_began = now;
	next_range = 0;
}

/* Sets *scan to a range that is due; false when the pass is over. */
bool
idemq_ranges_begin_visit(IdScan *scan)
{
	left.count = left_rows = 0;
	while (next_range < all.count && all.ranges[next_range].due > pass_began)
		next_range++;
	if (next_range >= all.count)
		return false;
	*scan = (IdScan){all.ranges[next_range].from, all.ranges[next_range].until};
	return true;
}

/* Notes that a job of the visit stays, and when to visit it again; ids ascend. */
void
idemq_ranges_stays(int64 id, TimestampTz next_visit)
{
	IdRange *range = left_rows == 0 ? add_range(&left, id, next_visit)
									: &left.ranges[left.count - 1];

	range->until = id + 1;
	range->due = Min(range->due, next_visit);
	left_rows = (left_rows + 1) % RANGE_ROWS;
}

/*
 * To be called after the commit of a visit, which came to scan->at: puts what stays in the
 * range's place.  If the visit did not come to the range's end, the next one goes on there.
 */
void
idemq_ranges_end_visit(const IdScan *scan)
{
	int replaced = id_scan_is_over(scan) ? 1 : 0;
	int count = all.count + left.count - replaced;

	retention_reserve(&all, count);
	all.ranges[next_range].from = scan->at;
	memmove(&all.ranges[next_range + left.count], &all.ranges[next_range + replaced],
			(all.count - next_range - replaced) * sizeof(IdRange));
	if (left.count > 0)
		memcpy(&all.ranges[next_range], left.ranges, left.count * sizeof(IdRange));
	all.count = count;
	next_range += left.count;
	left.count = left_rows = 0;
}
