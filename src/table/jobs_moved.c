/*
 * table/jobs_moved.c
 *		A job that SQL has moved to another queue: what it waits for follows it.
 *
 * A child's rows name its queue, in which it is marked when its parents are done.
 *
 * A job that sleeps until an event would not hear of one that is sent to its new queue, nor of
 * one that was sent there before.  It is made ready instead, and asks again: its wait has the
 * new queue from then on, and ends when it would have (api/await_event.c).
 *
 * Both are done in the transaction that moves it, which holds the job's row.
 */
#include "postgres.h"

#include "catalog/pg_type.h"

#include "base/base.h"
#include "table/table.h"

static SqlStatement move_child =
	{.few = true,
	 .text = "WITH edges AS (UPDATE idemq.dependencies SET queue_id = $2 WHERE child = $1) "
			 "UPDATE idemq.children SET queue_id = $2 WHERE job_id = $1",
	 .types = {INT8OID, INT4OID}};
static SqlStatement end_event_wait =
	{.few = true,
	 .on_jobs = true,
	 .text = "UPDATE idemq.jobs j SET ready_at = $2 WHERE id = $1 "
			 "AND status = 'pending' AND ready_at > $2 "
			 "AND EXISTS (SELECT FROM idemq.steps s WHERE s.job_id = $1 "
			 "AND s.state = 'waiting' AND s.token = j.token)",
	 .types = {INT8OID, TIMESTAMPTZOID}};

/* Follows a job that may be a child. */
void
idemq_jobs_moved_child(int64 job_id, int32 queue_id)
{
	Datum values[] = {Int64GetDatum(job_id), Int32GetDatum(queue_id)};

	if (idemq_dependencies_exist())
		(void) idemq_spi_do(&move_child, values, NULL);
}

/* Follows a job that may sleep until an event. */
void
idemq_jobs_moved_event_wait(int64 job_id)
{
	Datum values[] = {Int64GetDatum(job_id), TimestampTzGetDatum(idemq_wall_now())};

	(void) idemq_spi_do(&end_event_wait, values, NULL);
}
