/*
 * cursor.h
 *		The ready cursor: where a claim starts in the ready index.
 */
#ifndef IDEMQ_CURSOR_H
#define IDEMQ_CURSOR_H

#include "idemq.h"

/* A queue's place in shared memory; see cursor.c. */
typedef struct QueueSlot QueueSlot;

/* What a claimer must read before it takes its snapshot. */
typedef struct CursorView
{
	uint64 seq; /* number of lowerings until then */
	ReadyKey from[IDEMQ_PRIORITIES];
	ReadyKey stretch[IDEMQ_PRIORITIES]; /* a scan may stop there first; see cursor.c */
	bool shared;						/* false: no slot, from is the start of the index */
} CursorView;

/* How far a search for jobs in flight without a lease entry has come. */
typedef struct RecoveryPoint
{
	uint32 epoch;
	int priority; /* IDEMQ_PRIORITIES: at the end */
	ReadyKey from;
	bool incomplete; /* something could not be adopted on the way */
} RecoveryPoint;

/* Below everything, and above everything. */
#define READY_KEY_MIN ((ReadyKey){PG_INT64_MIN, PG_INT64_MIN})
#define READY_KEY_MAX ((ReadyKey){PG_INT64_MAX, PG_INT64_MAX})

extern Size idemq_cursor_shmem_size(void);
extern Size idemq_cursor_hash_size(void);
extern void idemq_cursor_shmem_init(void *area, bool found);

extern QueueSlot *idemq_cursor_find(Oid database, int32 queue_id);
extern QueueSlot *idemq_cursor_slot(int32 queue_id);
extern void idemq_cursor_read(QueueSlot *slot, int32 queue_id, CursorView *view);
extern void idemq_cursor_advance(QueueSlot *slot, int32 queue_id, const CursorView *view,
								 int priority, ReadyKey to, ReadyKey stretch);
extern void idemq_cursor_lower(QueueSlot *slot, int32 queue_id, int priority, ReadyKey to);
extern bool idemq_cursor_verify_due(QueueSlot *slot, int32 queue_id);
extern void idemq_cursor_verified(QueueSlot *slot, int32 queue_id, int64 took);
extern void idemq_cursor_need_recovery(QueueSlot *slot, int32 queue_id);
extern bool idemq_cursor_recovery_point(QueueSlot *slot, int32 queue_id, RecoveryPoint *point);
extern void idemq_cursor_recovered_to(QueueSlot *slot, int32 queue_id, const RecoveryPoint *point);
extern void idemq_cursor_unset(QueueSlot *slot, int32 queue_id);
extern void idemq_cursor_unset_database(Oid database);
extern void idemq_cursor_forget_database(Oid database);
extern void idemq_cursor_forget_queue(int32 queue_id);
extern bool idemq_cursor_slot_is(const QueueSlot *slot, int32 queue_id);
extern bool idemq_cursor_deadline_passed(QueueSlot *slot, int32 queue_id);
extern void idemq_cursor_reset_deadline(QueueSlot *slot, int32 queue_id);
extern void idemq_cursor_note_deadline(QueueSlot *slot, int32 queue_id, int64 deadline);

#endif
