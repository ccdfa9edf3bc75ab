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

/* A parent, for its child. */
typedef struct KinGone
{
	int64 id;
	int gone_as;	  /* a JobStatus: as what it was deleted; -1 if it was not, or nobody knows */
	int64 seen_token; /* the child has seen its parents' ends of lesser tokens; 0: none */
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
extern bool idemq_kin_wait_of(int64 child, KinWait *wait);
extern bool idemq_kin_obstacle(int64 child, const KinWait *wait, KinParent *parent);
extern bool idemq_kin_failed_parent(int64 child, KinParent *parent);
extern bool idemq_kin_queue_of(int64 job_id, int32 *queue_id);
extern KinChild *idemq_kin_children(int64 parent, int *count);
extern KinGone *idemq_kin_parents(int64 child, int *count);
extern int64 *idemq_kin_resolvable(int32 queue_id, int max, int *count);
extern int idemq_kin_edges(KinEdge *edges, int max);

#endif
