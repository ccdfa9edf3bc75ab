/*
 * admin.h
 *		What functions about queues share.
 */
#ifndef IDEMQ_ADMIN_H
#define IDEMQ_ADMIN_H

#include "fmgr.h"

#include "queues.h"

extern void idemq_arg_admin_queue(FunctionCallInfo fcinfo, QueueInfo *queue);
extern void idemq_grant_admin(int32 queue_id, Oid role);

#endif
