/*
 * table/jobs_deletable.c
 *		Which jobs may be deleted.  Purge, retention, a commit in a queue that keeps nothing, and
 *		drop_queue all use this decision.
 *
 * A job may be deleted unless a job that is kept waits for it, that is, a child that has not
 * finished and is not deleted in the same call.  A job that is kept and has not finished waits for
 * its own parents, so these are kept as well.
 *
 * The caller first locks the rows, and then asks.  An enqueue of a child holds the row of each
 * parent FOR KEY SHARE until its transaction ends (job/new_child.c).  So once the caller holds the
 * row FOR UPDATE, no such enqueue is open, each child is committed, and the latest snapshot, which
 * is taken here, sees it.  An enqueue that comes later waits for the caller.  The snapshot of the
 * caller's transaction or statement would not do, because it may be older than a child.
 *
 * With "holds", the rows of idemq.dependencies and idemq.children that the deletion will write are
 * locked as well.  If another transaction holds one of them, such as an open purge of a child's
 * queue, the job is kept.  So neither this decision nor the deletion waits.
 *
 * A caller may also ask before it has locked the rows.  The result may then be out of date at once,
 * but it avoids locks on jobs that are kept.  Such locks would keep workers from these jobs, and
 * make enqueues of children wait.
 *
 * Locks: with "holds", row locks on idemq.dependencies and idemq.children; never waits for them.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"

#include "base/base.h"
#include "shared/groups/groups.h"
#include "table/table.h"

/* A child that has not finished, and waits for a parent. */
typedef struct Waiting
{
	int64 parent;
	int64 child;
} Waiting;

/* Jobs to delete that may have parents or children, in the order of their ids. */
typedef struct Candidates
{
	int64 *ids;
	int count;
	bool *kept;		 /* the job must be kept */
	int64 *new_kept; /* jobs that are kept, and whose parents have not been looked up yet */
	int nnew_kept;
} Candidates;

/*
 * Works row by row, so that the plan is an index lookup for each job and each child, whatever the
 * statistics are.  For a single job, any child decides.
 */
static SqlStatement find_waiting =
	{.few = true,
	 .text = "SELECT m.id, x.child FROM unnest($1) m (id) CROSS JOIN LATERAL (SELECT d.child, "
			 "(SELECT j.finished_at IS NULL FROM idemq.jobs j WHERE j.id = d.child) AS waits "
			 "FROM idemq.dependencies d WHERE " DEPENDENCIES_OF_PARENT(
				 "m.id") "OFFSET 0) x WHERE x.waits LIMIT $2",
	 .types = {INT8ARRAYOID, INT8OID},
	 .fields = (const SqlField[]){SQL_FIELD(Waiting, parent), SQL_FIELD(Waiting, child)}};
/* The parents of those of the jobs that have not finished. */
static SqlStatement find_parents =
	{.few = true,
	 .text = "SELECT x.parent FROM unnest($1) m (id) CROSS JOIN LATERAL (SELECT d.parent "
			 "FROM idemq.dependencies d WHERE d.child = m.id OFFSET 0) x "
			 "WHERE (SELECT j.finished_at IS NULL FROM idemq.jobs j WHERE j.id = m.id)",
	 .types = {INT8ARRAYOID},
	 .fields = SQL_SCALAR(int64)};

/* The rows of a job as a child, as a parent, and while it waits. */
#define ROWS_AS_CHILD "idemq.dependencies WHERE child = m.id"
#define ROWS_AS_PARENT "idemq.dependencies WHERE " DEPENDENCIES_OF_PARENT("m.id")
#define ROW_OF_WAIT "idemq.children WHERE job_id = m.id"
#define ALL_LOCKED(rows, strength)                                                                 \
	"(SELECT count(*) FROM (SELECT FROM " rows " FOR " strength " SKIP LOCKED) held) = "           \
	"(SELECT count(*) FROM " rows ") "

/*
 * Locks the rows that a deletion of the jobs writes: their rows as children and, if $2, the rows
 * that tell their children that they are gone.  Returns the jobs of which all rows are locked.
 */
static SqlStatement hold_rows =
	{.few = true,
	 .locks = true,
	 .latest = true,
	 /* clang-format off */
	.text = "SELECT m.id FROM unnest($1) m (id) "
			"WHERE " ALL_LOCKED(ROWS_AS_CHILD, "UPDATE")
			"AND " ALL_LOCKED(ROW_OF_WAIT, "UPDATE")
			"AND (NOT $2 OR " ALL_LOCKED(ROWS_AS_PARENT, "NO KEY UPDATE") ")",
	 /* clang-format on */
	 .types = {INT8ARRAYOID, BOOLOID},
	 .fields = SQL_SCALAR(int64)};

/* Returns the position of a job among the candidates; -1: it is not one of them. */
static int
candidate_position(const Candidates *candidates, int64 id)
{
	const int64 *found =
		bsearch(&id, candidates->ids, candidates->count, sizeof(int64), idemq_compare_int64);

	return found == NULL ? -1 : (int) (found - candidates->ids);
}

/* Notes that a candidate must be kept. */
static void
keep_candidate(Candidates *candidates, int position)
{
	if (candidates->kept[position])
		return;
	candidates->kept[position] = true;
	candidates->new_kept[candidates->nnew_kept++] = candidates->ids[position];
}

/* Keeps the candidates for which unfinished jobs wait that are not candidates. */
static void
keep_for_others(Candidates *candidates)
{
	Datum values[] = {idemq_int8_array(candidates->ids, candidates->count),
					  Int64GetDatum(candidates->count == 1 ? 1 : PG_INT64_MAX)};
	int count;
	Waiting *waiting = idemq_spi_rows(&find_waiting, values, sizeof(Waiting), &count);

	for (int i = 0; i < count; i++)
	{
		if (candidate_position(candidates, waiting[i].child) < 0)
			keep_candidate(candidates, candidate_position(candidates, waiting[i].parent));
	}
	pfree(waiting);
	pfree(DatumGetPointer(values[0]));
}

/*
 * Keeps the parents of unfinished jobs that are kept, and the parents of these parents, and so on.
 */
static void
keep_for_kept(Candidates *candidates)
{
	while (candidates->nnew_kept > 0)
	{
		Datum ids = idemq_int8_array(candidates->new_kept, candidates->nnew_kept);
		int64 *parents;
		int count;

		CHECK_FOR_INTERRUPTS();
		candidates->nnew_kept = 0;
		/* A single candidate has no parent among the candidates. */
		if (candidates->count == 1)
			return;
		parents = idemq_spi_rows(&find_parents, &ids, sizeof(int64), &count);
		for (int i = 0; i < count; i++)
		{
			int position = candidate_position(candidates, parents[i]);

			if (position >= 0)
				keep_candidate(candidates, position);
		}
		pfree(parents);
		pfree(DatumGetPointer(ids));
	}
}

/* Moves the candidates that need not be kept to the front of ids; returns their number. */
static int
copy_deletable(const Candidates *candidates, int64 *ids)
{
	int count = 0;

	for (int i = 0; i < candidates->count; i++)
	{
		if (!candidates->kept[i])
			ids[count++] = candidates->ids[i];
	}
	return count;
}

/* Locks what the deletion of the candidates that need not be kept will write, or keeps them. */
static void
hold_or_keep(Candidates *candidates, bool told)
{
	int64 *leaving = palloc(candidates->count * sizeof(int64));
	int nleaving = copy_deletable(candidates, leaving);
	Datum values[] = {idemq_int8_array(leaving, nleaving), BoolGetDatum(told)};
	int nheld;
	int64 *held = idemq_spi_rows(&hold_rows, values, sizeof(int64), &nheld);
	int next = 0;

	/* Both arrays are in the order of the ids. */
	for (int i = 0; i < nleaving; i++)
	{
		if (next < nheld && held[next] == leaving[i])
			next++;
		else
			keep_candidate(candidates, candidate_position(candidates, leaving[i]));
	}
	pfree(held);
	pfree(DatumGetPointer(values[0]));
	pfree(leaving);
}

/*
 * Moves the ids of the jobs that may be deleted together to the front, and returns their number.
 * The caller holds the rows of all jobs FOR UPDATE.  qstate: the state of the jobs' queue, or
 * NULL.  holds: locks what the deletion writes in other tables, and keeps a job if another
 * transaction holds any of that.  told: the deletion also writes the rows of the jobs' children.
 */
int
idemq_jobs_deletable(const QueueState *qstate, int64 *ids, int count, bool holds, bool told)
{
	Candidates candidates = {0};
	int unrelated = 0;
	int deletable;

	if (count == 0 || !idemq_dependencies_exist())
		return count;
	for (int i = 0; i < count; i++)
	{
		int64 id = ids[i];

		if (idemq_may_have_dependencies(qstate, id))
			continue;
		ids[i] = ids[unrelated];
		ids[unrelated++] = id;
	}
	if (unrelated == count)
		return count;
	candidates.ids = ids + unrelated;
	candidates.count = count - unrelated;
	qsort(candidates.ids, candidates.count, sizeof(int64), idemq_compare_int64);
	candidates.kept = MemoryContextAllocExtended(CurrentMemoryContext, candidates.count,
												 MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	candidates.new_kept =
		MemoryContextAllocHuge(CurrentMemoryContext, candidates.count * sizeof(int64));
	keep_for_others(&candidates);
	keep_for_kept(&candidates);
	if (holds)
	{
		hold_or_keep(&candidates, told);
		keep_for_kept(&candidates);
	}
	deletable = unrelated + copy_deletable(&candidates, candidates.ids);
	pfree(candidates.kept);
	pfree(candidates.new_kept);
	return deletable;
}

/*
 * Checks whether this transaction may delete a fetched job that finishes, or has finished, with a
 * status.  Returns JOB_LOCKED if another transaction holds the job, or if a child waits for it.
 * Sets *related to whether it may have parents or children; if so, and if this returns JOB_WRITTEN,
 * its row is locked.  After the deletion, the caller must call idemq_jobs_check_deleted.
 */
JobWrite
idemq_jobs_may_delete(JobsTable *table, const Job *job, const QueueState *qstate, JobStatus status,
					  bool *related)
{
	bool told = status != JOB_COMPLETED;
	int64 id = job->id;
	JobWrite write;

	*related = false;
	/*
	 * In this order, because an enqueue of a child notes the job in the filter before it locks the
	 * job.
	 */
	if (!idemq_jobs_lets_delete(job))
		return JOB_LOCKED;
	*related = idemq_may_have_dependencies(qstate, id) && idemq_dependencies_exist();
	if (!*related)
		return JOB_WRITTEN;
	if (idemq_jobs_deletable(qstate, &id, 1, false, false) == 0)
		return JOB_LOCKED;
	write = idemq_jobs_lock(table, job, LockTupleExclusive, JOB_SKIPS);
	if (write == JOB_WRITTEN && idemq_jobs_deletable(qstate, &id, 1, true, told) == 0)
		write = JOB_LOCKED;
	return write;
}

/*
 * Checks again after the deletion of a row.  A job without parents or children was not locked
 * before, which avoids WAL.  After the deletion, an enqueue of a child waits.  If one came in
 * between, it has committed by now, and is noted in the filter; then this raises 40001.  This can
 * only happen with the first child of a job.
 */
void
idemq_jobs_check_deleted(const QueueState *qstate, int64 id, bool related)
{
	if (!related && idemq_may_have_dependencies(qstate, id) &&
		idemq_jobs_deletable(qstate, &id, 1, false, false) == 0)
		ereport(ERROR, errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				errmsg("could not delete job %lld because a child was enqueued concurrently",
					   (long long) id),
				errhint("Run the transaction again."));
}
