/*
 * keyed.c
 *		Enqueue with an idempotency key: the unique index jobs_key decides.
 *
 * INSERT ... ON CONFLICT DO NOTHING waits for a twin whose transaction is open.
 * When the key is taken, a second command with a fresh snapshot reads who has
 * it; one statement with a UNION would find nothing in that race.  Above READ
 * COMMITTED the look comes first, also under the latest snapshot, since the
 * INSERT raises 40001 for a twin that the transaction's snapshot does not see.
 *
 * The key of a job that finished longer ago than the queue's window is free:
 * the old job gives it up, in the transaction of the new one.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "clock.h"
#include "errors.h"
#include "keyed.h"
#include "sql.h"
#include "tally.h"

/* Rounds of insert and look after which a trigger must be keeping the row out. */
#define MAX_TRIES 20

static SqlStatement find_key =
	{.text = "SELECT id, status::text, result, payload = $3, coalesce(finished_at <= $4, false) "
			 "FROM idemq.jobs WHERE queue_id = $1 AND key = $2",
	 .nargs = 4,
	 .types = {INT4OID, TEXTOID, JSONBOID, TIMESTAMPTZOID}};

static SqlStatement free_key =
	{.text = "UPDATE idemq.jobs SET key = NULL WHERE id = $1 AND key = $2 AND finished_at <= $3",
	 .nargs = 3,
	 .types = {INT8OID, TEXTOID, TIMESTAMPTZOID}};

static SqlStatement replace_job =
	{.text = "UPDATE idemq.jobs SET payload = $2, ready_at = $3, priority = $4, headers = $5, "
			 "expires_at = $6, max_attempts = $7 "
			 "WHERE id = $1 AND status = 'pending' AND attempt = 0",
	 .nargs = 7,
	 .types = {INT8OID, JSONBOID, TIMESTAMPTZOID, INT2OID, JSONBOID, TIMESTAMPTZOID, INT4OID}};

/* Who has the key. */
typedef struct KeyHolder
{
	EnqueueAnswer answer;
	bool same_payload;
	bool expired; /* finished before the window */
} KeyHolder;

/* Looks the key up under the latest snapshot. */
static bool
find_holder(const QueueInfo *queue, const JobChange *columns, TimestampTz window_start,
			KeyHolder *holder)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum values[] = {Int32GetDatum(queue->id), columns->values[COL_KEY],
					  columns->values[COL_PAYLOAD], TimestampTzGetDatum(window_start)};
	EnqueueAnswer *answer = &holder->answer;
	SqlScope scope;
	bool found;
	bool isnull;

	idemq_sql_begin(&scope);
	found = idemq_sql_query_latest(&find_key, values, NULL) > 0;
	if (found)
	{
		answer->id = DatumGetInt64(idemq_sql_value(0, 1, &isnull));
		answer->outcome = OUTCOME_DUPLICATE;
		answer->status =
			idemq_status_from_name(TextDatumGetCString(idemq_sql_value(0, 2, &isnull)));
		answer->result = idemq_sql_value(0, 3, &answer->no_result);
		if (!answer->no_result)
		{
			MemoryContext old = MemoryContextSwitchTo(caller);

			answer->result = PointerGetDatum(PG_DETOAST_DATUM_COPY(answer->result));
			MemoryContextSwitchTo(old);
		}
		holder->same_payload = DatumGetBool(idemq_sql_value(0, 4, &isnull));
		holder->expired = DatumGetBool(idemq_sql_value(0, 5, &isnull));
	}
	idemq_sql_end(&scope);
	return found;
}

/* Takes the key from a job that finished before the window. */
static void
take_key(const KeyHolder *holder, const JobChange *columns, TimestampTz window_start)
{
	Datum values[] = {Int64GetDatum(holder->answer.id), columns->values[COL_KEY],
					  TimestampTzGetDatum(window_start)};
	SqlScope scope;

	idemq_sql_begin_on_jobs(&scope);
	(void) idemq_sql_run(&free_key, values, NULL, SPI_OK_UPDATE);
	idemq_sql_end(&scope);
}

/* Gives a job that was not claimed yet the new payload, time and priority. */
static void
replace(const KeyHolder *holder, const JobChange *columns)
{
	static const JobColumn replaced[] = {COL_PAYLOAD, COL_READY_AT,	  COL_PRIORITY,
										 COL_HEADERS, COL_EXPIRES_AT, COL_MAX_ATTEMPTS};
	Datum values[7] = {Int64GetDatum(holder->answer.id)};
	char nulls[] = "       ";
	SqlScope scope;
	uint64 updated;

	for (int i = 0; i < (int) lengthof(replaced); i++)
	{
		bool is_set = (columns->set & COLUMN_BIT(replaced[i])) != 0;

		values[i + 1] = is_set ? columns->values[replaced[i]] : (Datum) 0;
		nulls[i + 1] = is_set ? ' ' : 'n';
	}
	idemq_sql_begin_on_jobs(&scope);
	updated = idemq_sql_run(&replace_job, values, nulls, SPI_OK_UPDATE);
	idemq_sql_end(&scope);
	/* Nothing replaced: it is claimed by now, or too new for the transaction's snapshot. */
	if (updated == 0 && IsolationUsesXactSnapshot() && holder->answer.status == JOB_PENDING)
		ereport(ERROR, (errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
						errmsg("could not serialize access due to concurrent update of a job"),
						errhint("Run the transaction again.")));
}

/* Answers a duplicate as the producer wants it. */
static void
answer_duplicate(const KeyHolder *holder, const JobChange *columns, OnDuplicate policy)
{
	switch (policy)
	{
		case DUPLICATE_IGNORE:
			break;
		case DUPLICATE_ERROR:
			ereport(ERROR, (errcode(ERRCODE_IDEMQ_DUPLICATE_KEY),
							errmsg("the key is taken by job %lld", (long long) holder->answer.id),
							errhint("Use on_duplicate => 'keep' to get that job's answer.")));
		case DUPLICATE_REPLACE:
			replace(holder, columns);
			break;
		case DUPLICATE_KEEP:
			if (!holder->same_payload)
				ereport(ERROR,
						(errcode(ERRCODE_IDEMQ_KEY_REUSED),
						 errmsg("the key is taken by job %lld with another payload",
								(long long) holder->answer.id),
						 errhint("Use another key, or on_duplicate => 'ignore' or 'replace'.")));
			break;
	}
}

/*
 * Adds the job with those columns, id and key among them, or answers with the
 * job that has the key.  Raises IQ003, IQ004; 40001 above READ COMMITTED.
 */
void
idemq_enqueue_keyed(const QueueInfo *queue, const JobChange *columns, OnDuplicate policy,
					EnqueueAnswer *answer)
{
	TimestampTz window_start = idemq_now() - queue->idempotency_window;
	bool look_first = IsolationUsesXactSnapshot();
	KeyHolder holder;

	/* A holder may come and go between the two looks, but not again and again. */
	for (int tries = 0;; tries++)
	{
		CHECK_FOR_INTERRUPTS();
		if (tries > MAX_TRIES)
			idemq_jobs_refused();
		if (!look_first && idemq_jobs_insert_sql(columns))
			break;
		if (find_holder(queue, columns, window_start, &holder))
		{
			if (!holder.expired)
			{
				answer_duplicate(&holder, columns, policy);
				idemq_tally_count(queue->id, COUNTER_BIT(COUNTER_DUPLICATES));
				*answer = holder.answer;
				return;
			}
			take_key(&holder, columns, window_start);
		}
		look_first = false;
	}
	idemq_tally_count(queue->id, COUNTER_BIT(COUNTER_ENQUEUED));
	*answer = (EnqueueAnswer){DatumGetInt64(columns->values[COL_ID]), OUTCOME_ACCEPTED, JOB_PENDING,
							  (Datum) 0, true};
}
