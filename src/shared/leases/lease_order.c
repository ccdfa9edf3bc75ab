/*
 * shared/leases/lease_order.c
 *		The order of a partition's lease entries: by database, queue, when due, and job.
 *		So the leases of a queue that have ended come first among its own, and a search for
 *		the leases of a queue, or of a database, meets no other's.
 *
 * It is a treap: a search tree by that order, and a heap by the hash values of the
 * entries, which are as good as random, so that its depth is a small multiple of the
 * logarithm of the number of entries, whatever the order in which they come and go.
 * No memory of its own, no rotations, no way up: an entry is found from the root by what
 * orders it.  Hence the one rule: key, queue_id, due and hash of an entry do not change
 * while it is in the tree (idemq_lease_place, idemq_lease_unplace).
 *
 * Locks: the partition's, held by the caller; exclusively to add and to remove.  Nothing
 * here allocates or raises.
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
	/* What was there is split: it comes below the new entry, on one side or the other. */
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
	/* Its two subtrees become one in its place. */
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

/* Returns the first entry of a database; NULL when it has none. */
Lease *
idemq_lease_order_first(Lease *root, Oid database)
{
	Lease *first = NULL;

	while (root != NULL)
	{
		if (root->key.database == database)
			first = root;
		root = root->key.database < database ? root->after : root->before;
	}
	return first;
}

/*
 * Returns where an entry lies: -1 before the entries of a queue (with 0, of a database), 0 among
 * them, 1 after them.
 */
static int
lies(const Lease *lease, Oid database, int32 queue_id)
{
	if (lease->key.database != database)
		return lease->key.database < database ? -1 : 1;
	if (queue_id == 0 || lease->queue_id == queue_id)
		return 0;
	return lease->queue_id < queue_id ? -1 : 1;
}

/*
 * Visits the entries of a queue, or with 0 of all queues of a database, in order, until
 * visit returns false.  visit must not change what orders them.  Returns false if it did.
 */
bool
idemq_lease_order_walk(Lease *root, Oid database, int32 queue_id, LeaseVisit visit, void *arg)
{
	while (root != NULL)
	{
		int side = lies(root, database, queue_id);

		if (side >= 0 && !idemq_lease_order_walk(root->before, database, queue_id, visit, arg))
			return false;
		if (side == 0 && !visit(root, arg))
			return false;
		if (side > 0)
			return true;
		root = root->after;
	}
	return true;
}
