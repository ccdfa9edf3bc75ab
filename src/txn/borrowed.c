/*
 * txn/borrowed.c
 *		The attempts that this transaction ends, in whose place it may claim others in
 *		a queue that is at max_running (job/limits.c).
 *
 * A transaction may borrow as often as it ends attempts that are counted as running.
 * Why no more than max_running jobs are worked on all the same stands at the top of
 * shared/slots/running.c.
 *
 * txn/pending_action.c takes back what a savepoint's rollback undoes, the last first: a
 * claim that borrowed came later than the end whose place it took, and goes earlier.
 *
 * All state is this backend's.  What is called after an abort neither allocates nor
 * raises.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "txn/txn.h"

typedef struct Credit
{
	int32 queue_id;
	int free;	   /* ended attempts whose place is not taken */
	int uncounted; /* ended attempts that were not counted */
} Credit;

/* In TopTransactionContext; NULL between transactions. */
static Credit *credits = NULL;
static int ncredits = 0;
static int max_credits = 0;

static Credit *
find(int32 queue_id)
{
	for (int i = 0; i < ncredits; i++)
	{
		if (credits[i].queue_id == queue_id)
			return &credits[i];
	}
	return NULL;
}

/* Makes room for a queue, so that what follows cannot fail. */
void
idemq_borrowed_reserve(int32 queue_id)
{
	if (find(queue_id) != NULL)
		return;
	credits = idemq_grow(credits, &max_credits, (int64) ncredits + 1, sizeof(Credit));
	credits[ncredits++] = (Credit){queue_id, 0, 0};
}

/* Notes count ends more (1), or fewer (-1); frees: of an attempt that was counted. */
void
idemq_borrowed_note_end(int32 queue_id, bool frees, int count)
{
	Credit *credit = find(queue_id);

	if (credit != NULL && frees)
		credit->free += count;
	else if (credit != NULL)
		credit->uncounted += count;
}

/* Notes that count places more (1), or fewer (-1), are taken. */
void
idemq_borrowed_note_claim(int32 queue_id, int count)
{
	Credit *credit = find(queue_id);

	if (credit != NULL)
		credit->free -= count;
}

/* Returns how many attempts this transaction ends whose place is not taken. */
int
idemq_borrowed_free(int32 queue_id)
{
	const Credit *credit = find(queue_id);

	return credit == NULL ? 0 : credit->free;
}

/*
 * Returns whether this transaction ends an attempt that was not counted.  It had no
 * entry: this transaction's own search does not see it, others' do.
 */
bool
idemq_borrowed_uncounted(int32 queue_id)
{
	const Credit *credit = find(queue_id);

	return credit != NULL && credit->uncounted > 0;
}

/* Forgets all, at the end of the transaction. */
void
idemq_borrowed_forget(void)
{
	credits = NULL;
	ncredits = max_credits = 0;
}
