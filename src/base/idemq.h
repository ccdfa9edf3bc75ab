/*
 * base/idemq.h
 *		Types that more than one file of idemq uses.
 *
 * Times: a TimestampTz is PostgreSQL's (microseconds since 2000-01-01 UTC) and
 * comes from idemq_now(); "mono" is microseconds of CLOCK_MONOTONIC; lengths
 * of time are int64 microseconds.
 */
#ifndef IDEMQ_BASE_IDEMQ_H
#define IDEMQ_BASE_IDEMQ_H

#include "datatype/timestamp.h"
#include "storage/itemptr.h"

/* PostgreSQL 18's word, in front of a declaration. */
#ifndef pg_noreturn
#define pg_noreturn pg_attribute_noreturn()
#endif

#define IDEMQ_SCHEMA "idemq"
#define IDEMQ_EXTENSION "idemq"
#define IDEMQ_LIBRARY "idemq"

#define IDEMQ_PRIORITIES 10
#define IDEMQ_DEFAULT_PRIORITY 4
#define IDEMQ_MAX_QUEUE_NAME 48 /* bytes */
#define IDEMQ_MAX_NAME_ARG 1024 /* bytes of a name that may then not exist */
#define IDEMQ_MAX_KEY 1024		/* bytes: an index row holds at most 2704 */
#define IDEMQ_MAX_KIND 64		/* bytes */
#define IDEMQ_MAX_WORKER 256	/* bytes */
/* What the worker's name of a job begins with that a handler has claimed. */
#define IDEMQ_HANDLER_WORKER "idemq handler"
/* A handler that was interrupted so often in a row, by the end of its server, is stopped. */
#define HANDLER_MAX_CRASHES 3
#define IDEMQ_MAX_ARRAY 1000000 /* elements of an array argument */

/* A lease whose row is held by a transaction is visited again after so many microseconds. */
#define LEASE_BUSY_RETRY INT64CONST(100000)
/* Nobody who does a chore waits for a lock for longer, in milliseconds: lock_timeout. */
#define IDEMQ_LOCK_PATIENCE 200
#define IDEMQ_LOCK_PATIENCE_TEXT "200"

/* Order as in CREATE TYPE idemq.status. */
typedef enum JobStatus
{
	JOB_BLOCKED,
	JOB_PENDING,
	JOB_PROCESSING,
	JOB_FAILED,
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
	OUTCOME_RELEASED
} Outcome;

#define OUTCOME_COUNT (OUTCOME_RELEASED + 1)

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
typedef struct RowPlace
{
	ItemPointerData root; /* invalid: not known */
	Oid file;			  /* the table's file then */
} RowPlace;

#endif
