/*
 * table/jobs_index.c
 *		The indexes of idemq.jobs, and their entries for rows that are written without the executor.
 *
 * idemq's own indexes are b-trees on plain columns, whose predicates only say which columns are
 * NULL or not NULL.  Such an index, ours or a user's, is simple: it does not need the executor, and
 * its predicate is two bit masks here.  If the table has any other index, ExecInsertIndexTuples
 * maintains all of them.
 *
 * The list of indexes and their states come from the relcache in every call, so entries are also
 * written to indexes that CREATE INDEX or REINDEX CONCURRENTLY is building.  Only the shape of an
 * index is remembered, by its OID: a definition cannot change, and an invalidation of the index
 * makes the session forget it.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "catalog/pg_am.h"
#include "executor/executor.h"
#include "nodes/execnodes.h"
#include "nodes/makefuncs.h"
#include "nodes/primnodes.h"
#include "port/pg_bitutils.h"
#include "utils/inval.h"
#include "utils/relcache.h"

#include "base/compat.h"
#include "table/table.h"

#define MAX_SHAPES 32
#define MAX_KEYS 8

typedef struct IndexShape
{
	Oid oid;
	bool simple; /* otherwise, the fields below are meaningless */
	bool unique;
	int nkeys;
	AttrNumber keys[MAX_KEYS];
	uint32 key_columns; /* COLUMN_BITs */
	uint32 not_null;	/* its predicate: these columns are not NULL, */
	uint32 is_null;		/* and these are NULL */
} IndexShape;

static IndexShape shapes[MAX_SHAPES];
static int nshapes = 0;

/* Adds a clause of a predicate to the masks; returns false if it is not a NULL test of a column. */
static bool
add_clause(IndexShape *shape, Node *clause)
{
	NullTest *test = (NullTest *) clause;
	Var *var;

	if (!IsA(clause, NullTest) || test->argisrow || !IsA(test->arg, Var))
		return false;
	var = (Var *) test->arg;
	if (var->varattno < 1 || var->varattno > JOB_COLUMNS)
		return false;
	if (test->nulltesttype == IS_NOT_NULL)
		shape->not_null |= COLUMN_BIT(var->varattno - 1);
	else
		shape->is_null |= COLUMN_BIT(var->varattno - 1);
	return true;
}

/* Returns whether an index is simple; if so, sets its shape. */
static bool
read_shape(Relation index, IndexShape *shape)
{
	Form_pg_index form = index->rd_index;
	ListCell *lc;

	if (index->rd_rel->relam != BTREE_AM_OID || form->indnatts > MAX_KEYS || form->indisexclusion ||
		!form->indimmediate)
		return false;
	shape->unique = form->indisunique;
	shape->nkeys = form->indnatts;
	for (int i = 0; i < form->indnatts; i++)
	{
		AttrNumber attno = form->indkey.values[i];

		if (attno < 1 || attno > JOB_COLUMNS)
			return false;
		shape->keys[i] = attno;
		shape->key_columns |= COLUMN_BIT(attno - 1);
	}
	foreach(lc, RelationGetIndexPredicate(index))
	{
		if (!add_clause(shape, lfirst(lc)))
			return false;
	}
	return true;
}

/* Returns the shape of an index of the locked table. */
static const IndexShape *
index_shape(Oid oid)
{
	IndexShape shape = {0};
	Relation index;

	for (int i = 0; i < nshapes; i++)
	{
		if (shapes[i].oid == oid)
			return &shapes[i];
	}
	index = index_open(oid, RowExclusiveLock);
	shape.oid = oid;
	shape.simple = read_shape(index, &shape);
	index_close(index, RowExclusiveLock);
	if (nshapes == MAX_SHAPES)
		nshapes = 0;
	shapes[nshapes] = shape;
	return &shapes[nshapes++];
}

static void
forget_shapes(Datum arg, Oid relid)
{
	if (relid == InvalidOid)
		nshapes = 0;
	for (int i = 0; i < nshapes; i++)
	{
		if (shapes[i].oid == relid)
			shapes[i--] = shapes[--nshapes];
	}
}

/* Registers the invalidation callback; called once, from _PG_init. */
void
idemq_jobs_index_install(void)
{
	CacheRegisterRelcacheCallback(forget_shapes, (Datum) 0);
}

/* idemq's own indexes, without the primary key. */
static const struct
{
	IndexShape shape;
	const char *name;
	const char *definition;
} own_indexes[] = {
	[INDEX_READY] = {{.nkeys = 4,
					  .keys = {COL_QUEUE_ID + 1, COL_PRIORITY + 1, COL_READY_AT + 1, COL_ID + 1},
					  .not_null = COLUMN_BIT(COL_READY_AT)},
					 "ready index",
					 "INDEX ON idemq.jobs (queue_id, priority, ready_at, id) "
					 "WHERE ready_at IS NOT NULL"},
	[INDEX_KEY] = {{.nkeys = 2,
					.unique = true,
					.keys = {COL_QUEUE_ID + 1, COL_KEY + 1},
					.not_null = COLUMN_BIT(COL_KEY)},
				   "unique index on keys",
				   "UNIQUE INDEX ON idemq.jobs (queue_id, key) WHERE key IS NOT NULL"},
	[INDEX_GROUP] = {{.nkeys = 4,
					  .keys = {COL_QUEUE_ID + 1, COL_GROUP_KEY + 1, COL_READY_AT + 1, COL_ID + 1},
					  .not_null = COLUMN_BIT(COL_GROUP_KEY),
					  .is_null = COLUMN_BIT(COL_FINISHED_AT)},
					 "index on groups",
					 "INDEX ON idemq.jobs (queue_id, group_key, ready_at, id) "
					 "WHERE group_key IS NOT NULL AND finished_at IS NULL"},
};

/* Returns whether an index can serve as that index of ours. */
static bool
is_own_index(const IndexShape *shape, JobsIndex which)
{
	const IndexShape *own = &own_indexes[which].shape;

	return shape->simple && (shape->unique || !own->unique) && shape->nkeys == own->nkeys &&
		   memcmp(shape->keys, own->keys, own->nkeys * sizeof(AttrNumber)) == 0 &&
		   shape->not_null == own->not_null && shape->is_null == own->is_null;
}

/*
 * Returns the OID of a valid index of the locked table, of one of our kinds; raises 55000 if there
 * is none, or returns InvalidOid if missing_ok.
 */
Oid
idemq_jobs_index(Relation rel, JobsIndex which, bool missing_ok)
{
	List *indexes = RelationGetIndexList(rel);
	Oid found = InvalidOid;
	ListCell *lc;

	foreach(lc, indexes)
	{
		Relation index;

		if (!is_own_index(index_shape(lfirst_oid(lc)), which))
			continue;
		/*
		 * A drop of the index waits for our lock on the table; only a scan must lock the index
		 * itself.
		 */
		index = RelationIdGetRelation(lfirst_oid(lc));
		if (index == NULL)
			continue;
		if (index->rd_index->indisvalid)
			found = lfirst_oid(lc);
		RelationClose(index);
	}
	list_free(indexes);
	if (!OidIsValid(found) && !missing_ok)
		ereport(ERROR, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("table \"idemq.jobs\" has no valid %s", own_indexes[which].name),
				errhint("Run CREATE %s.", own_indexes[which].definition));
	return found;
}

/*
 * Writes one entry into an open index whose predicate the caller has checked.  Returns false if
 * check is UNIQUE_CHECK_PARTIAL, and an entry with this key may exist already.
 */
static bool
insert_entry(Relation rel, Relation index, const IndexShape *shape, TupleTableSlot *row,
			 const uint32 *changed, IndexUniqueCheck check)
{
	/*
	 * A b-tree does not read it; another access method would fail because it is not a valid node.
	 */
	static IndexInfo *unused_info = NULL;
	Datum values[INDEX_MAX_KEYS];
	bool isnull[INDEX_MAX_KEYS];
	bool unchanged = changed != NULL && (*changed & shape->key_columns) == 0;
	bool unique;

	if (!index->rd_index->indisready)
		return true;
	/*
	 * An index that is still being built may lack the entry because of which no check is necessary.
	 */
	if (check == UNIQUE_CHECK_NO && !index->rd_index->indisvalid)
		check = UNIQUE_CHECK_YES;

	/* The old version has an entry with this key in the index, so no other row can have it. */
	if (unchanged && (*changed & (shape->not_null | shape->is_null)) == 0 &&
		index->rd_index->indisvalid)
		check = UNIQUE_CHECK_NO;

	Assert(index->rd_rel->relam == BTREE_AM_OID);
	if (unused_info == NULL)
		unused_info = MemoryContextAllocZero(TopMemoryContext, sizeof(IndexInfo));
	for (int i = 0; i < shape->nkeys; i++)
	{
		values[i] = row->tts_values[shape->keys[i] - 1];
		isnull[i] = row->tts_isnull[shape->keys[i] - 1];
	}
	unique = index_insert(index, values, isnull, &row->tts_tid, rel,
						  shape->unique ? check : UNIQUE_CHECK_NO, unchanged, unused_info);
	/* For other checks, the result of index_insert is meaningless. */
	return unique || !shape->unique || check != UNIQUE_CHECK_PARTIAL;
}

/* Writes the entries of all indexes through the executor. */
static void
insert_by_executor(Relation rel, TupleTableSlot *row, const uint32 *changed, bool only_summarizing)
{
	EState *estate = CreateExecutorState();
	ResultRelInfo *result_rel = makeNode(ResultRelInfo);
	Bitmapset *set = NULL;

	for (int i = 0; changed != NULL && i < JOB_COLUMNS; i++)
	{
		if (*changed & COLUMN_BIT(i))
			set = bms_add_member(set, i + 1 - FirstLowInvalidHeapAttributeNumber);
	}
	compat_init_range_table(estate, rel, set);
	InitResultRelInfo(result_rel, rel, 1, NULL, 0);
	ExecOpenIndices(result_rel, false);
	list_free(
		compat_insert_index_tuples(result_rel, row, estate, changed != NULL, only_summarizing));
	ExecCloseIndices(result_rel);
	ExecResetTupleTable(estate->es_tupleTable, false);
	FreeExecutorState(estate);
}

/* Returns whether no index of the locked table needs the executor. */
bool
idemq_jobs_indexes_are_simple(Relation rel)
{
	List *indexes = RelationGetIndexList(rel);
	bool simple = true;
	ListCell *lc;

	foreach(lc, indexes)
		simple &= index_shape(lfirst_oid(lc))->simple;
	list_free(indexes);
	return simple;
}

/* Returns whether an index has an entry for a row, because its predicate holds. */
static bool
predicate_holds(const IndexShape *shape, const TupleTableSlot *row)
{
	for (uint32 left = shape->not_null | shape->is_null; left != 0; left &= left - 1)
	{
		int column = pg_rightmost_one_pos32(left);
		uint32 refused = row->tts_isnull[column] ? shape->not_null : shape->is_null;

		if (refused & COLUMN_BIT(column))
			return false;
	}
	return true;
}

/*
 * Writes the entries of rows into all indexes of the table, which must be simple, one index after
 * the other.  The index of keys comes first, and uses check_key for the uniqueness of keys; the
 * other unique indexes raise 23505.  Returns false, without writing to the other indexes, if
 * check_key is UNIQUE_CHECK_PARTIAL and another row has the key, or may have it.  changed: the
 * columns that an update has set, or NULL for inserts.
 */
bool
idemq_jobs_index_insert_simple(Relation rel, TupleTableSlot **rows, int count,
							   const uint32 *changed, IndexUniqueCheck check_key)
{
	List *indexes = RelationGetIndexList(rel);
	bool unique = true;

	for (int pass = 0; pass < 2 && unique; pass++)
	{
		ListCell *lc;

		foreach(lc, indexes)
		{
			IndexShape shape = *index_shape(lfirst_oid(lc));
			Relation index = NULL;

			if (is_own_index(&shape, INDEX_KEY) != (pass == 0))
				continue;
			for (int i = 0; unique && i < count; i++)
			{
				if (!predicate_holds(&shape, rows[i]))
					continue;
				if (index == NULL)
					index = index_open(shape.oid, RowExclusiveLock);
				unique = insert_entry(rel, index, &shape, rows[i], changed,
									  pass == 0 ? check_key : UNIQUE_CHECK_YES);
			}
			if (index != NULL)
				index_close(index, NoLock);
		}
	}
	list_free(indexes);
	return unique;
}

/*
 * Writes the index entries of a new row version, through the executor if necessary.  changed: the
 * columns that an update has set, or NULL for an insert.  only_summarizing: the update was HOT
 * except for indexes that summarize blocks (PostgreSQL 16 and later).  Raises 23505, and waits,
 * like any INSERT.
 */
void
idemq_jobs_index_insert(Relation rel, TupleTableSlot *row, const uint32 *changed,
						bool only_summarizing)
{
	if (only_summarizing || !idemq_jobs_indexes_are_simple(rel))
		insert_by_executor(rel, row, changed, only_summarizing);
	else
		(void) idemq_jobs_index_insert_simple(rel, &row, 1, changed, UNIQUE_CHECK_YES);
}
