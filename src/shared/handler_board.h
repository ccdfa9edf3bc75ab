/*
 * shared/handler_board.h
 *		The processes that run handlers.
 */
#ifndef IDEMQ_SHARED_HANDLER_BOARD_H
#define IDEMQ_SHARED_HANDLER_BOARD_H

#include "shared/handler_known.h"
#include "shared/slots.h"

/* What a process shows that was asked for. */
typedef struct HandlerTicket
{
	int32 index; /* of its place */
	uint64 serial;
	Oid role;
	HandlerKey key;
} HandlerTicket;

typedef enum HandlerReserve
{
	HANDLER_RESERVED,
	HANDLER_ENOUGH, /* it has as many as it may, or one that is idle or on its way */
	HANDLER_LATER,	/* the last one failed a moment ago */
	HANDLER_FULL	/* there are idemq.max_handler_workers */
} HandlerReserve;

extern Size idemq_handlers_shmem_size(void);
extern void idemq_handlers_shmem_init(void *area, bool found);

/* for everybody */
extern void idemq_handler_look_at(QueueSlot *slot, int64 when);
extern void idemq_handler_call(QueueSlot *slot);
extern void idemq_handler_crashed(QueueSlot *slot, bool again);
extern void idemq_handler_processes(HandlerKey key, int *processes, int *busy);

/* for the worker, which starts them */
extern HandlerReserve idemq_handler_reserve(QueueSlot *slot, int wanted, HandlerTicket *ticket,
											int64 *again);
extern void idemq_handler_unreserve(QueueSlot *slot, const HandlerTicket *ticket);
extern void idemq_handler_settle(QueueSlot *slot, HandlerKey key, int wanted);

/* for hooks/exclusive_database.c */
extern pid_t idemq_handlers_leave(Oid database, int signal_number);

/* for a process that runs a handler */
extern bool idemq_handler_attach(const HandlerTicket *ticket);
extern void idemq_handler_ready(void);
extern void idemq_handler_idle(QueueSlot *slot, bool idle);
extern bool idemq_handler_must_leave(void);

#endif
