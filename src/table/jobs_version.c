/*
 * table/jobs_version.c
 *		Finds the visible version of a row from its HOT root TID, which is the TID in its index
 *		entries.
 *
 * All index entries of a row point to one line pointer, the root of a HOT chain of versions on one
 * page.  A HOT update adds a version to the chain, but no index entry.  The root stays as long as a
 * version in the chain may be visible; pruning redirects it to the first remaining version.  The
 * other versions may be pruned, and their TIDs reused, at any time.  So the TID of the root may be
 * remembered, but not the TID of a version.
 *
 * A remembered root TID is only a hint.  What it leads to is a version that the snapshot sees and
 * that has the right id; there is at most one such version, and the primary key would have led to
 * the same.  A hint fails if the row was moved by an update that was not HOT, if it was deleted, or
 * if the table was rewritten into another file (VACUUM FULL, CLUSTER, TRUNCATE).  By then, the TID
 * may belong to another row (idemq_jobs_fetch_at).  The block may no longer exist, because a vacuum
 * may have truncated the file; our lock on the table prevents the next truncation.
 *
 * Pruning: PostgreSQL's index scans try to prune a page on every visit if it is filled beyond the
 * fill factor.  Pages of this table usually are, because a fill factor of 45 leaves room for the
 * versions that a job's life adds.  So a page is pruned here only if it has less room than six more
 * versions of the fetched row need: for what the caller is about to write, and for what other
 * sessions write until a prune succeeds.  (With 8 claiming sessions, 7 % of the claims left a page
 * with room for three, 3 % with six, and more again with twelve, because most prunes then removed a
 * single version.)  The page is pruned before the row is stored in the slot, because the slot's pin
 * would prevent the cleanup lock.  If a page cannot be pruned (because of a held snapshot, or
 * another session's pin), each fetch tries again, as any scan does.
 *
 * Isolation level, concurrent updates: heap_hot_search_buffer does the same as an index scan,
 * including predicate locks on the row.  User's triggers and indexes do not matter.
 */
#include "postgres.h"

#include "access/heapam.h"
#include "storage/bufmgr.h"

#include "base/compat.h"
#include "table/table.h"

/* A page is pruned if it has less room than this number of versions needs. */
#define ROOM_FOR_VERSIONS 6

/*
 * Fetches into row the version that a snapshot sees of the row with a HOT root TID.  Returns false
 * if it sees none; then *all_dead is whether no snapshot sees any.  Sets *header to the header of
 * the version at the moment when it was found (jobs_hold.c).
 */
bool
idemq_version_fetch(Relation rel, Snapshot snapshot, const ItemPointerData *root_tid,
					TupleTableSlot *row, bool *all_dead, HeapTupleHeaderData *header)
{
	HeapTuple tuple = &((BufferHeapTupleTableSlot *) row)->base.tupdata;
	ItemPointerData tid = *root_tid;
	Buffer buffer;
	bool found;

	ExecClearTuple(row);
	buffer = ReadBuffer(rel, ItemPointerGetBlockNumber(root_tid));
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	found = heap_hot_search_buffer(&tid, rel, buffer, snapshot, tuple, all_dead, true);
	if (found &&
		(PageIsFull(BufferGetPage(buffer)) ||
		 PageGetHeapFreeSpace(BufferGetPage(buffer)) < ROOM_FOR_VERSIONS * MAXALIGN(tuple->t_len)))
	{
		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
		compat_prune(rel, buffer);
		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		/* The version that the snapshot sees still exists, but may have moved within the page. */
		tid = *root_tid;
		found = heap_hot_search_buffer(&tid, rel, buffer, snapshot, tuple, all_dead, true);
	}
	if (found)
		memcpy(header, tuple->t_data, SizeofHeapTupleHeader);
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	if (found)
		ExecStorePinnedBufferHeapTuple(tuple, row, buffer);
	else
		ReleaseBuffer(buffer);
	return found;
}
