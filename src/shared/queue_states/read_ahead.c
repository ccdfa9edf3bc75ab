/*
 * shared/queue_states/read_ahead.c
 *		The read-ahead buffer: a copy of the next entries of a queue's ready index, so that
 *		most claims of a few jobs need no b-tree scan.
 *
 * It has each entry of the index, whoever may see its row, of one priority and a range of
 * keys.  Claims go through it as through the index: what they may pass, and how far the
 * scan start moves, does not depend on the buffer (scan_start.c).  Nothing is taken out of it, so
 * there is nothing to give back: what lies below the scan start is old, and goes with the next
 * install.
 *
 * What a claim needs of the index is this: a version that its snapshot s sees, and that is
 * claimable, has its entry among those that it goes through; or the scan start is lowered to
 * its key, or below, after the claim has read the scan start, at r < s.  The read-ahead buffer
 * keeps that:
 *
 *	 - It is filled by a scan of the index that begins after its session has read the
 *	   sequence of lowerings, at r0.  All entries are copied: of leased jobs, of rows that
 *	   no snapshot shows yet, of dead ones.
 *	 - At install it is cut at the least key lowered since r0; after that, each lowering
 *	   cuts it at its key, under the same lock: entries from that key on go, and the range
 *	   ends there.
 *	 - So let an entry of a key in the range be missing at r.  It came into the index after
 *	   the scan that last filled that place had passed, after r0: its writer will lower the
 *	   scan start, or has done so, after r0.  Before r that would have cut the read-ahead buffer.
 *	   So the lowering comes after r.
 *	 - A row whose update was not HOT has an entry more, and often with the same key: the
 *	   version that a snapshot sees may be that of any of them.  So a read-ahead buffer and a copy
 *	   of it end between two keys (whole_keys): a claim that goes on behind the last key has not
 *	   left an entry of that key out.  Of the key with which a read-ahead buffer begins, it lacks
 *	   only entries that the scan had passed and its snapshot did not see: a session that makes one
 *	   of them claimable lowers to it.
 *	 - A HOT update has no entry of its own: the read-ahead buffer has the root of its chain, as the
 *	   index does.  An update that makes a new entry with an old key (a claim on a full
 *	   page) lowers no scan start when it commits, and need not: its version is not claimable,
 *	   and the version that will be lowers to its own key.
 *	 - What VACUUM has taken out of the index no snapshot saw any more.  Another row may
 *	   stand in its place now: the claim compares the row with the key.  After VACUUM FULL
 *	   the TIDs are of another file: a claim that has the table open compares the file's
 *	   number, and goes by the index.
 *	 - A transaction's own rows, which it may claim before they are committed and lowered
 *	   to, cut its copy (txn/pending_queues.c).  Above READ COMMITTED there is no read-ahead buffer.
 *		Model: test/model/scan_start.pml, with three entries.
 *
 * A queue has one read-ahead buffer, of one priority.  Another buffer replaces it if that has more
 * entries ahead of its scan start, or if this one no longer serves any claim.
 *
 * Locks: the queue state's, which the callers in scan_start.c hold.
 */
#include "postgres.h"

#include "shared/queue_states/queue_states.h"

/* Returns the position of the first entry that is not below a key. */
static int
position(const ReadAhead *read_ahead, ReadyKey key)
{
	int low = 0;
	int high = read_ahead->count;

	while (low < high)
	{
		int middle = (low + high) / 2;

		if (ready_key_less(read_ahead->entries[middle].key, key))
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Returns the key where a read-ahead buffer ends: entries below it are all there. */
ReadyKey
idemq_read_ahead_end(const ReadAhead *read_ahead)
{
	return read_ahead->count == 0 ? read_ahead->from
								  : ready_key_after(read_ahead->entries[read_ahead->count - 1].key);
}

static inline bool
same_key(ReadyKey a, ReadyKey b)
{
	return a.ready_at == b.ready_at && a.id == b.id;
}

/*
 * Returns how many of the first entries, at most so many, end between two keys: each has
 * the others of its key with it.
 */
static int
whole_keys(const ReadyEntry *entries, int count, int most)
{
	if (most >= count)
		return Max(count, 0);
	while (most > 0 && same_key(entries[most - 1].key, entries[most].key))
		most--;
	return Max(most, 0);
}

/* Returns whether a claim that begins at the scan start can go through the read-ahead buffer. */
static bool
serves(const ReadAhead *read_ahead, const ReadyKey *scan_starts)
{
	return read_ahead->count > 0 &&
		   !ready_key_less(scan_starts[read_ahead->priority], read_ahead->from);
}

/* Returns how many entries lie ahead of the scan start, for claims to go through. */
static int
ahead(const ReadAhead *read_ahead, const ReadyKey *scan_starts)
{
	return serves(read_ahead, scan_starts)
			   ? read_ahead->count - position(read_ahead, scan_starts[read_ahead->priority])
			   : 0;
}

/*
 * Returns whether the read-ahead buffer lacks an entry of the index: claims that go through the
 * buffer do not meet the entry, but would meet it in the index.
 */
bool
idemq_read_ahead_hides(const ReadAhead *read_ahead, const ReadyKey *scan_starts, int priority,
					   const ReadyEntry *entry)
{
	if (priority != read_ahead->priority || !serves(read_ahead, scan_starts) ||
		ready_key_less(entry->key, scan_starts[priority]) ||
		!ready_key_less(entry->key, idemq_read_ahead_end(read_ahead)))
		return false;
	for (int i = position(read_ahead, entry->key);
		 i < read_ahead->count && same_key(read_ahead->entries[i].key, entry->key); i++)
	{
		if (ItemPointerEquals((ItemPointer) &read_ahead->entries[i].tid, (ItemPointer) &entry->tid))
			return false;
	}
	return true;
}

/* Copies the entries that a claim of so many jobs may need, from the scan start on. */
void
idemq_read_ahead_copy(const ReadAhead *read_ahead, const ReadyKey *scan_starts, int wanted,
					  ReadAheadView *view)
{
	int first;

	view->count = view->left = 0;
	view->priority = read_ahead->priority;
	view->file = read_ahead->file;
	view->bound = (ReadyKey){PG_INT64_MIN, PG_INT64_MIN};
	view->end = idemq_read_ahead_end(read_ahead);
	if (read_ahead->count == 0 || wanted > READ_AHEAD_MAX_WANTED)
		return;
	first = position(read_ahead, scan_starts[read_ahead->priority]);
	view->count = whole_keys(&read_ahead->entries[first], read_ahead->count - first,
							 wanted + READ_AHEAD_SPARE);
	view->left = read_ahead->count - first - view->count;
	if (view->count > 0)
	{
		memcpy(view->entries, &read_ahead->entries[first], view->count * sizeof(ReadyEntry));
		view->bound = view->entries[view->count - 1].key;
	}
	if (!serves(read_ahead, scan_starts))
		view->count = 0;
}

/* Ends a read-ahead buffer before its last key, of which it may not have all entries. */
void
idemq_read_ahead_drop_last_key(ReadAhead *read_ahead)
{
	read_ahead->count = whole_keys(read_ahead->entries, read_ahead->count, read_ahead->count - 1);
}

/* Ends a read-ahead buffer at a key. */
void
idemq_read_ahead_cut(ReadAhead *read_ahead, int priority, ReadyKey key)
{
	if (read_ahead->priority == priority && read_ahead->count > 0 &&
		!ready_key_less(read_ahead->entries[read_ahead->count - 1].key, key))
		read_ahead->count = position(read_ahead, key);
}

/* Ends a copy at a key. */
void
idemq_read_ahead_view_cut(ReadAheadView *view, int priority, ReadyKey key)
{
	if (view->priority != priority)
		return;
	while (view->count > 0 && !ready_key_less(view->entries[view->count - 1].key, key))
	{
		view->count--;
		view->left = 0;
		view->end = view->entries[view->count].key;
	}
}

/*
 * Appends to the read-ahead buffer what a scan has read where it ends, or replaces the buffer if
 * the scan has read more to claim.  fill: cut at what was lowered since its session read the
 * sequence.
 */
void
idemq_read_ahead_install(ReadAhead *read_ahead, const ReadyKey *scan_starts, const ReadAhead *fill)
{
	ReadyKey end = idemq_read_ahead_end(read_ahead);

	if (fill->count == 0)
		return;
	if (serves(read_ahead, scan_starts) && read_ahead->priority == fill->priority &&
		read_ahead->file == fill->file && same_key(end, fill->from))
	{
		int first = position(read_ahead, scan_starts[read_ahead->priority]);
		int count = read_ahead->count - first;
		int more = whole_keys(fill->entries, fill->count, READ_AHEAD_LENGTH - count);

		memmove(read_ahead->entries, &read_ahead->entries[first], count * sizeof(ReadyEntry));
		memcpy(&read_ahead->entries[count], fill->entries, more * sizeof(ReadyEntry));
		read_ahead->count = count + more;
		read_ahead->from = scan_starts[read_ahead->priority];
	}
	else if (ahead(fill, scan_starts) > ahead(read_ahead, scan_starts) ||
			 !serves(read_ahead, scan_starts))
		memcpy(read_ahead, fill, offsetof(ReadAhead, entries) + fill->count * sizeof(ReadyEntry));
}
