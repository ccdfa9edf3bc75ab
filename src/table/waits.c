/*
 * table/waits.c
 *		Waits of jobs for events: rows of idemq.steps, named as the event.
 *
 *	waiting		the attempt of token gave the job back, to be woken by the event, or at
 *				call_until; begun_at is when the job first asked
 *	arrived		response is the event's payload
 *	timed_out	none came until call_until.  That stands: the job decided by it
 *
 * A wait that was answered is so for good, however often the job is tried, until the job gets
 * another payload (void, as any step).
 *
 * Who answers: send_event, for each job that waits when it is sent, so that the event itself
 * may be forgotten after its time; otherwise the attempt that asks next.
 *
 * Locks: whoever writes a row holds the job's row (table/steps.c) and the event's name
 * (table/events.c), the attempt shared, the sender alone: so there are not two of them at a
 * time, but for two calls of one attempt, and these take the job's row one after the other.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "table/table.h"

/* Of a wait that is there, the beginning and the end stay what the caller has found. */
static SqlStatement write_wait =
	{.text = "INSERT INTO idemq.steps (job_id, name, queue_id, state, round, token, begun_at, "
			 "call_until, response, answered_at) VALUES ($1, $2, $4, $5, 0, $3, $6, $7, $8, "
			 "CASE WHEN $5 <> 'waiting' THEN clock_timestamp() END) "
			 "ON CONFLICT (job_id, name) DO UPDATE SET queue_id = $4, state = $5, token = $3, "
			 "earlier = '{}', begun_at = $6, call_until = $7, request = NULL, response = $8, "
			 "error = NULL, effect_key = NULL, answered_at = excluded.answered_at",
	 .nargs = 8,
	 .types = {INT8OID, TEXTOID, INT8OID, INT4OID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID,
			   JSONBOID}};
static SqlStatement find_waiters =
	{.text = "SELECT job_id, token FROM idemq.steps WHERE queue_id = $1 AND name = $2 "
			 "AND state = 'waiting' ORDER BY job_id",
	 .nargs = 2,
	 .types = {INT4OID, TEXTOID}};
static SqlStatement answer_waiters =
	{.text = "UPDATE idemq.steps SET state = 'arrived', response = $3, "
			 "answered_at = clock_timestamp() WHERE job_id = ANY ($1) AND name = $2 "
			 "AND state = 'waiting'",
	 .nargs = 3,
	 .types = {INT8ARRAYOID, TEXTOID, JSONBOID}};

/* Writes a wait, of a job whose row is held: its state, times and response. */
void
idemq_wait_write(const StepName *name, int32 queue_id, const Step *wait)
{
	static const char *const states[] =
		{[STEP_WAITING] = "waiting", [STEP_ARRIVED] = "arrived", [STEP_TIMED_OUT] = "timed_out"};
	Datum values[] = {Int64GetDatum(name->job_id),
					  name->name,
					  Int64GetDatum(name->token),
					  Int32GetDatum(queue_id),
					  CStringGetTextDatum(states[wait->state]),
					  TimestampTzGetDatum(wait->begun_at),
					  TimestampTzGetDatum(wait->call_until),
					  wait->response};
	char nulls[] = "        ";
	SqlScope scope;

	if (wait->response == (Datum) 0)
		nulls[7] = 'n';
	idemq_spi_begin(&scope);
	(void) idemq_spi_run(&write_wait, values, nulls, SPI_OK_INSERT);
	idemq_spi_end(&scope);
}

/* Returns the jobs that wait for an event, by their ids; its name is locked. */
Waiter *
idemq_waits_for(const EventName *event, int *count)
{
	Datum values[] = {Int32GetDatum(event->queue_id), event->name};
	MemoryContext caller = CurrentMemoryContext;
	Waiter *waiters;
	SqlScope scope;

	idemq_spi_begin(&scope);
	idemq_spi_no_seqscan();
	*count = (int) idemq_spi_query_latest(&find_waiters, values, NULL);
	waiters = MemoryContextAllocHuge(caller, Max(*count, 1) * sizeof(Waiter));
	for (int i = 0; i < *count; i++)
	{
		bool isnull;

		waiters[i].job_id = idemq_spi_int64(i, 1, &isnull);
		waiters[i].token = idemq_spi_int64(i, 2, &isnull);
	}
	idemq_spi_end(&scope);
	return waiters;
}

/*
 * Answers the waits of jobs whose rows are held.  Above READ COMMITTED raises 40001 when it
 * does not see all of them.
 */
void
idemq_waits_arrived(const EventName *event, const int64 *job_ids, int count, Datum payload)
{
	Datum *ids;
	Datum values[3] = {(Datum) 0, event->name, payload};
	char nulls[] = {' ', ' ', payload == (Datum) 0 ? 'n' : ' ', '\0'};
	uint64 answered;
	SqlScope scope;

	if (count == 0)
		return;
	ids = MemoryContextAllocHuge(CurrentMemoryContext, count * sizeof(Datum));
	for (int i = 0; i < count; i++)
		ids[i] = Int64GetDatum(job_ids[i]);
	values[0] = PointerGetDatum(
		construct_array(ids, count, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	idemq_spi_begin(&scope);
	idemq_spi_no_seqscan();
	answered = idemq_spi_run(&answer_waiters, values, nulls, SPI_OK_UPDATE);
	idemq_spi_end(&scope);
	if (answered < (uint64) count && IsolationUsesXactSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("jobs wait for event \"%s\" that this transaction cannot see",
						TextDatumGetCString(event->name)),
				 errhint("Run the transaction again, or idemq.send_event at READ COMMITTED.")));
}
