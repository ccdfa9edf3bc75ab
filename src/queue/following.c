/*
 * queue/following.c
 *		Whether this database follows another: its rows of idemq come by logical
 *		replication, and nothing but the apply worker may write them.
 *
 * What two databases write, one of them loses.  When a lease is taken back here, while the
 * publisher's heartbeats keep it alive, idemq.attempts gets a row with the very key of the
 * row that comes from there, and the apply worker fails on it for ever.  So while a
 * database follows, every function that writes is refused (idemq_following_refuse, by
 * idemq_jobs_check_writable), and the background worker does nothing (worker/tasks.c).
 *
 * It follows while its row of idemq_internal.followers says so, or an enabled subscription writes
 * idemq.jobs.  The first lasts: job/follow.c writes the row with the subscription, and
 * disabling the subscription, by disable_on_error too, does not end it.
 *
 * A row belongs to one cluster and database.  The publisher's rows, which a publication of
 * all tables sends along, are not written here (followers_local, hooks/row_triggers.c); a
 * TRUNCATE of the table is, and then the worker writes our row again.  Our rows mean nothing
 * in a copy by CREATE DATABASE ... TEMPLATE, nor in what pg_createsubscriber makes, and a
 * dump has none.  They mean the same on a physical standby of this server, and after its
 * promotion.
 *
 * A shard of many that has moved to another server follows its successor in the same way, for
 * good: its row says where it went (idemq.retire), so that a caller with an old map is
 * refused and told to read the map again.
 *
 * What a session has read holds while nothing has changed: neither the number of switches in
 * shared memory, which a transaction that has switched counts up at its end, before it gives
 * up its locks; nor, by their invalidations, the subscriptions, and, on a standby, the table.
 * So a session that looks after it has locked idemq.jobs for writing, as idemq_jobs_open
 * does, sees every switch that was made under job/follow.c's lock.
 *
 * No locks of its own.
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
	Following known; /* but for moved_to: */
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
/* It holds while these are equal; a change while it is read is read at the next call. */
static uint64 following_invalidations = 1;
static uint64 following_loaded_at = 0;
/* The same for what shared memory counts. */
static uint64 switches_loaded = 0;
/* idemq_internal.followers, as the callback needs it without a lookup. */
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
 * Returns whether what was read still holds, as far as this process has received changes,
 * and lasts; *does: whether it follows.  Also outside a transaction.  A subscription without
 * our row does not last: the session that has read it need not have written the row.
 */
bool
idemq_following_is_known(bool *does)
{
	*does = following_database_follows();
	return following_is_known() && (following_known.switched_on || !following_known.subscribed);
}

static void
following_load(void)
{
	Datum args[] = {Int64GetDatum((int64) GetSystemIdentifier()), ObjectIdGetDatum(MyDatabaseId),
					ObjectIdGetDatum(idemq_oids()->jobs)};
	uint64 before = following_invalidations;
	uint64 switches = idemq_version_of_database(VERSION_FOLLOWING);
	FollowersRow row;

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
}

/* Returns what is known, read anew if it has changed; raises 42P01 without the extension. */
const Following *
idemq_following(void)
{
	if (unlikely(!following_is_known()))
		following_load();
	return &following_known;
}

/* Returns whether this database follows another. */
bool
idemq_follows(void)
{
	(void) idemq_following();
	return following_database_follows();
}

/*
 * Raises 55000 in a database that has moved: its answer about a job or a limit may not hold in
 * the place that goes on.
 */
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

/* Raises 55000 in a database that follows another, or has moved. */
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

/* Returns when this database last ceased to follow, DT_NOBEGIN if it never did. */
TimestampTz
idemq_taken_over_at(void)
{
	return idemq_following()->taken_over;
}

/*
 * Has this backend read it anew at once, and a standby's backends when they receive the
 * invalidation.  All others follow shared memory, which txn/pending.c notes.  relation:
 * idemq_internal.followers.
 */
void
idemq_following_changed(Oid relation)
{
	CacheInvalidateRelcacheByRelid(relation);
	following_invalidations++;
}

/* Writes the row; returns whether that changed anything.  job/follow.c's lock held. */
bool
idemq_following_set(bool on)
{
	Datum args[] = {Int64GetDatum((int64) GetSystemIdentifier()), ObjectIdGetDatum(MyDatabaseId),
					TimestampTzGetDatum(idemq_now())};

	return idemq_spi_do(on ? &switch_on : &switch_off, args, NULL) > 0;
}

/* Writes where this database, which follows, has moved; NULL: nowhere.  Lock as above. */
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
