/*
 * shared/slots.h
 *		A queue's place in shared memory.
 */
#ifndef IDEMQ_SHARED_SLOTS_H
#define IDEMQ_SHARED_SLOTS_H

#include "port/atomics.h"
#include "storage/lwlock.h"

#include "shared/ready_ring.h"
#include "base/idemq.h"

/* Below every key, and above every key. */
#define READY_KEY_MIN ((ReadyKey){PG_INT64_MIN, PG_INT64_MIN})
#define READY_KEY_MAX ((ReadyKey){PG_INT64_MAX, PG_INT64_MAX})

/* How far a search for jobs in flight without a lease entry has come. */
typedef struct RecoveryPoint
{
	uint32 epoch;
	int priority; /* IDEMQ_PRIORITIES: at the end */
	ReadyKey from;
	bool incomplete; /* something could not be adopted on the way */
} RecoveryPoint;

/* Lowerings of a ready cursor that are remembered: a multiple of 4. */
#define HISTORY_LENGTH 16

typedef struct Lowering
{
	uint64 seq;
	ReadyKey key;
} Lowering;

/* The lowerings of one priority; seq and key grow. */
typedef struct History
{
	int count;
	Lowering entries[HISTORY_LENGTH];
} History;

typedef struct SlotKey
{
	Oid database;
	int32 queue_id;
} SlotKey;

/* In QueueSlot.next_recovery: every job in flight has a lease entry. */
#define RECOVERY_NEVER ((uint64) PG_INT64_MAX)

/* The two halves of QueueSlot.running. */
#define RUNNING_LIFE(word) ((uint32) ((word) >> 32)) /* number of the slot's life */
#define RUNNING_COUNT(word) ((uint32) (word))		 /* lease entries counted in it */

/* On cache lines of its own.  Every field is under the lock, unless it says otherwise. */
typedef struct QueueSlot
{
	pg_attribute_aligned(PG_CACHE_LINE_SIZE) LWLock lock;
	SlotKey key;					   /* queue_id 0: free; changes under slots_lock and lock */
	uint64 seq;						   /* lowerings so far */
	ReadyKey cursor[IDEMQ_PRIORITIES]; /* below it nothing can be claimed */
	History history[IDEMQ_PRIORITIES]; /* of lowerings */
	pg_atomic_uint64 next_recovery; /* mono: no search for lost leases before; read without lock */
	RecoveryPoint recovery;			/* its epoch moves whenever a search is asked for */
	int64 next_verify;				/* mono: of the cursors, not before */
	pg_atomic_uint64 next_deadline; /* mono: no lease ends before; no lock */
	/* for shared/wake.c; no lock */
	pg_atomic_uint64 next_due;	   /* TimestampTz: nothing comes due by time alone before */
	pg_atomic_uint64 next_expiry;  /* TimestampTz: no job expires before; 0: unknown */
	pg_atomic_uint64 announced;	   /* times that something became ready; */
	pg_atomic_uint64 notified;	   /* of these, how many a NOTIFY has covered */
	pg_atomic_uint64 unclaimed_at; /* mono of the first signal since the last claim; 0: none */
	/* for shared/handler_board.c; no lock */
	pg_atomic_uint64 handler_due; /* mono: the worker is to look at the handler; never: unasked */
	pg_atomic_uint32 handler_wanted; /* processes that its handler may have; 0: it has none */
	pg_atomic_uint32 handler_armed;	 /* something that becomes ready asks for another process */
	pg_atomic_uint32
		handler_crashed; /* 1: a former server ended in its handler's job; 2: too often */
	/* for shared/running.c and job/limits.c; no lock */
	pg_attribute_aligned(PG_CACHE_LINE_SIZE)
		pg_atomic_uint64 running; /* RUNNING_LIFE and RUNNING_COUNT */
	pg_atomic_uint64 rate_tat;	  /* ns, mono: GCRA's, of rate_limit */
	pg_atomic_uint32 refused_by;  /* bits of the limits that have refused a claim since */
	pg_atomic_uint32 kin;		  /* for shared/kin.c; no lock */
	pg_atomic_uint64
		known_since; /* mono: what its queue did is known since then; 0: all; no lock */
	bool uncounted;	 /* under lock: the queue may have entries that are not counted */
	pg_attribute_aligned(PG_CACHE_LINE_SIZE)
		pg_atomic_uint64 next_fill; /* mono: no session reads on for the ring before; no lock */
	ReadyRing ring;					/* the next entries of the ready index */
} QueueSlot;

/* What the background worker has to know of a queue, copied. */
typedef struct SlotView
{
	QueueSlot *slot;
	int32 queue_id;
	int64 next_recovery; /* mono; PG_INT64_MAX: no search is needed */
} SlotView;

/* What idemq.check() has to know of one queue's slot, copied. */
typedef struct SlotStatus
{
	bool needs_recovery;
	uint64 next_deadline; /* mono; PG_UINT64_MAX: none */
} SlotStatus;

/* Counts over all slots that must agree. */
typedef struct SlotsAudit
{
	int used;	   /* as the allocator counts */
	int taken;	   /* in the array */
	int hashed;	   /* in the hash */
	int misplaced; /* taken, and not what the hash says */
} SlotsAudit;

extern Size idemq_slots_shmem_size(void);
extern Size idemq_slots_hash_size(void);
extern void idemq_slots_shmem_init(void *area, bool found);

/* for queue/slot_life.c, which takes the lock for the others */
extern void idemq_slots_lock(LWLockMode mode);
extern void idemq_slots_unlock(void);
extern QueueSlot *idemq_slot_find_locked(Oid database, int32 queue_id);
extern bool idemq_slots_are_full(void);
extern void idemq_slots_count_refused(void);
extern QueueSlot *idemq_slot_occupy(Oid database, int32 queue_id);
extern void idemq_slot_vacate(QueueSlot *slot);

/* for everybody */
extern QueueSlot *idemq_slot_at(int index);
extern QueueSlot *idemq_slot_current(QueueSlot *slot, int32 queue_id);
extern void idemq_for_each_slot(Oid database, void (*function)(const SlotView *view, void *arg),
								void *arg);
extern bool idemq_slot_view(int index, Oid database, SlotView *view);
extern QueueSlot *idemq_slot_find(Oid database, int32 queue_id);
extern int idemq_slot_index(const QueueSlot *slot);
extern void idemq_slots_usage(int *used, int64 *refused);
extern void idemq_slot_note_new(QueueSlot *slot, int32 queue_id);
extern bool idemq_slot_known_since(QueueSlot *slot, int32 queue_id, int64 *since);
extern bool idemq_slot_is_of(const QueueSlot *slot, int32 queue_id);
extern bool idemq_slot_lock(QueueSlot **slot, int32 queue_id, LWLockMode mode);

extern void idemq_slots_begin_change(void);
extern void idemq_slots_end_change(void);
extern uint64 idemq_slots_changes(void);
extern void idemq_slots_switched(void);
extern uint64 idemq_slots_switches(void);
extern bool idemq_slot_status(int32 queue_id, SlotStatus *status);
extern int idemq_slots_audit(SlotsAudit *audit, int32 *queue_ids);

#endif
