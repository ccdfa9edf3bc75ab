/*
 * table/events.c
 *		Events that were sent to a queue (idemq.events), the locks on their names, and the waits of
 *		jobs for them: rows of idemq.steps that are named like the event.
 *
 * There is one row for each event name in a queue.  It is valid until keep_until, which is the
 * queue's idempotency_window after the event was sent.  After that, it counts as missing: retention
 * deletes it, and the name may be used again.
 *
 * A sender locks the event's name exclusively, and an attempt that awaits the event locks it
 * shared, until the end of the transaction.  Each of them looks after that, with a new snapshot.
 * So the later one sees what the earlier one has committed: await_event finds an event that was
 * sent before, and send_event finds a wait that began before, and neither finds anything that was
 * rolled back.
 *
 * The lock is an advisory lock of a class of idemq's own, which users cannot take.  Its number is a
 * hash that depends on the database's uuid, so pg_locks does not confirm a guessed name.  Unlike a
 * secret of the running server, the uuid is the same after a restart, which matters for prepared
 * transactions.  If two names have the same hash, they merely wait for each other.
 *
 * A wait (written by api/events.c) is
 *
 *	waiting		the attempt with that token gave the job back; it becomes ready when the event is sent, or at
 *				call_until.  begun_at is when the job first waited
 *	arrived		response is the payload of the event
 *	timed_out	no event was sent until call_until.  This is final, because the job has acted on it
 *
 * The result of a wait is final, however often the job is retried, until the job gets another
 * payload (void, like any step).
 *
 * send_event ends the waits of all jobs that are waiting when the event is sent, so the event
 * itself may be deleted after its time.  The attempt that asks next ends any other wait.
 *
 * Locks: a session that writes a wait holds the job's row (steps.c) and the event's name, shared
 * (an attempt) or exclusively (a sender).  So no two sessions write a wait at the same time, except
 * for two calls of one attempt, and these lock the job's row one after the other.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/inval.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "table/table.h"

/* Fourth field of our lock tags: "ev".  api/claim.c uses another one. */
#define ADVISORY_CLASS 0x6576

/*
 * These statements use the indexes on the keys, whatever the statistics are, because an index on
 * times, or on jobs, would lead to all events or waits of all queues.
 */
static SqlStatement find_event = {.few = true,
								  .text = "SELECT payload FROM (SELECT payload, keep_until "
										  "FROM idemq.events WHERE queue_id = $1 AND name = $2 "
										  "OFFSET 0) e WHERE keep_until > $3",
								  .types = {INT4OID, TEXTOID, TIMESTAMPTZOID},
								  .fields = SQL_SCALAR(Datum)};
static SqlStatement write_event =
	{.text = "INSERT INTO idemq.events (queue_id, name, payload, sent_at, keep_until) "
			 "VALUES ($1, $2, $3, $4, $5) ON CONFLICT (queue_id, name) DO UPDATE SET "
			 "payload = $3, sent_at = $4, keep_until = $5",
	 .types = {INT4OID, TEXTOID, JSONBOID, TIMESTAMPTZOID, TIMESTAMPTZOID}};
static SqlStatement find_waits =
	{.few = true,
	 .text = "SELECT job_id, token FROM idemq.steps WHERE (queue_id, name) >= ($1, $2) "
			 "AND (queue_id, name) <= ($1, $2) AND state = 'waiting' "
			 "ORDER BY queue_id, name, job_id",
	 .types = {INT4OID, TEXTOID},
	 .fields = (const SqlField[]){SQL_FIELD(EventWait, job_id), SQL_FIELD(EventWait, token)}};
static SqlStatement answer_waits = {.few = true,
									.text =
										"UPDATE idemq.steps SET state = 'arrived', response = $3, "
										"answered_at = $4 WHERE job_id = ANY ($1) AND name = $2 "
										"AND CASE state WHEN 'waiting' THEN true END",
									.types = {INT8ARRAYOID, TEXTOID, JSONBOID, TIMESTAMPTZOID}};

static SqlStatement end_wait = {.few = true,
								.on_jobs = true,
								.text = "UPDATE idemq.jobs j SET ready_at = $2 WHERE id = $1 "
										"AND status = 'pending' AND ready_at > $2 "
										"AND EXISTS (SELECT FROM idemq.steps s WHERE s.job_id = $1 "
										"AND s.state = 'waiting' AND s.token = j.token)",
								.types = {INT8OID, TIMESTAMPTZOID}};

/*
 * Locks the name of an event until the end of the transaction, with ExclusiveLock to send it, or
 * ShareLock to await it.  Waits for at most lock_timeout.
 */
void
idemq_event_lock(const EventName *event, LOCKMODE mode)
{
	text *name = DatumGetTextPP(event->name);
	uint32 queue_id = pg_hton32((uint32) event->queue_id);
	StringInfoData hashed;
	const unsigned char *hash;
	uint32 number[2];
	LOCKTAG tag;

	initStringInfo(&hashed);
	appendStringInfoSpaces(&hashed, VARHDRSZ + 16);
	idemq_step_database_uuid((unsigned char *) hashed.data + VARHDRSZ);
	appendBinaryStringInfo(&hashed, (char *) &queue_id, sizeof(queue_id));
	appendBinaryStringInfo(&hashed, VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name));
	SET_VARSIZE(hashed.data, hashed.len);
	hash = (unsigned char *) VARDATA_ANY(
		DatumGetByteaPP(DirectFunctionCall1(sha256_bytea, PointerGetDatum(hashed.data))));
	memcpy(number, hash, sizeof(number));
	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, number[0], number[1], ADVISORY_CLASS);
	(void) LockAcquire(&tag, mode, false, false);
	AcceptInvalidationMessages();
}

/*
 * Finds an event that is valid at a time; sets *payload (0: NULL).  The caller holds the name's
 * lock.
 */
bool
idemq_event_find(const EventName *event, TimestampTz now, Datum *payload)
{
	Datum values[] = {Int32GetDatum(event->queue_id), event->name, TimestampTzGetDatum(now)};

	return idemq_spi_row(&find_event, values, payload, sizeof(*payload));
}

/*
 * Writes an event, and replaces an expired one.  payload: 0 is NULL.  The caller holds the name's
 * lock.  Above READ COMMITTED raises 40001 if this transaction cannot see the event that it
 * replaces.
 */
void
idemq_event_write(const EventName *event, Datum payload, TimestampTz now, TimestampTz keep_until)
{
	Datum values[] = {Int32GetDatum(event->queue_id), event->name, payload,
					  TimestampTzGetDatum(now), TimestampTzGetDatum(keep_until)};

	(void) idemq_spi_do(&write_event, values, NULL);
}

/* Returns the waits for an event, in the order of job ids.  The caller holds the name's lock. */
EventWait *
idemq_waits_for(const EventName *event, int *count)
{
	Datum values[] = {Int32GetDatum(event->queue_id), event->name};

	return idemq_spi_rows(&find_waits, values, sizeof(EventWait), count);
}

/*
 * Ends the waits of jobs whose rows the caller holds, because their event has been sent.  At an
 * isolation level above READ COMMITTED, raises 40001 if this transaction cannot see all of them.
 */
void
idemq_waits_arrived(const EventName *event, const int64 *job_ids, int count, Datum payload)
{
	Datum values[] = {idemq_int8_array(job_ids, count), event->name, payload,
					  TimestampTzGetDatum(idemq_wall_now())};

	if (count > 0 && idemq_spi_do(&answer_waits, values, NULL) < (uint64) count &&
		IsolationUsesXactSnapshot())
		ereport(ERROR, errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				errmsg("jobs await event \"%s\", but this transaction cannot see them",
					   TextDatumGetCString(event->name)),
				errhint("Run the transaction again, or call idemq.send_event at READ COMMITTED."));
}

/*
 * Follows a job that may be waiting for an event, and that SQL has moved to another queue, in the
 * transaction that has moved it.  The job would not be told of events that are or were sent to its
 * new queue, so it becomes ready, and asks again.  Its wait then belongs to the new queue, and ends
 * at the same time as before (api/events.c).
 */
void
idemq_event_wait_moved(int64 job_id)
{
	Datum values[] = {Int64GetDatum(job_id), TimestampTzGetDatum(idemq_wall_now())};

	(void) idemq_spi_do(&end_wait, values, NULL);
}
