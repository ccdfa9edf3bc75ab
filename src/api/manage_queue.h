/*
 * api/manage_queue.h
 *		What functions about queues share.
 */
#ifndef IDEMQ_API_MANAGE_QUEUE_H
#define IDEMQ_API_MANAGE_QUEUE_H

#include "fmgr.h"

#include "queue/queues.h"

extern void idemq_arg_admin_queue(FunctionCallInfo fcinfo, QueueInfo *queue);
extern void idemq_grant_admin(int32 queue_id, Oid role);

#endif
