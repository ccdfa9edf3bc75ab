/*
 * hooks/row_estimates.c
 *		Planner hook that corrects the expected number of rows in our tables.
 *
 * A queue's tables are full at one time and empty at another.  If a table was analyzed while it
 * was empty, or had few rows in many pages, the planner expects hardly any rows, however large the
 * table has become.  All plans then seem to cost the same, and the planner may choose one that
 * reads the whole table, or a whole index, once per row.  Therefore, if the planner expects fewer
 * rows than pages in one of our tables, and fewer than TRUSTED_ROWS, we estimate like PostgreSQL
 * does for a table that was never analyzed: every page is full.  If that is too many rows, a plan
 * may read the pages once, which a sequential scan would do, too.  With TRUSTED_ROWS rows or more,
 * the planner avoids bad plans.
 *
 * The hook applies to every statement that uses our tables, including those of users.  It does not
 * change the statistics of columns.  It takes no locks, and does not use shared memory.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "nodes/pathnodes.h"
#include "storage/bufpage.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "base/base.h"
#include "base/compat.h"
#include "hooks/hooks.h"

/* An estimate of at least this number of rows is not corrected. */
#define TRUSTED_ROWS 100

static compat_relation_hook_type prev_relation_hook = NULL;

/* Returns whether a table is in one of the extension's schemas. */
static bool
is_ours(Oid relid)
{
	char *schema = get_namespace_name(get_rel_namespace(relid));

	return schema != NULL &&
		   (strcmp(schema, IDEMQ_SCHEMA) == 0 || strcmp(schema, IDEMQ_INTERNAL_SCHEMA) == 0);
}

/* Returns the number of rows in a full page, computed as in PostgreSQL's estimate_rel_size. */
static double
rows_of_full_page(Oid relid)
{
	Relation rel = table_open(relid, NoLock); /* the query has locked it */
	int32 width = MAXALIGN(get_rel_data_width(rel, NULL)) + MAXALIGN(SizeofHeapTupleHeader) +
				  sizeof(ItemIdData);
	int usable = (BLCKSZ - SizeOfPageHeaderData) *
				 RelationGetFillFactor(rel, HEAP_DEFAULT_FILLFACTOR) / 100;

	table_close(rel, NoLock);
	return Max(usable / width, 1);
}

/* Corrects the number of rows that the planner expects in a table and in its indexes. */
static void
raise_estimate(Oid relid, RelOptInfo *rel)
{
	ListCell *cell;

	/* The first condition is cheap, and holds for most tables, so is_ours is rarely called. */
	if (rel->tuples >= Min(rel->pages, TRUSTED_ROWS) || !is_ours(relid))
		return;
	rel->tuples = rel->pages * rows_of_full_page(relid);
	foreach(cell, rel->indexlist)
	{
		IndexOptInfo *index = lfirst_node(IndexOptInfo, cell);

		/* A partial index may have fewer rows than the table, so assume only one per page. */
		if (index->indpred == NIL)
			index->tuples = rel->tuples;
		else
			index->tuples = Max(index->tuples, Min(index->pages, rel->tuples));
	}
}

COMPAT_RELATION_HOOK(relation_hook, prev_relation_hook, raise_estimate)

/* Installs the hook; called once, from _PG_init. */
void
idemq_row_estimates_install(void)
{
	prev_relation_hook = COMPAT_RELATION_HOOK_POINTER;
	COMPAT_RELATION_HOOK_POINTER = relation_hook;
}
