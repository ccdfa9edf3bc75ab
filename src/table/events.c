/*
 * table/events.c
 *		Events that were sent to a queue: the rows of idemq.events, and the lock of a name; and
 *		the waits of jobs for them: rows of idemq.steps, named as the event.
 *
 * There is a row for each name of a queue.  It counts until keep_until, which is its queue's
 * idempotency_window after it was sent.  Then it is as if it were not there: retention deletes
 * it, and the name may be sent again.
 *
 * A sender locks an event's name alone, an attempt that awaits it shared, to the end of the
 * transaction.  Each looks after that, with a new snapshot.  So the later of the two sees
 * what the earlier one has committed: await_event finds an event that came first, send_event
 * a wait that began first, and neither finds what was rolled back.
 *
 * It is an advisory lock of a class of idemq's own, which no role can take by itself.  Its
 * number is a hash that is made with the database's uuid, so that pg_locks confirms no
 * guess of a name; unlike a secret of the running server it is the same after a restart, for
 * the sake of prepared transactions.  Two names with one hash wait for each other; no more.
 *
 * A wait (api/await_event.c writes it) is
 *
 *	waiting		the attempt of token gave the job back, to be woken by the event, or at
 *				call_until; begun_at is when the job first asked
 *	arrived		response is the event's payload
 *	timed_out	none came until call_until.  That stands: the job decided by it
 *
 * An answer to a wait stands, however often the job is tried, until the job gets another
 * payload (void, as any step).
 *
 * send_event answers the waits of all jobs that wait when the event is sent, so that the event
 * itself may be forgotten after its time.  Others are answered by the attempt that asks next.
 *
 * Locks: a session that writes a wait holds the job's row (table/steps.c) and the event's
 * name, an attempt shared, a sender alone.  So no two write a wait at a time, but for two
 * calls of one attempt, and these take the job's row one after the other.
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

/* Fourth field of our lock tags: "ev"; api/acquire.c has another. */
#define ADVISORY_CLASS 0x6576

/*
 * By their keys, whatever statistics say: an index of times, or one of jobs, has all events or
 * waits of all queues.
 */
static SqlStatement find_event = {.few = true,
								  .text = "SELECT payload FROM (SELECT payload, keep_until "
										  "FROM idemq.events WHERE queue_id = $1 AND name = $2 "
										  "OFFSET 0) e WHERE keep_until > $3",
								  .types = {INT4OID, TEXTOID, TIMESTAMPTZOID},
								  .fields = (const SqlField[]){{0, sizeof(Datum), NULL}}};
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
 * Locks the name of an event to the end of the transaction: ExclusiveLock to send it,
 * ShareLock to await it.  Waits, within lock_timeout.
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

/* Finds an event that counts at a time; *payload: 0 for NULL.  Its name is locked. */
bool
idemq_event_find(const EventName *event, TimestampTz now, Datum *payload)
{
	Datum values[] = {Int32GetDatum(event->queue_id), event->name, TimestampTzGetDatum(now)};

	return idemq_spi_row(&find_event, values, payload, sizeof(*payload));
}

/*
 * Writes an event, whose name is locked, in place of one that does not count any more.
 * payload: 0 for NULL.  Above READ COMMITTED raises 40001 when it replaces one that this
 * transaction cannot see.
 */
void
idemq_event_write(const EventName *event, Datum payload, TimestampTz now, TimestampTz keep_until)
{
	Datum values[] = {Int32GetDatum(event->queue_id), event->name, payload,
					  TimestampTzGetDatum(now), TimestampTzGetDatum(keep_until)};

	(void) idemq_spi_do(&write_event, values, NULL);
}

/* Returns the jobs that wait for an event, in the order of ids; its name is locked. */
EventWait *
idemq_waits_for(const EventName *event, int *count)
{
	Datum values[] = {Int32GetDatum(event->queue_id), event->name};

	return idemq_spi_rows(&find_waits, values, sizeof(EventWait), count);
}

/*
 * Answers the waits of jobs whose rows are held.  Above READ COMMITTED raises 40001 when it
 * does not see all of them.
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
 * at the same time as before (api/await_event.c).
 */
void
idemq_event_wait_moved(int64 job_id)
{
	Datum values[] = {Int64GetDatum(job_id), TimestampTzGetDatum(idemq_wall_now())};

	(void) idemq_spi_do(&end_wait, values, NULL);
}
