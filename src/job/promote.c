/*
 * job/promote.c
 *		Giving FIFO groups their heads: in each group that has none, the first blocked job becomes
 *		pending.
 *
 * A job of a group is enqueued blocked, without a ready_at, so claims do not see it.  A transaction
 * that enqueues or finishes one does not touch the other jobs of the group, so such transactions
 * never wait for each other.  After its commit the group is marked (shared/groups/groups.c), and
 * promoted here: by the worker in a transaction of its own, or by a claim in the claim's
 * transaction.  Such a claim promotes at most as many heads as the jobs that it still wants,
 * because other sessions see those groups as busy until its transaction ends.
 *
 * At most one job of a group is pending, retrying or running.  Only this file and the files that it
 * calls move a job from blocked to one of these statuses, and only while the session owns the
 * group.  It takes the ownership before its snapshot, and keeps it until the promotion is visible.
 * So the snapshot shows the group's head, if there is one.  The low-water mark, below which no head
 * is looked for, is read after each snapshot (shared/groups/groups.c has the proof).
 *
 * No group is forgotten: for a group whose committed jobs have no head, there is a mark, a
 * promoter, a scan of its queue that is due, or a session between its commit and its callback.
 * idemq.check() checks both (groups.head, groups.headless), and that no job is below its group's
 * low-water mark (groups.low_water).
 *
 * The order is that of the ids.  Of two enqueues that overlap in time, the one that was called
 * first comes first if both are committed when one of them is promoted; an enqueue that commits
 * later waits behind the head that exists then.
 *
 * With group_max_running above 1, a group has permits instead of a head (job/permits.c proves that
 * there are never more).  Its next job is promoted when a permit is free, and no other job of the
 * group waits to be claimed.  A job that is not due yet is promoted without a permit, so that its
 * group is visited again when it is due, and the next job follows immediately.
 *
 * If another transaction holds the row of a job, the promotion does not wait: the group is visited
 * again a moment later.  Nor is that job passed over, except in the group without a name
 * (job/promote_one.c).  If the next job of a group has expired, it is cancelled, and the one after
 * it follows.
 *
 * A paused group keeps all its jobs blocked: job/group_pause.c.
 *
 * Marks of children and parents (shared/groups/dependencies.c) are stored among the marks of
 * groups, and are taken and owned in the same way; job/dependencies.c does what they require.  When
 * a child joins its group, that group is promoted.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "shared/groups/groups.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "table/table.h"
#include "txn/txn.h"

/* Maximum number of groups taken at a time. */
#define PROMOTE_BATCH 256

/* With this many ready jobs in the read-ahead buffer, a queue has many. */
#define LONG_LINE READ_AHEAD_LOW

static bool may_linger = false;

/* The group at which this session's last scan stopped. */
static struct
{
	int32 queue_id;
	text *name; /* NULL: nowhere */
} left_off;

/*
 * Promotes a group that this session owns, or does what its mark requires if it is a mark of a
 * child or parent.  Gives the group back, unless this transaction has written in it, now or before
 * (again).  Returns whether there is a new job that can be claimed. *joined: set to the group that
 * a child has joined, which may need a head; otherwise unchanged.
 */
static bool
promote_owned(JobsTable *table, const QueueInfo *queue, const GroupTaken *group, Datum name,
			  bool again, ReleasedChildren *released, Datum *joined)
{
	static const GroupRelease release[] = {[HAS_HEAD] = GROUP_DONE,
										   [AT_LIMIT] = GROUP_LIMITED,
										   [HELD] = GROUP_LATER,
										   [HAS_MORE] = GROUP_AGAIN,
										   [NOT_FOR_US] = GROUP_AGAIN};
	GroupLowWater low_water = group->low_water;
	GroupTaken left = *group;
	Promotion promotion;
	DependencyMark mark;
	int64 id;

	if (idemq_dependency_read(&group->key, &mark, &id))
		promotion = idemq_dependency_promote(table, queue, mark, id, &left.low_water.blocked,
											 released, joined);
	else
		promotion = idemq_promote_one(table, queue, &group->key, name, &low_water);
	if (promotion == JOINED)
		return false;
	if (promotion == PROMOTED || promotion == PROMOTED_FOR_LATER)
		idemq_pending_groups_note_low_water(group, low_water);
	else if (!again)
		idemq_pending_groups_done(queue->qstate, &left, release[promotion]);
	return promotion == PROMOTED;
}

static bool promote_named(JobsTable *table, const QueueInfo *queue, Datum name);

/*
 * Promotes the group with that key and name.  If the key is the mark of a job, name is 0: looks at
 * the job, and promotes the group that it joins, if any.  Does nothing while another session owns
 * the group or mark.  Returns whether a job can be claimed now.
 */
static bool
promote_key(JobsTable *table, const QueueInfo *queue, const GroupKey *key, Datum name)
{
	Datum joined = (Datum) 0;
	bool again = false;
	GroupTaken group = {*key, GROUP_NO_LOW_WATER};
	GroupOwn own;
	ReleasedChildren released = {0};
	bool promoted;

	idemq_pending_groups_reserve(1);
	own = idemq_group_own(queue->qstate, &group);
	if (own == GROUP_FULL)
		idemq_groups_want_scan(queue->qstate, queue->id, SCAN_GROUPS | SCAN_CHILDREN, true);
	else if (own == GROUP_BUSY)
		/*
		 * The promoter visits the group now or later, unless this transaction itself is the
		 * promoter.
		 */
		again = name != (Datum) 0 && idemq_group_uses_permits(queue, name) &&
				idemq_pending_groups_owns(&group.key);
	else
		idemq_pending_groups_note_owned(queue->qstate, &group);
	if (own != GROUP_OWNED && !again)
		return false;
	idemq_jitter();
	/* The snapshot must be younger than the ownership. */
	idemq_jobs_refresh(table);
	promoted = promote_owned(table, queue, &group, name, again, &released, &joined);
	if (released.count > 0)
		idemq_dependency_released(released.ids, released.tokens, released.count);
	if (promoted || joined == (Datum) 0)
		return promoted;
	/* By a snapshot that shows the child.  If another session owns the group, the commit marks it. */
	idemq_jobs_refresh(table);
	return promote_named(table, queue, joined);
}

/* Promotes the named group, unless another session owns it. */
static bool
promote_named(JobsTable *table, const QueueInfo *queue, Datum name)
{
	text *value = DatumGetTextPP(name);
	GroupKey key;

	idemq_group_key(&key, queue->id, VARDATA_ANY(value), (int) VARSIZE_ANY_EXHDR(value));
	return promote_key(table, queue, &key, name);
}

/*
 * Looks at a job that is blocked by its parents.  Returns false if it still is, or if that is not
 * known.  Refreshes the table.
 */
bool
idemq_promote_child(JobsTable *table, const QueueInfo *queue, int64 id)
{
	GroupKey key;

	idemq_dependency_key(&key, queue->id, DEPENDENCY_CHILD, id);
	if (promote_key(table, queue, &key, (Datum) 0))
		return true;
	idemq_dependency_key(&key, queue->id, DEPENDENCY_FAILURE, id);
	return promote_key(table, queue, &key, (Datum) 0);
}

/*
 * Scans all groups of a queue, and promotes up to max that have no head.  Returns how many; if some
 * groups are left, requests another scan.  Begins after the group at which the last scan stopped,
 * and continues with the first group when it reaches the last one.  If each scan began with the
 * first group, many scans would read the first groups each time.
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

	if (left_off.name != NULL)
		pfree(left_off.name);
	left_off.name = NULL;
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		if (promoted >= max)
		{
			left_off.queue_id = queue->id;
			MemoryContextSwitchTo(TopMemoryContext);
			if (name != (Datum) 0)
				left_off.name = DatumGetTextPCopy(name);
			idemq_groups_want_scan(queue->qstate, queue->id, SCAN_GROUPS, false);
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
		name = PointerGetDatum(PG_DETOAST_DATUM_COPY(job_value(&job, COL_GROUP_KEY)));
		if (last != (Datum) 0)
			pfree(DatumGetPointer(last));
		/* There may be many paused groups: if no job of such a group is ready, skip it. */
		if (idemq_jobs_group_is_paused(table, queue, name, NULL)
				? job.status != JOB_BLOCKED || idemq_pending_groups_pauses()
				: job.status == JOB_BLOCKED || idemq_group_uses_permits(queue, name))
			promoted += promote_named(table, queue, name);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	return promoted;
}

/*
 * Promotes groups that this session has taken: at least one, and more until the slice is over.
 * Gives the others back.  Returns how many were promoted.
 */
static int
promote_taken(JobsTable *table, const QueueInfo *queue, const GroupTaken *groups, int count,
			  const Slice *slice)
{
	ReleasedChildren released = {0};
	List *all_joined = NIL;
	ListCell *cell;
	int promoted = 0;

	for (int i = 0; i < count; i++)
	{
		const GroupKey *key = &groups[i].key;
		Datum name = PointerGetDatum(cstring_to_text_with_len(key->name, key->length));
		Datum joined = (Datum) 0;

		CHECK_FOR_INTERRUPTS();
		if (i > 0 && idemq_slice_is_over(slice))
		{
			idemq_pending_groups_done(queue->qstate, &groups[i], GROUP_AGAIN);
			continue;
		}
		promoted += promote_owned(table, queue, &groups[i], name, false, &released, &joined);
		if (joined != (Datum) 0)
			all_joined = lappend(all_joined, DatumGetPointer(joined));
	}
	if (released.count > 0)
		idemq_dependency_released(released.ids, released.tokens, released.count);
	/* When all children have joined their groups, because the ids decide which one is first. */
	foreach(cell, all_joined)
	{
		idemq_jobs_refresh(table);
		promoted += promote_named(table, queue, PointerGetDatum(lfirst(cell)));
	}
	list_free(all_joined);
	return promoted;
}

/* Promotes up to max of the groups of a queue that are marked. */
static int
promote_marked(JobsTable *table, const QueueInfo *queue, int max, const Slice *slice)
{
	GroupTaken *groups = palloc(Min(max, PROMOTE_BATCH) * sizeof(GroupTaken));
	int promoted = 0;
	int taken = 0;
	int batch;
	int count;
	/*
	 * Groups that are marked again meanwhile are left for the next call; otherwise this might never
	 * end.
	 */
	int marked = idemq_groups_marked();

	do
	{
		batch = Min(max - promoted, PROMOTE_BATCH);
		idemq_pending_groups_reserve(batch);
		count = idemq_groups_take(queue->qstate, queue->id, groups, batch);
		for (int i = 0; i < count; i++)
			idemq_pending_groups_note_owned(queue->qstate, &groups[i]);
		if (count > 0)
			idemq_jobs_refresh(table);
		promoted += promote_taken(table, queue, groups, count, slice);
		taken += count;
	} while (count == batch && promoted < max && taken < marked && !idemq_slice_is_over(slice));
	pfree(groups);
	return promoted;
}

/*
 * Continues a scan of a queue's children, for which marks may be missing, for a slice.  Without a
 * worker, continues until max children are promoted or all were looked at, because no other process
 * does it.  Returns how many were promoted.
 */
static int
scan_children(JobsTable *table, const QueueInfo *queue, int max, Slice *slice)
{
	ChildrenScan scan;
	int promoted = 0;
	int ends = 0;

	/* Above READ COMMITTED this is left to other sessions: job/dependencies.c. */
	if (table->crosscheck != InvalidSnapshot)
		return 0;
	/* A scan may begin in the middle of the children, so it must reach the end twice. */
	while (promoted < max && ends < 2 &&
		   idemq_groups_take_children(queue->qstate, queue->id, &scan))
	{
		int marked = 0;

		scan.at_end = true;
		if (idemq_dependencies_exist())
		{
			/* The snapshot must be younger than the ownership of the scan. */
			idemq_jobs_refresh(table);
			marked = idemq_children_scan(table, queue, slice, &scan);
		}
		ends += scan.at_end;
		idemq_groups_leave_children(queue->qstate, queue->id, &scan);
		if (idemq_worker_present())
			break;
		if (marked > 0)
			promoted += promote_marked(table, queue, max - promoted, slice);
	}
	return promoted;
}

/* Returns whether there may be groups to promote. */
bool
idemq_promote_wanted(const QueueInfo *queue)
{
	return idemq_due_at(queue->qstate, DUE_GROUPS) <= idemq_mono_now();
}

/*
 * Promotes up to max heads of a queue's groups in this transaction: of the marked groups, or, if
 * marks may be missing, of all groups.  Returns how many were promoted.
 */
int
idemq_promote_some(const QueueInfo *queue, int max)
{
	JobsTable table;
	int promoted;
	Slice slice;
	bool scan;

	/* A claim has no time limit, because it promotes a limited number of jobs. */
	idemq_slice_begin(&slice, idemq_worker_self() != NULL ? SLICE_OF_TASK : PG_INT64_MAX);
	idemq_jobs_open(&table);
	idemq_dependencies_learn(queue);
	/* Before the scan is taken, because a scan that an error interrupts must be repeated. */
	idemq_pending_groups_note_scan(queue->qstate, queue->id);
	scan = idemq_groups_take_scan(queue->qstate, queue->id);
	if (!scan)
		idemq_pending_groups_note_scan(NULL, 0);
	promoted = promote_marked(&table, queue, max, &slice);
	if (scan && promoted < max)
	{
		/* The snapshot must be younger than the ownership of the scan. */
		idemq_jobs_refresh(&table);
		promoted += scan_groups(&table, queue, max - promoted);
	}
	else if (scan)
		idemq_groups_want_scan(queue->qstate, queue->id, SCAN_GROUPS, false);
	idemq_pending_groups_note_scan(queue->qstate, queue->id);
	promoted += scan_children(&table, queue, max - promoted, &slice);
	idemq_pending_groups_note_scan(NULL, 0);
	idemq_jobs_close(&table);
	return promoted;
}

/*
 * Like idemq_promote_some, for the worker, which then calls idemq_promote_may_linger.  While many
 * jobs of a queue are ready, no session waits for its next heads, and promoting many heads at a
 * time costs less than a signal, a wake-up and a transaction for each.
 */
void
idemq_promote_batch(const QueueInfo *queue)
{
	ScanStart line;

	if (idemq_promote_some(queue, PROMOTE_BATCH) == 0)
		return;
	idemq_scan_start_read(queue->qstate, queue->id, 1, &line);
	may_linger |= line.read_ahead.left >= LONG_LINE;
}

/*
 * Returns whether the worker may pause for a moment without delaying a session, because the queues
 * in which it has promoted since the last call have many ready jobs.
 */
bool
idemq_promote_may_linger(void)
{
	bool answer = may_linger;

	may_linger = false;
	return answer;
}

/*
 * Promotes a group that has no head or has a free permit.  Returns false if no job was promoted,
 * because none may be, or because that is not known.
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
 * Marks a group one of whose jobs is being claimed, so that the next session that promotes promotes
 * its next job.  Does not wait for the commit of the claim, because the lease entry already shows
 * it.
 */
void
idemq_promote_later(const QueueInfo *queue, Datum name)
{
	text *value = DatumGetTextPP(name);
	GroupKey key;

	idemq_group_key(&key, queue->id, VARDATA_ANY(value), (int) VARSIZE_ANY_EXHDR(value));
	idemq_group_mark(queue->qstate, &key, GROUP_KEEP_LOW_WATER);
}
