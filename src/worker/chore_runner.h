/*
 * worker/chore_runner.h
 *		Running a background worker's chores.
 */
#ifndef IDEMQ_WORKER_CHORE_RUNNER_H
#define IDEMQ_WORKER_CHORE_RUNNER_H

#include "queue/queue_settings.h"
#include "shared/worker_tally.h"

/*
 * A chore is for one queue, of which it gets a view, or for all queues at once: then
 * view is NULL.
 */
typedef struct Chore
{
	ChoreKind kind;
	/* Returns when (mono) it is to run: PG_INT64_MAX for never, the past for now. */
	int64 (*due_at)(const SlotView *view);
	/* Runs it, in a transaction of its own; one of the two is set. */
	void (*run)(const QueueInfo *queue);
	void (*run_for_all)(void);
	/* Called before that transaction, and after it; may be NULL. */
	void (*begin)(const SlotView *view);
	void (*ended)(const SlotView *view, bool done);
} Chore;

extern void idemq_chores_prepare(void);
extern int64 idemq_chore_due_at(const Chore *chore, const SlotView *view);
extern int64 idemq_chore_run_if_due(const Chore *chore, const SlotView *view);
extern bool idemq_chore_run(const Chore *chore, int32 queue_id);

#endif
