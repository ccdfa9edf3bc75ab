/*
 * shared/groups/dependencies.c
 *		Which jobs may have parents or children (idemq.dependencies); and the marks through which
 *		children are told that their parents have ended.
 *
 * A child must be checked after its own commit, and after the end of each parent.  When a job ends,
 * its children are not known: their rows may not be committed yet, and looking them up at the end
 * of every job would be too expensive.  So there is a filter: a bit for the hash of each job that
 * has parents or children, and two bits per queue, which say whether any of its jobs have.  A job
 * whose bit is clear has no children; a job whose bit is set may have some, and is marked when it
 * has ended.  The session that takes the mark (job/dependencies.c) looks up the children.
 *
 * No end of a parent is missed.  Let E be the enqueue of a child, and P the end of one of its
 * parents:
 *
 *		E: sets the bits; writes its rows; is visible; marks the child.
 *		P: is visible; reads the filter; marks the parent if its bit is set.
 *
 * If P reads the filter before E sets the bit, P is visible before the child is marked, so the
 * session that takes the child's mark takes its snapshot later, and sees P.  Otherwise P marks the
 * parent.  The session that takes the parent's mark either sees the child, and checks it; or it
 * does not see the child, so E was not visible by then, but P was, and again the child's own mark
 * comes later than P.  Bits are set before the rows are written, and never cleared.  So a rollback
 * leaves an unnecessary bit, and PREPARE TRANSACTION needs no special care.
 *		Model: test/model/dependencies.pml; a child of two parents, two learners, two sessions that
 *		take marks, one abort.
 *
 * After a start of the server, nothing is known.  Every queue counts as having children, and every
 * job as a parent, until the rows of idemq.dependencies have been read between
 * idemq_dependencies_learn_begin and idemq_dependencies_learn_end.  Rows that are committed later
 * have set their bits themselves, and whatever ends in between is marked in any case.  Several
 * sessions may read the rows at the same time.  Each of them first records how often each queue
 * state was unset, and afterwards makes known only the queue states that have not been unset since,
 * because what it has read is not older than that.  The same happens after COMMIT PREPARED, whose
 * transaction may have set its bits before a restart, and when rows were written by hand or by a
 * restore.  In each case, all queues are scanned for children whose parents have ended
 * (idemq_groups_want_scan), which finds whatever ended before.
 *
 * A mark is an entry in the table of groups (groups.c), with a kind of its own.  So marks work like
 * marks of groups: one session at a time owns a mark, a mark that is set in the meantime remains
 * set afterwards, and if there is no room, the queue must be scanned.  A scan visits only the
 * children in that queue, but the children of a parent may be in any queue.  So if there is no room
 * for the mark of a parent, all queues that may have dependencies must be scanned.  The number of
 * marks is limited separately, so marks take no room from groups.
 *
 * The children of a parent are looked up a few at a time.  In between, the low-water mark of the
 * parent's mark is the id of the next child.  If the parent ends again, the low-water mark is
 * dropped, and all children are looked up again.
 *
 * Without a worker, it may be that no session ever claims from the parent's queue again, and takes
 * the mark.  Then the end of a parent requests a scan of all queues that may have dependencies.  If
 * the parent's queue has no state, and so no marks, the end of the parent (by hand or by a cancel)
 * makes all rows be read again (txn/pending.c).
 *
 * Once as many dependencies have been recorded since the start as the filter has bits, most jobs in
 * queues with dependencies are marked unnecessarily, for one lookup each.
 *
 * Locks: none, only atomics.  Functions that are called after commit neither allocate nor raise
 * errors.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"

#include "shared/groups/groups.h"
#include "shared/processes/processes.h"

/* The filter has 128 kB. */
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

/* Returns the position of the bit of a job of this database. */
static uint32
bit_of(int64 job_id)
{
	return murmurhash32((uint32) job_id ^ murmurhash32((uint32) (job_id >> 32) ^ MyDatabaseId)) %
		   BITS;
}

/*
 * Notes that a job has parents or children, before the rows that say so are written.  qstate: the
 * state of the job's queue, or NULL.
 */
void
idemq_dependency_note(QueueState *qstate, int64 job_id)
{
	uint32 bit = bit_of(job_id);

	/*
	 * In this order, so that a reader that sees DEPENDENCIES_SOME finds the bit.  Both are
	 * barriers.
	 */
	(void) pg_atomic_fetch_or_u32(&filter[bit / WORD_BITS], 1U << (bit % WORD_BITS));
	if (qstate != NULL)
		(void) pg_atomic_fetch_or_u32(&qstate->dependencies, DEPENDENCIES_SOME);
}

static uint32
state_of(const QueueState *qstate)
{
	return pg_atomic_read_u32(unconstify(pg_atomic_uint32 *, &qstate->dependencies));
}

/* Returns whether a job may have parents or children.  qstate: the state of its queue, or NULL. */
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

/* Returns whether the filter is complete for the jobs of a queue. */
bool
idemq_dependencies_is_known(const QueueState *qstate)
{
	return (state_of(qstate) & DEPENDENCIES_KNOWN) != 0;
}

/*
 * Must be called before the snapshot with which the caller reads all rows of this database, and
 * notes them.  Returns a palloc'ed array for idemq_dependencies_learn_end.
 */
uint32 *
idemq_dependencies_learn_begin(void)
{
	uint32 *begun = palloc(idemq_max_queues * sizeof(uint32));
	QueueStateView view = {0};

	/* No queue state has this number, so one that gets its queue later stays unknown. */
	memset(begun, 0xFF, idemq_max_queues * sizeof(uint32));
	while (idemq_qstate_next(MyDatabaseId, &view))
		begun[idemq_qstate_index(view.qstate)] = state_of(view.qstate) & ~DEPENDENCIES_BITS;
	pg_memory_barrier();
	return begun;
}

/*
 * Must be called after all rows have been noted.  unseen: a parent has no row, so its queue could
 * not be noted.  Usually that parent has been deleted, but a parallel restore may still add it, to
 * any queue.  Therefore every queue may then have parents, and only the bits of its jobs decide.
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

/* Sets the key of the mark of a job of this database. */
void
idemq_dependency_key(GroupKey *key, int32 queue_id, DependencyMark mark, int64 job_id)
{
	idemq_group_key(key, queue_id, (const char *) &job_id, sizeof(job_id));
	key->kind = (int16) mark;
}

/* Sets *mark and *job_id to those of a key; returns false if it is the key of a group. */
bool
idemq_dependency_read(const GroupKey *key, DependencyMark *mark, int64 *job_id)
{
	if (key->kind < KIND_CHILD)
		return false;
	*mark = (DependencyMark) key->kind;
	memcpy(job_id, key->name, sizeof(*job_id));
	return true;
}

/* Requests a scan of the children of every queue that may have any. */
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

/*
 * Marks a child after its commit is visible, or a parent, for all its children, after its end is.
 */
void
idemq_dependency_mark(QueueState *qstate, int32 queue_id, DependencyMark mark, int64 job_id)
{
	GroupKey key;

	idemq_dependency_key(&key, queue_id, mark, job_id);
	if (!idemq_group_mark(qstate, &key, GROUP_DROP_LOW_WATER) && mark == DEPENDENCY_PARENT)
		dependencies_want_scans();
}

/*
 * Marks a job that has finished, or may have finished, if it may be a parent; called after the
 * commit.
 */
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
