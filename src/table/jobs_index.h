/*
 * table/jobs_index.h
 *		Index entries of idemq.jobs for rows written by direct access.
 */
#ifndef IDEMQ_TABLE_JOBS_INDEX_H
#define IDEMQ_TABLE_JOBS_INDEX_H

#include "executor/tuptable.h"
#include "utils/rel.h"

/* Which of idemq's own indexes. */
typedef enum JobsIndex
{
	INDEX_READY,
	INDEX_KEY,
	INDEX_GROUP
} JobsIndex;

extern void idemq_jobs_index_install(void);
extern Oid idemq_jobs_index(Relation rel, JobsIndex which);
extern void idemq_jobs_index_insert(Relation rel, TupleTableSlot *row, const uint32 *changed,
									bool only_summarizing);
extern void idemq_jobs_index_insert_rows(Relation rel, TupleTableSlot **rows, int count);
extern bool idemq_jobs_indexes_are_simple(Relation rel);
extern bool idemq_jobs_index_insert_keyed(Relation rel, TupleTableSlot *row);
extern void idemq_jobs_index_insert_heir(Relation rel, TupleTableSlot *row,
										 const ItemPointerData *heir_of);

#endif
