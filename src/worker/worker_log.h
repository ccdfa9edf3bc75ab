/*
 * worker/worker_log.h
 *		What a background worker tells the server's log.
 */
#ifndef IDEMQ_WORKER_WORKER_LOG_H
#define IDEMQ_WORKER_WORKER_LOG_H

extern void idemq_log_worker_started(void);
extern void idemq_log_worker_ends(const char *why);
extern void idemq_log_recovery_begins(void);
extern void idemq_log_chore_error(void);
extern void idemq_log_news(void);

#endif
