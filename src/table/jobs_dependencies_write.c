/*
 * table/jobs_dependencies_write.c
 *		Writes to idemq.dependencies and idemq.children: when a child is enqueued, waits, is
 *		released or deleted, and when a parent is deleted.
 *
 * A transaction writes these rows while it holds the row of the child, or of a parent that it
 * deletes.  So an open purge or drop_queue holds rows of children and parents in other queues.  A
 * transaction that adds parents to a child only keeps the child's row from being deleted.  A
 * transaction that moves a watch, or that deletes a job which may also be kept (purge, retention, a
 * commit in a queue that keeps nothing: jobs_deletable.c), skips rows that are held in this way.
 *
 * seen_token, in one row of each child (of any parent), says what the child has seen of its
 * parents: every attempt whose end it has seen has a smaller token, and every later attempt a
 * greater one (base/token.c).
 *
 * No plan depends on statistics.  A row is found by (child, parent) compared as a row, which only
 * the primary key supports, and the rows of a parent by (parent, child + 0), which only the index
 * dependencies_parent supports.  With plain equality, and statistics from a time when the table was
 * empty, the planner might use either index for either, and read the rows of all children.
 *
 * Locks: those of the SQL statements.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "base/base.h"
#include "table/table.h"

static SqlStatement add_child =
	{.text = "WITH edges AS (INSERT INTO idemq.dependencies (child, parent, queue_id, gone_as) "
			 "SELECT $1, p, $2, CASE WHEN p = ANY ($4) THEN 'dead'::idemq.status END "
			 "FROM unnest($3) p) INSERT INTO idemq.children (job_id, queue_id, on_parent_failure, "
			 "group_key, waits_for) VALUES ($1, $2, $5, $6, $7)",
	 .types = {INT8OID, INT4OID, INT8ARRAYOID, INT8ARRAYOID, TEXTOID, TEXTOID, INT8OID}};
static SqlStatement add_parents =
	{.text = "INSERT INTO idemq.dependencies (child, parent, queue_id, gone_as) "
			 "SELECT $1, p, $2, CASE WHEN p = ANY ($4) THEN 'dead'::idemq.status END "
			 "FROM unnest($3) p ON CONFLICT DO NOTHING",
	 .types = {INT8OID, INT4OID, INT8ARRAYOID, INT8ARRAYOID}};
static SqlStatement move_watch =
	{.text = "UPDATE idemq.children SET waits_for = $2 WHERE job_id = (SELECT job_id "
			 "FROM idemq.children WHERE job_id = $1 FOR NO KEY UPDATE SKIP LOCKED)",
	 .types = {INT8OID, INT8OID}};
/*
 * Uses any row of a child that no other transaction holds, because a row whose parent is being
 * deleted may be held for a long time.
 */
static SqlStatement end_child_waits = {
	.text = "WITH held AS MATERIALIZED (SELECT h.child, h.parent, m.token FROM unnest($1, $2) "
			"m (id, token) CROSS JOIN LATERAL "
			"(SELECT d.child, d.parent FROM idemq.dependencies d WHERE d.child = m.id LIMIT 1 "
			"FOR NO KEY UPDATE SKIP LOCKED) h), seen AS (UPDATE idemq.dependencies d "
			"SET seen_token = h.token FROM held h WHERE (d.child, d.parent) >= (h.child, h.parent) "
			"AND (d.child, d.parent) <= (h.child, h.parent)) "
			"DELETE FROM idemq.children WHERE job_id = ANY ($1)",
	.types = {INT8ARRAYOID, INT8ARRAYOID}};
static SqlStatement forget_dependencies =
	{.text = "WITH edges AS (DELETE FROM idemq.dependencies WHERE child = ANY ($1)) "
			 "DELETE FROM idemq.children WHERE job_id = ANY ($1)",
	 .types = {INT8ARRAYOID}};
static SqlStatement note_gone =
	{.text =
		 "UPDATE idemq.dependencies SET gone_as = $2::idemq.status WHERE " DEPENDENCIES_OF_PARENT(
			 "$1"),
	 .types = {INT8OID, TEXTOID}};
static SqlStatement forget_all_dependencies = {
	.text = "WITH edges AS (DELETE FROM idemq.dependencies) DELETE FROM idemq.children"};

static SqlStatement move_child =
	{.few = true,
	 .text = "WITH edges AS (UPDATE idemq.dependencies SET queue_id = $2 WHERE child = $1) "
			 "UPDATE idemq.children SET queue_id = $2 WHERE job_id = $1",
	 .types = {INT8OID, INT4OID}};

/* Whether this file is writing now, so the triggers of its tables must do nothing. */
static bool dependencies_writing = false;

/* Returns whether this file is writing now; for triggers. */
bool
idemq_dependencies_is_writing(void)
{
	return dependencies_writing;
}

/*
 * Runs a statement that writes; returns the number of rows.  Even above READ COMMITTED it writes to
 * the latest rows, because a child may be newer than the snapshot of the transaction that deletes
 * its parent, and must be told.
 */
static uint64
dependencies_write_run(SqlStatement *statement, const Datum *values)
{
	uint64 rows;

	statement->few = true;
	statement->latest = true;
	dependencies_writing = true;
	PG_TRY();
	{
		rows = idemq_spi_do(statement, values, NULL);
	}
	PG_FINALLY();
	{
		dependencies_writing = false;
	}
	PG_END_TRY();
	return rows;
}

void
idemq_dependencies_add(const NewDependencies *depends)
{
	Datum values[] = {Int64GetDatum(depends->child),
					  Int32GetDatum(depends->queue_id),
					  idemq_int8_array(depends->parents, depends->count),
					  idemq_int8_array(depends->failures, depends->failed),
					  CStringGetTextDatum(idemq_failure_name(depends->on_failure)),
					  depends->group,
					  Int64GetDatum(depends->parents[0])};

	(void) dependencies_write_run(&add_child, values);
}

/*
 * Adds parents to a child that waits; its row in idemq.children stays as it is.  If another
 * transaction has begun to add the same parent since the caller checked, this waits for that
 * transaction.  The parent is then added once.
 */
void
idemq_dependencies_add_more(const NewDependencies *depends)
{
	Datum values[] = {Int64GetDatum(depends->child), Int32GetDatum(depends->queue_id),
					  idemq_int8_array(depends->parents, depends->count),
					  idemq_int8_array(depends->failures, depends->failed)};

	(void) dependencies_write_run(&add_parents, values);
}

/*
 * Makes a child watch another parent, because those before it are done.  Returns false if a
 * transaction that is deleting the child holds its row.
 */
bool
idemq_dependency_watch(int64 child, int64 parent)
{
	Datum values[] = {Int64GetDatum(child), Int64GetDatum(parent)};

	IDEMQ_STOP("idemq_dependency_watch");
	return dependencies_write_run(&move_watch, values) > 0;
}

/*
 * Ends the waiting of children whose rows this transaction has written.  tokens: for each child, a
 * number that is greater than the token of every attempt of its parents whose end it has seen, and
 * less than the token of any later attempt.
 */
void
idemq_dependency_released(const int64 *children, const int64 *tokens, int count)
{
	Datum values[] = {idemq_int8_array(children, count), idemq_int8_array(tokens, count)};

	(void) dependencies_write_run(&end_child_waits, values);
}

/* Deletes the rows in which these jobs, which have been deleted, are the children. */
void
idemq_dependency_forget(const int64 *job_ids, int count)
{
	Datum ids;

	if (count == 0 || !idemq_dependencies_exist())
		return;
	ids = idemq_int8_array(job_ids, count);
	(void) dependencies_write_run(&forget_dependencies, &ids);
}

/*
 * Follows the deletion of a job through SQL: tells its children its status, or cancelled if it had
 * not finished.
 */
void
idemq_dependency_row_gone(int64 job_id, JobStatus status)
{
	JobStatus as = job_status_is_finished(status) ? status : JOB_CANCELLED;
	Datum values[] = {Int64GetDatum(job_id), CStringGetTextDatum(idemq_status_name(as))};

	(void) dependencies_write_run(&note_gone, values);
	idemq_dependency_forget(&job_id, 1);
}

/* Follows TRUNCATE of idemq.jobs: deletes all rows. */
void
idemq_dependency_all_gone(void)
{
	if (idemq_dependencies_exist())
		(void) dependencies_write_run(&forget_all_dependencies, NULL);
}

/*
 * Follows a job that may be a child, and that SQL has moved to another queue: the rows of a child
 * name its queue, in which it is marked when its parents have ended.
 */
void
idemq_dependency_child_moved(int64 job_id, int32 queue_id)
{
	Datum values[] = {Int64GetDatum(job_id), Int32GetDatum(queue_id)};

	if (idemq_dependencies_exist())
		(void) idemq_spi_do(&move_child, values, NULL);
}
