/*
 * worker/retention.h
 *		Deleting what is past its retention.
 */
#ifndef IDEMQ_WORKER_RETENTION_H
#define IDEMQ_WORKER_RETENTION_H

extern int64 idemq_purge_due_at(void);
extern void idemq_purge_some(void);
extern void idemq_purge_ended(bool done);

#endif
