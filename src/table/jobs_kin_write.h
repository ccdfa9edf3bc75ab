/*
 * table/jobs_kin_write.h
 *		Writes to idemq.dependencies and idemq.children.
 */
#ifndef IDEMQ_TABLE_JOBS_KIN_WRITE_H
#define IDEMQ_TABLE_JOBS_KIN_WRITE_H

#include "table/jobs_kin.h"

/* A job that is to wait for its parents. */
typedef struct NewKin
{
	int64 child;
	int32 queue_id;
	int count;		/* of parents; one at least */
	int64 *parents; /* in order, each once */
	int failed;		/* of them, dead or cancelled: */
	int64 *failures;
	ParentFailure on_failure;
	Datum group; /* text: the group that it joins afterwards; 0 for none */
} NewKin;

extern bool idemq_kin_is_writing(void);
extern void idemq_kin_add(const NewKin *kin);
extern bool idemq_kin_watch(int64 child, int64 parent);
extern void idemq_kin_released(int64 child, int64 token);
extern bool idemq_kin_lets_go(int64 job_id, JobStatus status);
extern void idemq_kin_forget(const int64 *job_ids, int count);
extern void idemq_kin_row_gone(int64 job_id, JobStatus status);
extern void idemq_kin_all_gone(void);

#endif
