/*
 * hooks/row_estimates.c
 *		How many rows the planner expects in our tables.
 *
 * A queue's tables are full at one time and empty at another.  If they were analyzed while they
 * were empty, the planner computes from that a table without rows, however large its file is by
 * now.  Then every plan costs the same, and it may choose one that reads all jobs for each job, or
 * all of an index for each row.  The same holds for a table that had a few rows in many pages.  So a
 * table of ours that would have fewer rows than pages, and fewer than a hundred, is planned as if it
 * had never been analyzed: PostgreSQL then takes its pages for full.  Where that is too many rows, a
 * plan may read those pages once, which a scan of the table does as well.  A hundred rows or more
 * are enough for the planner to avoid such plans, so it is left to trust them.
 *
 * This concerns every statement on our tables: the extension's, a view's, and one that a user has
 * written.  Statistics of columns stay as they are.  No locks, and nothing of shared memory.
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

/* An estimate of so many rows is trusted. */
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

/* Returns how many rows a full page of a table has, as PostgreSQL estimates it. */
static double
rows_of_full_page(Oid relid)
{
	Relation rel = table_open(relid, NoLock); /* the query holds a lock */
	int32 width = MAXALIGN(get_rel_data_width(rel, NULL)) + MAXALIGN(SizeofHeapTupleHeader) +
				  sizeof(ItemIdData);
	int usable = (BLCKSZ - SizeOfPageHeaderData) *
				 RelationGetFillFactor(rel, HEAP_DEFAULT_FILLFACTOR) / 100;

	table_close(rel, NoLock);
	return Max(usable / width, 1);
}

/* Raises the number of rows that the planner expects in a table, and in its indexes. */
static void
raise_estimate(Oid relid, RelOptInfo *rel)
{
	ListCell *cell;

	/* Seldom true, so that the tables of others cost no lookup. */
	if (rel->tuples >= Min(rel->pages, TRUSTED_ROWS) || !is_ours(relid))
		return;
	rel->tuples = rel->pages * rows_of_full_page(relid);
	foreach(cell, rel->indexlist)
	{
		IndexOptInfo *index = lfirst_node(IndexOptInfo, cell);

		/* A partial index may have fewer rows than the table. */
		if (index->indpred == NIL)
			index->tuples = rel->tuples;
		else
			index->tuples = Max(index->tuples, Min(index->pages, rel->tuples));
	}
}

COMPAT_RELATION_HOOK(relation_hook, prev_relation_hook, raise_estimate)

/* Installs the hook, before those of other libraries. */
void
idemq_row_estimates_install(void)
{
	prev_relation_hook = COMPAT_RELATION_HOOK_POINTER;
	COMPAT_RELATION_HOOK_POINTER = relation_hook;
}
