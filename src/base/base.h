/*
 * base/base.h
 *		What every layer may use: settings, clock, arguments, SQL from C, arithmetic.
 */
#ifndef IDEMQ_BASE_BASE_H
#define IDEMQ_BASE_BASE_H

#include "c.h"
#include "datatype/timestamp.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/itemptr.h"
#include "utils/array.h"
#include "utils/hsearch.h"
#include "utils/timestamp.h"

/*
 * Types that more than one file of idemq uses.
 *
 * Times: a TimestampTz is PostgreSQL's (microseconds since 2000-01-01 UTC) and
 * comes from idemq_now(); "mono" is microseconds of CLOCK_MONOTONIC, ahead by the
 * test clock; lengths of time are int64 microseconds.
 */

/* PostgreSQL 18's word, in front of a declaration. */
#ifndef pg_noreturn
#define pg_noreturn pg_attribute_noreturn()
#endif

/* Begins a function that SQL calls, and declares its calling convention. */
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
#define IDEMQ_MAX_NAME_ARG 1024 /* bytes of a name to look up, which may not exist */
#define IDEMQ_MAX_KEY 1024		/* bytes: an index row holds at most 2704 */
#define IDEMQ_MAX_KIND 64		/* bytes */
#define IDEMQ_MAX_WORKER 256	/* bytes */
/* A job that a handler has claimed has a worker's name that begins with this. */
#define IDEMQ_HANDLER_WORKER "idemq handler"
/* A handler is stopped when the end of its server has interrupted it so often in a row. */
#define HANDLER_MAX_CRASHES 3
/* Maximum number of times in a row that a job is given back because its process was told to end. */
#define HANDLER_MAX_INTERRUPTS 2
#define IDEMQ_MAX_ARRAY 1000000 /* elements of an array argument */

/* A lease whose row is held by a transaction is visited again after so many microseconds. */
#define LEASE_BUSY_RETRY INT64CONST(100000)
/* A maintenance task waits for a lock no longer than this: lock_timeout, in milliseconds. */
#define IDEMQ_LOCK_PATIENCE 200
#define IDEMQ_LOCK_PATIENCE_TEXT "200"

/* Order as in CREATE TYPE idemq.status. */
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

/* Order as in CREATE TYPE idemq.outcome. */
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

/* Returns the least key above a key. */
static inline ReadyKey
ready_key_after(ReadyKey key)
{
	if (key.id == PG_INT64_MAX)
		return (ReadyKey){key.ready_at + 1, PG_INT64_MIN};
	return (ReadyKey){key.ready_at, key.id + 1};
}

/* Where the index entries of a row point (table/jobs_version.c); a hint, once it is remembered. */
typedef struct TidHint
{
	ItemPointerData root_tid; /* invalid: not known */
	Oid file;				  /* the table's file then */
} TidHint;

/*
 * Sleeps at random where another session may come in between.  Only tests have it (make
 * chaos builds with -DIDEMQ_JITTER); otherwise it is nothing.
 *
 * It stands where a change is visible, and shared memory does not know of it yet.  No lock
 * of ours is held there; interrupts may be.
 */

#ifdef IDEMQ_JITTER

/* Once in eight times, up to 2 ms; once in 128, up to 32 ms. */
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
 * SQLSTATEs of idemq.  Class IQ is ours; everything else is standard.
 */

#define ERRCODE_IDEMQ_LEASE_LOST MAKE_SQLSTATE('I', 'Q', '0', '0', '1')
#define ERRCODE_IDEMQ_NO_SUCH_JOB MAKE_SQLSTATE('I', 'Q', '0', '0', '2')
#define ERRCODE_IDEMQ_KEY_REUSED MAKE_SQLSTATE('I', 'Q', '0', '0', '3')
#define ERRCODE_IDEMQ_DUPLICATE_KEY MAKE_SQLSTATE('I', 'Q', '0', '0', '4')
#define ERRCODE_IDEMQ_NO_SUCH_QUEUE MAKE_SQLSTATE('I', 'Q', '0', '0', '5')
#define ERRCODE_IDEMQ_ALREADY_COMMITTED MAKE_SQLSTATE('I', 'Q', '0', '0', '6')
#define ERRCODE_IDEMQ_QUEUE_FULL MAKE_SQLSTATE('I', 'Q', '0', '0', '7')

/* What a handler's function may raise. */
#define ERRCODE_IDEMQ_RETRY_LATER MAKE_SQLSTATE('I', 'Q', '0', '1', '0')
#define ERRCODE_IDEMQ_DEAD MAKE_SQLSTATE('I', 'Q', '0', '1', '1')
#define ERRCODE_IDEMQ_SNOOZE MAKE_SQLSTATE('I', 'Q', '0', '1', '2')

/*
 * token.c
 *		Fencing tokens: arithmetic only.
 */

extern int64 idemq_token_lead(int64 base, uint32 timeline);
extern int64 idemq_token_next(int64 row_token, int64 last_issued, TimestampTz now, uint32 timeline,
							  int64 base);

/*
 * backoff.c
 *		How long a job waits for its next attempt: arithmetic only.
 */

extern int64 idemq_backoff(int64 base, double factor, int64 max, double jitter, int attempt,
						   double uniform);

/*
 * rates.c
 *		Rate limits: arithmetic only.
 */

#define NSECS_PER_USEC INT64CONST(1000)
/* The longest period: a century.  Times are nanoseconds, and stay far from overflow. */
#define RATE_MAX_PERIOD INT64CONST(3155760000000000000)
/* The parts of a period, and the counts that are kept: of the newest part, and of a period before it. */
#define RATE_PARTS 16
#define RATE_COUNTS (RATE_PARTS + 1)
/* The limit of a state that several limits share; those of fewer calls than the second are reached exactly. */
#define RATE_SHARED (INT64CONST(1) << 31)
#define RATE_SHARED_EXACT (1 << 15)

/* A limit: at most so many calls in any period; or a bucket of that burst, filled at that rate. */
typedef struct RateLimit
{
	int64 max_calls; /* 1 to PG_INT32_MAX */
	int64 period;	 /* ns, 1 to RATE_MAX_PERIOD */
	int64 burst;	 /* 1 to PG_INT32_MAX; 0: the first rule */
} RateLimit;

/* What a limit has counted; zeros: nothing. */
typedef struct RateState
{
	int64 used_up_at; /* ns: when it last counted as used up (idemq_rate_use_up) */
	int64
		part; /* ns: length of the parts; with a burst, minus the increment; 0: nothing is counted */
	int64 newest; /* number of the newest part; with a burst, the theoretical arrival time */
	uint32 counts[RATE_COUNTS]; /* of a part: in the place of its number modulo RATE_COUNTS */
} RateState;

typedef struct RateAnswer
{
	bool allowed;
	int64 remaining;   /* calls that may follow at once */
	int64 retry_after; /* ns until the same call is allowed; 0 when it is */
	int64 before;	   /* for idemq_rate_undo: newest before the call, with a burst */
	int64 after;	   /* and after it */
} RateAnswer;

/* Returns the limit of so many calls in a period of microseconds, a century at most. */
static inline RateLimit
idemq_rate_limit(int64 max_calls, int64 period, int64 burst)
{
	return (RateLimit){max_calls, Min(period, RATE_MAX_PERIOD / NSECS_PER_USEC) * NSECS_PER_USEC,
					   burst};
}

/* Returns in how many microseconds, rounded up, a call that was refused is allowed. */
static inline int64
idemq_rate_retry_after(const RateAnswer *answer)
{
	return (answer->retry_after + NSECS_PER_USEC - 1) / NSECS_PER_USEC;
}

extern int64 idemq_rate_unused_at(const RateState *state);
extern void idemq_rate_use_up(const RateLimit *limit, RateState *state, int64 now, int64 at);
extern RateAnswer idemq_rate_call(const RateLimit *limit, RateState *state, int64 now, int64 cost);
extern void idemq_rate_undo(const RateLimit *limit, RateState *state, const RateAnswer *answer);
extern int64 idemq_rate_window(const RateLimit *limit);
extern RateAnswer idemq_rate_call_shared(const RateLimit *limit, RateState *state, int64 window,
										 int64 now, int64 cost);
extern void idemq_rate_use_up_shared(RateState *state, int64 window, int64 now, int64 at);
extern void idemq_rate_from_shared(const RateLimit *limit, RateState *state,
								   const RateState *shared, int64 now);

/*
 * histogram.c
 *		Histograms of lengths of time, on a logarithmic scale.
 */

#define HISTOGRAM_BUCKETS 160
/* Longer times share a bucket: 2^41 us. */
#define HISTOGRAM_LIMIT (INT64CONST(1) << (HISTOGRAM_BUCKETS / 4 + 1))

extern int idemq_histogram_bucket(int64 usecs);
extern uint64 idemq_histogram_below(const uint64 *buckets, int exponent);
extern double idemq_histogram_sum(const uint64 *buckets);
extern int64 idemq_histogram_quantile(const uint64 *buckets, double quantile);
extern ArrayType *idemq_histogram_pack(const uint64 *buckets);
extern void idemq_histogram_unpack(ArrayType *packed, uint64 *buckets);

/*
 * settings.c
 *		Settings.
 */

/* The most that idemq.max_document can be; base/documents.c says why. */
#define IDEMQ_MAX_DOCUMENT_KB 65536

extern int idemq_max_queues;
extern int idemq_max_leases;
extern int idemq_max_leases_per_database; /* -1: three quarters of them */
extern int idemq_reserved_leases;		  /* -1: one eighth of them */
extern int idemq_max_buckets;
extern bool idemq_worker;
extern bool idemq_notify;
extern bool idemq_history;
extern bool idemq_test_clock;
extern int idemq_attach_grace; /* ms */
extern int idemq_notify_delay; /* ms */
extern int idemq_max_handler_workers;
extern int idemq_max_document;	  /* kB */
extern int idemq_audit_retention; /* minutes; below 0: for ever */
extern char *idemq_actor;		  /* for idemq.audit; empty: not said */
extern char *idemq_process;		  /* identifies the worker of this session; empty: not set */
extern int idemq_purge_interval;  /* ms; not above 0: off */

extern void idemq_settings_define(void);
extern int idemq_queue_count(void);

/*
 * shmem.c
 *		Shared memory: size and start-up.
 */

/* The areas of shared memory, by what their size depends on. */
typedef enum ShmemArea
{
	AREA_FIXED,
	AREA_QUEUES,   /* idemq.max_queues; for waiters, the connections as well */
	AREA_WORKERS,  /* max_worker_processes */
	AREA_SESSIONS, /* the connections */
	AREAS
} ShmemArea;

/* One part of idemq's shared memory; its file owns its contents and locks. */
typedef struct ShmemPart
{
	void **area;		/* where the file keeps its address */
	Size size;			/* bytes of its fixed part */
	Size each;			/* bytes of each element behind that */
	int (*count)(void); /* of elements, by the settings; NULL: none */
	ShmemArea lies_in;
	const char *tranche;	   /* of its locks; NULL: none */
	void (*init)(int tranche); /* fills the area, of zeros, at the start of the server; or NULL */

	HTAB **hash; /* a hash table beside it; NULL: none */
	const char *hash_name;
	const int *hash_entries; /* how many it has room for */
	Size key_size;
	Size entry_size;
	long partitions; /* 0: one lock covers all of it */
} ShmemPart;

extern void idemq_shmem_install(const ShmemPart *const *parts, int nparts);

/* What is used of a table in shared memory. */
typedef struct TableUsage
{
	int used;
	int room;
	int64 refused; /* how often something found no room */
} TableUsage;

/*
 * clock.c
 *		One clock for the whole server that does not go back by itself.
 */

/* 2026-01-01 as a TimestampTz, 9,497 days after 2000-01-01: tokens and ids count from it. */
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
 *		Hashes that cannot be computed outside this server.
 */

extern const ShmemPart idemq_secret_part;
extern uint64 idemq_secret_hash(uint64 number, const void *data, size_t length);

/*
 * sync_rep.c
 *		Waiting until synchronous standbys have what an answer shows.
 */

extern void idemq_sync_rep_await(void);
extern void idemq_sync_rep_await_commit(void);

/*
 * slice.c
 *		How much a piece of work may take before others have their turn.
 */

/* Microseconds for which the background worker works for one queue, or at one task, at a time. */
#define SLICE_OF_TASK INT64CONST(5000)
/* Of a session, for what a claim does for its queue before it claims. */
#define SLICE_OF_CALL INT64CONST(100000)
/* Of both: bytes of WAL. */
#define SLICE_BYTES (1024 * 1024)

typedef struct Slice
{
	int64 until;  /* mono */
	uint64 bytes; /* of WAL that this process will have written by then */
} Slice;

extern void idemq_slice_begin(Slice *slice, int64 time);
extern bool idemq_slice_is_over(const Slice *slice);

/*
 * args.c
 *		Arguments of SQL functions, checked; results, shaped.
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

/* A one-dimensional array argument, taken apart. */
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

/* A row of a result, made column by column. */
typedef struct RowBuilder
{
	int columns; /* so far */
	Datum values[48];
	bool nulls[48];
} RowBuilder;

/* Adds a column, which is NULL unless its value is known. */
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
 *		How long a document is as text; the limit for one, idemq.max_document; whether two
 *		are equal.
 */

#define DOCUMENT_MOST ((Size) IDEMQ_MAX_DOCUMENT_KB * 1024)

extern bool idemq_documents_fit(const Datum *documents, int count, Size limit);
extern void idemq_check_document(const char *name, Datum document, Size reserve);
extern void idemq_check_text(const char *name, Datum value);
extern bool idemq_same_document(Datum first, Datum second);

/*
 * error_text.c
 *		What errors have in common: a message without what differs from job to job.
 */

/* So many bytes of a message are looked at; what follows is a stack, or data. */
#define IDEMQ_ERROR_BYTES 2000
#define IDEMQ_SQLSTATE_LENGTH 5

extern char *idemq_error_pattern(const char *message, int length);
extern const char *idemq_error_find_sqlstate(const char *message, int length);
extern bool idemq_is_sqlstate(const char *text, int length);
extern uint64 idemq_error_hash(const char *sqlstate, const char *pattern);

/*
 * topic_pattern.c
 *		Topics and patterns of them: words between dots.
 */

#define TOPIC_MAX 255 /* bytes, as AMQP's short strings */
#define TOPIC_MAX_WORDS ((TOPIC_MAX + 1) / 2)
#define TOPIC_MAX_SPACE 48 /* bytes of the first word */

/* A topic or a pattern, taken apart; its words point into the string. */
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
 *		The version of this library, and which versions of the SQL objects it works with.
 */

typedef enum IdemqPresence
{
	IDEMQ_ABSENT,
	IDEMQ_OUTDATED, /* nothing works before ALTER EXTENSION idemq UPDATE */
	IDEMQ_NEWER,	/* nothing works before a restart with a newer library */
	IDEMQ_HERE		/* of the library's version, or of one that it works with */
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
	Oid jobs_seq; /* its identity's sequence */
	Oid queues;
	Oid queues_seq;
	Oid queue_grants;
	Oid steps;		   /* may be invalid within CREATE EXTENSION */
	Oid dependencies;  /* as steps */
	Oid children;	   /* as steps */
	Oid paused_groups; /* as steps */
	Oid owner;		   /* of idemq.jobs: the role that SQL runs as */
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
 *		SQL from C: saved plans, run as the extension's owner.
 */

#define SQL_MAX_ARGS 32

/* The field of a struct that takes a column. */
typedef struct SqlField
{
	uint16 offset;
	uint16 size;
	const char *const *names; /* a text is read as its index here; ends with NULL */
} SqlField;

/* clang-format off */
#define SQL_FIELD(type, field) {offsetof(type, field), sizeof(((type *) NULL)->field), NULL}
#define SQL_CHOICE(type, field, names) {offsetof(type, field), sizeof(int), names}
/* clang-format on */

/*
 * One statement; static in the file that runs it, its plan prepared at first use.
 *
 * Without an array of nulls an argument of a type passed by reference is NULL when its Datum
 * is 0.
 */
typedef struct SqlStatement
{
	const char *text;
	int nargs; /* 0: as many as there are types */
	Oid types[SQL_MAX_ARGS];
	bool few;	   /* each run is for few rows: it avoids sequential scans */
	bool in_order; /* as few; rows come in the order of an index: it avoids sorts, too */
	/*
	 * It writes idemq.jobs.  Its owner may have put deferred triggers or foreign keys on it, which
	 * a security-restricted context does not allow.
	 */
	bool on_jobs;
	bool locks;				/* it locks or writes: it runs under the transaction's snapshot, */
	bool latest;			/* or under the latest, at each isolation level */
	const SqlField *fields; /* of the caller's struct, one for each column, in order */
	SPIPlanPtr plan;
	uint32 by_reference; /* bits: arguments passed by reference; set with the plan */
} SqlStatement;

/* What idemq_spi_begin changed and idemq_spi_end puts back. */
typedef struct SqlScope
{
	Oid user;
	int sec_context;
	int guc_level;
} SqlScope;

/* Code of idemq's of which no message shows the context; on the stack of the call. */
typedef struct HiddenContext
{
	const char *statement; /* NULL: a function */
	int outside;		   /* trigger functions that run around it */
	int inside;			   /* as outside, when the last message was raised in it */
	struct HiddenContext *outer;
} HiddenContext;

extern void idemq_context_hide(HiddenContext *context);
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
extern Datum idemq_spi_value(uint64 row, int column, bool *isnull);
extern int64 idemq_spi_int64(uint64 row, int column, bool *isnull);
extern void idemq_spi_end(SqlScope *scope);

#endif
