/*
 * queue/following.c
 *		Whether this database follows another one: it receives the rows of idemq's tables through
 *		logical replication, and only the apply worker may write them.
 *
 * If two databases write the same rows, one of them loses.  For example, if a lease expires here
 * while heartbeats in the publisher's database keep it alive, idemq.attempts gets a row here with
 * the key of a row that will come from there, and the apply worker then fails on that row again and
 * again.  So while a database follows another one, every function that writes raises an error
 * (idemq_following_refuse), and the background worker does nothing (worker/tasks.c).
 *
 * A database follows if its row of idemq_internal.followers says so, or if an enabled subscription
 * writes to idemq.jobs.  The row outlives the subscription: job/follow.c writes the row together
 * with the subscription, and disabling the subscription (even by disable_on_error) does not change
 * it.
 *
 * A row of idemq_internal.followers is valid only for one cluster and one database.  A publication
 * of all tables also sends the publisher's rows, but they are not written here (followers_local,
 * hooks/row_triggers.c).  It also sends TRUNCATE, and after that the worker writes this database's
 * row again.  This database's row means nothing in a copy made by CREATE DATABASE ... TEMPLATE or
 * by pg_createsubscriber, and a dump does not contain it.  It remains valid on a physical standby
 * of this server, and after the standby's promotion.
 *
 * A shard of a cluster that has moved to another server follows its successor in the same way,
 * forever.  Its row says where it moved to (idemq.retire), so that a caller with an outdated map is
 * refused, and told to reread the map.
 *
 * What a session has read is valid until one of these changes: the version VERSION_FOLLOWING in
 * shared memory, which a transaction increments at its end, before it releases its locks; the
 * subscriptions, through their invalidations; or, on a standby, the table, likewise.  So a session
 * that checks after it has locked idemq.jobs for writing, as idemq_jobs_open does, sees every
 * switch that was made under the lock of job/follow.c.
 *
 * Locks: none of its own.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "queue/queue.h"
#include "shared/queue_states/queue_states.h"

typedef struct FollowersRow
{
	Following known; /* except moved_to, which is: */
	Datum moved_to;
	Oid relid;
} FollowersRow;

/* $1: this cluster, $2: this database, $3: idemq.jobs */
static SqlStatement read_row =
	{.text = "SELECT f.since, coalesce(f.taken_over_at, '-infinity'), f.since IS NOT NULL "
			 "AND f.taken_over_at IS NULL, EXISTS (SELECT FROM pg_catalog.pg_subscription s "
			 "JOIN pg_catalog.pg_subscription_rel r ON r.srsubid = s.oid "
			 "WHERE s.subdbid = $2 AND s.subenabled AND r.srrelid = $3), "
			 "'idemq_internal.followers'::pg_catalog.regclass::pg_catalog.oid, f.moved_to "
			 "FROM (SELECT) AS one LEFT JOIN idemq_internal.followers f "
			 "ON f.system_identifier = $1 AND f.database = $2",
	 .types = {INT8OID, OIDOID, OIDOID},
	 .fields = (const SqlField[]){SQL_FIELD(FollowersRow, known.since),
								  SQL_FIELD(FollowersRow, known.taken_over),
								  SQL_FIELD(FollowersRow, known.switched_on),
								  SQL_FIELD(FollowersRow, known.subscribed),
								  SQL_FIELD(FollowersRow, relid),
								  SQL_FIELD(FollowersRow, moved_to)}};
/* $3: now */
static SqlStatement switch_on =
	{.text = "INSERT INTO idemq_internal.followers AS f (system_identifier, database, since) "
			 "VALUES ($1, $2, $3) ON CONFLICT (system_identifier, database) DO UPDATE "
			 "SET since = $3, taken_over_at = NULL WHERE f.taken_over_at IS NOT NULL",
	 .types = {INT8OID, OIDOID, TIMESTAMPTZOID}};
static SqlStatement switch_off =
	{.text = "UPDATE idemq_internal.followers SET taken_over_at = $3 "
			 "WHERE system_identifier = $1 AND database = $2 AND taken_over_at IS NULL",
	 .types = {INT8OID, OIDOID, TIMESTAMPTZOID}};
/* $3: where to */
static SqlStatement set_moved = {.text = "UPDATE idemq_internal.followers SET moved_to = $3 "
										 "WHERE system_identifier = $1 AND database = $2",
								 .types = {INT8OID, OIDOID, TEXTOID}};

static Following following_known = {0};
/*
 * It is valid while these are equal.  A change while it is being read is noticed by the next call.
 */
static uint64 following_invalidations = 1;
static uint64 following_loaded_at = 0;
/* The version VERSION_FOLLOWING at that time. */
static uint64 switches_loaded = 0;
/* idemq_internal.followers, because the callback cannot look it up. */
static Oid followers_relid = InvalidOid;

static inline bool
following_is_known(void)
{
	return following_loaded_at == following_invalidations &&
		   switches_loaded == idemq_version_of_database(VERSION_FOLLOWING);
}

static inline bool
following_database_follows(void)
{
	return following_known.switched_on || following_known.subscribed;
}

/*
 * Returns whether it is known that this database follows another one, or that it does not, and sets
 * *does.  A subscription alone, without the row, does not count as known, because the session that
 * has seen it may not have written the row.  Can be called outside a transaction.
 */
bool
idemq_following_is_known(bool *does)
{
	*does = following_database_follows();
	return following_is_known() && (following_known.switched_on || !following_known.subscribed);
}

/* Returns what is known, reread if it has changed.  Raises 42P01 without the extension. */
const Following *
idemq_following(void)
{
	uint64 before = following_invalidations;
	uint64 switches;
	FollowersRow row;
	Datum args[3];

	if (likely(following_is_known()))
		return &following_known;
	switches = idemq_version_of_database(VERSION_FOLLOWING);
	args[0] = Int64GetDatum((int64) GetSystemIdentifier());
	args[1] = ObjectIdGetDatum(MyDatabaseId);
	args[2] = ObjectIdGetDatum(idemq_oids()->jobs);
	if (!idemq_spi_row(&read_row, args, &row, sizeof(row)))
		elog(ERROR, "idemq_internal.followers cannot be read");
	if (following_known.moved_to != NULL)
		pfree(following_known.moved_to);
	following_known = row.known;
	following_known.moved_to = NULL;
	if (row.moved_to != (Datum) 0)
		following_known.moved_to =
			MemoryContextStrdup(TopMemoryContext, TextDatumGetCString(row.moved_to));
	followers_relid = row.relid;
	following_loaded_at = before;
	switches_loaded = switches;
	return &following_known;
}

/* Returns whether this database follows another one. */
bool
idemq_follows(void)
{
	(void) idemq_following();
	return following_database_follows();
}

/* Raises 55000 in a database that has moved, because its answers may be wrong at the new place. */
void
idemq_following_refuse_moved(void)
{
	if (likely(!idemq_follows()) || following_known.moved_to == NULL)
		return;
	ereport(
		ERROR, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
		errmsg("this shard has moved to %s", following_known.moved_to),
		errhint(
			"Reread the cluster's map with SELECT * FROM cluster.map() in the router's database, "
			"and connect to the address that it returns for this shard."));
}

/* Raises 55000 in a database that follows another one or has moved. */
void
idemq_following_refuse(void)
{
	if (likely(!idemq_follows()))
		return;
	idemq_following_refuse_moved();
	ereport(
		ERROR, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
		errmsg(
			"this database follows another database and receives queues and jobs from it through "
			"logical replication"),
		errhint(
			"Connect to the publisher's database. To make this database take over, disable or drop "
			"the subscription, and run SELECT idemq.take_over()."));
}

/* Returns when this database last ceased to follow another one; DT_NOBEGIN: never. */
TimestampTz
idemq_taken_over_at(void)
{
	return idemq_following()->taken_over;
}

/*
 * Makes this session reread the row at once, and the sessions of a standby when they receive the
 * invalidation.  Other sessions are told by txn/pending.c.  relation: idemq_internal.followers.
 */
void
idemq_following_changed(Oid relation)
{
	CacheInvalidateRelcacheByRelid(relation);
	following_invalidations++;
}

/* Writes the row; returns whether that changed anything.  The lock of job/follow.c must be held. */
bool
idemq_following_set(bool on)
{
	Datum args[] = {Int64GetDatum((int64) GetSystemIdentifier()), ObjectIdGetDatum(MyDatabaseId),
					TimestampTzGetDatum(idemq_now())};

	return idemq_spi_do(on ? &switch_on : &switch_off, args, NULL) > 0;
}

/*
 * Writes where this database, which follows, has moved to; NULL: it has not moved.  Lock as above.
 */
void
idemq_following_set_moved(const char *to)
{
	Datum args[] = {Int64GetDatum((int64) GetSystemIdentifier()), ObjectIdGetDatum(MyDatabaseId),
					to == NULL ? (Datum) 0 : CStringGetTextDatum(to)};

	if (idemq_spi_do(&set_moved, args, NULL) != 1)
		elog(ERROR, "idemq_internal.followers has no row of this database");
}

static void
following_forget_by_relcache(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == followers_relid)
		following_invalidations++;
}

static void
following_forget_by_syscache(Datum arg, int cacheid, uint32 hashvalue)
{
	following_invalidations++;
}

/* Registers the invalidation callbacks; called once, from _PG_init. */
void
idemq_following_install(void)
{
	CacheRegisterRelcacheCallback(following_forget_by_relcache, (Datum) 0);
	CacheRegisterSyscacheCallback(SUBSCRIPTIONOID, following_forget_by_syscache, (Datum) 0);
	CacheRegisterSyscacheCallback(SUBSCRIPTIONRELMAP, following_forget_by_syscache, (Datum) 0);
}
