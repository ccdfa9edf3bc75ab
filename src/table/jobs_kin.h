/*
 * table/jobs_kin.h
 *		Parents and children: the rows of idemq.dependencies and idemq.children.
 */
#ifndef IDEMQ_TABLE_JOBS_KIN_H
#define IDEMQ_TABLE_JOBS_KIN_H

#include "base/idemq.h"

/* What becomes of a child whose parent is dead or cancelled. */
typedef enum ParentFailure
{
	FAILURE_CANCELS,
	FAILURE_WAITS,
	FAILURE_RUNS
} ParentFailure;

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

/* What a job that waits for its parents waits for. */
typedef struct KinWait
{
	int64 waits_for; /* of its parents, all with lesser ids are done */
	ParentFailure on_failure;
	Datum group; /* in the caller's memory context */
} KinWait;

/* A parent that is in the way of its child. */
typedef struct KinParent
{
	int64 id;
	bool gone; /* its row was deleted, and it was not completed */
	JobStatus status;
	int32 queue_id;
} KinParent;

/* A child that waits for a parent. */
typedef struct KinChild
{
	int64 id;
	int32 queue_id;
	bool watches; /* this parent it is that it waits for at the moment */
} KinChild;

/* A parent, and as what it was deleted; -1 if it was not, or nobody knows. */
typedef struct KinGone
{
	int64 id;
	int gone_as; /* a JobStatus */
} KinGone;

/* An edge, for who notes all of them: both ends with their queues; 0 is not known. */
typedef struct KinEdge
{
	int64 child;
	int64 parent;
	int32 child_queue;
	int32 parent_queue;
} KinEdge;

extern const char *idemq_failure_name(ParentFailure failure);
extern bool idemq_kin_any(void);
extern bool idemq_kin_is_writing(void);
extern void idemq_kin_add(const NewKin *kin);
extern bool idemq_kin_wait_of(int64 child, KinWait *wait);
extern bool idemq_kin_obstacle(int64 child, const KinWait *wait, KinParent *parent);
extern bool idemq_kin_failed_parent(int64 child, KinParent *parent);
extern bool idemq_kin_queue_of(int64 job_id, int32 *queue_id);
extern void idemq_kin_watch(int64 child, int64 parent);
extern void idemq_kin_released(int64 child);
extern KinChild *idemq_kin_children(int64 parent, int *count);
extern KinGone *idemq_kin_parents(int64 child, int *count);
extern int64 *idemq_kin_resolvable(int32 queue_id, int max, int *count);
extern int idemq_kin_edges(KinEdge *edges, int max);
extern bool idemq_kin_is_needed(int64 parent);
extern void idemq_kin_forget(const int64 *job_ids, int count);
extern void idemq_kin_row_gone(int64 job_id, JobStatus status);
extern void idemq_kin_all_gone(void);

#endif
