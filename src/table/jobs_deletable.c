/*
 * table/jobs_deletable.c
 *		Which jobs may be deleted: the one decision of purge, retention, a commit in a queue
 *		that keeps nothing, and drop_queue.
 *
 * A job may be deleted unless a job that stays waits for it: a child that has not finished, and
 * that is not deleted in the same call.  A job that has to stay, and has not finished, waits for
 * its own parents, so these stay as well.
 *
 * First lock the rows, then ask.  An enqueue of a child holds each parent's row FOR KEY SHARE
 * until its transaction ends (job/new_child.c).  So once the caller holds the row FOR UPDATE, no
 * such enqueue is open: each child is committed, and the latest snapshot, which is taken here,
 * sees it.  An enqueue that comes later waits for the caller.  The snapshot of the caller's
 * transaction, or of its statement, would not do: it may be older than a child.
 *
 * With "holds", the rows of idemq.dependencies and idemq.children that the deletion will write
 * are locked as well.  If another transaction holds one of them, such as an open purge in a
 * child's queue, the job stays.  So neither this decision nor the deletion waits.
 *
 * A caller may also ask before it has locked the rows.  That answer may be out of date at once,
 * but it spares locks on jobs that stay.  Such locks would keep workers from these jobs, and make
 * enqueues of children wait.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"

#include "base/base.h"
#include "shared/groups/groups.h"
#include "table/table.h"

/* A job that has not finished, and waits for that parent. */
typedef struct Waiting
{
	int64 parent;
	int64 child;
} Waiting;

/* Jobs that may have parents or children, in the order of their ids. */
typedef struct Candidates
{
	int64 *ids;
	int count;
	bool *stays;
	int64 *spread; /* those that stay, and whose parents have not been looked up */
	int nspread;
} Candidates;

/*
 * Row by row, so that each plan is an index lookup for each job and each child, whatever the
 * statistics say.  For a single job any child decides.
 */
static SqlStatement find_waiting =
	{.few = true,
	 .text = "SELECT m.id, x.child FROM unnest($1) m (id) CROSS JOIN LATERAL (SELECT d.child, "
			 "(SELECT j.finished_at IS NULL FROM idemq.jobs j WHERE j.id = d.child) AS waits "
			 "FROM idemq.dependencies d WHERE " DEPENDENCIES_OF_PARENT(
				 "m.id") "OFFSET 0) x WHERE x.waits LIMIT $2",
	 .types = {INT8ARRAYOID, INT8OID},
	 .fields = (const SqlField[]){SQL_FIELD(Waiting, parent), SQL_FIELD(Waiting, child)}};
/* The parents of those jobs that have not finished. */
static SqlStatement find_parents =
	{.few = true,
	 .text = "SELECT x.parent FROM unnest($1) m (id) CROSS JOIN LATERAL (SELECT d.parent "
			 "FROM idemq.dependencies d WHERE d.child = m.id OFFSET 0) x "
			 "WHERE (SELECT j.finished_at IS NULL FROM idemq.jobs j WHERE j.id = m.id)",
	 .types = {INT8ARRAYOID},
	 .fields = (const SqlField[]){{0, sizeof(int64), NULL}}};

/* The rows that a job has as a child, as a parent, and while it waits. */
#define ROWS_AS_CHILD "idemq.dependencies WHERE child = m.id"
#define ROWS_AS_PARENT "idemq.dependencies WHERE " DEPENDENCIES_OF_PARENT("m.id")
#define ROW_OF_WAIT "idemq.children WHERE job_id = m.id"
#define ALL_LOCKED(rows, strength)                                                                 \
	"(SELECT count(*) FROM (SELECT FROM " rows " FOR " strength " SKIP LOCKED) held) = "           \
	"(SELECT count(*) FROM " rows ") "

/*
 * Those jobs for which every row that a deletion writes is now locked: the rows that they have as
 * children, and, with $2, those that tell their children that they are gone.
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
	 .fields = (const SqlField[]){{0, sizeof(int64), NULL}}};

/* Returns the position of a job among the candidates, -1 when it is not one of them. */
static int
candidate(const Candidates *candidates, int64 id)
{
	const int64 *found =
		bsearch(&id, candidates->ids, candidates->count, sizeof(int64), idemq_compare_int64);

	return found == NULL ? -1 : (int) (found - candidates->ids);
}

/* Notes that a candidate stays. */
static void
keep(Candidates *candidates, int place)
{
	if (candidates->stays[place])
		return;
	candidates->stays[place] = true;
	candidates->spread[candidates->nspread++] = candidates->ids[place];
}

/* Keeps what unfinished jobs that are not candidates wait for. */
static void
keep_for_others(Candidates *candidates)
{
	Datum values[] = {idemq_int8_array(candidates->ids, candidates->count),
					  Int64GetDatum(candidates->count == 1 ? 1 : PG_INT64_MAX)};
	Waiting *waiting;
	int count;

	waiting = idemq_spi_rows(&find_waiting, values, sizeof(Waiting), &count);
	for (int i = 0; i < count; i++)
	{
		if (candidate(candidates, waiting[i].child) < 0)
			keep(candidates, candidate(candidates, waiting[i].parent));
	}
	pfree(waiting);
	pfree(DatumGetPointer(values[0]));
}

/* Keeps the parents of what stays and has not finished, and their parents, and so on. */
static void
keep_for_kept(Candidates *candidates)
{
	while (candidates->nspread > 0)
	{
		Datum ids = idemq_int8_array(candidates->spread, candidates->nspread);
		int64 *parents;
		int count;

		CHECK_FOR_INTERRUPTS();
		candidates->nspread = 0;
		/* A single candidate has no parent among the candidates. */
		if (candidates->count == 1)
			return;
		parents = idemq_spi_rows(&find_parents, &ids, sizeof(int64), &count);
		for (int i = 0; i < count; i++)
		{
			int place = candidate(candidates, parents[i]);

			if (place >= 0)
				keep(candidates, place);
		}
		pfree(parents);
		pfree(DatumGetPointer(ids));
	}
}

/* Moves the candidates that do not stay to the front; returns how many there are. */
static int
compact(Candidates *candidates)
{
	int left = 0;

	for (int i = 0; i < candidates->count; i++)
	{
		if (!candidates->stays[i])
			candidates->ids[left++] = candidates->ids[i];
	}
	return left;
}

/* Locks what the deletion of the candidates that do not stay will write, or keeps them. */
static void
hold(Candidates *candidates, bool told)
{
	int64 *leaving = palloc(candidates->count * sizeof(int64));
	Datum values[] = {0, BoolGetDatum(told)};
	int64 *held;
	int nleaving = 0;
	int nheld;
	int next = 0;

	for (int i = 0; i < candidates->count; i++)
	{
		if (!candidates->stays[i])
			leaving[nleaving++] = candidates->ids[i];
	}
	values[0] = idemq_int8_array(leaving, nleaving);
	held = idemq_spi_rows(&hold_rows, values, sizeof(int64), &nheld);
	/* Both are in the order of the ids. */
	for (int i = 0; i < nleaving; i++)
	{
		if (next < nheld && held[next] == leaving[i])
			next++;
		else
			keep(candidates, candidate(candidates, leaving[i]));
	}
	pfree(held);
	pfree(DatumGetPointer(values[0]));
	pfree(leaving);
}

/*
 * Moves those ids to the front whose jobs may be deleted together, and returns how many there
 * are.  The caller holds the rows of all of them FOR UPDATE.  qstate: of the jobs' queue, or NULL.
 * holds: locks what the deletion writes in other tables, and keeps a job if another transaction
 * holds some of that.  told: the deletion also writes the rows of the jobs' children.
 */
int
idemq_jobs_deletable(const QueueState *qstate, int64 *ids, int count, bool holds, bool told)
{
	Candidates candidates = {0};
	int unrelated = 0;

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
	candidates.stays = MemoryContextAllocExtended(CurrentMemoryContext, candidates.count,
												  MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	candidates.spread =
		MemoryContextAllocHuge(CurrentMemoryContext, candidates.count * sizeof(int64));
	keep_for_others(&candidates);
	keep_for_kept(&candidates);
	if (holds)
	{
		hold(&candidates, told);
		keep_for_kept(&candidates);
	}
	count = unrelated + compact(&candidates);
	pfree(candidates.stays);
	pfree(candidates.spread);
	return count;
}

/*
 * Asks whether this transaction may delete a fetched job that finishes, or has finished, with that
 * status.  JOB_LOCKED: another transaction holds it, or a child waits for it.  *related: whether it
 * may have parents or children; with JOB_WRITTEN its row is locked then.  A caller that has deleted
 * the row calls idemq_jobs_check_deleted.
 */
JobWrite
idemq_jobs_may_delete(JobsTable *table, const Job *job, const QueueState *qstate, JobStatus status,
					  bool *related)
{
	bool told = status != JOB_COMPLETED;
	int64 id = job->id;
	JobWrite write;

	*related = false;
	/* In this order: an enqueue of a child is in the filter before it holds the job. */
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
 * Looks again after the deletion of a row.  A job that had neither parents nor children was not
 * locked before, which spares WAL.  From the deletion on, an enqueue of a child waits.  One that
 * came in between has committed by now, and is in the filter: then this raises 40001.  It concerns
 * only the first child of a job.
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
