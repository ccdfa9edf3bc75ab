/*
 * queue/handlers.h
 *		The handler of a queue: which function runs its jobs, as whom.
 */
#ifndef IDEMQ_QUEUE_HANDLERS_H
#define IDEMQ_QUEUE_HANDLERS_H

#include "datatype/timestamp.h"

/* A row of idemq.handler_entries. */
typedef struct HandlerInfo
{
	int32 queue_id;
	NameData schema;
	NameData function;
	NameData role;
	Oid role_oid;	/* InvalidOid: the name alone decides */
	NameData owner; /* of the function, when it was set */
	Oid owner_oid;	/* as role_oid */
	int32 workers;
	int32 batch;
	int64 max_idle; /* microseconds */
	TimestampTz set_at;
	int32 crashes;
	bool stopped;
} HandlerInfo;

/* What is said of a handler whose queue has no slot: it does not run. */
#define HANDLER_WITHOUT_SLOT                                                                       \
	"its queue has no slot in shared memory: raise idemq.max_queues and restart the server"

/* Whom and what a handler names, as it is now. */
typedef struct HandlerTarget
{
	Oid role;
	Oid function;
	bool returns_void;
} HandlerTarget;

extern bool idemq_handler_read(int32 queue_id, HandlerInfo *info);
extern bool idemq_handler_same(const HandlerInfo *a, const HandlerInfo *b);
extern char *idemq_handler_resolve(const HandlerInfo *info, HandlerTarget *target);
extern const char *idemq_handler_stopped_text(const HandlerInfo *info);

#endif
