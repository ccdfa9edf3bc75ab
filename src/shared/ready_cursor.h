/*
 * shared/ready_cursor.h
 *		The ready cursor: where a claim starts in the ready index.
 */
#ifndef IDEMQ_SHARED_READY_CURSOR_H
#define IDEMQ_SHARED_READY_CURSOR_H

#include "shared/slots.h"

/* What a claimer must read before it takes its snapshot. */
typedef struct CursorView
{
	uint64 seq; /* number of lowerings until then */
	ReadyKey from[IDEMQ_PRIORITIES];
	QueueSlot *slot; /* NULL: there was none, from is the start of the index */
	RingView ring;	 /* entries of the index, to be gone through in its place */
} CursorView;

extern void idemq_cursor_read(QueueSlot *slot, int32 queue_id, int wanted, CursorView *view);
extern void idemq_cursor_read_ring(QueueSlot *slot, int32 queue_id, CursorView *view,
								   ReadyRing *ring);
extern bool idemq_cursor_may_fill(const CursorView *view);
extern void idemq_cursor_advance(const CursorView *view, int32 queue_id, int priority, ReadyKey to,
								 ReadyRing *fill);
extern void idemq_cursor_lower(QueueSlot *slot, int32 queue_id, int priority, ReadyKey to);
extern bool idemq_cursor_lowered_since(const CursorView *view, int32 queue_id, int priority,
									   ReadyKey key);
extern void idemq_cursor_unset(QueueSlot *slot, int32 queue_id);
extern void idemq_cursor_unset_locked(QueueSlot *slot);
extern bool idemq_cursor_verify_due(QueueSlot *slot, int32 queue_id);
extern void idemq_cursor_verified(QueueSlot *slot, int32 queue_id, int64 took);

#endif
