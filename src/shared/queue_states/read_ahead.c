/*
 * shared/queue_states/read_ahead.c
 *		The read-ahead buffer: a copy of the next entries of a queue's ready index, so that most
 *		claims of a few jobs need no b-tree scan.
 *
 * The buffer contains every index entry of one priority in a range of keys, whether or not any
 * snapshot sees its row.  Claims read it like the index: which entries they may pass, and how far
 * the scan start advances, does not depend on the buffer (scan_start.c).  Nothing is removed from
 * it, so nothing has to be given back; entries below the scan start are old, and disappear at the
 * next install.
 *
 * A claim relies on this: if its snapshot s sees a version that can be claimed, then the entry of
 * that version is among the entries that it reads; or the scan start is lowered to its key, or
 * below, after the claim has read the scan start, at r < s.  The buffer preserves this:
 *
 *	 - It is filled by an index scan that begins after its session has read the sequence number of
 *	   lowerings, at r0.  All entries are copied: of leased jobs, of rows that no snapshot shows
 *	   yet, and of dead rows.
 *	 - When entries are installed, they are truncated at the least key lowered since r0.  After
 *	   that, each lowering truncates the buffer at its key, under the same lock: entries from that
 *	   key on are removed, and the range ends there.
 *	 - Suppose that an entry with a key in the range is missing at r.  It was added to the index
 *	   after the scan that last filled that place had passed, so after r0, and its writer lowers the
 *	   scan start after r0.  Before r, that would have truncated the buffer.  So the lowering comes
 *	   after r.
 *	 - A row whose update was not HOT has another entry, often with the same key, and the version
 *	   that a snapshot sees may belong to any of them.  So the buffer, and a copy of it, end between
 *	   two keys (whole_keys): a claim that continues after the last key has missed no entry with
 *	   that key.  Of its first key, the buffer lacks only entries that the scan had passed and that
 *	   its snapshot did not see, and a session that makes one of them claimable lowers the scan
 *	   start to it.
 *	 - A HOT update has no entry of its own; the buffer contains the root of its chain, like the
 *	   index.  An update that adds an entry with an old key (such as a claim on a full page) does
 *	   not lower the scan start when it commits, and need not: its version cannot be claimed, and
 *	   the version that will be claimable lowers to its own key.
 *	 - No snapshot sees any more what VACUUM has removed from the index.  Another row may be in its
 *	   place by now, so the claim compares the row with the key.  After VACUUM FULL, the TIDs belong
 *	   to another file; a claim that has opened the table compares the file's number, and uses the
 *	   index instead.
 *	 - A transaction may claim its own rows before they are committed.  They truncate its copy
 *	   (txn/pending_queues.c).  Above READ COMMITTED, the buffer is not used.
 *		Model: test/model/scan_start.pml, with three entries.
 *
 * A queue has one buffer, for one priority.  It is replaced by another one that has more entries
 * ahead of its scan start, or when it no longer serves any claim.
 *
 * Locks: the queue state's lock, which the callers in scan_start.c hold.
 */
#include "postgres.h"

#include "shared/queue_states/queue_states.h"

/* Returns the position of the first entry whose key is not below a key. */
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

/*
 * Returns the key at which a read-ahead buffer ends: it contains all entries in its range below
 * that key.
 */
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
 * Returns how many of the first entries, at most most, end between two keys: all entries with a
 * key, or none.
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

/* Returns whether a claim that begins at the scan start can use the read-ahead buffer. */
static bool
serves(const ReadAhead *read_ahead, const ReadyKey *scan_starts)
{
	return read_ahead->count > 0 &&
		   !ready_key_less(scan_starts[read_ahead->priority], read_ahead->from);
}

/* Returns the number of entries ahead of the scan start. */
static int
ahead(const ReadAhead *read_ahead, const ReadyKey *scan_starts)
{
	return serves(read_ahead, scan_starts)
			   ? read_ahead->count - position(read_ahead, scan_starts[read_ahead->priority])
			   : 0;
}

/*
 * Returns whether the buffer lacks an index entry in its range, so that claims that use the buffer
 * miss it; for idemq.check().
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

/* Copies the entries that a claim of wanted jobs may need, from the scan start on. */
void
idemq_read_ahead_copy(const ReadAhead *read_ahead, const ReadyKey *scan_starts, int wanted,
					  ReadAheadView *view)
{
	int first;

	view->count = view->left = 0;
	view->priority = read_ahead->priority;
	view->file = read_ahead->file;
	view->bound = READY_KEY_MIN;
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

/* Truncates a read-ahead buffer before its last key, because it may lack entries with that key. */
void
idemq_read_ahead_drop_last_key(ReadAhead *read_ahead)
{
	read_ahead->count = whole_keys(read_ahead->entries, read_ahead->count, read_ahead->count - 1);
}

/*
 * If the buffer is for that priority, removes its entries from key on, key included, so its range
 * ends at or before key.  The caller holds the lock on the queue state.
 */
void
idemq_read_ahead_cut(ReadAhead *read_ahead, int priority, ReadyKey key)
{
	if (read_ahead->priority == priority && read_ahead->count > 0 &&
		!ready_key_less(read_ahead->entries[read_ahead->count - 1].key, key))
		read_ahead->count = position(read_ahead, key);
}

/* Truncates a copy at a key. */
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
 * Appends entries to the read-ahead buffer if they continue it, or replaces the buffer with them if
 * they serve more claims.  fill has been truncated at the least key lowered since its session read
 * the sequence number.
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
