/*
 * shared/worker_health.h
 *		How a background worker does: for idemq.background_worker and idemq.worker_chores.
 */
#ifndef IDEMQ_SHARED_WORKER_HEALTH_H
#define IDEMQ_SHARED_WORKER_HEALTH_H

#include "shared/worker_tally.h"

/* What is known of a worker's health. */
typedef struct WorkerHealth
{
	bool awake;
	int doing;		/* ChoreKind, -1: none */
	int64 last_run; /* mono; 0: none yet */
	int64 lag;		/* us: how long something has been due that it has not done */
} WorkerHealth;

/* Counts of one kind, copied. */
typedef struct ChoreCounts
{
	uint64 runs;
	uint64 failures;
	uint64 busy; /* us */
} ChoreCounts;

/* for the worker */
extern void idemq_worker_begins_chore(ChoreKind kind);
extern void idemq_worker_ends_chore(ChoreKind kind, bool done, int64 usecs);

/* for observe/worker_state.c */
extern bool idemq_worker_health(WorkerHealth *health);
extern bool idemq_worker_chore_counts(ChoreCounts *counts);

#endif
