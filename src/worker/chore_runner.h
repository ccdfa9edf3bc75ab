/*
 * worker/chore_runner.h
 *		Running a background worker's chores.
 */
#ifndef IDEMQ_WORKER_CHORE_RUNNER_H
#define IDEMQ_WORKER_CHORE_RUNNER_H

#include "queue/queue_settings.h"

/* One of the two is set. */
typedef struct Chore
{
	const char *name;
	void (*run)(const QueueInfo *queue);
	void (*run_for_all)(void);
} Chore;

extern void idemq_tasks_begin(void);
extern int64 idemq_task_not_before(const Chore *chore, int32 queue_id);
extern bool idemq_task_run(const Chore *chore, int32 queue_id);
extern bool idemq_task_run_for_all(const Chore *chore);

#endif
