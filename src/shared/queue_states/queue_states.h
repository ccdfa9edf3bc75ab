/*
 * shared/queue_states/queue_states.h
 *		The state of a queue in shared memory, its scan starts and its read-ahead buffer; settings
 *		versions.
 */
#ifndef IDEMQ_SHARED_QUEUE_STATES_QUEUE_STATES_H
#define IDEMQ_SHARED_QUEUE_STATES_QUEUE_STATES_H

#include "miscadmin.h"
#include "port/atomics.h"
#include "postgres_ext.h"
#include "storage/itemptr.h"
#include "storage/lwlock.h"
#include "storage/spin.h"
#include "utils/snapshot.h"

#include "base/base.h"

/*
 * read_ahead.c
 *		A copy of the next entries of a queue's ready index.
 */

/* An entry of the ready index. */
typedef struct ReadyEntry
{
	ReadyKey key;
	ItemPointerData tid;
} ReadyEntry;

#define READ_AHEAD_LENGTH 128
/* Maximum number of jobs of a claim that uses the read-ahead buffer. */
#define READ_AHEAD_MAX_WANTED 16
/* Entries that it copies in addition, because other sessions may be claiming the first ones. */
#define READ_AHEAD_SPARE 8
/* If fewer entries than this remain after a claim, it reads more entries from the index. */
#define READ_AHEAD_LOW 32

/* All entries of one priority from one key to the last entry, in the order of the index. */
typedef struct ReadAhead
{
	int priority;
	int count;
	Oid file; /* number of the table's file to which the TIDs belong */
	ReadyKey from;
	ReadyEntry entries[READ_AHEAD_LENGTH];
} ReadAhead;

/* A copy of some entries of the read-ahead buffer, from the scan start on, for one claim. */
typedef struct ReadAheadView
{
	int priority;
	int count;
	int left; /* number of entries in the buffer after these */
	Oid file;
	ReadyKey bound; /* key of the last entry that was copied; READY_KEY_MIN: none */
	ReadyKey end;	/* of the buffer */
	ReadyEntry entries[READ_AHEAD_MAX_WANTED + READ_AHEAD_SPARE];
} ReadAheadView;

extern void idemq_read_ahead_copy(const ReadAhead *read_ahead, const ReadyKey *scan_starts,
								  int wanted, ReadAheadView *view);
extern void idemq_read_ahead_drop_last_key(ReadAhead *read_ahead);
extern void idemq_read_ahead_cut(ReadAhead *read_ahead, int priority, ReadyKey key);
extern void idemq_read_ahead_view_cut(ReadAheadView *view, int priority, ReadyKey key);
extern ReadyKey idemq_read_ahead_end(const ReadAhead *read_ahead);
extern bool idemq_read_ahead_hides(const ReadAhead *read_ahead, const ReadyKey *scan_starts,
								   int priority, const ReadyEntry *entry);
extern void idemq_read_ahead_install(ReadAhead *read_ahead, const ReadyKey *scan_starts,
									 const ReadAhead *fill);

/*
 * queue_states.c
 *		A queue's state in shared memory.
 */

/* Below every key, and above every key. */
#define READY_KEY_MIN ((ReadyKey){PG_INT64_MIN, PG_INT64_MIN})
#define READY_KEY_MAX ((ReadyKey){PG_INT64_MAX, PG_INT64_MAX})

/* How far a search for running jobs without a lease entry has come. */
typedef struct RecoveryPoint
{
	uint32 epoch;
	int priority; /* IDEMQ_PRIORITIES: at the end */
	ReadyKey from;
	bool incomplete; /* a job could not be adopted */
} RecoveryPoint;

/* Maximum number of lowerings of a scan start that are remembered; a multiple of 4. */
#define HISTORY_LENGTH 16

typedef struct Lowering
{
	uint64 seq;
	ReadyKey key;
} Lowering;

/* The lowerings of one priority, in ascending order of seq and of key. */
typedef struct History
{
	int count;
	Lowering entries[HISTORY_LENGTH];
} History;

typedef struct QueueStateKey
{
	Oid database;
	int32 queue_id;
} QueueStateKey;

/* Returns whether a key belongs to a queue of this database. */
static inline bool
queue_state_key_is(QueueStateKey key, int32 queue_id)
{
	return key.database == MyDatabaseId && key.queue_id == queue_id;
}

/*
 * Kinds of work for a queue.  Their due times are in QueueState.due (shared/processes/due_times.c):
 * mono, or a TimestampTz where it says so.
 */
typedef enum DueKind
{
	DUE_GROUPS,	  /* check groups; written under the groups lock */
	DUE_LEASE,	  /* a lease expires */
	DUE_RECOVERY, /* continue the search for lost leases; written under the queue state's lock */
	DUE_READY,	  /* TimestampTz: a job becomes ready, or a pause or hold ends */
	DUE_SIGNAL,	  /* signal a waiter again if there has been no claim since the last signal */
	DUE_EXPIRY,	  /* TimestampTz: a job expires */
	DUE_HANDLER,  /* check the handler */
	DUE_ROOM,	  /* signal waiters for room again if there is room */
	DUE_NOTIFY,	  /* send NOTIFY because jobs have become ready */
	DUE_KINDS
} DueKind;

#define DUE_NEVER ((uint64) PG_INT64_MAX)

/* Bytes of a text about a handler, with its end. */
#define HANDLER_TEXT 512

/* What is known of a queue's handler (shared/processes/handler_registry.c). */
typedef struct HandlerStatus
{
	TimestampTz set_at; /* of the handler that this is about; 0: of none */
	int wanted;			/* processes that it may have */
	int failures;		/* starts that failed in a row */
	int64 not_before;	/* mono: of the next start */
	bool waits;			/* for a process of idemq.max_handler_workers or max_worker_processes */
	TimestampTz error_at;
	char error[HANDLER_TEXT]; /* of its last job that failed, or of such a start; "": none */
} HandlerStatus;

/* Bits of QueueState.handler. */
#define HANDLER_ARMED 1			/* a commit that makes a job ready requests another process */
#define HANDLER_CRASHED 2		/* the server crashed during a job of the handler */
#define HANDLER_CRASHED_AGAIN 4 /* it has crashed too often */

/* The two halves of QueueState.running. */
#define RUNNING_LIFE(word) ((uint32) ((word) >> 32)) /* life of the queue state */
#define RUNNING_COUNT(word) ((uint32) (word))		 /* number of running jobs */

/* Starts on a new cache line.  lock protects every field that does not say otherwise. */
typedef struct QueueState
{
	pg_attribute_aligned(PG_CACHE_LINE_SIZE) LWLock lock;
	QueueStateKey key; /* queue_id 0: free; changes under qstates_lock and lock */
	uint64 seq;		   /* number of lowerings so far */
	ReadyKey scan_start[IDEMQ_PRIORITIES]; /* no job below it can be claimed */
	History history[IDEMQ_PRIORITIES];	   /* of lowerings */
	RecoveryPoint recovery;				   /* its epoch changes when a search is requested */
	int64 next_verify;					   /* mono: earliest time of the next verification */
	int64 known_since;				 /* mono: memory knows what its queue did since; 0: always */
	pg_atomic_uint64 due[DUE_KINDS]; /* for processes/due_times.c; no lock */
	pg_atomic_uint64 claimed_at;	 /* mono, to the second: last claim; 0: none; no lock */
	/* for shared/processes/handler_registry.c */
	HandlerStatus handler_status; /* handlers_lock, and lock to reset it */
	pg_atomic_uint32 handler;	  /* HANDLER_ARMED and others; no lock */
	/* for shared/leases/running.c and job/limits.c; no lock */
	pg_attribute_aligned(PG_CACHE_LINE_SIZE)
		pg_atomic_uint64 running;	  /* RUNNING_LIFE and RUNNING_COUNT */
	pg_atomic_uint32 running_refused; /* 1: max_running has refused a claim since a wake-up */
	pg_atomic_uint32 dependencies;	  /* for shared/groups/dependencies.c; no lock */
	slock_t rate_mutex;				  /* for the next field */
	RateState rate;					  /* what rate_limit has counted; ns, mono */
	pg_attribute_aligned(PG_CACHE_LINE_SIZE)
		int64 next_fill;  /* mono: earliest time at which a session may fill read_ahead */
	ReadAhead read_ahead; /* the next entries of the ready index */
} QueueState;

/* QueueState.dependencies: two bits, and above them the number of times that it was unset. */
#define DEPENDENCIES_KNOWN 1 /* the rows have been read */
#define DEPENDENCIES_SOME 2	 /* there may be jobs with parents or children */
#define DEPENDENCIES_BITS (DEPENDENCIES_KNOWN | DEPENDENCIES_SOME)
#define DEPENDENCIES_UNSET 4

/* Clears bits; a session that is reading the rows at the moment will not set them again. */
static inline void
qstate_unset_dependencies(QueueState *qstate, uint32 bits)
{
	uint32 state = pg_atomic_read_u32(&qstate->dependencies);

	while (!pg_atomic_compare_exchange_u32(&qstate->dependencies, &state,
										   (state & ~bits) + DEPENDENCIES_UNSET))
		;
}

/* All queue states. */
typedef struct QueueStatesShared
{
	LWLock qstates_lock;
	int used;		/* number of queue states that are not free; under qstates_lock */
	int first_free; /* no queue state before this one is free; under qstates_lock */
	/* Lower half: number of changes in progress; upper half: number of changes begun.  No lock. */
	pg_atomic_uint64 changes;
	QueueState qstates[FLEXIBLE_ARRAY_MEMBER]; /* idemq_max_queues */
} QueueStatesShared;

extern QueueStatesShared *idemq_queue_states;

/* Returns the position of a queue state in the array, from 0 to idemq_max_queues - 1. */
static inline int
idemq_qstate_index(const QueueState *qstate)
{
	return (int) (qstate - idemq_queue_states->qstates);
}

static inline QueueState *
idemq_qstate_at(int index)
{
	return &idemq_queue_states->qstates[index];
}

/*
 * Returns whether a queue state that the caller remembers still belongs to a queue of this
 * database.  Without a lock, the answer may be out of date at once; a queue loses its state only
 * when it is dropped, or when the jobs are truncated.
 */
static inline bool
idemq_qstate_is_of(const QueueState *qstate, int32 queue_id)
{
	return qstate != NULL && queue_state_key_is(qstate->key, queue_id);
}

/*
 * Begins a change of shared memory in several steps, such as removing a lease entry and then
 * lowering the scan start.  Only idemq.check() uses this, to tell an unfinished change from a
 * fault.  Code between begin and end must not raise errors.
 */
static inline void
idemq_qstates_begin_change(void)
{
	(void) pg_atomic_fetch_add_u64(&idemq_queue_states->changes, (UINT64CONST(1) << 32) + 1);
}

static inline void
idemq_qstates_end_change(void)
{
	(void) pg_atomic_fetch_sub_u64(&idemq_queue_states->changes, 1);
}

/*
 * Returns a number that changes whenever such a change begins or ends.  Its lower half is the
 * number of changes in progress.
 */
static inline uint64
idemq_qstates_changes(void)
{
	return pg_atomic_fetch_add_u64(&idemq_queue_states->changes, 0);
}

/* A queue state, and the queue that it belongs to. */
typedef struct QueueStateView
{
	QueueState *qstate;
	int32 queue_id;
} QueueStateView;

/* The state of a queue, for idemq.check(). */
typedef struct QueueStateSummary
{
	bool needs_recovery;
	bool searches_now;	 /* the next claim continues the search; otherwise, it is deferred */
	int64 next_deadline; /* mono; PG_INT64_MAX: none */
} QueueStateSummary;

/* Numbers of queue states that must agree. */
typedef struct QueueStatesAudit
{
	int used;	   /* according to the allocator */
	int taken;	   /* in the array */
	int hashed;	   /* in the hash table */
	int misplaced; /* in the array, but not where the hash table says */
} QueueStatesAudit;

extern const ShmemPart idemq_qstates_part;

/* with qstates_lock held */
extern QueueState *idemq_qstate_find_locked(Oid database, int32 queue_id);
extern QueueState *idemq_qstate_occupy(Oid database, int32 queue_id);
extern void idemq_qstate_vacate(QueueState *qstate);

extern QueueState *idemq_qstate_current(QueueState *qstate, int32 queue_id);
extern bool idemq_qstate_next(Oid database, QueueStateView *view);
extern bool idemq_qstate_view(int index, Oid database, QueueStateView *view);
extern QueueState *idemq_qstate_find(Oid database, int32 queue_id);
extern void idemq_qstate_note_new(QueueState *qstate, int32 queue_id);
extern void idemq_qstate_note_claim(QueueState *qstate);
extern bool idemq_qstate_known_since(QueueState *qstate, int32 queue_id, int64 *since);
extern bool idemq_qstate_lock(QueueState **qstate, int32 queue_id, LWLockMode mode);

extern bool idemq_qstate_summary(int32 queue_id, QueueStateSummary *status);
extern int idemq_qstates_audit(QueueStatesAudit *audit, int32 *queue_ids);

/*
 * scan_start.c
 *		The scan start: where a claim starts in the ready index.
 */

/* What a claim must read before it takes its snapshot. */
typedef struct ScanStart
{
	uint64 seq; /* number of lowerings until then */
	ReadyKey from[IDEMQ_PRIORITIES];
	QueueState *qstate;		  /* NULL: there was none, and from is the start of the index */
	int64 next_fill;		  /* of the queue state */
	ReadAheadView read_ahead; /* entries to read instead of the index */
} ScanStart;

extern void idemq_scan_start_read(QueueState *qstate, int32 queue_id, int wanted, ScanStart *view);
extern void idemq_scan_start_read_whole(QueueState *qstate, int32 queue_id, ScanStart *view,
										ReadAhead *read_ahead);
extern bool idemq_scan_start_may_fill(const ScanStart *view);
extern void idemq_scan_start_advance(const ScanStart *view, int32 queue_id, int priority,
									 ReadyKey to, ReadAhead *fill);
extern void idemq_scan_start_lower(QueueState *qstate, int32 queue_id, int priority, ReadyKey to);
extern bool idemq_scan_start_lowered_since(const ScanStart *view, int32 queue_id, int priority,
										   ReadyKey key);
extern void idemq_scan_start_unset(QueueState *qstate, int32 queue_id);
extern void idemq_scan_start_unset_locked(QueueState *qstate);
extern bool idemq_scan_start_verify_due(QueueState *qstate, int32 queue_id);
extern void idemq_scan_start_verified(QueueState *qstate, int32 queue_id, int64 took);

/*
 * settings_version.c
 *		Numbers that change whenever the settings of a queue or a database change.
 */

typedef enum DatabaseVersion
{
	VERSION_ANY_QUEUE,	/* changes with each change of any queue */
	VERSION_ALL_QUEUES, /* changes when all queues change at once (TRUNCATE, COMMIT PREPARED) */
	VERSION_FOLLOWING,	/* changes when the database begins or ceases to follow another */
	DATABASE_VERSIONS
} DatabaseVersion;

extern const ShmemPart idemq_versions_part;
extern void idemq_version_move(int32 queue_id);
extern void idemq_version_move_following(void);
extern uint64 idemq_version_of_queue(int32 queue_id);
extern uint64 idemq_version_of_database(DatabaseVersion which);

#endif
