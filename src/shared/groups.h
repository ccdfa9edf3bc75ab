/*
 * shared/groups.h
 *		Which FIFO groups may need a head, in shared memory.
 */
#ifndef IDEMQ_SHARED_GROUPS_H
#define IDEMQ_SHARED_GROUPS_H

#include "shared/slots.h"

#define GROUP_NAME 116

/* A group: compared and hashed as bytes. */
typedef struct GroupKey
{
	Oid database;
	int32 queue_id;
	int32 length; /* bytes of the name; -1: a longer one, of which this is a hash */
	char name[GROUP_NAME];
} GroupKey;

/*
 * Where a look at a group may begin: no job that is, or may become, its head has a
 * ready_at below heads, and none that is blocked an id below blocked.  Or else somebody
 * is about to mark the group, and lowers it.
 */
typedef struct GroupFloor
{
	TimestampTz heads;
	int64 blocked;
} GroupFloor;

#define GROUP_NO_FLOOR ((GroupFloor){DT_NOBEGIN, PG_INT64_MIN})

/* A group that is to be looked at. */
typedef struct GroupTaken
{
	GroupKey key;
	GroupFloor floor;
} GroupTaken;

/* In place of a job's id that lowers a floor: none does; and, there is no floor any more. */
#define GROUP_KEEP_FLOOR PG_INT64_MAX
#define GROUP_DROP_FLOOR PG_INT64_MIN

typedef enum GroupOwn
{
	GROUP_OWNED, /* by this session, until idemq_group_release */
	GROUP_BUSY,	 /* somebody else has it */
	GROUP_FULL	 /* no room */
} GroupOwn;

typedef enum GroupRelease
{
	GROUP_DONE,	   /* it has a head, or no job: nothing to do until it is marked again */
	GROUP_AGAIN,   /* to be looked at again, at once */
	GROUP_LATER,   /* likewise, when whoever holds its next job may have let go */
	GROUP_PREPARED /* by a prepared transaction: nobody can say until that has ended */
} GroupRelease;

extern Size idemq_groups_shmem_size(void);
extern Size idemq_groups_hash_size(void);
extern void idemq_groups_shmem_init(void *area, bool found);

extern void idemq_group_key(GroupKey *key, int32 queue_id, const char *name, int length);
extern bool idemq_groups_waiting(const QueueSlot *slot);
extern int64 idemq_groups_due_at(const QueueSlot *slot);
extern bool idemq_groups_know(const QueueSlot *slot, const GroupKey *key);
extern bool idemq_groups_take_scan(const QueueSlot *slot, int32 queue_id);
extern void idemq_groups_want_scan(const QueueSlot *slot, int32 queue_id, bool later);
extern int idemq_groups_take(const QueueSlot *slot, int32 queue_id, GroupTaken *taken, int max);
extern GroupOwn idemq_group_own(const QueueSlot *slot, GroupTaken *taken);
extern void idemq_group_mark(QueueSlot *slot, const GroupKey *key, int64 id);
extern void idemq_group_release(QueueSlot *slot, const GroupTaken *group, GroupRelease how);

extern void idemq_groups_reset(int index, Oid database, int32 queue_id);
extern void idemq_groups_forget(int index);
extern void idemq_groups_unset_database(Oid database);
extern void idemq_groups_usage(int *used, int *size, int64 *refused);

#endif
