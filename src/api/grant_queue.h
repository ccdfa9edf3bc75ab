/*
 * api/grant_queue.h
 *		Letting roles use a queue.
 */
#ifndef IDEMQ_API_GRANT_QUEUE_H
#define IDEMQ_API_GRANT_QUEUE_H

extern void idemq_grant_admin(int32 queue_id, Oid role);

#endif
