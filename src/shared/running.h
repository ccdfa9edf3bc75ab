/*
 * shared/running.h
 *		How many jobs of a queue run: its lease entries, counted in its slot.
 */
#ifndef IDEMQ_SHARED_RUNNING_H
#define IDEMQ_SHARED_RUNNING_H

#include "shared/slots.h"

/* Where a lease entry is counted as running.  Every field is under the entry's partition lock. */
typedef struct RunningMark
{
	int32 slot;	  /* by index; of no meaning while units is 0 */
	uint32 life;  /* the life of that slot */
	uint32 units; /* 0, or 1; more until a claim that took the entry over ends */
} RunningMark;

/* Where something was counted that is running no more, for idemq_running_freed. */
typedef struct RunningFreed
{
	int32 slot; /* by index; -1: nowhere */
	int32 queue_id;
} RunningFreed;

#define NOTHING_FREED ((RunningFreed){-1, 0})

/* Bits of QueueSlot.refused_by: the limits that have refused a claim. */
#define REFUSED_BY_RUNNING 1
#define REFUSED_BY_RATE 2

/* for shared/leases.c and shared/lease_scan.c, with the entry's partition locked */
extern bool idemq_running_count_in(RunningMark *mark, QueueSlot *slot, int32 queue_id, uint32 max);
extern RunningFreed idemq_running_count_out(RunningMark *mark, int32 queue_id, uint32 keep);
extern bool idemq_running_is_counted(const RunningMark *mark);

extern void idemq_running_freed(RunningFreed freed);
extern void idemq_running_wake_refused(QueueSlot *slot, int32 queue_id, uint32 limit);
extern int idemq_running_count(const QueueSlot *slot);

#endif
