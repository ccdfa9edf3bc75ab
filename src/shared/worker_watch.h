/*
 * shared/worker_watch.h
 *		Noticing that a background worker does not move.
 */
#ifndef IDEMQ_SHARED_WORKER_WATCH_H
#define IDEMQ_SHARED_WORKER_WATCH_H

/* for sleepers */
extern int64 idemq_watch_look(void);
extern void idemq_watch_leave(void);
extern bool idemq_worker_is_stuck(void);

/* for idemq.check() */
extern pid_t idemq_worker_pid(void);
extern pid_t idemq_worker_stuck_since(int64 *since);

#endif
