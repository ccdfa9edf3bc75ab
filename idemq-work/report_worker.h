/*
 * report_worker.h: reports the runner to the server.
 */
#ifndef IDEMQ_WORK_REPORT_WORKER_H
#define IDEMQ_WORK_REPORT_WORKER_H

#include "job.h"

/* Reports the runner when it is time to; stopping: for the last time, if it has reported before. */
extern void report_worker(struct server *server, const struct job *jobs, bool stopping);

/* Has the server end the wait in which a session of ours sleeps, or its next one. */
extern void report_end_of_wait(struct server *server, const struct job *jobs, int waiter);

/* What identifies the runner among those of its role. */
extern const char *report_process(void);

/* When to report next. */
extern int64_t next_report(void);

#endif
