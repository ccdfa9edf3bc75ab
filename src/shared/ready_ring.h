/*
 * shared/ready_ring.h
 *		A copy of the next entries of a queue's ready index.
 */
#ifndef IDEMQ_SHARED_READY_RING_H
#define IDEMQ_SHARED_READY_RING_H

#include "storage/itemptr.h"

#include "base/idemq.h"

/* An entry of the ready index. */
typedef struct ReadyEntry
{
	ReadyKey key;
	ItemPointerData tid;
} ReadyEntry;

#define RING_LENGTH 128
/* A claim of at most so many jobs is served from a ring. */
#define RING_MAX_WANTED 16
/* Entries that it copies beyond those: others may be on the first ones. */
#define RING_SPARE 8
/* With fewer entries left behind it, a claim reads on in the index. */
#define RING_LOW 32

/* All entries of one priority from one key to the last of these, in the order of the index. */
typedef struct ReadyRing
{
	int priority;
	int count;
	Oid file; /* number of the table's file that the TIDs are of */
	ReadyKey from;
	ReadyEntry entries[RING_LENGTH];
} ReadyRing;

/* What one claim copies: the entries from its cursor on. */
typedef struct RingView
{
	int priority;
	int count;
	int left; /* entries in the ring behind these */
	Oid file;
	ReadyKey bound; /* a key some entries ahead, READY_KEY_MIN for none: of the ring's priority */
	ReadyKey end;	/* of the ring */
	ReadyEntry entries[RING_MAX_WANTED + RING_SPARE];
} RingView;

extern void idemq_ring_copy(const ReadyRing *ring, const ReadyKey *cursors, int wanted,
							RingView *view);
extern void idemq_ring_drop_last_key(ReadyRing *ring);
extern void idemq_ring_cut(ReadyRing *ring, int priority, ReadyKey key);
extern void idemq_ring_view_cut(RingView *view, int priority, ReadyKey key);
extern ReadyKey idemq_ring_end(const ReadyRing *ring);
extern bool idemq_ring_hides(const ReadyRing *ring, const ReadyKey *cursors, int priority,
							 const ReadyEntry *entry);
extern void idemq_ring_install(ReadyRing *ring, const ReadyKey *cursors, const ReadyRing *fill);

#endif
