/*
 * job/group_room.c
 *		Whether a queue's group_max_unfinished allows new jobs of a group.
 *
 * shared/groups/group_room.c proves that the limit holds.  This file takes room for the jobs before
 * their rows are written.  Then it takes a snapshot, and uses it to count the group through the index
 * jobs_group, reading at most one entry beyond the limit.  If the group is full, it gives the room
 * back and raises IQ007.
 *
 * Some jobs are never refused, so they do not ask for room: those that max_unfinished never refuses
 * (job/room.c), and children that wait for their parents.  Children count from the time when they join
 * their group.  Jobs without a group, and jobs whose group key is empty (job/permits.c), have no limit.
 *
 * A session never waits here for another session.
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/snapmgr.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/groups/groups.h"
#include "table/table.h"
#include "txn/txn.h"

/* Bytes of a group's name in a message. */
#define SHOWN_NAME 100

/* What a call asks for in one group. */
typedef struct GroupAsk
{
	Datum name;
	GroupRoomKey key;
	int64 jobs;
	int64 taken; /* room that was taken for these jobs */
	int64 sum;	 /* room of all open transactions in the group, including that for these jobs */
} GroupAsk;

/* The room that enqueue_many asks for in each group, and the group of each job. */
struct GroupAsks
{
	const QueueInfo *queue;
	int count;
	GroupAsk *groups;
	int *group_of;	 /* by element; -1: not in a group that has a limit */
	int64 *accepted; /* by group */
};

/* A group of a call, for find_groups. */
typedef struct KnownGroup
{
	GroupRoomKey key;
	int index; /* in GroupAsks.groups */
} KnownGroup;

/* Returns a copy of a group's name as messages show it. */
static char *
shown_name(Datum name)
{
	char *shown = TextDatumGetCString(name);

	shown[pg_mbcliplen(shown, (int) strlen(shown), SHOWN_NAME)] = '\0';
	return shown;
}

/* Raises IQ007 for jobs for which a group does not have room. */
pg_noreturn static void
refuse_jobs(const QueueInfo *queue, Datum name, int64 jobs)
{
	char *shown = shown_name(name);

	if (jobs > queue->group_max_unfinished)
		ereport(ERROR, errcode(ERRCODE_IDEMQ_QUEUE_FULL),
				errmsg("cannot add %lld jobs to a group of queue \"%s\", because its "
					   "group_max_unfinished is %d",
					   (long long) jobs, queue->name, queue->group_max_unfinished),
				errhint("Add fewer jobs to group \"%s\" in one transaction, or raise "
						"group_max_unfinished with idemq.alter_queue.",
						shown));
	ereport(
		ERROR, errcode(ERRCODE_IDEMQ_QUEUE_FULL),
		errmsg("a group of queue \"%s\" is full", queue->name),
		errdetail_plural("The queue's group_max_unfinished is %d, which leaves no room for %lld "
						 "more job in the group. Jobs enqueued by open transactions also count.",
						 "The queue's group_max_unfinished is %d, which leaves no room for %lld "
						 "more jobs in the group. Jobs enqueued by open transactions also count.",
						 (unsigned long) jobs, queue->group_max_unfinished, (long long) jobs),
		errhint("Enqueue again after jobs of group \"%s\" have finished, or raise "
				"group_max_unfinished with idemq.alter_queue.",
				shown));
}

pg_noreturn static void
refuse_table_full(const QueueInfo *queue)
{
	ereport(ERROR, errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			errmsg("cannot enqueue into another group of queue \"%s\"", queue->name),
			errdetail(
				"The queue has group_max_unfinished, so each group into which an open transaction "
				"has enqueued needs an entry in shared memory, and no entry is free. One queue can "
				"use at most half of the entries."),
			errhint("Enqueue into fewer groups in one transaction, or raise idemq.max_buckets and "
					"restart the server."));
}

/*
 * Returns a registered snapshot that does not show the changes of this transaction, because the jobs
 * that it has added and ended are already included in the room that it has.
 */
static Snapshot
count_snapshot(void)
{
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());

	/* Rows are visible as they were before the first command of this transaction. */
	snapshot->curcid = FirstCommandId;
	return snapshot;
}

/*
 * Counts in the rows how many jobs this transaction has added to a group, less those that it has
 * ended, because it wrote jobs of the queue before it knew of the limit.  Returns false if the group,
 * as the transaction itself sees it, has no room for the new jobs.  Neither count reads more than one
 * entry beyond the limit.  If the first count stops there and the second does not, the transaction has
 * ended more jobs than it has added, and the difference may be too large, but never too small.
 */
static bool
ask_correct(JobsTable *table, const QueueInfo *queue, GroupAsk *ask)
{
	Snapshot snapshot = count_snapshot();
	int64 most = (int64) queue->group_max_unfinished + 1;
	int64 others = idemq_jobs_group_count(table, queue->id, ask->name, snapshot, most);
	int64 all;

	/* Rows are visible as they are after all commands of this transaction, including the current one. */
	snapshot->curcid = InvalidCommandId;
	all = idemq_jobs_group_count(table, queue->id, ask->name, snapshot, most);
	UnregisterSnapshot(snapshot);
	if (all + ask->jobs > queue->group_max_unfinished)
		return false;
	idemq_pending_group_room_correct(&ask->key, all - others);
	return true;
}

/*
 * Takes the room that this transaction lacks for jobs of a group.  If it takes room, the caller must
 * check with ask_fits whether the group stays within its limit.
 */
static GroupRoom
ask_take(JobsTable *table, const QueueInfo *queue, GroupAsk *ask)
{
	int64 lacks;

	ask->taken = 0;
	if (unlikely(idemq_pending_group_room_misses(queue->id)) && !ask_correct(table, queue, ask))
		return GROUP_ROOM_FULL;
	lacks = idemq_pending_group_room_lacks(&ask->key, ask->jobs);
	if (lacks == 0)
		return GROUP_ROOM_TAKEN;
	if (!idemq_pending_group_room_take(queue->qstate, &ask->key, lacks, &ask->sum))
		return GROUP_ROOM_NO_ENTRY;
	ask->taken = lacks;
	return GROUP_ROOM_TAKEN;
}

/*
 * Returns whether a group stays within its limit with the room that was just taken; if not, gives that
 * room back.  snapshot: was taken after the room.
 */
static bool
ask_fits(JobsTable *table, const QueueInfo *queue, GroupAsk *ask, Snapshot snapshot)
{
	int64 left = queue->group_max_unfinished - ask->sum;

	if (ask->taken == 0)
		return true;
	/* It is enough to read one entry more than the limit leaves for committed jobs. */
	if (left >= 0 &&
		idemq_jobs_group_count(table, queue->id, ask->name, snapshot, left + 1) <= left)
		return true;
	idemq_pending_group_room_give_back(&ask->key, ask->taken);
	ask->taken = 0;
	return false;
}

/* Returns whether a new job counts towards group_max_unfinished, and sets *name to its group. */
static bool
is_limited(const QueueInfo *queue, const JobChange *columns, Datum *name)
{
	if (likely(queue->group_max_unfinished == 0) || (columns->set & COLUMN_BIT(COL_GROUP_KEY)) == 0)
		return false;
	*name = columns->values[COL_GROUP_KEY];
	return VARSIZE_ANY_EXHDR(DatumGetTextPP(*name)) > 0;
}

/*
 * Takes room for a new job in its group; takes none if the group has no limit.  Adds the room to
 * *taken.
 */
static GroupRoom
take_in_group(JobsTable *table, const QueueInfo *queue, const JobChange *columns, int64 *taken)
{
	GroupAsk ask = {.jobs = 1};
	Snapshot snapshot;
	GroupRoom room;

	if (!is_limited(queue, columns, &ask.name))
		return GROUP_ROOM_TAKEN;
	idemq_queue_need_qstate(queue);
	idemq_group_room_key(&ask.key, queue->id, ask.name);
	IDEMQ_STOP("group_room_asks");
	room = ask_take(table, queue, &ask);
	if (room == GROUP_ROOM_TAKEN && ask.taken > 0)
	{
		IDEMQ_STOP("group_room_taken");
		snapshot = count_snapshot();
		if (!ask_fits(table, queue, &ask, snapshot))
			room = GROUP_ROOM_FULL;
		UnregisterSnapshot(snapshot);
	}
	if (room == GROUP_ROOM_TAKEN)
		idemq_pending_group_room_expect(&ask.key, 1);
	*taken += ask.taken;
	return room;
}

/*
 * Takes room for a new job in its queue and in its group, before the job's row is written.  Returns
 * false if one of them is full; room->group says which, and room that was taken in the queue is kept.
 * Raises 55P03 if counting the queue's jobs takes too long.
 */
bool
idemq_new_job_room_take(JobsTable *table, const QueueInfo *queue, const JobChange *columns,
						NewJobRoom *room)
{
	room->has_in_queue = idemq_room_try(queue, 1, &room->in_queue);
	room->group = room->has_in_queue ? take_in_group(table, queue, columns, &room->in_group)
									 : GROUP_ROOM_NOT_ASKED;
	room->has_in_group = room->group == GROUP_ROOM_TAKEN;
	return room->has_in_group;
}

/* Gives back the room of a job that will not be added. */
void
idemq_new_job_room_give_back(const QueueInfo *queue, const JobChange *columns, NewJobRoom *room)
{
	GroupRoomKey key;
	Datum name;

	if (unlikely(room->has_in_queue && queue->max_unfinished > 0))
		idemq_pending_room_give_back(queue, room->in_queue);
	if (room->has_in_group && is_limited(queue, columns, &name))
	{
		idemq_group_room_key(&key, queue->id, name);
		idemq_pending_group_room_expect(&key, -1);
		if (room->in_group > 0)
			idemq_pending_group_room_give_back(&key, room->in_group);
	}
	room->in_queue = room->in_group = 0;
	room->has_in_queue = room->has_in_group = false;
}

/*
 * Raises IQ007 for a new job for which idemq_new_job_room_take found no room, or 53400 if shared memory
 * had no free entry for its group.
 */
void
idemq_new_job_room_refuse(const QueueInfo *queue, const JobChange *columns, const NewJobRoom *room)
{
	if (room->group == GROUP_ROOM_NOT_ASKED)
		idemq_room_refuse(queue, 1);
	if (room->group == GROUP_ROOM_NO_ENTRY)
		refuse_table_full(queue);
	refuse_jobs(queue, columns->values[COL_GROUP_KEY], 1);
}

/*
 * Takes room for a new job without a key.  If there is none, raises IQ007 if the rule is FULL_RAISES,
 * and otherwise returns false.  With FULL_ADDS, the job will be added nevertheless, so room that was
 * taken in the queue is kept.
 */
bool
idemq_room_for_new_job(JobsTable *table, const QueueInfo *queue, const JobChange *columns,
					   WhenFull rule)
{
	NewJobRoom room = {0};

	if (rule == FULL_UNASKED || idemq_new_job_room_take(table, queue, columns, &room))
		return true;
	if (rule == FULL_RAISES)
		idemq_new_job_room_refuse(queue, columns, &room);
	if (rule == FULL_SKIPS)
		idemq_new_job_room_give_back(queue, columns, &room);
	return false;
}

/* Finds the group of each element, and the number of jobs that each group gets. */
static void
find_groups(GroupAsks *asks, const ArrayArg *names, int count)
{
	HASHCTL info = {.keysize = sizeof(GroupRoomKey), .entrysize = sizeof(KnownGroup)};
	HTAB *known = hash_create("idemq groups of a call", count, &info, HASH_ELEM | HASH_BLOBS);

	for (int i = 0; i < count; i++)
	{
		GroupRoomKey key;
		KnownGroup *group;
		bool is_known;

		asks->group_of[i] = -1;
		if (names->nulls[i] || VARSIZE_ANY_EXHDR(DatumGetTextPP(names->values[i])) == 0)
			continue;
		idemq_group_room_key(&key, asks->queue->id, names->values[i]);
		group = hash_search(known, &key, HASH_ENTER, &is_known);
		if (!is_known)
		{
			group->index = asks->count++;
			asks->groups[group->index] = (GroupAsk){.name = names->values[i], .key = key};
		}
		asks->groups[group->index].jobs++;
		asks->group_of[i] = group->index;
	}
	hash_destroy(known);
}

/*
 * Takes the room that the call asks for in all groups, and then counts all of them under one
 * snapshot.  If a group is full, raises IQ007; if there is no free entry for a group, raises 53400.
 * With may_fail, takes no room in such a group instead.
 */
static void
take_all(JobsTable *table, GroupAsks *asks, bool may_fail)
{
	Snapshot snapshot;
	bool any = false;

	for (int i = 0; i < asks->count; i++)
	{
		GroupAsk *ask = &asks->groups[i];
		GroupRoom room;

		ask->taken = 0;
		if (ask->jobs == 0)
			continue;
		room = ask_take(table, asks->queue, ask);
		if (room == GROUP_ROOM_NO_ENTRY && !may_fail)
			refuse_table_full(asks->queue);
		if (room == GROUP_ROOM_FULL && !may_fail)
			refuse_jobs(asks->queue, ask->name, ask->jobs);
		any |= ask->taken > 0;
	}
	if (!any)
		return;
	snapshot = count_snapshot();
	for (int i = 0; i < asks->count; i++)
	{
		GroupAsk *ask = &asks->groups[i];

		if (!ask_fits(table, asks->queue, ask, snapshot) && !may_fail)
			refuse_jobs(asks->queue, ask->name, ask->jobs);
	}
	UnregisterSnapshot(snapshot);
}

/*
 * Begins an enqueue of many jobs, before any of their rows is written: takes room for all jobs of each
 * group that has enough.  A group that does not have enough, or for which there is no free entry, is
 * not refused here, because some of its jobs may turn out to be duplicates.  names: the group keys;
 * names->values is NULL if no job has one.  Returns NULL if no job of the call can be limited.
 */
GroupAsks *
idemq_group_rooms_begin(JobsTable *table, const QueueInfo *queue, const ArrayArg *names, int count)
{
	GroupAsks *asks;

	if (likely(queue->group_max_unfinished == 0) || names->values == NULL || count == 0)
		return NULL;
	idemq_queue_need_qstate(queue);
	asks = palloc0(sizeof(GroupAsks));
	asks->queue = queue;
	asks->groups = palloc(count * sizeof(GroupAsk));
	asks->group_of = palloc(count * sizeof(int));
	asks->accepted = palloc0(count * sizeof(int64));
	find_groups(asks, names, count);
	take_all(table, asks, true);
	return asks;
}

/*
 * Takes room for the elements without a key, which are certain to be added; raises IQ007 if a group is
 * full.  Must be called after all elements with a key have been written.
 */
void
idemq_group_rooms_for(JobsTable *table, GroupAsks *asks, const int *elements, int count)
{
	GroupAsks rest = *asks;

	rest.groups = palloc(Max(asks->count, 1) * sizeof(GroupAsk));
	memcpy(rest.groups, asks->groups, asks->count * sizeof(GroupAsk));
	for (int i = 0; i < asks->count; i++)
		rest.groups[i].jobs = 0;
	for (int i = 0; i < count; i++)
	{
		if (asks->group_of[elements[i]] >= 0)
			rest.groups[asks->group_of[elements[i]]].jobs++;
	}
	take_all(table, &rest, false);
	for (int i = 0; i < asks->count; i++)
	{
		if (rest.groups[i].jobs > 0)
			idemq_pending_group_room_expect(&rest.groups[i].key, rest.groups[i].jobs);
	}
	pfree(rest.groups);
}

/* Notes that an element was added. */
void
idemq_group_rooms_accepted(GroupAsks *asks, int element)
{
	if (asks->group_of[element] >= 0)
		asks->accepted[asks->group_of[element]]++;
}

/* Gives back the room that was taken for elements that turned out to be duplicates. */
void
idemq_group_rooms_end(GroupAsks *asks)
{
	for (int i = 0; i < asks->count; i++)
	{
		GroupAsk *ask = &asks->groups[i];
		int64 spare = Min(ask->taken, ask->jobs - asks->accepted[i]);

		if (spare > 0)
			idemq_pending_group_room_give_back(&ask->key, spare);
	}
}
