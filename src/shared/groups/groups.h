/*
 * shared/groups/groups.h
 *		Which FIFO groups may need a head, and which jobs may have parents or children.
 */
#ifndef IDEMQ_SHARED_GROUPS_GROUPS_H
#define IDEMQ_SHARED_GROUPS_GROUPS_H

#include "lib/ilist.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/lwlock.h"
#include "storage/spin.h"

#include "shared/queue_states/queue_states.h"

/*
 * groups.c
 *		Which FIFO groups may need a head, in shared memory.
 */

#define GROUP_NAME 116

/* Kind of a key: a group, or the mark of a job with dependencies (shared/groups/dependencies.c). */
typedef enum GroupKind
{
	KIND_GROUP,
	KIND_LONG_NAME, /* a group whose name is longer than GROUP_NAME: in its place is a hash of it */
	/* marks: in place of the name is the job's id */
	KIND_CHILD,
	KIND_FAILURE,
	KIND_PARENT
} GroupKind;

/* A group: compared and hashed as bytes. */
typedef struct GroupKey
{
	Oid database;
	int32 queue_id;
	int16 length; /* bytes of the name */
	int16 kind;	  /* GroupKind */
	char name[GROUP_NAME];
} GroupKey;

/*
 * Where a check of a group may begin: no job that is, or may become, its head has a
 * ready_at below heads, and no blocked job has an id below blocked; or else a session
 * is about to mark the group, which lowers the low-water mark.
 */
typedef struct GroupLowWater
{
	TimestampTz heads;
	int64 blocked;
	TimestampTz last; /* with permits: no job that has one is later than this, or than now */
} GroupLowWater;

#define GROUP_NO_LOW_WATER ((GroupLowWater){DT_NOBEGIN, PG_INT64_MIN, DT_NOBEGIN})

/* Instead of an id to which a low-water mark is lowered: it stays as it is; it is dropped. */
#define GROUP_KEEP_LOW_WATER PG_INT64_MAX
#define GROUP_DROP_LOW_WATER PG_INT64_MIN

/* The promoter of a group that has none. */
#define NOBODY (-1)

typedef enum GroupList
{
	LIST_NONE,	  /* owned */
	LIST_WAITING, /* to be checked */
	LIST_DELAYED, /* to be checked from the queue's delayed_until on */
	LIST_IDLE	  /* here for its low-water mark alone */
} GroupList;

/* Every field is under the table's lock. */
typedef struct GroupEntry
{
	GroupKey key;
	int32 promoter; /* proc number, or NOBODY */
	bool again;		/* marked since it got its promoter */
	bool limited;	/* when it was last checked, all its permits were taken, and a job waited */
	GroupList list;
	GroupLowWater low_water;
	int64
		lowered; /* since it got its promoter: to an id, GROUP_KEEP_LOW_WATER or GROUP_DROP_LOW_WATER */
	dlist_node node; /* in a list of its queue, or in the list of idle groups */
} GroupEntry;

/*
 * Transactions about to lower low-water marks; every field is under the spinlock (commit_window.c).
 */
typedef struct CommitWindow
{
	pg_attribute_aligned(PG_CACHE_LINE_SIZE) slock_t lock;
	int newer;		/* the generation that is entered: 0 or 1 */
	int writers[2]; /* by generation */
	int64 least[2]; /* an id, or GROUP_DROP_LOW_WATER; GROUP_KEEP_LOW_WATER without writers */
} CommitWindow;

/* Commit windows for the databases, which share them by their OIDs. */
#define DATABASE_COMMIT_WINDOWS 16

/* The worker's passes of promotion; no lock (promote_pass.c). */
typedef struct PromotePass
{
	pg_atomic_uint32 number; /* grows with each begin and end; odd: one is under way */
	ConditionVariable over;
} PromotePass;

/*
 * The groups of one queue, at the index of its state, that are to be checked.  Every
 * field but the last is under the table's lock; the time when they are due is in the queue state
 * (DUE_GROUPS).
 */
typedef struct GroupQueue
{
	pg_attribute_aligned(PG_CACHE_LINE_SIZE) Oid database; /* InvalidOid: no queue's */
	int32 queue_id;
	dlist_head waiting;
	dlist_head delayed;
	int64 delayed_until; /* mono: those in delayed are to be checked */
	int64 scan_at;		 /* mono: all are to be checked; PG_INT64_MAX: never */
	int64 children_at;	 /* mono: the same of the queue's children; a scan of them: */
	int64 children_from; /* children from that id on are next */
	int64 children_stop; /* it began there, and stops there once it has come to the end */
	bool children_at_end;
	bool children_again; /* it was asked for since its last slice was taken: goes round again */
	PromotePass pass;
} GroupQueue;

/* What a scan covers, as bits. */
#define SCAN_GROUPS 1
#define SCAN_CHILDREN 2

extern GroupQueue *idemq_group_queue_at(int index);
extern void idemq_groups_lock(LWLockMode mode);
extern void idemq_groups_unlock(void);
extern GroupQueue *idemq_group_queue_of(const QueueState *qstate, Oid database, int32 queue_id);
extern void idemq_group_queue_note_due(GroupQueue *queue);
extern void idemq_group_queue_want_scan(GroupQueue *queue, uint32 what, bool later);
extern const ShmemPart idemq_groups_part;
extern bool idemq_groups_know(const QueueState *qstate, const GroupKey *key);
extern bool idemq_group_is_busy(const GroupKey *key);
extern void idemq_groups_reset(int index, Oid database, int32 queue_id);
extern void idemq_groups_forget(int index);
extern void idemq_groups_unset_database(Oid database);
extern int idemq_groups_copy(Oid database, GroupEntry *copies, int max);
extern void idemq_groups_drop_low_water_marks(const QueueState *qstate, int32 queue_id);
extern int64 idemq_groups_limited(Oid database, int32 queue_id);
extern TableUsage idemq_groups_usage(void);
extern int idemq_groups_marked(void);

/* A group that this session has taken, to check it. */
typedef struct GroupTaken
{
	GroupKey key;
	GroupLowWater low_water; /* stored at its release; checks use idemq_group_low_water */
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
	GROUP_LIMITED, /* the same: all its permits are taken, and a job waits for one */
	GROUP_AGAIN,   /* to be checked again, at once */
	GROUP_LATER	   /* to be checked again, when the holder of its next job may have let it go */
} GroupRelease;

extern void idemq_group_key(GroupKey *key, int32 queue_id, const char *name, int length);
extern Size idemq_group_key_size(const GroupKey *key);
extern int idemq_groups_take(const QueueState *qstate, int32 queue_id, GroupTaken *taken, int max);
extern GroupOwn idemq_group_own(QueueState *qstate, GroupTaken *taken);
extern GroupLowWater idemq_group_low_water(QueueState *qstate, const GroupKey *key, int64 own);
extern bool idemq_group_mark(QueueState *qstate, const GroupKey *key, int64 id);
extern void idemq_group_release(QueueState *qstate, const GroupTaken *group, GroupRelease how);

/*
 * group_scans.c
 *		Scans of all groups, and of all children, of a queue.
 */

/*
 * A slice of a scan of a queue's children, in the order of their ids.  A scan begins where the last
 * one stopped, goes on at the least id when it has come to the end, and stops where it began.  So
 * one that is asked for while another one is under way costs no more than going round once more.
 */
typedef struct ChildrenScan
{
	int64 from;	 /* the children to look at: from that id on, */
	int64 until; /* to that one, exclusive */
	int64 next;	 /* where the slice has stopped */
	bool at_end; /* or there are no more of these children */
} ChildrenScan;

extern bool idemq_groups_take_scan(const QueueState *qstate, int32 queue_id);
extern bool idemq_groups_take_children(const QueueState *qstate, int32 queue_id,
									   ChildrenScan *scan);
extern void idemq_groups_leave_children(const QueueState *qstate, int32 queue_id,
										const ChildrenScan *scan);
extern void idemq_groups_want_scan(const QueueState *qstate, int32 queue_id, uint32 what,
								   bool later);

/*
 * group_room.c
 *		The room that open transactions have taken in groups of queues with group_max_unfinished.
 */

/* A group: compared and hashed as bytes. */
typedef struct GroupRoomKey
{
	Oid database;
	int32 queue_id;
	uint64 name[2]; /* a keyed hash of the name */
} GroupRoomKey;

extern const ShmemPart idemq_group_room_part;
extern void idemq_group_room_key(GroupRoomKey *key, int32 queue_id, Datum name);
extern bool idemq_group_room_take(const QueueState *qstate, const GroupRoomKey *key, int64 jobs,
								  int64 *sum);
extern void idemq_group_room_give_back(const GroupRoomKey *key, int64 jobs);
extern int idemq_group_room_copy(uint64 *serials, int max);
extern TableUsage idemq_group_room_usage(void);

/*
 * promote_pass.c
 *		Passes of promotion by the background worker.
 */

extern void idemq_promote_pass_begin(const QueueState *qstate);
extern void idemq_promote_pass_end(const QueueState *qstate);
extern uint32 idemq_promote_pass_number(const QueueState *qstate);
extern void idemq_promote_pass_await(const QueueState *qstate);

/*
 * dependencies.c
 *		Which jobs may have parents or children, in shared memory.
 */

/* What is marked, beside the groups of a queue. */
typedef enum DependencyMark
{
	DEPENDENCY_CHILD = KIND_CHILD,	   /* of a child: its parents may be done */
	DEPENDENCY_FAILURE = KIND_FAILURE, /* of a child: one of its parents may be dead or cancelled */
	DEPENDENCY_PARENT = KIND_PARENT	   /* of a parent: it has finished */
} DependencyMark;

extern const ShmemPart idemq_dependencies_part;
extern void idemq_dependency_note(QueueState *qstate, int64 job_id);
extern bool idemq_may_have_dependencies(const QueueState *qstate, int64 job_id);
extern bool idemq_dependencies_is_known(const QueueState *qstate);
extern uint32 *idemq_dependencies_learn_begin(void);
extern void idemq_dependencies_learn_end(uint32 *begun, bool unseen);
extern void idemq_dependency_key(GroupKey *key, int32 queue_id, DependencyMark mark, int64 job_id);
extern bool idemq_dependency_read(const GroupKey *key, DependencyMark *mark, int64 *job_id);
extern void idemq_dependency_mark(QueueState *qstate, int32 queue_id, DependencyMark mark,
								  int64 job_id);
extern void idemq_dependency_finished(QueueState *qstate, int32 queue_id, int64 job_id);

/*
 * commit_window.c
 *		Transactions that are about to lower the low-water marks of FIFO groups.
 */

extern const ShmemPart idemq_commit_windows_part;
extern int idemq_commit_window_of(const QueueState *qstate, Oid database);
extern int idemq_commit_window_enter(int number, int64 id);
extern void idemq_commit_window_lower(int number, int generation, int64 id);
extern void idemq_commit_window_leave(int number, int generation);
extern int64 idemq_commit_window_least(const QueueState *qstate, Oid database);

#endif
