/*
 * shared/notify_ring.h
 *		Events of single jobs, for NOTIFY.
 */
#ifndef IDEMQ_SHARED_NOTIFY_RING_H
#define IDEMQ_SHARED_NOTIFY_RING_H

#include "shared/slots.h"

typedef enum EventKind
{
	JOB_LEASE_EXPIRED,
	JOB_WORKER_LOST,
	JOB_DIED
} EventKind;

typedef struct JobNews
{
	EventKind kind;
	int32 attempt;
	int64 job_id;
} JobNews;

/* Events of a queue that are kept until they are notified. */
#define NEWS_KEPT 128

/* A copy of the events that are to be notified. */
typedef struct NewsBatch
{
	int count;
	uint64 until; /* for idemq_notify_ring_sent */
	uint64 lost;  /* events that found no room before these */
	JobNews news[NEWS_KEPT];
} NewsBatch;

extern Size idemq_notify_ring_shmem_size(void);
extern void idemq_notify_ring_shmem_init(void *area, bool found);

extern void idemq_notify_ring_reset(int slot_index);
extern void idemq_notify_ring_add(QueueSlot *slot, int32 queue_id, const JobNews *news);
extern bool idemq_notify_ring_waiting(const QueueSlot *slot);
extern void idemq_notify_ring_copy(const QueueSlot *slot, NewsBatch *batch);
extern void idemq_notify_ring_sent(const QueueSlot *slot, const NewsBatch *batch);

#endif
