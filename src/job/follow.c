/*
 * job/follow.c
 *		Beginning to follow another database through logical replication, and taking over from it.
 *		queue/following.c describes the time in between.
 *
 * Both switches lock idemq.jobs against writers until the end of their transaction.  A call that
 * writes checks for the switch after it has its own lock.  So it writes before the database
 * follows, or is refused; and it is refused before the take-over, or writes after it.  While the
 * database follows, a row's trigger leaves out its notes only in transactions that end before the
 * take-over.
 *
 * While a database follows, nothing reads what shared memory knows of its rows: nothing is claimed,
 * promoted, reaped or heartbeaten, and SQL counts the metrics.  Therefore the triggers note nothing
 * (hooks/row_triggers.c), and it does not matter that PostgreSQL's apply worker ends prepared
 * transactions without our hooks (hooks/utility.c).  Both switches forget everything about the
 * database, as TRUNCATE does; afterwards it is read from the rows.  That covers every transaction
 * that ended before.  If a transaction is still prepared, a COMMIT PREPARED by hand resets the
 * caches itself.  But until then the prepared transaction holds its locks, and would block the
 * switch indefinitely, so take_over() names it in an error.
 *
 * take_over() waits until the apply worker has ended, and checks this again when it has the lock.
 * Otherwise a worker that has read its subscription before that was disabled, and was blocked by
 * our lock, would write one more transaction of the publisher after the take-over.
 *
 * Only the received rows tell which numbers the publisher has given.  The time of day is greater
 * than ids that were not received (table/jobs_id.c), and a new epoch is greater than tokens that
 * were not received (job/token_epoch.c).  Other sequences may repeat numbers that are in no row.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/snapmgr.h"

#include "base/base.h"
#include "base/compat.h"
#include "job/job.h"
#include "queue/queue.h"
#include "table/table.h"
#include "txn/txn.h"

/* Maximum time for the apply worker of a disabled subscription to end. */
#define WORKER_STEPS 1000
#define WORKER_STEP 10 /* ms */

typedef struct Subscriber
{
	NameData name;
	bool enabled;
	int32 worker; /* pid; 0: none */
} Subscriber;

/* A subscription that writes a table of idemq, or whose worker still may; $1: this database. */
static SqlStatement find_subscription =
	{.text = "SELECT s.subname, s.subenabled, a.pid FROM pg_catalog.pg_subscription s "
			 "LEFT JOIN pg_catalog.pg_stat_subscription a ON a.subid = s.oid AND a.pid IS NOT NULL "
			 "WHERE s.subdbid = $1 AND (s.subenabled OR a.pid IS NOT NULL) "
			 "AND EXISTS (SELECT FROM pg_catalog.pg_subscription_rel r JOIN pg_catalog.pg_class c "
			 "ON c.oid = r.srrelid WHERE r.srsubid = s.oid "
			 "AND c.relnamespace IN ('idemq'::pg_catalog.regnamespace, "
			 "'idemq_internal'::pg_catalog.regnamespace)) "
			 "ORDER BY s.subenabled DESC, s.subname LIMIT 1",
	 .types = {OIDOID},
	 .fields = (const SqlField[]){SQL_FIELD(Subscriber, name), SQL_FIELD(Subscriber, enabled),
								  SQL_FIELD(Subscriber, worker)}};
/*
 * Finds a prepared transaction by its lock on table $1.  Its locks include the one on its
 * transaction id.
 */
static SqlStatement follow_find_prepared =
	{.text = "SELECT p.gid FROM pg_catalog.pg_prepared_xacts p JOIN pg_catalog.pg_locks x "
			 "ON x.locktype = 'transactionid' AND x.transactionid = p.transaction AND x.granted "
			 "AND x.mode = 'ExclusiveLock' JOIN pg_catalog.pg_locks l "
			 "ON l.virtualtransaction = x.virtualtransaction AND l.pid IS NULL "
			 "WHERE p.database = pg_catalog.current_database() AND l.locktype = 'relation' "
			 "AND l.relation = $1 AND l.mode = 'RowExclusiveLock' ORDER BY 1 LIMIT 1",
	 .types = {OIDOID},
	 .fields = SQL_SCALAR(Datum)};

typedef struct Given
{
	int64 job_id;
	int64 token;
	int32 queue_id;
	int64 audit_id;
} Given;

typedef struct Grantee
{
	NameData name;
	Oid oid;
} Grantee;

/* The greatest numbers given by the publisher that have been received; reads all jobs. */
static SqlStatement greatest_given =
	{.text = "SELECT greatest(j.id, a.id, u.job, "
			 "(SELECT max(last_job) FROM idemq_internal.schedule_entries), "
			 "(SELECT max(job_id) FROM idemq.producers), 0), "
			 "greatest(j.token, a.token, 0), "
			 "greatest((SELECT max(queue_id) FROM idemq.queues), j.queue, a.queue, u.queue, 0), "
			 "greatest(u.id, 0) "
			 "FROM (SELECT max(id) AS id, max(token) AS token, max(queue_id) AS queue "
			 "FROM idemq.jobs) j, "
			 "(SELECT max(job_id) AS id, max(token) AS token, max(queue_id) AS queue "
			 "FROM idemq.attempts) a, "
			 "(SELECT max(id) AS id, max(job_id) AS job, max(queue_id) AS queue "
			 "FROM idemq.audit) u",
	 .fields = (const SqlField[]){SQL_FIELD(Given, job_id), SQL_FIELD(Given, token),
								  SQL_FIELD(Given, queue_id), SQL_FIELD(Given, audit_id)}};
/* $1: a queue's id, $2: a row's of idemq.audit. */
static SqlStatement raise_sequences =
	{.text = "SELECT pg_catalog.setval('idemq.queues_queue_id_seq', greatest($1, last_value)), "
			 "(SELECT pg_catalog.setval('idemq.audit_id_seq', greatest($2, last_value)) "
			 "FROM idemq.audit_id_seq) FROM idemq.queues_queue_id_seq",
	 .types = {INT4OID, INT8OID}};
static SqlStatement list_roles =
	{.text = "SELECT DISTINCT role_name, role_oid FROM idemq_internal.queue_grants ORDER BY 1",
	 .fields = (const SqlField[]){SQL_FIELD(Grantee, name), SQL_FIELD(Grantee, oid)}};

/* Makes shared memory forget this database at the commit, as both switches must. */
static void
follow_forget_database(void)
{
	idemq_pending_note(ACTION_FORGET, NULL, 0);
	idemq_queue_cache_changed(0);
}

/*
 * Makes this database follow; returns false if it already does according to its row.  Waits for
 * open transactions that have written jobs.  Raises 25006.
 */
bool
idemq_follow_begin(void)
{
	idemq_jobs_prevent_writes("idemq.follow()");
	LockRelationOid(idemq_oids()->jobs, ShareRowExclusiveLock);
	if (!idemq_following_set(true))
		return false;
	follow_forget_database();
	return true;
}

/*
 * Retires this database, which has moved: from now on it follows moved_to permanently.  NULL undoes
 * this, for a move that did not take place; the database then follows until idemq.take_over().
 * Waits for open transactions that have written jobs.  Returns whether anything changed.  Raises
 * 55000 for NULL if the database has not been retired, and 25006.
 */
bool
idemq_follow_retire(const char *moved_to)
{
	const char *before;

	idemq_jobs_prevent_writes("idemq.retire()");
	LockRelationOid(idemq_oids()->jobs, ShareRowExclusiveLock);
	before = idemq_following()->moved_to;
	if (moved_to == NULL && before == NULL)
		ereport(ERROR, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("this database has not been retired"),
				errhint("Call idemq.retire(moved_to), where moved_to describes the new location."));
	if (before != NULL && moved_to != NULL && strcmp(before, moved_to) == 0)
		return false;
	(void) idemq_following_set(true);
	CommandCounterIncrement();
	idemq_following_set_moved(moved_to);
	follow_forget_database();
	return true;
}

/*
 * Called after CREATE or ALTER SUBSCRIPTION: if a subscription writes idemq.jobs, the database
 * follows from now on.
 */
void
idemq_follow_note_subscription(void)
{
	const Following *following;

	CommandCounterIncrement();
	AcceptInvalidationMessages();
	PushActiveSnapshot(GetTransactionSnapshot());
	following = idemq_following();
	if (following->subscribed && !following->switched_on)
		(void) idemq_follow_begin();
	PopActiveSnapshot();
}

/*
 * Waits until no apply worker is left that writes our tables, for at most that many steps of
 * WORKER_STEP.  Raises 55000 for a subscription that is enabled, and 55006 if a worker does not
 * end.
 */
static void
wait_for_apply_worker(int steps)
{
	Datum database = ObjectIdGetDatum(MyDatabaseId);
	Subscriber found;

	while (idemq_spi_row(&find_subscription, &database, &found, sizeof(found)))
	{
		const char *name = NameStr(found.name);

		if (found.enabled)
			ereport(
				ERROR, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("subscription \"%s\" still writes to idemq's tables", name),
				errhint("When the subscription has received all changes, run ALTER SUBSCRIPTION %s "
						"DISABLE, or drop it. Then call idemq.take_over() again.",
						quote_identifier(name)));
		if (steps-- == 0)
			ereport(
				ERROR, errcode(ERRCODE_OBJECT_IN_USE),
				errmsg("the subscription's apply worker (PID %d) has not exited", found.worker),
				errhint(
					"The process exits when it has finished applying its current transaction. Then "
					"call idemq.take_over() again. If the process is waiting for a lock, check "
					"pg_blocking_pids(%d).",
					found.worker));
		CHECK_FOR_INTERRUPTS();
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, WORKER_STEP,
						 compat_wait_event_away());
		ResetLatch(MyLatch);
	}
}

/*
 * Ends following; returns false if the database does not follow.  Waits for the apply worker to
 * end, and for open transactions that have written jobs.  Raises 55000 while a subscription is
 * enabled or the database is retired, 55006 if an apply worker or a prepared transaction does not
 * end, and 25006.
 */
bool
idemq_follow_end(void)
{
	Datum jobs = ObjectIdGetDatum(idemq_oids()->jobs);
	const char *moved_to;
	Given given;
	Grantee *grantees;
	int count;
	Datum gid;

	idemq_jobs_prevent_writes("idemq.take_over()");
	if (!idemq_follows())
		return false;
	moved_to = idemq_following()->moved_to;
	if (moved_to != NULL) /* the database that replaced it is in use */
		ereport(
			ERROR, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			errmsg("this database has moved to %s", moved_to),
			errhint(
				"If the new database has not taken over, run SELECT idemq.retire(NULL), and then "
				"call idemq.take_over() again."));
	wait_for_apply_worker(WORKER_STEPS);
	/* A prepared transaction holds its locks until a person ends it. */
	if (idemq_spi_row(&follow_find_prepared, &jobs, &gid, sizeof(gid)))
		ereport(
			ERROR, errcode(ERRCODE_OBJECT_IN_USE),
			errmsg("prepared transaction \"%s\" has written jobs", TextDatumGetCString(gid)),
			errhint(
				"Find out whether the publisher committed it or rolled it back. Then run COMMIT "
				"PREPARED or ROLLBACK PREPARED %s here, and call idemq.take_over() again.",
				quote_literal_cstr(TextDatumGetCString(gid))));
	/* Read without a lock, because now only SQL by hand could change these numbers. */
	if (!idemq_spi_row(&greatest_given, NULL, &given, sizeof(given)))
		elog(ERROR, "state received from the publisher does not consist of exactly one row");
	LockRelationOid(idemq_oids()->jobs, ShareRowExclusiveLock);
	wait_for_apply_worker(0);
	if (!idemq_following_set(false))
		return false;
	/* From now on, this database gives only greater numbers, from every sequence and in tokens. */
	(void) idemq_spi_do(&raise_sequences,
						(Datum[]){Int32GetDatum(given.queue_id), Int64GetDatum(given.audit_id)},
						NULL);
	idemq_jobs_ids_take_over(given.job_id);
	(void) idemq_token_epoch_advance(given.token);
	/*
	 * The roles whose grants were received get what grant_queue would give them: USAGE on the
	 * schema.
	 */
	grantees = idemq_spi_rows(&list_roles, NULL, sizeof(Grantee), &count);
	for (int i = 0; i < count; i++)
	{
		Oid role = idemq_role_of(NameStr(grantees[i].name), grantees[i].oid);

		if (!OidIsValid(role))
			continue;
		idemq_role_lock(role, ROLE_LOCK_GRANTS);
		idemq_usage_settle(role);
	}
	follow_forget_database();
	return true;
}
