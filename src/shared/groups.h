/*
 * shared/groups.h
 *		Which FIFO groups may need a head, in shared memory.
 */
#ifndef IDEMQ_SHARED_GROUPS_H
#define IDEMQ_SHARED_GROUPS_H

#include "shared/group_table.h"

/* A group that this session has taken, to check it. */
typedef struct GroupTaken
{
	GroupKey key;
	GroupFloor floor; /* for its release; a check asks idemq_group_floor after its snapshot */
} GroupTaken;

typedef enum GroupOwn
{
	GROUP_OWNED, /* by this session, until idemq_group_release */
	GROUP_BUSY,	 /* another session has it */
	GROUP_FULL	 /* no room */
} GroupOwn;

typedef enum GroupRelease
{
	GROUP_DONE,	   /* it has a head, or no job: nothing to do until it is marked again */
	GROUP_LIMITED, /* the same, since all its places are taken, and it has a job for the next */
	GROUP_AGAIN,   /* to be checked again, at once */
	GROUP_LATER,   /* the same, when the holder of its next job may have let it go */
	GROUP_PREPARED /* its transaction is prepared: its state is unknown until that ends */
} GroupRelease;

extern void idemq_group_key(GroupKey *key, int32 queue_id, const char *name, int length);
extern Size idemq_group_key_size(const GroupKey *key);
extern int idemq_groups_take(const QueueSlot *slot, int32 queue_id, GroupTaken *taken, int max);
extern GroupOwn idemq_group_own(QueueSlot *slot, GroupTaken *taken);
extern GroupFloor idemq_group_floor_now(GroupFloor floor);
extern GroupFloor idemq_group_floor(QueueSlot *slot, const GroupKey *key, int64 own);
extern void idemq_group_mark(QueueSlot *slot, const GroupKey *key, int64 id);
extern void idemq_group_release(QueueSlot *slot, const GroupTaken *group, GroupRelease how);

#endif
