/*
 * shared/worker_tally.h
 *		What a background worker does, and how often it has.
 */
#ifndef IDEMQ_SHARED_WORKER_TALLY_H
#define IDEMQ_SHARED_WORKER_TALLY_H

#include "port/atomics.h"

/* In the order of idemq.worker_chores; a new one has its name in worker_tally.c. */
typedef enum ChoreKind
{
	CHORE_DISCOVER,
	CHORE_FOLLOW,
	CHORE_PROMOTE,
	CHORE_REAP,
	CHORE_RECOVER,
	CHORE_DUE,
	CHORE_REMIND,
	CHORE_EXPIRE,
	CHORE_HANDLE,
	CHORE_TICK,
	CHORE_NOTIFY,
	CHORE_COUNT_JOBS,
	CHORE_PURGE,
	CHORE_KINDS
} ChoreKind;

/* Counts of one kind, since the database has its place; no lock. */
typedef struct ChoreTally
{
	pg_atomic_uint64 runs;	   /* that came to an end, failures included */
	pg_atomic_uint64 failures; /* that ended in an error */
	pg_atomic_uint64 busy;	   /* us */
} ChoreTally;

/* Of one worker's place; no lock. */
typedef struct WorkerTally
{
	pg_atomic_uint32 doing;	   /* kind + 1 of the chore that runs; 0: none */
	pg_atomic_uint64 last_run; /* mono: when a chore ended last; 0: none has */
	ChoreTally chores[CHORE_KINDS];
} WorkerTally;

extern const char *const idemq_chore_names[];

extern void idemq_tally_init(WorkerTally *tally);
extern void idemq_tally_begin(WorkerTally *tally, ChoreKind kind);
extern void idemq_tally_end(WorkerTally *tally, ChoreKind kind, bool done, int64 usecs);

#endif
