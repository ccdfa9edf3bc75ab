/*
 * table/jobs_version.h
 *		The visible version of a row, from the place that its index entries name.
 */
#ifndef IDEMQ_TABLE_JOBS_VERSION_H
#define IDEMQ_TABLE_JOBS_VERSION_H

#include "executor/tuptable.h"
#include "utils/rel.h"
#include "utils/snapshot.h"

extern bool idemq_version_fetch(Relation rel, Snapshot snapshot, const ItemPointerData *root,
								TupleTableSlot *row, bool *all_dead, HeapTupleHeaderData *header);

#endif
