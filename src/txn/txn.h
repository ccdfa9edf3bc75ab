/*
 * txn/txn.h
 *		What a transaction owes shared memory at its end.
 */
#ifndef IDEMQ_TXN_TXN_H
#define IDEMQ_TXN_TXN_H

#include "queue/queue.h"
#include "shared/counts/counts.h"
#include "shared/groups/groups.h"
#include "shared/leases/leases.h"
#include "shared/queue_states/queue_states.h"

/*
 * at_end.c
 *		What shared memory follows at the end of a transaction.
 */

extern bool idemq_at_end_is_pending(void);
extern void idemq_at_end_install(void);

/*
 * pending.c
 *		What shared memory does once this transaction has ended.
 */

typedef enum ActionKind
{
	ACTION_CLAIM, /* commit: the lease starts; abort: the entry is removed, the scan start lowered */
	ACTION_CLAIM_ROWONLY, /* commit: a job is running without an entry; abort: the scan start is
						   * lowered */
	ACTION_END,			  /* commit: the entry is removed; abort: the lease continues */
	ACTION_CANCEL,		  /* at the end: the worker of that token is no longer told */
	ACTION_RECOVER,		  /* commit: rows were set to running by hand, so a job may be running
						   * without an entry */
	ACTION_CREATE_QUEUE,  /* abort: the queue's state is freed */
	ACTION_DROP_QUEUE,	  /* commit: the queue's state is freed */
	ACTION_FORGET,		  /* TRUNCATE, DROP EXTENSION.  Commit: memory forgets this database; abort:
						   * scan starts are unset */
	ACTION_EVENT,		  /* commit: there is an event for NOTIFY */
	ACTION_FINISHED,	  /* commit: a job without a lease has finished */
	ACTION_GONE,		  /* commit: unfinished jobs were deleted */
	ACTION_SETTINGS,	  /* settings of a queue or of all, or grants, have changed.  Commit: all
						   * sessions reread them; abort: this session does */
	ACTION_HOLDS,		  /* holds of a queue or of its groups have changed.  As ACTION_SETTINGS */
	ACTION_GROUPS,		  /* commit: all groups of a queue are checked again, because the limits on
						   * their jobs have changed */
	ACTION_SWITCH,		  /* idemq_internal.followers was written, before this session rereads it.
						   * At the end: sessions check whether their database follows another */
	ACTION_SCHEDULES,	  /* commit: the worker lists the schedules again */
	ACTION_RESUME,		  /* commit: a queue that was paused hands out jobs again */
	ACTION_ROWS,	  /* commit: all rows of this database are read again, because no trigger has
						   * told which have changed, or idemq.dependencies was written by hand */
	ACTION_EXTENSION, /* commit: a worker visits the database */
} ActionKind;

/* Passed instead of a status if the end of the job is not announced with NOTIFY. */
#define NOT_ANNOUNCED ((JobStatus) 0)

extern void idemq_pending_reserve(void);
extern void idemq_pending_reserve_claim(int32 queue_id);
extern void idemq_pending_note(ActionKind kind, QueueState *qstate, int32 queue_id);
extern void idemq_pending_note_claim(const LeaseClaim *claim, int32 priority, ReadyKey key,
									 bool rowonly, bool once, const PriorLease *prior);
extern void idemq_pending_note_end(QueueState *qstate, int32 queue_id, int64 job_id, int64 token,
								   JobStatus announced, bool by_others);
extern void idemq_pending_note_cancel(int32 queue_id, int64 job_id, int64 token, bool at_once);
extern void idemq_pending_note_event(QueueState *qstate, int32 queue_id, EventKind kind,
									 int64 job_id, int32 attempt);
extern void idemq_pending_note_finished(QueueState *qstate, int32 queue_id, int64 job_id,
										JobStatus announced);
extern void idemq_pending_note_extension(Oid database);
extern void idemq_pending_undo_last(void);
extern bool idemq_pending_any(void);
extern bool idemq_pending_claimed(int64 *id, int64 *token);
extern void idemq_pending_forget_claimed(void);
extern void idemq_pending_move_versions(void);
extern void idemq_pending_apply(void);
extern void idemq_pending_undo(SubTransactionId from);
extern void idemq_pending_before_prepare(void);
extern void idemq_pending_prepare(void);
extern void idemq_pending_forget(void);

/*
 * pending_queues.c
 *		What this transaction owes each queue: ready keys, counts, transferred permits, room.
 */

/* Instead of a status: the row is new, or was deleted. */
#define NO_ROW (-1)

extern void idemq_pending_ready_note(QueueState *qstate, int32 queue_id, int priority,
									 ReadyKey key);
extern void idemq_pending_ready_note_taken(QueueState *qstate, int32 queue_id, int priority,
										   ReadyKey key);
extern void idemq_pending_ready_note_expiry(QueueState *qstate, int32 queue_id,
											TimestampTz expires_at);
extern void idemq_pending_ready_view(int32 queue_id, ScanStart *view);
extern void idemq_pending_counts_row(int32 queue_id, int from, int to);
extern void idemq_pending_counts_event(int32 queue_id, uint32 counters);
extern void idemq_pending_counts_timing(int32 queue_id, Timing which, TimestampTz from,
										TimestampTz to);
extern void idemq_transfer_reserve(int32 queue_id);
extern void idemq_transfer_note_end(int32 queue_id, bool frees, int count);
extern int idemq_transfers_free(int32 queue_id);
extern bool idemq_transfer_uncounted(int32 queue_id);
extern void idemq_pending_group_room_miss(int32 queue_id);
extern bool idemq_pending_group_room_misses(int32 queue_id);
extern int64 idemq_pending_room_lacks(const QueueInfo *queue, int64 jobs);
extern RoomAnswer idemq_pending_room_take(const QueueInfo *queue, int64 jobs);
extern void idemq_pending_room_expect(const QueueInfo *queue, int64 jobs);
extern void idemq_pending_room_give_back(const QueueInfo *queue, int64 taken);
extern void idemq_pending_room_before_commit(void);
extern bool idemq_pending_room_any(void);
extern bool idemq_pending_ready_any(void);
extern void idemq_pending_counts_apply(void);
extern void idemq_pending_ready_apply(void);
extern void idemq_pending_queues_release(SubTransactionId subid, SubTransactionId parent);
extern void idemq_pending_queues_undo(SubTransactionId from);
extern void idemq_pending_queues_forget(void);

/*
 * pending_groups.c
 *		What this transaction does to FIFO groups.
 */

extern void idemq_pending_groups_note(QueueState *qstate, int32 queue_id, Datum name, int64 id);
extern void idemq_pending_groups_note_pause(QueueState *qstate, int32 queue_id, Datum name);
extern bool idemq_pending_groups_pauses(void);
extern void idemq_pending_dependency_note(QueueState *qstate, int32 queue_id, DependencyMark mark,
										  int64 job_id);
extern void idemq_pending_dependency_note_blocked(QueueState *qstate, int32 queue_id, int64 job_id);
extern void idemq_pending_groups_reserve(int count);
extern void idemq_pending_groups_note_owned(QueueState *qstate, const GroupTaken *group);
extern bool idemq_pending_groups_owns(const GroupKey *key);
extern TimestampTz idemq_pending_groups_last(const GroupKey *key);
extern void idemq_pending_groups_note_low_water(const GroupTaken *group, GroupLowWater low_water);
extern void idemq_pending_groups_done(QueueState *qstate, const GroupTaken *group,
									  GroupRelease how);
extern void idemq_pending_groups_note_scan(QueueState *qstate, int32 queue_id);
extern GroupLowWater idemq_pending_groups_low_water(QueueState *qstate, const GroupKey *key);
extern bool idemq_pending_groups_owns_any(void);
extern bool idemq_pending_groups_any(void);
extern void idemq_pending_groups_before_commit(void);
extern void idemq_pending_groups_apply(void);
extern void idemq_pending_groups_undo(SubTransactionId from);
extern void idemq_pending_groups_forget(void);

/*
 * pending_group_room.c
 *		What this transaction does to the groups of queues with group_max_unfinished.
 */

extern void idemq_pending_group_room_row(int32 queue_id, Datum name, int count, bool is_new);
extern void idemq_pending_group_room_expect(const GroupRoomKey *key, int64 jobs);
extern void idemq_pending_group_room_correct(const GroupRoomKey *key, int64 added);
extern int64 idemq_pending_group_room_lacks(const GroupRoomKey *key, int64 jobs);
extern bool idemq_pending_group_room_take(const QueueState *qstate, const GroupRoomKey *key,
										  int64 jobs, int64 *sum);
extern void idemq_pending_group_room_give_back(const GroupRoomKey *key, int64 jobs);
extern bool idemq_pending_group_room_any(void);
extern void idemq_pending_group_room_apply(void);
extern void idemq_pending_group_room_release(SubTransactionId subid, SubTransactionId parent);
extern void idemq_pending_group_room_undo(SubTransactionId from);
extern void idemq_pending_group_room_forget(void);

/*
 * pending_commit_window.c
 *		The commit windows of groups that this transaction is in.
 */

extern void idemq_pending_commit_window_enter(const QueueState *qstate, Oid database, int64 id);
extern void idemq_pending_commit_window_leave(void);

/*
 * pending_away.c
 *		Databases from which this transaction keeps the worker away.
 */

extern pid_t idemq_pending_away_keep(Oid database);
extern void idemq_pending_away_let_back(void);

/*
 * growing.c
 *		Arrays in TopTransactionContext that grow.
 */

extern void *idemq_grow(void *array, int *max, int64 wanted, Size size);

#endif
