/*
 * shared/handler_known.h
 *		What is known of handlers.
 */
#ifndef IDEMQ_SHARED_HANDLER_KNOWN_H
#define IDEMQ_SHARED_HANDLER_KNOWN_H

#include "datatype/timestamp.h"

/* Bytes of a text about a handler, with its end. */
#define HANDLER_TEXT 512

/* One handler: of a queue of a database. */
typedef struct HandlerKey
{
	Oid database;
	int32 queue_id;
} HandlerKey;

/* What is known of a handler, copied. */
typedef struct HandlerState
{
	int64 done;	  /* jobs since the server started */
	int64 failed; /* attempts that failed, of these none in done */
	double rate;  /* jobs a second, lately */
	bool refused; /* no process could be started, or it had to end: error says why */
	bool waits;	  /* for a process of idemq.max_handler_workers or max_worker_processes */
	TimestampTz error_at;
	char error[HANDLER_TEXT]; /* "": none */
} HandlerState;

extern Size idemq_handlers_known_shmem_size(void);
extern void idemq_handlers_known_shmem_init(void *area, bool found);
extern int64 idemq_handler_refuse(HandlerKey key, const char *why);
extern void idemq_handler_put_off(HandlerKey key, const char *why);
extern void idemq_handler_note_set(HandlerKey key, TimestampTz set_at);
extern int64 idemq_handler_paused_until(HandlerKey key);
extern void idemq_handler_note_waits(HandlerKey key, bool waits);
extern void idemq_handler_note_ready(HandlerKey key);
extern void idemq_handler_note(HandlerKey key, int done, int failed, const char *error);
extern void idemq_handler_forget(HandlerKey key);
extern void idemq_handler_state(HandlerKey key, HandlerState *state);

#endif
