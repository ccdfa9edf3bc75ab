/*
 * shared/processes/worker_place.c
 *		The places on the board of workers: how many there are, which is whose.
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

/* Says where the places are, for this process. */
void
idemq_places_attach(Place *memory)
{
	places = memory;
}

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
