/*
 * base/base.h
 *		Types and functions for all layers: settings, clock, arguments, SQL from C, arithmetic.
 */
#ifndef IDEMQ_BASE_BASE_H
#define IDEMQ_BASE_BASE_H

#include "c.h"
#include "datatype/timestamp.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/itemptr.h"
#include "utils/array.h"
#include "utils/hsearch.h"
#include "utils/timestamp.h"

/*
 * Times.  A TimestampTz has PostgreSQL's unit (microseconds since 2000-01-01 UTC) and comes from
 * idemq_now().  "mono" is CLOCK_MONOTONIC in microseconds, plus what the test clock adds.
 * Durations are int64 microseconds.
 */

/* PostgreSQL 18 and later define it. */
#ifndef pg_noreturn
#define pg_noreturn pg_attribute_noreturn()
#endif

/* Begins the definition of a function that SQL calls. */
#define SQL_FUNCTION(name)                                                                         \
	PG_FUNCTION_INFO_V1(name);                                                                     \
	Datum name(PG_FUNCTION_ARGS)

#define IDEMQ_SCHEMA "idemq"
#define IDEMQ_INTERNAL_SCHEMA "idemq_internal"
#define IDEMQ_EXTENSION "idemq"
#define IDEMQ_LIBRARY "idemq"

#define IDEMQ_PRIORITIES 10
#define IDEMQ_DEFAULT_PRIORITY 4
#define IDEMQ_MAX_QUEUE_NAME 48 /* bytes */
#define IDEMQ_MAX_NAME_ARG 1024 /* bytes of a name that is looked up and need not exist */
#define IDEMQ_MAX_KEY 1024		/* bytes: an index row holds at most 2704 */
#define IDEMQ_MAX_KIND 64		/* bytes */
#define IDEMQ_MAX_WORKER 256	/* bytes */
/* The worker's name of a job that a handler has claimed begins with this. */
#define IDEMQ_HANDLER_WORKER "idemq handler"
/* A handler is stopped after the server has crashed this many times in a row while it ran. */
#define HANDLER_MAX_CRASHES 3
/* Maximum number of times in a row that a job is released because its process received SIGTERM. */
#define HANDLER_MAX_INTERRUPTS 2
#define IDEMQ_MAX_ARRAY 1000000 /* elements of an array argument */

/* If a transaction holds a job's row, its expired lease is tried again after this time: us. */
#define LEASE_BUSY_RETRY INT64CONST(100000)
/* lock_timeout of maintenance tasks and handler processes: ms. */
#define IDEMQ_LOCK_PATIENCE 200
#define IDEMQ_LOCK_PATIENCE_TEXT "200"

/* In the order of CREATE TYPE idemq.status. */
typedef enum JobStatus
{
	JOB_BLOCKED,
	JOB_PENDING,
	JOB_RUNNING,
	JOB_RETRYING,
	JOB_COMPLETED,
	JOB_DEAD,
	JOB_CANCELLED
} JobStatus;

#define JOB_STATUS_COUNT (JOB_CANCELLED + 1)

static inline bool
job_status_is_finished(JobStatus status)
{
	return status == JOB_COMPLETED || status == JOB_DEAD || status == JOB_CANCELLED;
}

/* In the order of CREATE TYPE idemq.outcome. */
typedef enum Outcome
{
	OUTCOME_ACCEPTED,
	OUTCOME_DUPLICATE,
	OUTCOME_RERUN,
	OUTCOME_CLAIMED,
	OUTCOME_CLAIMED_AGAIN,
	OUTCOME_LOCKED,
	OUTCOME_COMPLETED,
	OUTCOME_DEAD,
	OUTCOME_CANCELLED,
	OUTCOME_BLOCKED,
	OUTCOME_NOT_DUE,
	OUTCOME_NOT_FOUND,
	OUTCOME_COMMITTED,
	OUTCOME_ALREADY_COMMITTED,
	OUTCOME_STALE,
	OUTCOME_CURRENT,
	OUTCOME_EXPIRED,
	OUTCOME_RETRYING,
	OUTCOME_RELEASED,
	OUTCOME_ADDED,
	OUTCOME_ALREADY
} Outcome;

#define OUTCOME_COUNT (OUTCOME_ALREADY + 1)

/* A position in the ready index of one queue and priority. */
typedef struct ReadyKey
{
	TimestampTz ready_at;
	int64 id;
} ReadyKey;

static inline bool
ready_key_less(ReadyKey a, ReadyKey b)
{
	return a.ready_at < b.ready_at || (a.ready_at == b.ready_at && a.id < b.id);
}

/* Returns the smallest key that is greater than a key. */
static inline ReadyKey
ready_key_after(ReadyKey key)
{
	if (key.id == PG_INT64_MAX)
		return (ReadyKey){key.ready_at + 1, PG_INT64_MIN};
	return (ReadyKey){key.ready_at, key.id + 1};
}

/* The HOT root TID of a row, to which its index entries point (table/jobs_version.c). */
typedef struct TidHint
{
	ItemPointerData root_tid; /* invalid: unknown */
	Oid file;				  /* the file of the table at that time */
} TidHint;

/*
 * Sleeps for a random time where a change is visible, but not yet known in shared memory, so that
 * tests find races.  It does nothing unless the library was built with -DIDEMQ_JITTER (make
 * chaos).  Never place it where a lock of ours is held.
 */

#ifdef IDEMQ_JITTER

/* Sleeps once in 8 calls for up to 2 ms, and once in 128 calls for up to 32 ms. */
static inline void
idemq_jitter(void)
{
	static uint32 state = 0;
	uint32 dice;

	if (state == 0)
		state = (uint32) MyProcPid * 2654435761u | 1;
	state = state * 1664525u + 1013904223u;
	dice = state >> 8;
	if (dice % 8 == 0)
		pg_usleep((dice >> 7) % (dice % 128 == 0 ? 32000 : 2000));
}
#else
#define idemq_jitter() ((void) 0)
#endif

/*
 * A named place where a test can stop one process.  Only the library that tests build with
 * -DIDEMQ_STOPS has stops; in the shipped library IDEMQ_STOP does nothing.
 *
 * A test arms a stop by creating the file idemq_stops/PID.NAME in the data directory; a PID of 0
 * means the first process that arrives.  That process disarms the stop by renaming the file to
 * PID.NAME.here, which tells the test that it is there, and waits until the test removes the file.
 * While it waits, it handles no interrupts and keeps the locks that it holds.
 *
 * A test counts how often a process reaches a stop by creating the file PID.NAME.count, to which
 * the process appends one byte each time.  IDEMQ_STOP_OF is for a place where one process does
 * something to another: the test arms or counts it with the PID of that other process.
 *
 * Never place a stop where a spinlock is held, or between a function's declarations.
 */

#ifdef IDEMQ_STOPS
#include <fcntl.h>
#include <unistd.h>

#include "storage/pmsignal.h"

static inline void
idemq_stop_for(int pid, const char *name)
{
	char armed[MAXPGPATH];
	char here[MAXPGPATH];

	snprintf(armed, sizeof(armed), "idemq_stops/%d.%s", pid, name);
	snprintf(here, sizeof(here), "%s.here", armed);
	if (rename(armed, here) != 0)
		return;
	while (access(here, F_OK) == 0 && PostmasterIsAlive())
		pg_usleep(1000);
}

static inline void
idemq_stop(int pid, const char *name)
{
	int saved_errno = errno;
	char count[MAXPGPATH];
	int file;

	/* As long as no test has armed a stop, a stop costs one system call. */
	if (access("idemq_stops", F_OK) == 0)
	{
		snprintf(count, sizeof(count), "idemq_stops/%d.%s.count", pid, name);
		file = open(count, O_WRONLY | O_APPEND);
		if (file >= 0)
		{
			(void) !write(file, "1", 1);
			(void) close(file);
		}
		idemq_stop_for(pid, name);
		idemq_stop_for(0, name);
	}
	errno = saved_errno;
}
#define IDEMQ_STOP(name) idemq_stop(MyProcPid, name)
#define IDEMQ_STOP_OF(pid, name) idemq_stop(pid, name)
#else
#define IDEMQ_STOP(name) ((void) 0)
#define IDEMQ_STOP_OF(pid, name) ((void) 0)
#endif

/*
 * SQLSTATEs of class IQ, which is idemq's own.  All other errors have standard SQLSTATEs.
 */

#define ERRCODE_IDEMQ_LEASE_LOST MAKE_SQLSTATE('I', 'Q', '0', '0', '1')
#define ERRCODE_IDEMQ_NO_SUCH_JOB MAKE_SQLSTATE('I', 'Q', '0', '0', '2')
#define ERRCODE_IDEMQ_KEY_REUSED MAKE_SQLSTATE('I', 'Q', '0', '0', '3')
#define ERRCODE_IDEMQ_DUPLICATE_KEY MAKE_SQLSTATE('I', 'Q', '0', '0', '4')
#define ERRCODE_IDEMQ_NO_SUCH_QUEUE MAKE_SQLSTATE('I', 'Q', '0', '0', '5')
#define ERRCODE_IDEMQ_ALREADY_COMMITTED MAKE_SQLSTATE('I', 'Q', '0', '0', '6')
#define ERRCODE_IDEMQ_QUEUE_FULL MAKE_SQLSTATE('I', 'Q', '0', '0', '7')

/* Raised by the function of a handler, to say how the attempt must end (handler/settle.c). */
#define ERRCODE_IDEMQ_RETRY_LATER MAKE_SQLSTATE('I', 'Q', '0', '1', '0')
#define ERRCODE_IDEMQ_DEAD MAKE_SQLSTATE('I', 'Q', '0', '1', '1')
#define ERRCODE_IDEMQ_SNOOZE MAKE_SQLSTATE('I', 'Q', '0', '1', '2')

/*
 * token.c
 *		Fencing tokens.
 */

extern int64 idemq_token_lead(int64 base, uint32 timeline);
extern int64 idemq_token_next(int64 row_token, int64 last_issued, TimestampTz now, uint32 timeline,
							  int64 base);

/*
 * backoff.c
 *		How long a job waits for its next attempt.
 */

extern int64 idemq_backoff(int64 base, double factor, int64 max, double jitter, int attempt,
						   double uniform);

/*
 * rates.c
 *		Rate limits.
 */

#define NSECS_PER_USEC INT64CONST(1000)
/* The longest period, a century in nanoseconds, so that no sum of times overflows. */
#define RATE_MAX_PERIOD INT64CONST(3155760000000000000)
/* Number of parts of a period, and of counts: for the newest part, and for one period before it. */
#define RATE_PARTS 16
#define RATE_COUNTS (RATE_PARTS + 1)
/* max_calls of a state that several limits share (idemq_rate_call_shared). */
#define RATE_SHARED (INT64CONST(1) << 31)
/* A limit of fewer calls can be used up exactly in a shared state; one of more calls, nearly. */
#define RATE_SHARED_EXACT (1 << 15)

/*
 * A sliding window of max_calls per period, or a bucket of burst calls that is filled at that
 * rate.
 */
typedef struct RateLimit
{
	int64 max_calls; /* 1 to PG_INT32_MAX */
	int64 period;	 /* ns, 1 to RATE_MAX_PERIOD */
	int64 burst;	 /* 1 to PG_INT32_MAX; 0: a sliding window */
} RateLimit;

/* The calls that a limit has counted; all zeros: none. */
typedef struct RateState
{
	int64 used_up_at; /* ns: until when the calls are unknown (idemq_rate_use_up) */
	/* ns: length of a part; with a burst, the negative increment; 0: no calls yet. */
	int64 part;
	int64 newest;				/* number of the newest part; with a burst, the TAT in ns */
	uint32 counts[RATE_COUNTS]; /* calls of a part, at index (number of the part % RATE_COUNTS) */
} RateState;

typedef struct RateAnswer
{
	bool allowed;
	int64 remaining;   /* number of calls that would be allowed now */
	int64 retry_after; /* ns until the same call would be allowed; 0 if it was allowed */
} RateAnswer;

/* Returns a RateLimit; period: in microseconds, shortened to a century if it is longer. */
static inline RateLimit
idemq_rate_limit(int64 max_calls, int64 period, int64 burst)
{
	return (RateLimit){max_calls, Min(period, RATE_MAX_PERIOD / NSECS_PER_USEC) * NSECS_PER_USEC,
					   burst};
}

/* Returns retry_after in microseconds, rounded up. */
static inline int64
idemq_rate_retry_after(const RateAnswer *answer)
{
	return (answer->retry_after + NSECS_PER_USEC - 1) / NSECS_PER_USEC;
}

extern int64 idemq_rate_unused_at(const RateState *state);
extern void idemq_rate_use_up(const RateLimit *limit, RateState *state, int64 now, int64 at);
extern RateAnswer idemq_rate_call(const RateLimit *limit, RateState *state, int64 now, int64 cost);
extern int64 idemq_rate_window(const RateLimit *limit);
extern RateAnswer idemq_rate_call_shared(const RateLimit *limit, RateState *state, int64 window,
										 int64 now, int64 cost);
extern void idemq_rate_use_up_shared(RateState *state, int64 window, int64 now, int64 at);
extern void idemq_rate_from_shared(const RateLimit *limit, RateState *state,
								   const RateState *shared, int64 now);

/*
 * histogram.c
 *		Histograms of durations, on a logarithmic scale.
 */

#define HISTOGRAM_BUCKETS 160
/* The last bucket counts all durations from this one on: 2^41 us. */
#define HISTOGRAM_LIMIT (INT64CONST(1) << (HISTOGRAM_BUCKETS / 4 + 1))

extern int idemq_histogram_bucket(int64 usecs);
extern uint64 idemq_histogram_below(const uint64 *buckets, int exponent);
extern double idemq_histogram_sum(const uint64 *buckets);
extern int64 idemq_histogram_quantile(const uint64 *buckets, double quantile);
extern ArrayType *idemq_histogram_pack(const uint64 *buckets);
extern void idemq_histogram_unpack(ArrayType *packed, uint64 *buckets);

/*
 * settings.c
 *		The settings idemq.*.
 */

/* The largest value of idemq.max_document; base/documents.c says why. */
#define IDEMQ_MAX_DOCUMENT_KB 65536

extern int idemq_max_queues;
extern int idemq_max_leases;
extern int idemq_max_leases_per_database; /* -1: three quarters of max_leases */
extern int idemq_reserved_leases;		  /* -1: one eighth of max_leases */
extern int idemq_max_buckets;
extern bool idemq_worker;
extern bool idemq_notify;
extern bool idemq_history;
extern bool idemq_test_clock;
extern int idemq_attach_grace; /* ms */
extern int idemq_notify_delay; /* ms */
extern int idemq_max_handler_workers;
extern int idemq_max_document;	  /* kB */
extern int idemq_audit_retention; /* minutes; -1: rows are never deleted */
extern char *idemq_actor;		  /* for idemq.audit; empty: unknown */
extern char *idemq_process;		  /* the worker process that uses this session; empty: unknown */
extern int idemq_purge_interval;  /* ms; 0 or -1: off */

extern void idemq_settings_define(void);
extern int idemq_queue_count(void);
extern int idemq_session_count(void);

/*
 * shmem.c
 *		Requests shared memory, and divides it among its parts.
 */

/* The areas of shared memory, by the setting on which their size depends. */
typedef enum ShmemArea
{
	AREA_FIXED,
	AREA_QUEUES,   /* idemq.max_queues; the sets of waiters also depend on MaxBackends */
	AREA_WORKERS,  /* max_worker_processes */
	AREA_SESSIONS, /* MaxBackends */
	AREAS
} ShmemArea;

/* A part of idemq's shared memory.  The file that defines it owns its contents and locks. */
typedef struct ShmemPart
{
	void **area;		/* the file's pointer to the part, which is set in each process */
	Size size;			/* bytes without the array of elements */
	Size each;			/* bytes per element */
	int (*count)(void); /* returns the number of elements; NULL: no array */
	ShmemArea lies_in;
	const char *tranche;	   /* of its LWLocks; NULL: none */
	void (*init)(int tranche); /* initializes the zeroed part when the server starts, or NULL */

	HTAB **hash; /* the file's pointer to a hash table of the part; NULL: none */
	const char *hash_name;
	const int *hash_entries; /* maximum number of entries */
	Size key_size;
	Size entry_size;
	long partitions; /* 0: the table is not partitioned */
} ShmemPart;

extern void idemq_shmem_install(const ShmemPart *const *parts, int nparts);

/* How full a table in shared memory is. */
typedef struct TableUsage
{
	int used;
	int room;	   /* maximum number of entries */
	int64 refused; /* how often there was no room for an entry */
} TableUsage;

/*
 * clock.c
 *		One clock for the whole server, which never goes back.
 */

/* 2026-01-01 as a TimestampTz (9,497 days after 2000-01-01), from which tokens and ids count. */
#define IDEMQ_EPOCH (INT64CONST(9497) * USECS_PER_DAY)

extern const ShmemPart idemq_clock_part;

extern int64 idemq_clock_ahead(void);
extern int64 idemq_clock_known_ahead(void);
extern void idemq_clock_advance(int64 usecs);
extern int64 idemq_clock_advanced_at(void);
extern bool idemq_clock_is_news(void);

extern int64 idemq_stopwatch(void);
extern int64 idemq_mono_now(void);
extern TimestampTz idemq_wall_now(void);
extern TimestampTz idemq_transaction_time(void);
extern TimestampTz idemq_now(void);
extern int64 idemq_mono_from_timestamp(TimestampTz ts);
extern TimestampTz idemq_timestamp_from_mono(int64 mono);
extern TimestampTz idemq_primary_since(void);
extern int64 idemq_primary_since_mono(void);

extern void idemq_begin_transaction(void);

/*
 * secret.c
 *		Hashes that only this server can compute.
 */

extern const ShmemPart idemq_secret_part;
extern uint64 idemq_secret_hash(uint64 number, const void *data, size_t length);

/*
 * sync_rep.c
 *		Waits until synchronous standbys have what a result shows.
 */

extern void idemq_sync_rep_await(void);
extern void idemq_sync_rep_await_commit(void);

/*
 * slice.c
 *		Limits how much work is done before other work gets its turn.
 */

/* Time for which the background worker works for one queue, or on one task: us. */
#define SLICE_OF_TASK INT64CONST(5000)
/* Time for which a session does maintenance of its queue before it claims: us. */
#define SLICE_OF_CALL INT64CONST(100000)
/* Bytes of WAL after which either is over. */
#define SLICE_BYTES (1024 * 1024)

typedef struct Slice
{
	int64 until;  /* idemq_stopwatch: when it is over */
	uint64 bytes; /* pgWalUsage.wal_bytes: when it is over */
} Slice;

extern void idemq_slice_begin(Slice *slice, int64 time);
extern bool idemq_slice_is_over(const Slice *slice);

/*
 * args.c
 *		Arguments and results of SQL functions.
 */

extern void idemq_check_top_level(FunctionCallInfo fcinfo, const char *name, const char *why);
extern void idemq_arg_required(FunctionCallInfo fcinfo, int n, const char *name);
extern char *idemq_arg_text(FunctionCallInfo fcinfo, int n, const char *name, int max_bytes);
extern text *idemq_arg_worker(FunctionCallInfo fcinfo, int n);
extern int64 idemq_interval_usecs(const Interval *interval);
extern int64 idemq_check_interval(const char *name, const Interval *interval, int64 least);
extern int64 idemq_arg_interval(FunctionCallInfo fcinfo, int n, const char *name, int64 least);
extern Datum idemq_arg_document(FunctionCallInfo fcinfo, int n, const char *name);
extern bool idemq_arg_bool(FunctionCallInfo fcinfo, int n, const char *name);
extern int32 idemq_check_int(const char *name, int32 value, int32 min, int32 max);
extern int32 idemq_arg_int(FunctionCallInfo fcinfo, int n, const char *name, int32 min, int32 max);
extern double idemq_arg_float(FunctionCallInfo fcinfo, int n, const char *name, double min,
							  double max);
extern void idemq_check_key(const char *name, int bytes);
extern void idemq_check_kind(int bytes);

/* The elements of an array argument. */
typedef struct ArrayArg
{
	int count;
	Datum *values;
	bool *nulls;
} ArrayArg;

extern void idemq_arg_array(FunctionCallInfo fcinfo, int n, const char *name, Oid element_type,
							bool nulls_allowed, ArrayArg *array);
extern void idemq_arg_array_like(FunctionCallInfo fcinfo, int n, const char *name, Oid element_type,
								 bool nulls_allowed, int count, const char *other, ArrayArg *array);

extern void idemq_arg_attempt(FunctionCallInfo fcinfo);
extern void idemq_arg_attempts(FunctionCallInfo fcinfo, ArrayArg *ids, ArrayArg *tokens);

/* A row of a result, which is built column by column. */
typedef struct RowBuilder
{
	int columns; /* number of columns so far */
	Datum values[48];
	bool nulls[48];
} RowBuilder;

/* Adds a column, which is NULL if known is false. */
static inline void
row_add_if(RowBuilder *row, bool known, Datum value)
{
	Assert(row->columns < (int) lengthof(row->values));
	row->values[row->columns] = value;
	row->nulls[row->columns++] = !known;
}

static inline void
row_add(RowBuilder *row, Datum value)
{
	row_add_if(row, true, value);
}

extern Datum idemq_interval_datum(int64 usecs);
extern Datum idemq_row_datum(FunctionCallInfo fcinfo, Datum *values, bool *nulls);
extern Datum idemq_value_row_datum(FunctionCallInfo fcinfo, Datum value);
extern ReturnSetInfo *idemq_srf_place(FunctionCallInfo fcinfo);
extern ReturnSetInfo *idemq_srf_begin(FunctionCallInfo fcinfo);

extern int idemq_compare_int32(const void *a, const void *b);
extern int idemq_compare_int64(const void *a, const void *b);

/*
 * documents.c
 *		The length of a JSON document as text, and the limit on it; whether documents are equal.
 */

#define DOCUMENT_MOST ((Size) IDEMQ_MAX_DOCUMENT_KB * 1024)

extern bool idemq_documents_fit(const Datum *documents, int count, Size limit);
extern void idemq_check_document(const char *name, Datum document, Size reserve);
extern void idemq_check_text(const char *name, Datum value);
extern bool idemq_same_document(Datum first, Datum second);

/*
 * error_text.c
 *		The pattern of an error message, and the SQLSTATE in it.
 */

/* Only this many bytes of a message are used.  The rest is usually a stack trace or data. */
#define IDEMQ_ERROR_BYTES 2000
#define IDEMQ_SQLSTATE_LENGTH 5

extern char *idemq_error_pattern(const char *message, int length);
extern const char *idemq_error_find_sqlstate(const char *message, int length);
extern bool idemq_is_sqlstate(const char *text, int length);
extern uint64 idemq_error_hash(const char *sqlstate, const char *pattern);

/*
 * topic_pattern.c
 *		Topics, and patterns that match them.
 */

#define TOPIC_MAX 255 /* bytes, as in AMQP's short strings */
#define TOPIC_MAX_WORDS ((TOPIC_MAX + 1) / 2)
#define TOPIC_MAX_SPACE 48 /* bytes of the first word */

/* The words of a topic or a pattern; they point into the string. */
typedef struct TopicWords
{
	int count;
	const char *words[TOPIC_MAX_WORDS];
	int lengths[TOPIC_MAX_WORDS];
} TopicWords;

extern void idemq_topic_split(const char *name, const char *string, bool pattern,
							  TopicWords *words);
extern char *idemq_topic_space(const TopicWords *words);
extern void idemq_topic_check_space(const char *space);
extern bool idemq_topic_matches(const TopicWords *pattern, const TopicWords *topic);

/*
 * version.c
 *		The version of this library, and the versions of the SQL objects that it works with.
 */

typedef enum IdemqPresence
{
	IDEMQ_ABSENT,
	IDEMQ_OUTDATED, /* too old: requires ALTER EXTENSION idemq UPDATE */
	IDEMQ_NEWER,	/* too new: requires a restart with a newer library */
	IDEMQ_HERE		/* the library works with them */
} IdemqPresence;

extern const char idemq_version[];
extern IdemqPresence idemq_sql_presence(void);
extern char *idemq_update_waits(void);

/*
 * oids.c
 *		The OIDs of idemq's own objects.
 */

typedef struct ObjectOids
{
	Oid schema;	  /* idemq */
	Oid internal; /* idemq_internal */
	Oid jobs;	  /* idemq.jobs */
	Oid jobs_seq; /* the sequence of its identity column */
	Oid queues;
	Oid queues_seq;
	Oid queue_grants;
	Oid steps;		   /* may be invalid during CREATE EXTENSION */
	Oid dependencies;  /* like steps */
	Oid children;	   /* like steps */
	Oid paused_groups; /* like steps */
	Oid owner;		   /* the owner of idemq.jobs; SQL from C runs as this role */
	Oid status_type;
	Oid status[JOB_STATUS_COUNT];
	Oid outcome[OUTCOME_COUNT];
} ObjectOids;

extern IdemqPresence idemq_presence(void);
pg_noreturn extern void idemq_refuse_outdated(void);
extern const ObjectOids *idemq_oids(void);
extern Oid idemq_function_oid(const char *name);
extern void idemq_oids_install(void);
extern JobStatus idemq_status_from_oid(Oid value);
extern const char *idemq_status_name(JobStatus status);
extern Datum idemq_outcome_datum(Outcome outcome);

/*
 * spi.c
 *		SQL from C: saved plans, run as the owner of the extension.
 */

#define SQL_MAX_ARGS 32

/* A field of a struct, into which a column is read. */
typedef struct SqlField
{
	uint16 offset;
	uint16 size;
	const char *const *names; /* not NULL: a text column is read as its index in this list */
} SqlField;

/* clang-format off */
#define SQL_FIELD(type, field) {offsetof(type, field), sizeof(((type *) NULL)->field), NULL}
#define SQL_CHOICE(type, field, names) {offsetof(type, field), sizeof(int), names}
/* For a statement that returns one column, which is read into a variable of that type. */
#define SQL_SCALAR(type) ((const SqlField[]){{0, sizeof(type), NULL}})
/* clang-format on */

/*
 * A statement: a static variable in the file that runs it.  Its plan is prepared when it is first
 * used.
 *
 * If a function gets no array of nulls, an argument of a type that is passed by reference is NULL
 * if its Datum is 0.
 */
typedef struct SqlStatement
{
	const char *text;
	int nargs; /* 0: until the first invalid element of types */
	Oid types[SQL_MAX_ARGS];
	bool few;	   /* each run reads few rows, so the planner must avoid sequential scans */
	bool in_order; /* like few, and the rows come in index order, so it must also avoid sorts */
	/*
	 * It writes to idemq.jobs, on which its owner may have created deferred triggers or foreign
	 * keys.  A security-restricted context does not allow these.
	 */
	bool on_jobs;
	bool locks;	 /* it locks or writes rows, so idemq_spi_row uses idemq_spi_run */
	bool latest; /* idemq_spi_run uses the latest snapshot, at every isolation level */
	const SqlField
		*fields; /* one for each column, in order; for idemq_spi_row and idemq_spi_rows */
	SPIPlanPtr plan;
	uint32 by_reference; /* bit mask of arguments that are passed by reference; set with plan */
} SqlStatement;

/* The state that idemq_spi_end restores. */
typedef struct SqlScope
{
	Oid user;
	int sec_context;
	int guc_level;
} SqlScope;

/* Running code of idemq, whose context is removed from messages; on the caller's stack. */
typedef struct HiddenContext
{
	const char *statement; /* NULL: a function */
	int outside;		   /* trigger depth at its start */
	int inside;			   /* trigger depth at the last message that it has raised */
	struct HiddenContext *outer;
} HiddenContext;

extern void idemq_context_hide(HiddenContext *context, const char *statement);
extern void idemq_context_show(HiddenContext *context);
extern void idemq_context_install(void);
extern void idemq_spi_begin(SqlScope *scope);
extern void idemq_spi_set(const char *setting, const char *value);
extern void idemq_spi_pin_settings(void);
extern uint64 idemq_spi_run(SqlStatement *statement, const Datum *args, const char *nulls);
extern uint64 idemq_spi_query_at(SqlStatement *statement, const Datum *args, const char *nulls,
								 Snapshot snapshot);
extern uint64 idemq_spi_query_latest(SqlStatement *statement, const Datum *args, const char *nulls);
extern uint64 idemq_spi_do(SqlStatement *statement, const Datum *args, const char *nulls);
extern void idemq_spi_command(const char *command);
extern Datum idemq_int8_array(const int64 *values, int count);
extern void idemq_spi_do_for_ids(SqlStatement *statement, const int64 *ids, int count);
extern bool idemq_spi_finds(SqlStatement *statement, const Datum *args, const char *nulls);
extern void idemq_spi_read(uint64 row, const SqlField *fields, void *target, MemoryContext context);
extern bool idemq_spi_row(SqlStatement *statement, const Datum *args, void *row, Size size);
extern void *idemq_spi_rows(SqlStatement *statement, const Datum *args, Size size, int *count);
extern Datum idemq_spi_value(uint64 row, int column);
extern void idemq_spi_end(SqlScope *scope);

#endif
