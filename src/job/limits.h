/*
 * job/limits.h
 *		max_running and rate_limit of a queue.
 */
#ifndef IDEMQ_JOB_LIMITS_H
#define IDEMQ_JOB_LIMITS_H

#include "queue/queues.h"
#include "shared/lease_table.h"

/* Where an entry was counted that is running no more, for idemq_limit_freed. */
typedef struct LimitPlace
{
	int32 slot; /* by index; -1: nowhere */
	int32 queue_id;
} LimitPlace;

#define NO_PLACE ((LimitPlace){-1, 0})

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
	TimestampTz until; /* LIMIT_RATE: the time of the next token; DT_NOEND otherwise */
} LimitView;

/* for shared/leases.c, with the entry's partition locked, but for the last */
extern bool idemq_limit_count_in(Lease *lease, QueueSlot *slot, int32 queue_id, uint32 max);
extern LimitPlace idemq_limit_count_out(Lease *lease, uint32 keep);
extern bool idemq_limit_is_counted(const Lease *lease);
extern void idemq_limit_freed(LimitPlace place);

extern int idemq_limit_running(const QueueSlot *slot);

extern bool idemq_limit_may_borrow(const QueueInfo *queue);
extern bool idemq_limit_take_token(const QueueInfo *queue, bool borrows);
extern void idemq_limit_return_token(const QueueInfo *queue);
extern void idemq_limit_view(const QueueInfo *queue, LimitView *view);
extern bool idemq_limit_lets(const QueueInfo *queue, LimitView *view);
extern bool idemq_limit_has_slot(const QueueInfo *queue);
extern void idemq_limit_recovered(const QueueInfo *queue);

#endif
