/*
 * table/jobs_dependencies.c
 *		Parents and children: the rows of idemq.dependencies and idemq.children.
 *
 * idemq.dependencies has a row for each child and parent, for as long as the child's row is
 * there.  idemq.children has a row for each child whose parents are not done.  That row goes
 * in the transaction that makes the child pending, or lets it join its group.  A job with such
 * a row is blocked, without a group; or it is cancelled, and blocked again when it is brought
 * back.
 *
 * waits_for is the parent that the child watches: all its parents with lesser ids are done.
 * It only grows, so each parent of a child is looked at once on the way to its release,
 * however many there are and in whichever order they finish.
 *
 * A parent counts as done when it is completed, and, if the child says run, when it is dead or
 * cancelled.  A parent whose row is gone was completed, unless gone_as says otherwise: nothing
 * else deletes a parent of a child that it can see.  gone_as says that the parent was dead or
 * cancelled when the child was enqueued, or what it was when SQL deleted it (purge, drop_queue,
 * a DBA).
 *
 * Reads go by the latest snapshot.  The writes: table/jobs_dependencies_write.c.
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/pg_type.h"
#include "storage/bufmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "base/base.h"
#include "table/table.h"

/*
 * Row by row from an id on, each parent looked up, so that no plan reads more than it has to.
 * The child and the id are an outer query's, or parameters.
 */
#define PARENTS_FROM(child, id)                                                                    \
	"(SELECT d.parent, d.gone_as, (SELECT ARRAY[j.status::text, j.queue_id::text] "                \
	"FROM idemq.jobs j WHERE j.id = d.parent) AS job FROM idemq.dependencies d "                   \
	"WHERE d.child = " child " AND d.parent >= " id " ORDER BY d.parent OFFSET 0) x "
#define STATUS "coalesce(x.job[1], x.gone_as::text, 'completed')"

#define PARENT_FIELDS(type, parent)                                                                \
	SQL_FIELD(type, parent id), SQL_FIELD(type, parent status), SQL_FIELD(type, parent queue_id),  \
		SQL_FIELD(type, parent gone)

static const char *const failure_names[] =
	{[FAILURE_CANCELS] = "cancel", [FAILURE_WAITS] = "wait", [FAILURE_RUNS] = "run", NULL};

/*
 * What each child waits for, and the first of its parents that is in its way.  A child without
 * edges is one whose edges are still to be restored.
 */
static SqlStatement find_looks =
	{.in_order = true,
	 .text =
		 "SELECT c.job_id, c.on_parent_failure, c.group_key, c.waits_for, o.parent IS NULL, "
		 "(SELECT j.xmin FROM idemq.jobs j WHERE j.id = m.id), o.parent, "
		 "o.status::idemq.status, o.queue_id, o.gone FROM unnest($1) m (id) CROSS JOIN LATERAL "
		 "(SELECT * FROM idemq.children WHERE job_id = m.id OFFSET 0) c LEFT JOIN LATERAL "
		 "(SELECT x.parent, " STATUS
		 " AS status, x.job[2]::int4 AS queue_id, x.job IS NULL AS gone "
		 "FROM " PARENTS_FROM(
			 "c.job_id",
			 "c.waits_for") "WHERE " STATUS " <> 'completed' "
							"AND (c.on_parent_failure <> 'run' OR x.job IS NOT NULL "
							"AND x.job[1] NOT IN ('dead', 'cancelled')) LIMIT 1) o ON true "
							"WHERE EXISTS (SELECT FROM idemq.dependencies d WHERE d.child = m.id)",
	 .types = {INT8ARRAYOID},
	 .fields =
		 (const SqlField[]){SQL_FIELD(DependencyLook, id),
							SQL_CHOICE(DependencyLook, on_failure, failure_names),
							SQL_FIELD(DependencyLook, group), SQL_FIELD(DependencyLook, waits_for),
							SQL_FIELD(DependencyLook, is_free), SQL_FIELD(DependencyLook, version),
							PARENT_FIELDS(DependencyLook, obstacle.)}};
static SqlStatement find_failed =
	{.in_order = true,
	 .text = "SELECT x.parent, (" STATUS
			 ")::idemq.status, x.job[2]::int4, x.job IS NULL FROM " PARENTS_FROM(
				 "$1", "$2") "WHERE " STATUS " IN ('dead', 'cancelled') LIMIT 1",
	 .types = {INT8OID, INT8OID},
	 .fields = (const SqlField[]){PARENT_FIELDS(DependencyParent, )}};
static SqlStatement find_queue = {.text = "SELECT queue_id FROM idemq.jobs WHERE id = $1",
								  .types = {INT8OID},
								  .fields = (const SqlField[]){{0, sizeof(int32), NULL}}};
/* Row by row, as above: statistics may say that a job has all children, or none. */
static SqlStatement find_children =
	{.few = true,
	 .text = "SELECT job_id, queue_id, true FROM idemq.children WHERE waits_for = $1 "
			 "UNION ALL SELECT x.child, x.queue_id, false FROM (SELECT d.child, "
			 "(SELECT c.queue_id FROM idemq.children c WHERE c.job_id = d.child "
			 "AND c.on_parent_failure = 'cancel') AS queue_id FROM idemq.dependencies d "
			 "WHERE d.parent = $1 AND NOT EXISTS (SELECT FROM idemq.jobs j "
			 "WHERE j.id = $1 AND j.status NOT IN ('dead', 'cancelled')) OFFSET 0) x "
			 "WHERE x.queue_id IS NOT NULL ORDER BY 1",
	 .types = {INT8OID},
	 .fields = (const SqlField[]){SQL_FIELD(DependencyChild, id),
								  SQL_FIELD(DependencyChild, queue_id),
								  SQL_FIELD(DependencyChild, watches)}};
/* Those that a look may change: their parents are done, or one of them has failed. */
static SqlStatement find_resolvable =
	{.in_order = true,
	 .text = "SELECT c.job_id FROM idemq.children c WHERE c.queue_id = $1 "
			 "AND (SELECT b.status = 'blocked' AND b.group_key IS NULL FROM idemq.jobs b "
			 "WHERE b.id = c.job_id) "
			 "AND (SELECT true FROM idemq.dependencies d WHERE d.child = c.job_id LIMIT 1) "
			 "AND (coalesce((SELECT p.finished_at IS NOT NULL AND (c.on_parent_failure <> 'wait' "
			 "OR p.status NOT IN ('dead', 'cancelled')) FROM idemq.jobs p "
			 "WHERE p.id = c.waits_for), true) "
			 "OR c.on_parent_failure = 'cancel' AND (SELECT true FROM idemq.dependencies d "
			 "WHERE d.child = c.job_id AND coalesce((SELECT q.status FROM idemq.jobs q "
			 "WHERE q.id = d.parent), d.gone_as) IN ('dead', 'cancelled') LIMIT 1)) "
			 "ORDER BY c.job_id + 0 LIMIT $2",
	 .types = {INT4OID, INT4OID},
	 .fields = (const SqlField[]){{0, sizeof(int64), NULL}}};
static SqlStatement find_parents =
	{.few = true,
	 .text = "SELECT parent, gone_as IS NOT NULL, gone_as, max(seen_token) OVER () "
			 "FROM idemq.dependencies WHERE child = $1 ORDER BY parent",
	 .types = {INT8OID},
	 .fields = (const SqlField[]){SQL_FIELD(DependencyGone, id), SQL_FIELD(DependencyGone, gone),
								  SQL_FIELD(DependencyGone, gone_as),
								  SQL_FIELD(DependencyGone, seen_token)}};
static SqlStatement find_edges =
	{.in_order = true,
	 .text = "SELECT d.child, d.parent, d.queue_id, "
			 "(SELECT j.queue_id FROM idemq.jobs j WHERE j.id = d.parent) "
			 "FROM idemq.dependencies d WHERE (d.child, d.parent) > ($1, $2) "
			 "ORDER BY d.child, d.parent LIMIT $3",
	 .types = {INT8OID, INT8OID, INT4OID},
	 .fields = (const SqlField[]){SQL_FIELD(DependencyEdge, child),
								  SQL_FIELD(DependencyEdge, parent),
								  SQL_FIELD(DependencyEdge, child_queue),
								  SQL_FIELD(DependencyEdge, parent_queue)}};

/* Returns the text of on_parent_failure. */
const char *
idemq_failure_name(ParentFailure failure)
{
	return failure_names[failure];
}

/* Returns whether there may be any dependency in this database. */
bool
idemq_dependencies_exist(void)
{
	Oid oid = idemq_oids()->dependencies;
	Relation rel;
	bool any;

	if (!OidIsValid(oid)) /* CREATE EXTENSION has not come to it yet */
		return false;
	rel = table_open(oid, AccessShareLock);
	any = RelationGetNumberOfBlocks(rel) > 0;
	table_close(rel, AccessShareLock);
	return any;
}

/*
 * Returns what children wait for, in the order of their ids, palloc'ed, without those that wait
 * for no parents; all by one snapshot, the latest.
 */
DependencyLook *
idemq_dependency_looks(const int64 *children, int *count)
{
	Datum ids = idemq_int8_array(children, *count);
	DependencyLook *looks;

	*count = 0;
	if (!idemq_dependencies_exist())
		return NULL;
	looks = idemq_spi_rows(&find_looks, &ids, sizeof(DependencyLook), count);
	qsort(looks, *count, sizeof(DependencyLook), idemq_compare_int64);
	pfree(DatumGetPointer(ids));
	return looks;
}

/* Returns whether a job waits for parents. */
bool
idemq_dependency_waits(int64 child)
{
	int count = 1;

	(void) idemq_dependency_looks(&child, &count);
	return count > 0;
}

/* Finds a parent that is dead or cancelled, or gone as such; false when none is. */
bool
idemq_dependency_failed_parent(int64 child, DependencyParent *parent)
{
	Datum values[] = {Int64GetDatum(child), Int64GetDatum(PG_INT64_MIN)};

	return idemq_spi_row(&find_failed, values, parent, sizeof(*parent));
}

/* Returns the queue of a job; false when there is no such job. */
bool
idemq_dependency_queue_of(int64 job_id, int32 *queue_id)
{
	Datum value = Int64GetDatum(job_id);

	return idemq_spi_row(&find_queue, &value, queue_id, sizeof(*queue_id));
}

/*
 * Returns the children that the end of a parent may concern: those that watch it, and, unless it
 * is completed, those that are cancelled with it.  A child may come twice.
 */
DependencyChild *
idemq_dependency_children(int64 parent, int *count)
{
	Datum value = Int64GetDatum(parent);

	return idemq_spi_rows(&find_children, &value, sizeof(DependencyChild), count);
}

/* Returns the parents of a job, by their ids. */
DependencyGone *
idemq_dependency_parents(int64 child, int *count)
{
	Datum value = Int64GetDatum(child);

	*count = 0;
	return idemq_dependencies_exist()
			   ? idemq_spi_rows(&find_parents, &value, sizeof(DependencyGone), count)
			   : NULL;
}

/* Returns children of a queue, up to max, that a look at their parents may change. */
int64 *
idemq_dependency_resolvable(int32 queue_id, int max, int *count)
{
	Datum values[] = {Int32GetDatum(queue_id), Int32GetDatum(max)};

	return idemq_spi_rows(&find_resolvable, values, sizeof(int64), count);
}

/* Returns up to max edges behind one, in the order of child and parent. */
DependencyEdge *
idemq_dependency_edges(const DependencyEdge *behind, int max, int *count)
{
	Datum values[] = {Int64GetDatum(behind->child), Int64GetDatum(behind->parent),
					  Int32GetDatum(max)};

	IDEMQ_STOP("idemq_dependency_edges");
	return idemq_spi_rows(&find_edges, values, sizeof(DependencyEdge), count);
}
