/*
 * job/limits.h
 *		max_running and rate_limit of a queue.
 */
#ifndef IDEMQ_JOB_LIMITS_H
#define IDEMQ_JOB_LIMITS_H

#include "queue/queue_settings.h"

typedef enum QueueLimit
{
	LIMIT_OPEN,
	LIMIT_NO_SLOT,	  /* the queue has no slot to count in */
	LIMIT_RECOVERING, /* jobs may be in flight that are not counted yet */
	LIMIT_TABLE_FULL, /* the lease table has no room for what would be counted */
	LIMIT_RUNNING,	  /* max_running is reached */
	LIMIT_RATE		  /* rate_limit is used up */
} QueueLimit;

/* How a queue stands to its limits. */
typedef struct LimitView
{
	QueueLimit state;
	int running;
	TimestampTz until; /* LIMIT_RATE: when the rate allows the next claim; DT_NOEND otherwise */
	bool after_search; /* LIMIT_RECOVERING: a claim, which searches first, would find room */
} LimitView;

extern bool idemq_limit_may_borrow(const QueueInfo *queue);
extern bool idemq_limit_pass_rate(const QueueInfo *queue, bool borrows);
extern void idemq_limit_undo_rate(const QueueInfo *queue);
extern void idemq_limit_view(const QueueInfo *queue, LimitView *view);
extern bool idemq_limit_lets(const QueueInfo *queue, LimitView *view);
extern bool idemq_limit_has_slot(const QueueInfo *queue);
extern void idemq_limit_recovered(const QueueInfo *queue);

#endif
