/*
 * shared/processes/worker_place.c
 *		The places on the board of workers: how many there are, which is whose, and whether its
 *		worker moves.
 *
 * Locks: none here.  Who changes a place holds board_lock (shared/processes/worker_board.c); who
 * looks for one without it may find it another database's by the time that it is used.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "shared/processes/processes.h"

static Place *places = NULL;
/* The place that this process works for, when it is a worker. */
static Place *mine = NULL;

/* Makes this process the worker of a place. */
void
idemq_place_become(Place *place)
{
	mine = place;
}

/* Returns the place that this process works for; NULL when it is no worker. */
Place *
idemq_place_mine(void)
{
	return mine;
}

/* Begins the counts of what the worker of a database does that has got its place. */
void
idemq_place_begin_counts(Place *place)
{
	pg_atomic_init_u32(&place->doing, 0);
	pg_atomic_init_u64(&place->last_run, 0);
	for (int i = 0; i < CHORE_KINDS * CHORE_COUNTS; i++)
		pg_atomic_init_u64(&place->chores[i / CHORE_COUNTS][i % CHORE_COUNTS], 0);
}

/* Makes the places; their memory is zeros. */
static void
init_places(int tranche)
{
	for (int i = 0; i < idemq_place_count(); i++)
	{
		Place *place = &places[i];

		place->proc = -1;
		pg_atomic_init_u64(&place->asleep_until, PG_UINT64_MAX);
		pg_atomic_init_flag(&place->recheck);
		pg_atomic_init_u32(&place->schedules, 0);
		pg_atomic_init_u64(&place->beat, 0);
		idemq_place_begin_counts(place);
	}
}

const ShmemPart idemq_places_part = {.area = (void **) &places,
									 .each = sizeof(Place),
									 .count = idemq_place_count,
									 .name = "idemq workers",
									 .init = init_places};

/* Returns how many places there are: one for every worker that may exist. */
int
idemq_place_count(void)
{
	return Max(max_worker_processes, 1);
}

/* Returns the place of that index. */
Place *
idemq_place_at(int index)
{
	return &places[index];
}

/* Finds a database's place; NULL when it has none. */
Place *
idemq_place_of(Oid database)
{
	for (int i = 0; i < idemq_place_count(); i++)
	{
		if (places[i].state != PLACE_FREE && places[i].database == database)
			return &places[i];
	}
	return NULL;
}

/*
 * Returns since when (mono) a worker has not moved though it should: since it began what it is
 * at, was called, or should have woken by itself.  The future: it may sleep.
 */
int64
idemq_place_still_since(Place *place)
{
	uint64 until = pg_atomic_read_u64(&place->asleep_until);
	uint64 beat;

	pg_read_barrier(); /* it moves, and is awake then */
	beat = pg_atomic_read_u64(&place->beat);
	return (int64) (until == PG_UINT64_MAX ? beat : Max(until & ~PLACE_CALLED, beat));
}
