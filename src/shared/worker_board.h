/*
 * shared/worker_board.h
 *		Which databases have a background worker.
 *
 * No wake-up of a worker is lost.  The worker writes asleep_until = never
 * (idemq_worker_awake), full barrier, checks what is due, writes asleep_until = until
 * (idemq_worker_asleep), and waits on its latch.  A session that has something for time
 * t writes it down (next_deadline, next_due, announced, a ring, needs_recovery), full
 * barrier, reads asleep_until, and sets the latch if t is less
 * (idemq_worker_need_by).  If it read
 *	 - never: the latch is set, and the worker, between its check and its sleep, does not
 *	   sleep;
 *	 - an until later than t: the latch is set;
 *	 - an until not later than t: the worker wakes in time by itself.  Had it been awake
 *	   already, one of the two would have seen what the other wrote before its barrier.
 * So a busy queue, whose deadlines are all later than the first, does not wake the worker
 * for each claim.  A place may have become another database's meanwhile: that worker
 * wakes in vain, and the right one has just started and checks everything.
 */
#ifndef IDEMQ_SHARED_WORKER_BOARD_H
#define IDEMQ_SHARED_WORKER_BOARD_H

/* What the launcher has to know of one database, copied. */
typedef struct WorkerPlace
{
	int index;
	Oid database;
	uint64 serial;	  /* of this use of the place */
	int64 not_before; /* mono: the start of a worker is not to be tried before */
} WorkerPlace;

extern Size idemq_workers_shmem_size(void);
extern void idemq_workers_shmem_init(void *area, bool found);

/* for everybody */
extern bool idemq_worker_want(Oid database);
extern void idemq_worker_announce_use(void);
extern bool idemq_worker_present(void);
extern void idemq_worker_need_by(int64 mono);
extern void idemq_worker_recheck(Oid database);
extern void idemq_worker_visit(Oid database);

/* for hooks/exclusive_database.c */
extern pid_t idemq_worker_hold(Oid database, bool *held);
extern void idemq_worker_release(Oid database);
extern void idemq_worker_signal(Oid database, pid_t pid, int signal_number);

/* for the launcher */
extern void idemq_workers_attach_launcher(void);
extern int idemq_workers_list(bool starting, WorkerPlace *places, int max);
extern bool idemq_worker_start_noted(const WorkerPlace *place, uint64 *serial);
extern void idemq_worker_start_failed(int index, int64 again_in);
extern void idemq_worker_forget(const WorkerPlace *place);

/* for a worker */
extern bool idemq_worker_attach(int index, uint64 serial, Oid *database);
extern bool idemq_worker_found_nothing(void);
extern bool idemq_worker_is_wanted(void);
extern bool idemq_worker_take_recheck(void);
extern void idemq_worker_awake(void);
extern void idemq_worker_asleep(int64 until);

#endif
