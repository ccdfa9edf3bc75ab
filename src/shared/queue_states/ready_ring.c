/*
 * shared/queue_states/ready_ring.c
 *		The ready ring: a copy of the next entries of a queue's ready index, so that
 *		most claims of a few jobs need no b-tree scan.
 *
 * It has each entry of the index, whoever may see its row, of one priority and a range of
 * keys.  Claims go through it as through the index: what they may pass, and how far the
 * scan start moves, is not the ring's business (scan_start.c).  Nothing is taken out of it,
 * so there is nothing to give back: what lies below the scan start is old, and goes with the
 * next install.
 *
 * What a claim needs of the index is this: a version that its snapshot s sees, and that is
 * claimable, has its entry among those that it goes through; or the scan start is lowered to
 * its key, or below, after the claim has read the scan start, at r < s.  The ring keeps that:
 *
 *	 - It is filled by a scan of the index that begins after its session has read the
 *	   sequence of lowerings, at r0.  All entries are copied: of leased jobs, of rows that
 *	   no snapshot shows yet, of dead ones.
 *	 - At install it is cut at the least key lowered since r0; after that, each lowering
 *	   cuts it at its key, under the same lock: entries from that key on go, and the range
 *	   ends there.
 *	 - So let an entry of a key in the range be missing at r.  It came into the index after
 *	   the scan that last filled that place had passed, after r0: its writer will lower the
 *	   scan start, or has done so, after r0.  Before r that would have cut the ring.  So the
 *	   lowering comes after r.
 *	 - A row whose update was not HOT has an entry more, and often with the same key: the
 *	   version that a snapshot sees may be that of any of them.  So a ring and a copy of it
 *	   end between two keys (whole_keys): a claim that goes on behind the last key has not
 *	   left an entry of that key out.  Of the key with which a ring begins only such entries
 *	   are missing as the scan had passed and its snapshot did not see: whoever makes one of
 *	   them claimable lowers to it.
 *	 - A HOT update has no entry of its own: the ring has the root of its chain, as the
 *	   index does.  An update that makes a new entry with an old key (a claim on a full
 *	   page) lowers no scan start when it commits, and need not: its version is not claimable,
 *	   and the version that will be lowers to its own key.
 *	 - What VACUUM has taken out of the index no snapshot saw any more.  Another row may
 *	   stand in its place now: the claim compares the row with the key.  After VACUUM FULL
 *	   the TIDs are of another file: a claim that has the table open compares the file's
 *	   number, and goes by the index.
 *	 - A transaction's own rows, which it may claim before they are committed and lowered
 *	   to, cut its copy (txn/pending_queues.c).  Above READ COMMITTED there is no ring.
 *		Model: test/model/scan_start.pml, with three entries.
 *
 * A queue has one ring, of one priority.  Another one replaces it when that has more entries
 * ahead of its scan start, or when this one serves no claim any more.
 *
 * Locks: the queue state's, which the callers in scan_start.c hold.
 */
#include "postgres.h"

#include "shared/queue_states/queue_states.h"

/* Returns the position of the first entry that is not below a key. */
static int
position(const ReadyRing *ring, ReadyKey key)
{
	int low = 0;
	int high = ring->count;

	while (low < high)
	{
		int middle = (low + high) / 2;

		if (ready_key_less(ring->entries[middle].key, key))
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Returns the key where a ring ends: entries below it are all there. */
ReadyKey
idemq_ring_end(const ReadyRing *ring)
{
	return ring->count == 0 ? ring->from : ready_key_after(ring->entries[ring->count - 1].key);
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

/* Returns whether a claim that begins at the scan start can go through the ring. */
static bool
serves(const ReadyRing *ring, const ReadyKey *scan_starts)
{
	return ring->count > 0 && !ready_key_less(scan_starts[ring->priority], ring->from);
}

/* Returns how many entries lie ahead of the scan start, for claims to go through. */
static int
ahead(const ReadyRing *ring, const ReadyKey *scan_starts)
{
	return serves(ring, scan_starts) ? ring->count - position(ring, scan_starts[ring->priority])
									 : 0;
}

/*
 * Returns whether the ring lacks an entry of the index: claims that go through the ring do
 * not meet it, and in the index they would.
 */
bool
idemq_ring_hides(const ReadyRing *ring, const ReadyKey *scan_starts, int priority,
				 const ReadyEntry *entry)
{
	if (priority != ring->priority || !serves(ring, scan_starts) ||
		ready_key_less(entry->key, scan_starts[priority]) ||
		!ready_key_less(entry->key, idemq_ring_end(ring)))
		return false;
	for (int i = position(ring, entry->key);
		 i < ring->count && same_key(ring->entries[i].key, entry->key); i++)
	{
		if (ItemPointerEquals((ItemPointer) &ring->entries[i].tid, (ItemPointer) &entry->tid))
			return false;
	}
	return true;
}

/* Copies the entries that a claim of so many jobs may need, from the scan start on. */
void
idemq_ring_copy(const ReadyRing *ring, const ReadyKey *scan_starts, int wanted, RingView *view)
{
	int first;

	view->count = view->left = 0;
	view->priority = ring->priority;
	view->file = ring->file;
	view->bound = (ReadyKey){PG_INT64_MIN, PG_INT64_MIN};
	view->end = idemq_ring_end(ring);
	if (ring->count == 0 || wanted > RING_MAX_WANTED)
		return;
	first = position(ring, scan_starts[ring->priority]);
	view->count = whole_keys(&ring->entries[first], ring->count - first, wanted + RING_SPARE);
	view->left = ring->count - first - view->count;
	if (view->count > 0)
	{
		memcpy(view->entries, &ring->entries[first], view->count * sizeof(ReadyEntry));
		view->bound = view->entries[view->count - 1].key;
	}
	if (!serves(ring, scan_starts))
		view->count = 0;
}

/* Ends a ring before its last key, of which it may not have all entries. */
void
idemq_ring_drop_last_key(ReadyRing *ring)
{
	ring->count = whole_keys(ring->entries, ring->count, ring->count - 1);
}

/* Ends a ring at a key. */
void
idemq_ring_cut(ReadyRing *ring, int priority, ReadyKey key)
{
	if (ring->priority == priority && ring->count > 0 &&
		!ready_key_less(ring->entries[ring->count - 1].key, key))
		ring->count = position(ring, key);
}

/* Ends a copy at a key. */
void
idemq_ring_view_cut(RingView *view, int priority, ReadyKey key)
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
 * Adds what a scan has read where the ring ends, or puts it in the ring's place if it
 * has more to claim.  fill: cut at what was lowered since its session read the sequence.
 */
void
idemq_ring_install(ReadyRing *ring, const ReadyKey *scan_starts, const ReadyRing *fill)
{
	ReadyKey end = idemq_ring_end(ring);

	if (fill->count == 0)
		return;
	if (serves(ring, scan_starts) && ring->priority == fill->priority && ring->file == fill->file &&
		same_key(end, fill->from))
	{
		int first = position(ring, scan_starts[ring->priority]);
		int count = ring->count - first;
		int more = whole_keys(fill->entries, fill->count, RING_LENGTH - count);

		memmove(ring->entries, &ring->entries[first], count * sizeof(ReadyEntry));
		memcpy(&ring->entries[count], fill->entries, more * sizeof(ReadyEntry));
		ring->count = count + more;
		ring->from = scan_starts[ring->priority];
	}
	else if (ahead(fill, scan_starts) > ahead(ring, scan_starts) || !serves(ring, scan_starts))
		memcpy(ring, fill, offsetof(ReadyRing, entries) + fill->count * sizeof(ReadyEntry));
}
