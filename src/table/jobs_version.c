/*
 * table/jobs_version.c
 *		The visible version of a row, from its HOT root TID, which its index entries name.
 *
 * All index entries of a row name one line pointer, the root of a HOT chain of versions on one
 * page; a HOT update adds a version to the chain, and no entry.  The root stays for as long as a
 * version of the chain may be seen: pruning redirects it to the first that is left.  The other
 * versions are pruned and their TIDs used again at any time: so the root's TID may be remembered,
 * and the TID of a version may not.
 *
 * A root TID that was remembered is a hint, and needs no proof: what is found is a version that
 * the snapshot sees, and of the id asked for; there is one such version at most, and
 * the primary key would have led to it.  A hint misses when the row has moved by
 * an update that was not HOT, was deleted, or the table was rewritten (VACUUM FULL, CLUSTER,
 * TRUNCATE: another file); its TID may be another row's by then (idemq_jobs_fetch_at).
 * The block must be there, since a vacuum may have cut the file; the lock on the table
 * keeps the next one from doing so.
 *
 * Pruning: PostgreSQL's index scans prune a page whenever they come to it and it is
 * filled above the fill factor.  Here pages are meant to be: a fill factor of 45 leaves
 * room for what a job's life adds.  So a page is pruned when less room is left than for
 * six more versions of the row that is fetched: for what is about to be written, and for what
 * others write until a prune that no pin prevents.  (With 8 claimers 7 % of the claims
 * left a page with room for three, 3 % with six, and more again with twelve, when most
 * prunes found a single version.)  The prune comes before the row goes into the slot, whose
 * pin would prevent the cleanup lock.  A page that cannot be pruned (a held snapshot, another's
 * pin) is tried again at each fetch, as by any scan.
 *
 * Isolation, concurrent updates: heap_hot_search_buffer does what an index scan does,
 * predicate locks on the row included.  Users' triggers, indexes: not concerned.
 */
#include "postgres.h"

#include "access/heapam.h"
#include "storage/bufmgr.h"

#include "base/compat.h"
#include "table/table.h"

/* A page is pruned when it has less room than for so many versions more. */
#define ROOM_FOR_VERSIONS 6

/*
 * Fetches into row the version that a snapshot sees of the row whose index entries name root_tid;
 * false when it sees none, with *all_dead true if no snapshot sees one.  *header: the version's
 * header at the moment when it was found (table/jobs_hold.c).
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
		/* What the snapshot sees is left, but it may have moved on the page. */
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
