/*
 * shared/worker_board.h
 *		Which databases have a background worker.
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
extern void idemq_worker_recheck(Oid database);
extern void idemq_worker_visit(Oid database);
extern bool idemq_worker_comes(void);

/* for hooks/exclusive_database.c */
extern pid_t idemq_worker_hold(Oid database, bool *held);
extern void idemq_worker_release(Oid database);
extern bool idemq_worker_is_there(Oid database, pid_t pid);
extern void idemq_worker_signal(Oid database, pid_t pid, int signal_number);

/* for the launcher */
extern void idemq_workers_attach_launcher(void);
extern int idemq_workers_list(bool starting, WorkerPlace *places, int max);
extern bool idemq_worker_start_noted(WorkerPlace *place);
extern void idemq_worker_start_failed(int index, int64 again_in);
extern void idemq_worker_forget(const WorkerPlace *place);

/* for a worker */
extern bool idemq_worker_attach(int index, uint64 serial, Oid *database);
extern bool idemq_worker_found_nothing(void);
extern bool idemq_worker_is_wanted(void);
extern bool idemq_worker_take_recheck(void);

#endif
