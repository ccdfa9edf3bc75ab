/*
 * shared/worker_place.h
 *		A database's place on the board of workers: for shared/worker_board.c, which gives
 *		and takes it, and shared/worker_call.c, by which the worker is woken and watched.
 */
#ifndef IDEMQ_SHARED_WORKER_PLACE_H
#define IDEMQ_SHARED_WORKER_PLACE_H

#include "port/atomics.h"

#include "shared/worker_tally.h"

typedef enum PlaceState
{
	PLACE_FREE,
	PLACE_HELD, /* only to keep workers from starting */
	PLACE_WANTED,
	PLACE_STARTING,
	PLACE_RUNNING
} PlaceState;

/* Every field without another rule is under board_lock. */
typedef struct Place
{
	PlaceState state;
	Oid database;	  /* read without the lock by who calls the worker, which then may err */
	uint64 serial;	  /* grows with each start */
	int away;		  /* sessions that need the database for themselves */
	pid_t pid;		  /* of a RUNNING worker; 0: none */
	int32 proc;		  /* its proc number, or -1; read without the lock as database is */
	int failures;	  /* short lives in a row */
	int64 not_before; /* mono */
	int64 started_at; /* mono, of STARTING and RUNNING */
	/* for shared/worker_call.c; no lock */
	pg_atomic_uint64 asleep_until; /* mono; PG_UINT64_MAX: awake */
	pg_atomic_flag recheck;		   /* clear: to check for the extension */
	pg_atomic_uint32 schedules;	   /* not 0: schedules have changed since they were listed */
	pg_atomic_uint64 beat;		   /* mono of the last piece of work begun, or of waking up */
	pg_atomic_uint64 called_at;	   /* mono of the first call that it has not answered; 0: none */
	pg_atomic_uint32 stuck;		   /* it has not moved for a while */
	pg_atomic_uint32 watcher;	   /* proc number + 1 of the sleeper that watches it; 0: none */
	pg_atomic_uint64 watch_until;  /* mono: when the watcher looks again; PG_UINT64_MAX: awake */
	pg_atomic_uint64 said_at;	   /* mono: when the log was told last that it is stuck */
	WorkerTally tally;			   /* its own rules: shared/worker_tally.h */
} Place;

extern void idemq_places_attach(Place *memory);
extern void idemq_place_become(Place *place);
extern int idemq_place_count(void);
extern Place *idemq_place_at(int index);
extern Place *idemq_place_of(Oid database);
extern Place *idemq_place_mine(void);

#endif
