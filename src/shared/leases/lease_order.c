/*
 * shared/leases/lease_order.c
 *		The order of the lease entries in a partition: by database, queue, due time and job.  The
 *		expired leases of a queue come first among the queue's entries, and a search for the leases
 *		of a queue or a database reads no other entries.
 *
 * The entries form a treap: a search tree by that order, and a heap by their hash values.  These
 * are as good as random, so the depth is a small multiple of the logarithm of the number of
 * entries, in whatever order entries come and go.  The tree needs no memory of its own and no
 * rotations.  An entry is found from the root by its position in the order.  Therefore the key,
 * queue_id, due and hash of an entry must not change while it is in the tree (idemq_lease_place,
 * idemq_lease_unplace).
 *
 * Locks: the caller holds the lock of the partition, exclusively to add or remove an entry.
 * Nothing here allocates or raises errors.
 */
#include "postgres.h"

#include "shared/leases/leases.h"

static bool
comes_before(const Lease *a, const Lease *b)
{
	if (a->key.database != b->key.database)
		return a->key.database < b->key.database;
	if (a->queue_id != b->queue_id)
		return a->queue_id < b->queue_id;
	if (a->due != b->due)
		return a->due < b->due;
	return a->key.job_id < b->key.job_id;
}

/* Adds an entry that is not in the tree. */
void
idemq_lease_order_add(Lease **root, Lease *lease)
{
	Lease **link = root;
	Lease **before = &lease->before;
	Lease **after = &lease->after;
	Lease *node;

	while (*link != NULL && (*link)->hash >= lease->hash)
		link = comes_before(lease, *link) ? &(*link)->before : &(*link)->after;
	node = *link;
	*link = lease;
	/* Splits the subtree that was there: its parts become the two subtrees of the new entry. */
	while (node != NULL)
	{
		if (comes_before(node, lease))
		{
			*before = node;
			before = &node->after;
			node = node->after;
		}
		else
		{
			*after = node;
			after = &node->before;
			node = node->before;
		}
	}
	*before = *after = NULL;
}

/* Removes an entry that is in the tree. */
void
idemq_lease_order_remove(Lease **root, Lease *lease)
{
	Lease **link = root;
	Lease *before = lease->before;
	Lease *after = lease->after;

	while (*link != lease)
	{
		Assert(*link != NULL);
		link = comes_before(lease, *link) ? &(*link)->before : &(*link)->after;
	}
	/* Joins the two subtrees of the entry in its place. */
	while (before != NULL && after != NULL)
	{
		if (before->hash >= after->hash)
		{
			*link = before;
			link = &before->after;
			before = before->after;
		}
		else
		{
			*link = after;
			link = &after->before;
			after = after->before;
		}
	}
	*link = before != NULL ? before : after;
}

/*
 * Returns -1 if an entry comes before those of a queue (with queue_id 0, of a database), 0 if it is
 * one of them, 1 if it comes after them.
 */
static int
side_of(const Lease *lease, Oid database, int32 queue_id)
{
	if (lease->key.database != database)
		return lease->key.database < database ? -1 : 1;
	if (queue_id == 0 || lease->queue_id == queue_id)
		return 0;
	return lease->queue_id < queue_id ? -1 : 1;
}

/* Returns the first entry of a queue, or with queue_id 0 of a database; NULL if there is none. */
Lease *
idemq_lease_order_first(Lease *root, Oid database, int32 queue_id)
{
	Lease *first = NULL;

	while (root != NULL)
	{
		int side = side_of(root, database, queue_id);

		if (side == 0)
			first = root;
		root = side < 0 ? root->after : root->before;
	}
	return first;
}

/* Returns the entry after one of a queue, or with queue_id 0 of a database; NULL after the last. */
Lease *
idemq_lease_order_next(Lease *root, const Lease *lease, int32 queue_id)
{
	Lease *next = NULL;

	while (root != NULL)
	{
		bool is_later = comes_before(lease, root);

		if (is_later)
			next = root;
		root = is_later ? root->before : root->after;
	}
	return next != NULL && side_of(next, lease->key.database, queue_id) == 0 ? next : NULL;
}
