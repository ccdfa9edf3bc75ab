/*
 * worker/retention.h
 *		Deleting what is past its retention.
 */
#ifndef IDEMQ_WORKER_RETENTION_H
#define IDEMQ_WORKER_RETENTION_H

extern int64 idemq_retention_due_at(void);
extern void idemq_retention_run(void);
extern void idemq_retention_ended(bool done);

#endif
