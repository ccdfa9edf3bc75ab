/*
 * table/jobs_moved.h
 *		A job that SQL has moved to another queue.
 */
#ifndef IDEMQ_TABLE_JOBS_MOVED_H
#define IDEMQ_TABLE_JOBS_MOVED_H

extern void idemq_jobs_moved_child(int64 job_id, int32 queue_id);
extern void idemq_jobs_moved_waiter(int64 job_id);

#endif
