/*
 * table/jobs_dependencies.c
 *		Parents and children: the rows of idemq.dependencies and idemq.children.
 *
 * idemq.dependencies contains one row per child and parent, for as long as the child's row exists.
 * idemq.children contains one row per child that still waits for a parent.  The transaction that
 * makes the child pending, or adds it to its group, deletes that row.  A job with such a row is
 * blocked, without a group; or it is cancelled, and will be blocked again if it is retried.
 *
 * waits_for is the parent that the child watches: all its parents with smaller ids are done.  It
 * only grows, so each parent of a child is examined once before the child is released, no matter
 * how many parents there are and in which order they finish.
 *
 * A parent is done when it has completed, or, if the child's on_parent_failure is run, when it is
 * dead or cancelled.  A parent whose row does not exist was completed, unless gone_as says
 * otherwise, because idemq does not delete a parent for which a child waits
 * (table/jobs_deletable.c).  gone_as says that the parent was dead or cancelled when the child was
 * enqueued, or contains its status when it was deleted through SQL (purge, drop_queue, a DBA).
 *
 * Flows that grow.  While a job P is running, its worker can add parents to a child C of P with
 * idemq.add_parents (job/add_parents.c).  Let A be a transaction that adds the parent X.  A locks
 * the row of P FOR SHARE until A ends.  So the transaction that ends the attempt waits for A, or is
 * A itself.
 *
 * Why waits_for can stay as it is.  A adds X only if C waits, waits_for is at most P's id, and X's
 * id is greater than P's.  So X comes after the parent that C watches, and a look that passes P goes
 * on to X.  Can a look pass P without seeing X?  It passes P only if its snapshot shows that P is
 * done.  There are two cases:
 *
 *	 - The snapshot shows the end of the attempt that A holds.  That end becomes visible after A, or
 *	   together with A, so the snapshot also shows A's rows.  If A is rolled back, or the savepoint in
 *	   which it called add_parents, its rows and its lock on P disappear together.
 *	 - The snapshot shows an earlier end of P: P had completed, and was run again; or it was dead or
 *	   cancelled, C says run, and P was retried.  A look that has seen that end may not be over yet
 *	   when A begins.  Any look that moves a watch or releases a child owns the child's mark
 *	   (shared/groups/groups.c) from before its snapshot until its transaction's end is visible.  So A
 *	   first locks P, then checks that no other session owns the mark, and only then takes the
 *	   snapshot with which it reads C's rows.  That snapshot shows the results of all earlier looks:
 *	   if one of them has passed P, then C is released or watches a later parent, and A raises 55000.
 *	   A later look sees that P is running.  If another session owns the mark, A waits a moment for
 *	   the worker; if that does not help, A returns locked and adds nothing.  A need not check its
 *	   own looks, because it sees what they have written.  If A itself has retried P, other sessions
 *	   still see P as done, and A raises 55000.
 *
 * A does not check whether P has ended before, because P's row does not always show it.  A finished
 * job can lose its key and be retried without it, and a job that was cancelled before its first
 * attempt has no history.
 *
 *		Model: test/model/add_parents.pml.
 *
 * So C cannot start too early: until A ends, P is not done, and then X is in the way.  C is not
 * forgotten either.  What releases C is the end of P or of X, and both are followed as if X had been
 * a parent from the start: like an enqueue, A sets the bits of X and C in the filter before it
 * writes the row (shared/groups/dependencies.c).  X may fail before A is visible, and then the end
 * of X does not lead to C.  So A's commit marks C, as an enqueue does.
 *
 * Why no cycle can be closed.  Call a job a source if it has no row in idemq.children.  A job can
 * get that row only when it is enqueued, and keeps it while it waits or may wait again.  So a source
 * remains a source, and add_parents cannot give it parents.  X and each of its ancestors must be
 * either a source or a job that A has enqueued.  A reads all ancestors of X, and refuses X if C is
 * one of them.  No other transaction can give parents to these ancestors: sources never get any, and
 * the jobs that A has enqueued are visible to A alone.  So when A writes the row, A has seen every
 * path from X to an ancestor, and C is on none of them.  This is true for each row that is written,
 * so two calls cannot close a cycle together, even at the same time.  To learn whether A has
 * enqueued a job, A looks for it with a snapshot from before A's first command, which does not show
 * such a job.
 *
 * Two transactions can add parents to one child at the same time, since neither writes a row that
 * the other writes.  If both add the same parent, the second one finds that the first one's row is
 * in doubt, and returns locked for that parent.
 *
 * A look, that is, an examination of a child, uses the snapshot of the caller's open jobs table, as
 * the fetch of the child's own row does.  So it reads everything under one snapshot.  Reads use a
 * given index and read row by row (table/jobs_dependencies_scan.c), so they do not read more rows
 * than necessary, whatever the statistics say.  table/jobs_dependencies_write.c contains the writes.
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/base.h"
#include "table/table.h"

static const char *const failure_names[] =
	{[FAILURE_CANCELS] = "cancel", [FAILURE_WAITS] = "wait", [FAILURE_RUNS] = "run", NULL};

static SqlStatement find_queue = {.text = "SELECT queue_id FROM idemq.jobs WHERE id = $1",
								  .types = {INT8OID},
								  .fields = SQL_SCALAR(int32)};
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

	if (!OidIsValid(oid)) /* CREATE EXTENSION is running, and has not created it yet */
		return false;
	rel = table_open(oid, AccessShareLock);
	any = RelationGetNumberOfBlocks(rel) > 0;
	table_close(rel, AccessShareLock);
	return any;
}

/* Returns the ParentFailure of a name. */
static ParentFailure
read_failure(Datum name)
{
	text *value = DatumGetTextPP(name);
	Size length = VARSIZE_ANY_EXHDR(value);
	int i = 0;

	while (failure_names[i] != NULL && (strlen(failure_names[i]) != length ||
										memcmp(failure_names[i], VARDATA_ANY(value), length) != 0))
		i++;
	if (failure_names[i] == NULL)
		elog(ERROR, "unknown on_parent_failure of a child");
	return (ParentFailure) i;
}

/* Reads a child's row in idemq.children; returns false if there is none. */
static bool
read_child(Snapshot snapshot, int64 child, DependencyLook *look)
{
	DependencyScan scan;
	bool found;

	idemq_dependency_scan_open(&scan, CHILDREN_BY_ID, snapshot);
	idemq_dependency_scan_from(&scan, child, 0);
	found = idemq_dependency_scan_next(&scan);
	if (found)
	{
		TupleTableSlot *row = scan.slot;

		*look = (DependencyLook){.id = child,
								 .waits_for = idemq_dependency_scan_int64(&scan, CHILD_WAITS_FOR)};
		look->on_failure = read_failure(row->tts_values[CHILD_ON_PARENT_FAILURE - 1]);
		if (!row->tts_isnull[CHILD_GROUP_KEY - 1])
			look->group =
				PointerGetDatum(PG_DETOAST_DATUM_COPY(row->tts_values[CHILD_GROUP_KEY - 1]));
	}
	idemq_dependency_scan_close(&scan);
	return found;
}

/* Reads the parent of the current edge: its row, or, if it was deleted, its status from the edge. */
static void
read_parent(JobsTable *table, const DependencyScan *edge, DependencyParent *parent)
{
	Job job;

	*parent = (DependencyParent){.id = idemq_dependency_scan_int64(edge, EDGE_PARENT)};
	parent->gone = !idemq_jobs_fetch(table, parent->id, &job);
	if (!parent->gone)
	{
		parent->status = job.status;
		parent->queue_id = job.queue_id;
	}
	else if (edge->slot->tts_isnull[EDGE_GONE_AS - 1])
		parent->status = JOB_COMPLETED;
	else
		parent->status =
			idemq_status_from_oid(DatumGetObjectId(edge->slot->tts_values[EDGE_GONE_AS - 1]));
}

/* Returns whether a parent is dead or cancelled. */
static bool
has_failed(const DependencyParent *parent)
{
	return parent->status == JOB_DEAD || parent->status == JOB_CANCELLED;
}

/* Returns whether a child must wait for a parent, or must be cancelled because of it. */
static bool
is_obstacle(const DependencyParent *parent, ParentFailure on_failure)
{
	if (on_failure == FAILURE_RUNS)
		return !parent->gone && parent->status != JOB_COMPLETED && !has_failed(parent);
	return parent->status != JOB_COMPLETED;
}

/*
 * Checks what a child waits for, under the table's snapshot: reads its parents in the order of their
 * ids, from the watched one to the first obstacle.  Returns false if it waits for no parents; this
 * includes a child whose edges have not been restored yet.  Rows fetched from the table before are
 * no longer valid.
 */
bool
idemq_dependency_look(JobsTable *table, int64 child, DependencyLook *look)
{
	DependencyScan edge;
	bool any = false;

	if (!idemq_dependencies_exist() || !read_child(table->snapshot, child, look))
		return false;
	look->is_free = true;
	idemq_dependency_scan_open(&edge, EDGES_BY_CHILD, table->snapshot);
	idemq_dependency_scan_from(&edge, child, look->waits_for);
	while (look->is_free && idemq_dependency_scan_next(&edge))
	{
		CHECK_FOR_INTERRUPTS();
		any = true;
		read_parent(table, &edge, &look->obstacle);
		look->is_free = !is_obstacle(&look->obstacle, look->on_failure);
	}
	if (!any)
	{
		idemq_dependency_scan_from(&edge, child, PG_INT64_MIN);
		any = idemq_dependency_scan_next(&edge);
	}
	idemq_dependency_scan_close(&edge);
	return any;
}

/* Returns whether a job waits for parents, under the latest snapshot. */
bool
idemq_dependency_waits(int64 child)
{
	Snapshot latest = RegisterSnapshot(GetLatestSnapshot());
	DependencyScan edge;
	DependencyLook look;
	bool waits = idemq_dependencies_exist() && read_child(latest, child, &look);

	if (waits)
	{
		idemq_dependency_scan_open(&edge, EDGES_BY_CHILD, latest);
		idemq_dependency_scan_from(&edge, child, PG_INT64_MIN);
		waits = idemq_dependency_scan_next(&edge);
		idemq_dependency_scan_close(&edge);
	}
	UnregisterSnapshot(latest);
	return waits;
}

/*
 * Finds a parent that is dead or cancelled, or was when it was deleted; returns false if there is
 * none.  Rows fetched from the table before are no longer valid.
 */
bool
idemq_dependency_failed_parent(JobsTable *table, int64 child, DependencyParent *parent)
{
	DependencyScan edge;
	bool found = false;

	idemq_dependency_scan_open(&edge, EDGES_BY_CHILD, table->snapshot);
	idemq_dependency_scan_from(&edge, child, PG_INT64_MIN);
	while (!found && idemq_dependency_scan_next(&edge))
	{
		CHECK_FOR_INTERRUPTS();
		read_parent(table, &edge, parent);
		found = has_failed(parent);
	}
	idemq_dependency_scan_close(&edge);
	return found;
}

/*
 * Reads a child's row in idemq.children under a snapshot, but not its parents.  Returns false if the
 * job waits for no parent.
 */
bool
idemq_dependency_child(Snapshot snapshot, int64 child, DependencyLook *look)
{
	return idemq_dependencies_exist() && read_child(snapshot, child, look);
}

/* Returns whether there is a row for a child and a parent, even if it has not been committed. */
DependencyRow
idemq_dependency_row(int64 child, int64 parent)
{
	DependencyRow row = DEPENDENCY_NONE;
	SnapshotData dirty;
	DependencyScan edge;

	InitDirtySnapshot(dirty);
	idemq_dependency_scan_open(&edge, EDGES_BY_CHILD, &dirty);
	idemq_dependency_scan_from(&edge, child, parent);
	if (idemq_dependency_scan_next(&edge) &&
		idemq_dependency_scan_int64(&edge, EDGE_PARENT) == parent)
		row = TransactionIdIsValid(dirty.xmin) ? DEPENDENCY_IN_DOUBT : DEPENDENCY_THERE;
	idemq_dependency_scan_close(&edge);
	return row;
}

/* Finds the queue of a job; returns false if there is no such job. */
bool
idemq_dependency_queue_of(int64 job_id, int32 *queue_id)
{
	Datum value = Int64GetDatum(job_id);

	return idemq_spi_row(&find_queue, &value, queue_id, sizeof(*queue_id));
}

/* Creates an empty page with room for max children. */
static void
begin_page(DependencyPage *page, int max)
{
	*page = (DependencyPage){.children = palloc(max * sizeof(DependencyChild)), .is_last = true};
}

/*
 * Reads the children that are cancelled because their parent is dead, cancelled or deleted: up to
 * max edges, from an id on.
 */
static void
read_cancelled(Snapshot snapshot, int64 parent, int64 from, int max, DependencyPage *page)
{
	DependencyScan edge;
	DependencyScan child;
	int edges = 0;

	begin_page(page, max);
	idemq_dependency_scan_open(&edge, EDGES_BY_PARENT, snapshot);
	idemq_dependency_scan_open(&child, CHILDREN_BY_ID, snapshot);
	idemq_dependency_scan_from(&edge, parent, from);
	while (idemq_dependency_scan_next(&edge))
	{
		int64 id = idemq_dependency_scan_int64(&edge, EDGE_CHILD);

		if (edges++ == max)
		{
			page->is_last = false;
			page->next = id;
			break;
		}
		idemq_dependency_scan_from(&child, id, 0);
		if (idemq_dependency_scan_next(&child) &&
			read_failure(child.slot->tts_values[CHILD_ON_PARENT_FAILURE - 1]) == FAILURE_CANCELS)
			page->children[page->count++] =
				(DependencyChild){id, DatumGetInt32(child.slot->tts_values[CHILD_QUEUE_ID - 1]),
								  idemq_dependency_scan_int64(&child, CHILD_WAITS_FOR) == parent};
	}
	idemq_dependency_scan_close(&child);
	idemq_dependency_scan_close(&edge);
}

/* Reads up to max children that watch a parent, or are in a queue, from an id on. */
static void
read_children(DependencyIndex by, Snapshot snapshot, int64 of, int64 from, int max,
			  DependencyPage *page)
{
	DependencyScan scan;

	begin_page(page, max);
	idemq_dependency_scan_open(&scan, by, snapshot);
	idemq_dependency_scan_from(&scan, of, from);
	while (page->is_last && idemq_dependency_scan_next(&scan))
	{
		int64 id = idemq_dependency_scan_int64(&scan, CHILD_ID);

		if (page->count == max)
		{
			page->is_last = false;
			page->next = id;
		}
		else
			page->children[page->count++] =
				(DependencyChild){id, DatumGetInt32(scan.slot->tts_values[CHILD_QUEUE_ID - 1]),
								  true};
	}
	idemq_dependency_scan_close(&scan);
}

/*
 * Reads a page of the children that the end of a parent may affect, from an id on: those that watch
 * it and, if it has failed (or was deleted), those that are cancelled with it.  max: maximum number
 * of rows read of either kind.  Consecutive pages contain every child that was visible during all of
 * them.
 */
void
idemq_dependency_children(Snapshot snapshot, int64 parent, bool failed, int64 from, int max,
						  DependencyPage *page)
{
	DependencyPage cancelled;
	int count = 0;

	read_children(CHILDREN_BY_WATCHED, snapshot, parent, from, max, page);
	if (!failed)
		return;
	read_cancelled(snapshot, parent, from, max, &cancelled);
	/* The next page begins where the shorter of the two ends. */
	if (!cancelled.is_last && (page->is_last || cancelled.next < page->next))
	{
		page->is_last = false;
		page->next = cancelled.next;
	}
	page->children =
		repalloc(page->children, Max(page->count + cancelled.count, 1) * sizeof(DependencyChild));
	for (int i = 0; i < cancelled.count; i++)
	{
		if (!cancelled.children[i].watches)
			page->children[page->count++] = cancelled.children[i];
	}
	pfree(cancelled.children);
	qsort(page->children, page->count, sizeof(DependencyChild), idemq_compare_int64);
	while (count < page->count && (page->is_last || page->children[count].id < page->next))
		count++;
	page->count = count;
}

/* Reads up to max children that are in a queue, from an id on. */
void
idemq_dependency_waiting(Snapshot snapshot, int32 queue_id, int64 from, int max,
						 DependencyPage *page)
{
	read_children(CHILDREN_BY_QUEUE, snapshot, queue_id, from, max, page);
}

/* Returns the parents of a job, in the order of their ids. */
DependencyGone *
idemq_dependency_parents(JobsTable *table, int64 child, int *count)
{
	int room = 16;
	DependencyGone *parents;
	DependencyScan edge;
	int64 seen_token = 0;

	*count = 0;
	if (!idemq_dependencies_exist())
		return NULL;
	parents = palloc(room * sizeof(DependencyGone));
	idemq_dependency_scan_open(&edge, EDGES_BY_CHILD, table->snapshot);
	idemq_dependency_scan_from(&edge, child, PG_INT64_MIN);
	while (idemq_dependency_scan_next(&edge))
	{
		bool *isnull = edge.slot->tts_isnull;
		DependencyGone *parent;

		CHECK_FOR_INTERRUPTS();
		if (*count == room)
			parents = repalloc_huge(parents, (room *= 2) * sizeof(DependencyGone));
		parent = &parents[(*count)++];
		*parent = (DependencyGone){.id = idemq_dependency_scan_int64(&edge, EDGE_PARENT),
								   .gone = !isnull[EDGE_GONE_AS - 1]};
		if (parent->gone)
			parent->gone_as =
				idemq_status_from_oid(DatumGetObjectId(edge.slot->tts_values[EDGE_GONE_AS - 1]));
		if (!isnull[EDGE_SEEN_TOKEN - 1])
			seen_token = Max(seen_token, idemq_dependency_scan_int64(&edge, EDGE_SEEN_TOKEN));
	}
	idemq_dependency_scan_close(&edge);
	for (int i = 0; i < *count; i++)
		parents[i].seen_token = seen_token;
	return parents;
}

/* Returns up to max edges after one, in the order of child and parent. */
DependencyEdge *
idemq_dependency_edges(const DependencyEdge *behind, int max, int *count)
{
	Datum values[] = {Int64GetDatum(behind->child), Int64GetDatum(behind->parent),
					  Int32GetDatum(max)};

	IDEMQ_STOP("idemq_dependency_edges");
	return idemq_spi_rows(&find_edges, values, sizeof(DependencyEdge), count);
}
