/*
 * shared/kin.h
 *		Which jobs may have parents or children, in shared memory.
 */
#ifndef IDEMQ_SHARED_KIN_H
#define IDEMQ_SHARED_KIN_H

#include "shared/group_table.h"
#include "shared/slots.h"

/* What is marked, beside the groups of a queue. */
typedef enum KinMark
{
	KIN_CHILD = 'c',   /* of a child: its parents may be done */
	KIN_FAILURE = 'f', /* of a child: one of its parents may be dead or cancelled */
	KIN_PARENT = 'p'   /* of a parent: it has finished */
} KinMark;

/* Bytes of the name that a mark has in place of a group's. */
#define KIN_NAME 10

extern Size idemq_kin_shmem_size(void);
extern void idemq_kin_shmem_init(void *area, bool found);
extern void idemq_kin_note(QueueSlot *slot, int64 job_id);
extern bool idemq_kin_maybe(const QueueSlot *slot, int64 job_id);
extern bool idemq_kin_is_known(const QueueSlot *slot);
extern bool idemq_kin_is_used(const QueueSlot *slot);
extern void idemq_kin_learn_begin(void);
extern void idemq_kin_learn_end(bool unseen);
extern void idemq_kin_unset(QueueSlot *slot);
extern void idemq_kin_name(char *name, KinMark mark, int64 job_id);
extern bool idemq_kin_read(const GroupKey *key, KinMark *mark, int64 *job_id);
extern void idemq_kin_mark(QueueSlot *slot, int32 queue_id, KinMark mark, int64 job_id);
extern void idemq_kin_finished(QueueSlot *slot, int32 queue_id, int64 job_id);

#endif
