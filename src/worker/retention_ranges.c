/*
 * worker/retention_ranges.c
 *		Decides which ids retention visits, and when.
 *
 * There is no index on the time at which jobs finish, because it would cost time in each commit.
 * Ids are assigned roughly in the order of time, so the jobs of a period are a range of ids.  A range
 * is next visited at the earliest of these times of its jobs:
 *
 *		new ids				when they were assigned, plus the shortest retention of any queue: no
 *							job is past its retention earlier; and not before SETTLE_TIME, within
 *							which the row of an id may not have been written yet
 *		a finished job		when its retention is over
 *		an unfinished job	after its retention, because it may finish at once; or, if that is
 *							later, after a sixteenth of its age, so that a job that waits for a
 *							month is not visited too often
 *		a job that a transaction holds, or whose deletion was refused: in the next pass, or some
 *							minutes later
 *		a row whose transaction is open: like an unfinished job
 *
 * A visit reads the rows of the range, deletes those that are past their retention, and forms new
 * ranges, of RANGE_ROWS each, from those that stay.  So a job that finishes long after its neighbours
 * soon has a range of its own, and is deleted in time; ids without jobs are in no range.  Visits are
 * delayed by a sixteenth of the retention, so that a range whose jobs finish one by one is visited
 * about 16 times within a retention, and not once per job.  No visit is delayed by more than MAX_LATE,
 * neither by this rule nor by the sixteenth of an age.
 *
 * The passes miss a row that is written after its range was visited (because its id was taken long
 * before, or by a restore or a DBA's INSERT), and a row that a DBA's UPDATE has made older.  The
 * sweep (worker/retention.c) finds these.  After a change of a queue's retention, or a restart of the
 * sequence, all ids are visited again.  A job that an open transaction finishes is visited as if it
 * were unfinished, so it is deleted late by at most the duration of that transaction.
 *
 * Memory is bounded: if there are more than MAX_RANGES, neighbours are joined in pairs.  A joined
 * range is visited more often, and is split again by its visits.
 *
 * State is local to this process, and a new process begins at the smallest id.  Locks: none.
 */
#include "postgres.h"

#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "queue/queue.h"
#include "worker/worker.h"

/* Number of jobs that form one range, and maximum number of ranges. */
#define RANGE_ROWS 1024
#define MAX_RANGES 65536
/* A visit may be late by one LATE_SHARE-th of the retention or age, but at most by MAX_LATE. */
#define MAX_LATE (10 * USECS_PER_MINUTE)
#define LATE_SHARE 16
/* Time between taking an id and writing its row; in practice it is shorter, even under load. */
#define SETTLE_TIME USECS_PER_SEC

/* Kinds of finished jobs, with different retentions: bits, so a job may be of both kinds. */
#define KIND_KEYED 1
#define KIND_DEAD 2
#define KINDS 4

/* For how long (us) a queue keeps jobs of each kind. */
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
	int room; /* allocated elements */
} RangeList;

static RangeList all;
/* New ranges that the current visit has formed, and the number of jobs in the last one (0: full). */
static RangeList left;
static int left_rows;
/* Index of the range that is being visited, or of the next one that this pass considers. */
static int next_range;
static TimestampTz pass_began;
/* Ids below known_ids are in a range, or have no job; the others were assigned after known_at. */
static int64 known_ids = PG_INT64_MIN;
static TimestampTz known_at = DT_NOBEGIN;
/* The last id assigned by given_at.  SETTLE_TIME later, the ids up to it are added to the ranges. */
static int64 given_id = PG_INT64_MAX;
static TimestampTz given_at;
/* Hash table of QueueKeeps, as of the last pass. */
static HTAB *retention_known = NULL;
/* The retention of a queue has changed, so all ids must be visited again. */
static bool keeps_changed = false;

/* Returns for how long (us) a queue keeps finished jobs of a kind. */
static int64
keep_of(const QueueInfo *queue, int kind)
{
	int64 keep = (kind & KIND_DEAD) ? queue->dead_retention : queue->retention;

	return (kind & KIND_KEYED) ? Max(keep, queue->idempotency_window) : keep;
}

/*
 * Returns for how long (us) a finished job is kept: for its queue's retention or dead_retention, and
 * at least for as long as its key is remembered, that is, until key_expires_at, or for the queue's
 * idempotency window.
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

/* Returns when to visit a job that is not finished.  queue: NULL if it is unknown. */
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

/* Returns when to visit a finished job, which is kept for the time keep (us). */
TimestampTz
idemq_retention_visit_finished(TimestampTz finished_at, int64 keep, TimestampTz now)
{
	return Max(finished_at + keep, now + Min(keep / LATE_SHARE, MAX_LATE));
}

/* Reads the queues' settings; sets keeps_changed.  Returns the shortest retention of any queue. */
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

/* Makes room for a number of ranges in a list. */
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

/* Adds an empty range at the end of a list. */
static IdRange *
add_range(RangeList *list, int64 from, TimestampTz due)
{
	retention_reserve(list, list->count + 1);
	list->ranges[list->count] = (IdRange){from, from, due};
	return &list->ranges[list->count++];
}

/* Joins neighbours in pairs. */
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

/* Forgets all ranges, so that all ids are new. */
static void
begin_anew(void)
{
	all.count = 0;
	known_ids = PG_INT64_MIN;
	known_at = DT_NOBEGIN;
	keeps_changed = false;
}

/* Adds the new ids up to given_id to the last range, or to a new one if that would be too large. */
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
 * Begins a pass: reads the queues' settings, and adds new ids to the ranges.  last_id: the last id
 * that was assigned before now; 0: none.
 */
void
idemq_ranges_begin_pass(TimestampTz now, int64 last_id)
{
	int64 shortest;

	IDEMQ_STOP("idemq_ranges_begin_pass");
	shortest = retention_follow_settings();
	/* The sequence was restarted, or this is the first pass. */
	if (last_id < given_id)
	{
		begin_anew();
		given_id = last_id;
		given_at = now;
	}
	else if (keeps_changed)
		begin_anew();
	/* Jobs from before the first pass may have any age, so they are visited at once. */
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

/* Finds the next range that is due.  Returns false if the pass is over. */
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

/*
 * Notes that a visited job stays, and when to visit it again.  Within a visit, ids must be passed in
 * ascending order.  An id comes again if several versions of its row are in doubt or visible; then
 * two neighbouring ranges may both contain it.
 */
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
 * Called after the commit of a visit, which has reached scan->at: replaces the range with the new
 * ranges.  If the visit did not reach its end, the rest of the range is visited next.
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
