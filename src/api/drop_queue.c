/*
 * api/drop_queue.c
 *		SQL function drop_queue.
 *
 * Rows go by SQL, under a lock that waits for every transaction that enqueues to the
 * queue.  The slot in shared memory goes after the commit.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"

#include "base/base.h"
#include "queue/queue.h"
#include "table/table.h"
#include "txn/txn.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_drop_queue);

static SqlStatement count_unfinished =
	{.text = "SELECT count(*) FROM idemq.jobs WHERE queue_id = $1 AND finished_at IS NULL",
	 .nargs = 1,
	 .types = {INT4OID}};
static SqlStatement delete_jobs = {.text = "DELETE FROM idemq.jobs WHERE queue_id = $1",
								   .nargs = 1,
								   .types = {INT4OID}};
/* Of a job that was moved to another queue by hand they stay: they are that tenant's. */
static SqlStatement delete_attempts =
	{.text = "DELETE FROM idemq.attempts a WHERE a.queue_id = $1 "
			 "AND NOT EXISTS (SELECT FROM idemq.jobs j WHERE j.id = a.job_id)",
	 .nargs = 1,
	 .types = {INT4OID}};
static SqlStatement delete_steps =
	{.text = "DELETE FROM idemq.steps s WHERE s.queue_id = $1 "
			 "AND NOT EXISTS (SELECT FROM idemq.jobs j WHERE j.id = s.job_id)",
	 .nargs = 1,
	 .types = {INT4OID}};
static SqlStatement delete_queue = {.text = "DELETE FROM idemq.queues WHERE queue_id = $1",
									.nargs = 1,
									.types = {INT4OID}};
static SqlStatement grantees_of_queue =
	{.text = "SELECT DISTINCT r.oid FROM idemq.queue_grants g JOIN pg_catalog.pg_roles r "
			 "ON r.rolname = g.role_name WHERE g.queue_id = $1 ORDER BY r.oid",
	 .nargs = 1,
	 .types = {INT4OID}};
static SqlStatement any_job = {.text = "SELECT FROM idemq.jobs WHERE queue_id = $1 LIMIT 1",
							   .nargs = 1,
							   .types = {INT4OID}};
static SqlStatement users_of_dead_queue =
	{.text = "SELECT string_agg(quote_ident(name), ', ' ORDER BY name) FROM idemq.queues "
			 "WHERE dead_queue = $1 AND name <> $1",
	 .nargs = 1,
	 .types = {TEXTOID}};
static SqlStatement forget_dead_queue =
	{.text = "UPDATE idemq.queues SET dead_queue = NULL, dead_queue_role = NULL "
			 "WHERE dead_queue = $1",
	 .nargs = 1,
	 .types = {TEXTOID}};

/* Job by job: statistics may be from when there was none. */
static SqlStatement count_children =
	{.text = "SELECT count(DISTINCT x.child) FROM idemq.jobs p, LATERAL (SELECT d.child, "
			 "(SELECT c.queue_id <> $1 AND c.finished_at IS NULL FROM idemq.jobs c "
			 "WHERE c.id = d.child) AS waits FROM idemq.dependencies d WHERE d.parent = p.id "
			 "OFFSET 0) x WHERE p.queue_id = $1 AND x.waits",
	 .nargs = 1,
	 .types = {INT4OID}};

/*
 * Takes a queue away as dead_queue of others; without force raises 2BP01 when it is
 * one.  The queue is locked against being made one meanwhile.
 */
static void
release_dead_queue(const QueueInfo *queue, bool force)
{
	Datum name = CStringGetTextDatum(queue->name);
	bool none;
	Datum users;

	(void) idemq_spi_query_latest(&users_of_dead_queue, &name, NULL);
	users = idemq_spi_value(0, 1, &none);
	if (none)
		return;
	if (!force)
		ereport(ERROR, (errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
						errmsg("queue \"%s\" is the dead_queue of others", queue->name),
						errdetail("Of %s.", TextDatumGetCString(users)),
						errhint("Take it away with idemq.alter_queue(..., dead_queue => ''), or "
								"use force => true.")));
	(void) idemq_spi_run(&forget_dead_queue, &name, NULL, SPI_OK_UPDATE);
}

/* Without force raises 2BP01 when unfinished jobs of other queues wait for jobs of this one, or may read their results. */
static void
check_children(const QueueInfo *queue)
{
	Datum id = Int32GetDatum(queue->id);
	bool isnull;
	int64 children;
	SqlScope scope;

	if (!idemq_kin_any())
		return;
	idemq_spi_begin(&scope);
	idemq_spi_no_seqscan();
	(void) idemq_spi_query_latest(&count_children, &id, NULL);
	children = DatumGetInt64(idemq_spi_value(0, 1, &isnull));
	idemq_spi_end(&scope);
	if (children > 0)
		ereport(ERROR,
				(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
				 errmsg("unfinished jobs of other queues (%lld) depend on jobs of queue \"%s\"",
						(long long) children, queue->name),
				 errhint("Wait for them, or use force => true: jobs that were not completed then "
						 "count as cancelled for their children.")));
}

/* Returns the roles that hold privileges on a queue, and locks what they hold. */
static List *
lock_grantees(Datum queue_id)
{
	MemoryContext caller = CurrentMemoryContext;
	List *roles = NIL;
	ListCell *lc;
	SqlScope scope;
	uint64 rows;

	idemq_spi_begin(&scope);
	rows = idemq_spi_query_latest(&grantees_of_queue, &queue_id, NULL);
	for (uint64 i = 0; i < rows; i++)
	{
		bool isnull;
		MemoryContext old = MemoryContextSwitchTo(caller);

		roles = lappend_oid(roles, DatumGetObjectId(idemq_spi_value(i, 1, &isnull)));
		MemoryContextSwitchTo(old);
	}
	idemq_spi_end(&scope);
	foreach(lc, roles)
		idemq_role_lock(lfirst_oid(lc), ROLE_LOCK_GRANTS);
	return roles;
}

/* drop_queue(name, force) -> void; IQ005, 42501, 55006 with unfinished jobs, 2BP01. */
Datum
idemq_sql_v2_drop_queue(PG_FUNCTION_ARGS)
{
	bool force = idemq_arg_bool(fcinfo, 1, "force");
	QueueInfo queue;
	AuditEntry entry = {.action = "drop_queue", .queue = &queue};
	SqlScope scope;
	Datum id;
	int64 unfinished;
	List *grantees;
	ListCell *lc;
	bool isnull;

	idemq_jobs_check_writable();
	idemq_queue_open(fcinfo, 0, "name", PRIVILEGE_ADMIN, AccessExclusiveLock, &queue);
	id = Int32GetDatum(queue.id);
	grantees = lock_grantees(id);
	idemq_spi_begin_on_jobs(&scope);
	(void) idemq_spi_query_latest(&count_unfinished, &id, NULL);
	unfinished = DatumGetInt64(idemq_spi_value(0, 1, &isnull));
	if (unfinished > 0 && !force)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_IN_USE),
						errmsg("queue \"%s\" has %lld unfinished jobs", queue.name,
							   (long long) unfinished),
						errhint("Use force => true to drop them with it.")));
	if (!force)
		check_children(&queue);
	release_dead_queue(&queue, force);
	entry.jobs = (int64) idemq_spi_run(&delete_jobs, &id, NULL, SPI_OK_DELETE);
	(void) idemq_spi_run(&delete_attempts, &id, NULL, SPI_OK_DELETE);
	(void) idemq_spi_run(&delete_steps, &id, NULL, SPI_OK_DELETE);
	(void) idemq_spi_run(&delete_queue, &id, NULL, SPI_OK_DELETE);
	if (idemq_spi_query_latest(&any_job, &id, NULL) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("queue \"%s\" has jobs that this transaction cannot see", queue.name),
				 errhint("Run idemq.drop_queue at READ COMMITTED.")));
	idemq_spi_end(&scope);
	foreach(lc, grantees)
		idemq_usage_settle(lfirst_oid(lc));
	idemq_audit(&entry);
	idemq_pending_note_drop_queue(queue.id);
	PG_RETURN_VOID();
}
