/*
 * worker/turns.c
 *		In which order the background worker comes to its database's queues: a heap of
 *		their slots by when they are due.
 *
 * A queue that is due stands where its time has put it, though not before the worker's
 * last look, when it was not due yet: no tenant's work goes before what was due earlier.  A
 * queue that has had its turn and has more to do goes to the back, so each of n queues that
 * are due has its next turn after n - 1 turns of others, and a turn is bounded
 * (worker/chores.c).
 *
 * Memory of this process, a node for each slot; nothing here is linear in queues but its
 * beginning.
 */
#include "postgres.h"

#include "lib/pairingheap.h"
#include "utils/memutils.h"

#include "base/base.h"
#include "worker/worker.h"

/* The turn of one slot. */
typedef struct Turn
{
	pairingheap_node node;
	int64 due;	/* mono */
	bool waits; /* it is in the heap */
	int stage;	/* of its next turn, where the last was cut short */
} Turn;

static Turn *turns = NULL;
static pairingheap *heap = NULL;

/* The greatest of a pairing heap comes first. */
static int
compare(const pairingheap_node *a, const pairingheap_node *b, void *arg)
{
	int64 due_a = pairingheap_const_container(Turn, node, a)->due;
	int64 due_b = pairingheap_const_container(Turn, node, b)->due;

	return due_a < due_b ? 1 : due_a > due_b ? -1 : 0;
}

/* Begins anew: no slot has a turn. */
void
idemq_turns_begin(void)
{
	if (turns == NULL)
	{
		turns = MemoryContextAllocHuge(TopMemoryContext, sizeof(Turn) * (Size) idemq_max_queues);
		heap = MemoryContextAlloc(TopMemoryContext, sizeof(pairingheap));
		heap->ph_compare = compare;
		heap->ph_arg = NULL;
	}
	memset(turns, 0, sizeof(Turn) * (Size) idemq_max_queues);
	pairingheap_reset(heap);
}

/*
 * Gives a slot a turn at a time (mono); PG_INT64_MAX: none.  since: it was not due before,
 * whatever its times say.  One that has waited for its turn since it came due keeps its place.
 */
void
idemq_turns_put(int slot, int64 due, int64 since)
{
	Turn *turn = &turns[slot];
	int64 now = idemq_mono_now();

	if (turn->waits && turn->due <= now && due <= now)
		return;
	if (turn->waits)
		pairingheap_remove(heap, &turn->node);
	turn->waits = due < PG_INT64_MAX;
	turn->due = Max(due, since);
	if (turn->waits)
		pairingheap_add(heap, &turn->node);
}

/*
 * Takes the slot whose turn it is, and the stage at which it begins; false when none is due
 * by now (mono).
 */
bool
idemq_turns_take(int64 now, int *slot, int *stage)
{
	Turn *turn;

	if (idemq_turns_next() > now)
		return false;
	turn = pairingheap_container(Turn, node, pairingheap_remove_first(heap));
	turn->waits = false;
	*slot = (int) (turn - turns);
	*stage = turn->stage;
	turn->stage = 0;
	return true;
}

/* Notes that a turn was cut short, and with which stage the next begins. */
void
idemq_turns_cut(int slot, int stage)
{
	turns[slot].stage = stage;
}

/* Returns when (mono) the next turn is; PG_INT64_MAX: there is none. */
int64
idemq_turns_next(void)
{
	if (pairingheap_is_empty(heap))
		return PG_INT64_MAX;
	return pairingheap_container(Turn, node, pairingheap_first(heap))->due;
}
