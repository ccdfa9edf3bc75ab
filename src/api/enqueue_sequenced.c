/*
 * api/enqueue_sequenced.c
 *		SQL function enqueue_sequenced, for producers that number their requests.
 *
 * A producer is one ordered log, for example a partition of Kafka.  It sends its numbers in
 * ascending order, and sends some of them again after a failure.  So the highest accepted number
 * decides for every request whether it was accepted before.  One row of idemq.producers stores this
 * number, instead of a key for each job.  The job has no key, and in a queue without retention its
 * row is deleted when the job is committed.
 *
 * Accepting a number writes the producer's row and the job in one transaction, so either both exist
 * or neither.  The update changes no indexed column, so it is HOT: the table stays at about one row
 * per producer, and its index does not grow.
 *
 * Two sessions of one producer.  Consider the commits of accepted numbers, in their order.  Each
 * transaction has written the row, and locked it until its end.  So each has read the number that
 * the previous one committed, and its own number was higher.  If a call comes while the transaction
 * of another call is open, and its number is higher than the last committed one, it waits for the
 * end of that transaction (lock_timeout applies).  Then it is compared with the row: after a commit
 * it may be a duplicate; after a rollback it is as if the other call had never been made.  A number
 * that is not higher than the last committed one is a duplicate in either case, so its call does
 * not wait.
 *
 * Therefore numbers must be committed in ascending order.  If two sessions of a producer commit in
 * the opposite order, the lower number is lost.  The ids of an outbox table are not suitable,
 * because transactions do not commit in the order in which they take their ids.
 *
 * Above READ COMMITTED, a row that has changed since the transaction's snapshot raises 40001.
 *
 * A producer's row stays until forget_producer is called or the queue is dropped.  Without the row,
 * a repeated request would be accepted again.
 *
 * Locks, until the end of the transaction: the queue, so that it is not dropped; the producer's
 * row.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "api/api.h"
#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "table/table.h"
#include "txn/txn.h"

#define MAX_PRODUCER 256 /* bytes */

/* Arguments of enqueue_sequenced. */
enum
{
	ARG_QUEUE,
	ARG_PRODUCER,
	ARG_SEQ,
	ARG_PAYLOAD,
	ARG_DELAY,
	ARG_KIND = 11
};

/* Parameters of the statements that write a row. */
#define POSITION_TYPES                                                                             \
	{                                                                                              \
		INT4OID, TEXTOID, INT8OID, INT8OID, TIMESTAMPTZOID                                         \
	}

/* The last number of a producer, and its job. */
typedef struct Position
{
	int64 seq;
	int64 job_id;
} Position;

static SqlStatement advance =
	{.text = "UPDATE idemq.producers SET seq = $3, job_id = $4, enqueued_at = $5 "
			 "WHERE queue_id = $1 AND name = $2 AND seq < $3",
	 .types = POSITION_TYPES};
static SqlStatement begin =
	{.text = "INSERT INTO idemq.producers (queue_id, name, seq, job_id, enqueued_at) "
			 "VALUES ($1, $2, $3, $4, $5) ON CONFLICT (queue_id, name) DO NOTHING",
	 .types = POSITION_TYPES};
static SqlStatement read_position =
	{.text = "SELECT seq, job_id FROM idemq.producers WHERE queue_id = $1 AND name = $2",
	 .types = {INT4OID, TEXTOID},
	 .fields = (const SqlField[]){SQL_FIELD(Position, seq), SQL_FIELD(Position, job_id)}};

/*
 * Stores a number as its producer's last one.  Returns false if it is not higher than the last one,
 * and sets *last.  values: those of POSITION_TYPES.
 */
static bool
take_number(const Datum *values, Position *last)
{
	int64 seq = DatumGetInt64(values[2]);
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		if (idemq_spi_do(&advance, values, NULL) > 0)
			return true;
		if (idemq_spi_row(&read_position, values, last, sizeof(*last)))
		{
			if (last->seq >= seq)
				return false;
			if (IsolationUsesXactSnapshot())
				ereport(ERROR, errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
						errmsg("could not serialize access due to concurrent update of a producer"),
						errhint("Run the transaction again."));
		}
		else if (idemq_spi_do(&begin, values, NULL) > 0)
			return true;
		/* Another session has continued the sequence since, or its transaction was rolled back. */
	}
}

/* Fills the answer for a number that equals the last one, with the status and result of its job. */
static void
fill_last(int64 id, Datum *values, bool *nulls, bool *own)
{
	JobsTable table;
	Job job;

	values[0] = Int64GetDatum(id);
	nulls[0] = false;
	idemq_jobs_open_to_read(&table);
	if (idemq_jobs_fetch(&table, id, &job))
	{
		*own = idemq_jobs_is_own(&job);
		values[2] = ObjectIdGetDatum(idemq_oids()->status[job.status]);
		nulls[2] = false;
		nulls[3] = job.row->tts_isnull[COL_RESULT];
		if (!nulls[3])
			values[3] = PointerGetDatum(PG_DETOAST_DATUM_COPY(job.row->tts_values[COL_RESULT]));
	}
	idemq_jobs_close(&table);
}

/*
 * enqueue_sequenced(queue, producer, seq, payload, delay, run_at, priority, group_key,
 *		max_attempts, headers, expires_in, kind) -> (id, outcome, status, result); IQ005, IQ007,
 *		42501, 22004, 22023, 40001, 53400, 54000, 55P03.
 */
SQL_FUNCTION(idemq_sql_enqueue_sequenced)
{
	char *producer = idemq_arg_text(fcinfo, ARG_PRODUCER, "producer", MAX_PRODUCER);
	QueueInfo queue;
	JobChange columns;
	NullableDatum options[OPTIONS];
	Datum position[5];
	Datum values[4] = {0};
	bool nulls[4] = {true, false, true, true};
	bool own = false;
	Position last;

	idemq_arg_required(fcinfo, ARG_SEQ, "seq");
	idemq_arg_required(fcinfo, ARG_PAYLOAD, "payload");
	idemq_jobs_check_writable();
	idemq_queue_open(fcinfo, ARG_QUEUE, "queue", PRIVILEGE_ENQUEUE, AccessShareLock, &queue);
	idemq_queue_need_qstate(&queue);
	idemq_enqueue_read_options(fcinfo, -1, ARG_DELAY, -1, ARG_KIND, options);
	idemq_check_document("payload", PG_GETARG_DATUM(ARG_PAYLOAD), 0);
	idemq_new_job(&columns, &queue, idemq_now(), PG_GETARG_DATUM(ARG_PAYLOAD));
	idemq_enqueue_set_options(&columns, &queue, options);
	job_set(&columns, COL_ID, Int64GetDatum(idemq_jobs_next_id()));
	position[0] = Int32GetDatum(queue.id);
	position[1] = CStringGetTextDatum(producer);
	position[2] = PG_GETARG_DATUM(ARG_SEQ);
	position[3] = columns.values[COL_ID];
	position[4] = columns.values[COL_ENQUEUED_AT];
	if (take_number(position, &last))
	{
		JobsTable table;
		values[0] = columns.values[COL_ID];
		values[1] = idemq_outcome_datum(OUTCOME_ACCEPTED);
		idemq_jobs_open(&table);
		(void) idemq_room_for_new_job(&table, &queue, &columns, FULL_RAISES);
		values[2] = ObjectIdGetDatum(idemq_oids()->status[idemq_new_job_note(&queue, &columns)]);
		idemq_jobs_insert(&table, &columns);
		idemq_jobs_close(&table);
		idemq_pending_counts_event(queue.id, COUNTER_BIT(COUNTER_ENQUEUED));
		nulls[0] = nulls[2] = false;
		return idemq_row_datum(fcinfo, values, nulls);
	}
	idemq_queue_count_refusal(&queue, COUNTER_DUPLICATES);
	values[1] = idemq_outcome_datum(OUTCOME_DUPLICATE);
	if (last.seq == PG_GETARG_INT64(ARG_SEQ))
		fill_last(last.job_id, values, nulls, &own);
	if (!own)
		idemq_sync_rep_await();
	return idemq_row_datum(fcinfo, values, nulls);
}
