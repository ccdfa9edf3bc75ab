/*
 * shared/worker_call.h
 *		How a background worker is woken, and watched.
 *
 * No wake-up of a worker is lost.  The worker writes asleep_until = never
 * (idemq_worker_awake), full barrier, takes the marks of slots (shared/due_slots.c), checks
 * what is due, writes asleep_until = until (idemq_worker_asleep), and waits on its latch.
 * A session that has something for time t writes it down (next_deadline, next_due,
 * announced, a ring, next_recovery), marks the slot, full barrier, reads asleep_until, and
 * sets the latch if t is less (idemq_worker_need_slot; idemq_worker_need_by for what is no
 * slot's).  If it read
 *	 - never: the latch is set, and the worker, between its check and its sleep, does not
 *	   sleep;
 *	 - an until later than t: the latch is set;
 *	 - an until not later than t: the worker wakes in time by itself, and takes the mark.
 *	   Had it been awake already, one of the two would have seen what the other wrote before
 *	   its barrier.
 * So a busy queue, whose deadlines are all later than the first, does not wake the worker
 * for each claim.  A place may have become another database's meanwhile: that worker
 * wakes in vain, and the right one has just started and checks everything.
 */
#ifndef IDEMQ_SHARED_WORKER_CALL_H
#define IDEMQ_SHARED_WORKER_CALL_H

#include "shared/slots.h"

/* for everybody */
extern bool idemq_worker_present(void);
extern void idemq_worker_need_by(int64 mono);
extern void idemq_worker_need_slot(const QueueSlot *slot, int64 mono);
extern void idemq_worker_mark_slot(int slot);
extern void idemq_worker_need_all(void);
extern void idemq_worker_note_schedules(void);

/* for a worker */
extern void idemq_worker_awake(void);
extern void idemq_worker_asleep(int64 until);
extern void idemq_worker_beats(void);
extern bool idemq_worker_schedules_changed(bool take);

/* for sleepers */
extern int idemq_worker_place_index(void);

#endif
