/*
 * shared/groups/dependencies.c
 *		Which jobs may have parents or children (idemq.dependencies), in shared memory; and
 *		the marks by which children follow their parents' ends.
 *
 * A child is looked at after its own commit, and after the end of a parent.  A job's children
 * are not known when it ends: their rows may not be committed yet, and are not to be looked
 * for at each end of each job.  So there is a filter: a bit for the hash of each job that has
 * parents or children, and a bit for each queue, which says whether it has such jobs at all.  A job
 * whose bit is clear is no parent; one whose bit is set may be, and is marked when it has ended.
 * The session that takes the mark (job/dependencies.c) looks its children up.
 *
 * No end of a parent is missed.  Call E an enqueue of a child, and P the end of one of its
 * parents:
 *
 *		E: sets the bits; writes its rows; is visible; marks the child.
 *		P: is visible; reads the filter; marks the parent if its bit is set.
 *
 * If P reads the filter before E sets the bit, P is visible before the child is marked: the
 * session that takes that mark takes its snapshot after it, and sees P.  Otherwise P marks the
 * parent.  The session that takes that mark sees the child and looks at it; or does not see
 * it, and then E was not visible by then, and P was: again the child's own mark comes later
 * than P.  Bits are set before the rows are written, and never cleared: a rollback leaves one
 * too many, and PREPARE TRANSACTION needs nothing.
 *		Model: test/model/dependencies.pml; a child of two parents, two learners, two sessions that
 *		take marks, one abort.
 *
 * After a start nothing is known: each queue counts as one that has children, and each job as a
 * parent, until the rows of idemq.dependencies have been read (idemq_dependencies_learn_begin,
 * the rows, idemq_dependencies_learn_end): what is committed after these were read sets its bits
 * itself.  What ends in between is marked in any case.  Several sessions may read them at a time.
 * Before it reads, each notes how often each queue state was unset; afterwards it makes known only
 * the queue states that were not unset since: what it has read is not older than that.  The same
 * holds after COMMIT PREPARED, whose transaction may have set its bits before a restart, and when
 * rows were written by hand or by a restore.  Each of these has all queues scanned for children
 * whose parents are done (shared/groups/groups.c: groups_want_scan), which finds what ended before.
 *
 * A mark is an entry of the table of groups (shared/groups/groups.c), under a name that no
 * group can have: it begins with a zero byte.  So the rest is as with groups: one session at a time
 * owns the mark; a mark that comes meanwhile is kept for the time after; if there is no room, the
 * queue must be scanned.  A scan looks at the queue's own children, and those of a parent may be in
 * any queue: so if there is no room for the mark of a parent, all queues must be scanned that may
 * have dependencies.  Marks have room of their own: dependencies take none from groups.
 *
 * A parent's children are looked up some at a time.  In between, the low-water mark of the parent's
 * mark is the id of the child that is next.  Another end of the parent drops it, so that all
 * children are looked up again.
 *
 * Without a worker it may be that no session ever claims from a parent's queue again, and
 * takes its mark: then a parent's end has all queues scanned that may have dependencies.  A
 * parent's queue may have no state, and so no marks: then the parent's end, by hand or by a
 * cancel, has all rows read anew (txn/pending.c).
 *
 * The bits are never taken back before the next start: with as many dependencies since as there
 * are bits, most jobs of queues with dependencies are marked in vain, for one lookup each.
 *
 * Locks: none; atomics.  What is called after commit neither allocates nor raises.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"

#include "shared/groups/groups.h"
#include "shared/processes/processes.h"

/* Of the filter: 128 kB. */
#define BITS (1 << 20)
#define WORD_BITS 32

static pg_atomic_uint32 *filter = NULL;

static void
init_filter(int tranche)
{
	for (int i = 0; i < BITS / WORD_BITS; i++)
		pg_atomic_init_u32(&filter[i], 0);
}

const ShmemPart idemq_dependencies_part = {.area = (void **) &filter,
										   .size = BITS / WORD_BITS * sizeof(pg_atomic_uint32),
										   .init = init_filter};

/* Returns the bit of a job of this database. */
static uint32
bit_of(int64 job_id)
{
	return murmurhash32((uint32) job_id ^ murmurhash32((uint32) (job_id >> 32) ^ MyDatabaseId)) %
		   BITS;
}

/*
 * Notes that a job has parents or children; qstate: its queue's.  To be called before the
 * rows that say so are written.
 */
void
idemq_dependency_note(QueueState *qstate, int64 job_id)
{
	uint32 bit = bit_of(job_id);

	/* In this order: a reader of DEPENDENCIES_SOME finds the bit.  Both are barriers. */
	(void) pg_atomic_fetch_or_u32(&filter[bit / WORD_BITS], 1U << (bit % WORD_BITS));
	if (qstate != NULL)
		(void) pg_atomic_fetch_or_u32(&qstate->dependencies, DEPENDENCIES_SOME);
}

static uint32
state_of(const QueueState *qstate)
{
	return pg_atomic_read_u32(unconstify(pg_atomic_uint32 *, &qstate->dependencies));
}

/* Returns whether a job may have parents or children; qstate: its queue's. */
bool
idemq_may_have_dependencies(const QueueState *qstate, int64 job_id)
{
	uint32 state = qstate == NULL ? 0 : state_of(qstate) & DEPENDENCIES_BITS;
	uint32 bit;

	if (state == DEPENDENCIES_KNOWN)
		return false;
	if ((state & DEPENDENCIES_KNOWN) == 0)
		return true;
	pg_read_barrier();
	bit = bit_of(job_id);
	return (pg_atomic_read_u32(&filter[bit / WORD_BITS]) & (1U << (bit % WORD_BITS))) != 0;
}

/* Returns whether the filter can be relied on for a queue's jobs. */
bool
idemq_dependencies_is_known(const QueueState *qstate)
{
	return (state_of(qstate) & DEPENDENCIES_KNOWN) != 0;
}

/*
 * To be called before the snapshot by which all rows of this database are read and noted.
 * Returns what idemq_dependencies_learn_end takes, palloc'ed.
 */
uint32 *
idemq_dependencies_learn_begin(void)
{
	uint32 *begun = palloc(idemq_max_queues * sizeof(uint32));
	QueueStateView view = {0};

	/* No queue state has that number, less its bits: one that is not visited here stays unknown. */
	memset(begun, 0xFF, idemq_max_queues * sizeof(uint32));
	while (idemq_qstate_next(MyDatabaseId, &view))
		begun[idemq_qstate_index(view.qstate)] = state_of(view.qstate) & ~DEPENDENCIES_BITS;
	pg_memory_barrier();
	return begun;
}

/*
 * To be called when all rows have been noted.  unseen: some parent has no row, so its queue
 * was not noted.  As a rule that parent is gone; or a parallel restore is yet to bring it, into
 * any queue.  So every queue may have parents then, and its jobs' own bits decide.
 */
void
idemq_dependencies_learn_end(uint32 *begun, bool unseen)
{
	uint32 learned = unseen ? DEPENDENCIES_BITS : DEPENDENCIES_KNOWN;
	QueueStateView view = {0};

	IDEMQ_STOP("idemq_dependencies_learn_end");
	while (idemq_qstate_next(MyDatabaseId, &view))
	{
		uint32 state = state_of(view.qstate);

		/* A queue state that has since been unset, or given to a queue, stays as it is. */
		while ((state & ~DEPENDENCIES_SOME) == begun[idemq_qstate_index(view.qstate)] &&
			   !pg_atomic_compare_exchange_u32(&view.qstate->dependencies, &state, state | learned))
			;
	}
	pfree(begun);
}

/* Makes the key of a mark, of a job of this database. */
void
idemq_dependency_key(GroupKey *key, int32 queue_id, DependencyMark mark, int64 job_id)
{
	idemq_group_key(key, queue_id, (const char *) &job_id, sizeof(job_id));
	key->kind = (int16) mark;
}

/* Reads the key of a mark; false for a group's key. */
bool
idemq_dependency_read(const GroupKey *key, DependencyMark *mark, int64 *job_id)
{
	if (key->kind < KIND_CHILD)
		return false;
	*mark = (DependencyMark) key->kind;
	memcpy(job_id, key->name, sizeof(*job_id));
	return true;
}

/* Asks for a scan of the children of every queue that may have jobs with parents or children. */
static void
dependencies_want_scans(void)
{
	QueueStateView view = {0};

	while (idemq_qstate_next(MyDatabaseId, &view))
	{
		if ((state_of(view.qstate) & DEPENDENCIES_BITS) != DEPENDENCIES_KNOWN)
			idemq_groups_want_scan(view.qstate, view.queue_id, SCAN_CHILDREN, false);
	}
}

/* Marks a child whose commit is visible, or a parent whose end is: for all of its children. */
void
idemq_dependency_mark(QueueState *qstate, int32 queue_id, DependencyMark mark, int64 job_id)
{
	GroupKey key;

	idemq_dependency_key(&key, queue_id, mark, job_id);
	if (!idemq_group_mark(qstate, &key, GROUP_DROP_LOW_WATER) && mark == DEPENDENCY_PARENT)
		dependencies_want_scans();
}

/* Marks a job that has finished, or may have, if it may be a parent; after the commit. */
void
idemq_dependency_finished(QueueState *qstate, int32 queue_id, int64 job_id)
{
	IDEMQ_STOP("idemq_dependency_finished");
	if (!idemq_may_have_dependencies(qstate, job_id))
		return;
	if (idemq_worker_present())
		idemq_dependency_mark(qstate, queue_id, DEPENDENCY_PARENT, job_id);
	else
		dependencies_want_scans();
}
