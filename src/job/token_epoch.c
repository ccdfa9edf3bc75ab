/*
 * job/token_epoch.c
 *		What a restored database adds to its tokens, so that they continue to increase.
 *
 * The timeline in a token increases with each promotion of a standby (base/token.c), and is 1 again
 * after pg_upgrade, and after a dump is restored into another cluster. idemq_internal.clusters,
 * which is part of dumps, has a row for each (cluster, timeline, base) that gave tokens in this
 * database.  The lead of a row is base + timeline * 2^41.  The base of this cluster is the greatest
 * of
 *
 *	 - the leads of all rows that are not this cluster's past, that is, rows of another cluster,
 *	   or of a greater timeline than the current one (a backup that was restored without the
 *	   history of its timelines);
 *	 - the bases of its own rows.
 *
 * So the lead of this cluster is greater than the lead of every other row, and never decreases.
 * Its own row does not change its base, which is the same however often it is computed, and nothing
 * needs to be on disk before a token is issued.  Rows are added, never changed.
 *
 * The first claim that does not find the row writes it, in its transaction, unless another
 * transaction may be about to write it (a lock that is not waited for), because a claim does not
 * wait for other sessions.  If that transaction is rolled back, a later claim writes the row.
 *
 * Locks: ExclusiveLock on idemq_internal.clusters as an object, which is used for nothing else,
 * until the end of the transaction that adds a row.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/lsyscache.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"

/* Above this lead there is no room below 2^53 for a clock and some promotions. */
#define MAX_LEAD (INT64CONST(1) << 52)

typedef struct LoadedBase
{
	int64 base;
	bool is_noted;
} LoadedBase;

/* $1: this cluster, $2: its timeline, $3: what a timeline adds */
static SqlStatement load_base =
	{.text = "SELECT b.base, EXISTS (SELECT FROM idemq_internal.clusters c "
			 "WHERE c.system_identifier = $1 AND c.timeline = $2 AND c.base = b.base) "
			 "FROM (SELECT COALESCE(max(CASE WHEN system_identifier = $1 AND timeline <= $2 "
			 "THEN base ELSE base + timeline * $3 END), 0) AS base FROM idemq_internal.clusters) b",
	 .types = {INT8OID, INT8OID, INT8OID},
	 .fields = (const SqlField[]){SQL_FIELD(LoadedBase, base), SQL_FIELD(LoadedBase, is_noted)}};
static SqlStatement add_row =
	{.text = "INSERT INTO idemq_internal.clusters (system_identifier, timeline, base) "
			 "VALUES ($1, $2, $3)",
	 .types = {INT8OID, INT8OID, INT8OID}};

/* What this session has read. loaded_timeline is 0 if it has read nothing. */
static int64 base = 0;
static bool is_noted = false;
static uint64 loaded_settings = 0;
static TimeLineID loaded_timeline = 0;
/* The transaction in which this session added the row; it may still roll back. */
static TransactionId added_in = InvalidTransactionId;

static bool
is_added_here(void)
{
	return TransactionIdIsValid(added_in) && added_in == GetTopTransactionIdIfAny();
}

/* Reads the base, and whether the row of this timeline exists. */
static void
token_epoch_load(TimeLineID timeline)
{
	Datum args[] = {Int64GetDatum((int64) GetSystemIdentifier()), Int64GetDatum(timeline),
					Int64GetDatum(idemq_token_lead(0, 1))};

	LoadedBase row;

	if (!idemq_spi_row(&load_base, args, &row, sizeof(row)))
		elog(ERROR, "idemq_internal.clusters has no token base");
	base = row.base;
	is_noted = row.is_noted && !is_added_here();
}

/*
 * Returns the base of this database's tokens.  The session queries it again only if the server's
 * timeline or the database's settings have changed.  Not to be called on a standby.
 */
int64
idemq_token_epoch_base(void)
{
	TimeLineID timeline = GetWALInsertionTimeLine();
	uint64 settings = idemq_queue_cache_version();

	if (timeline != loaded_timeline || settings != loaded_settings)
	{
		token_epoch_load(timeline);
		loaded_timeline = timeline;
		loaded_settings = settings;
	}
	return base;
}

/*
 * Like idemq_token_epoch_base, but always reads the base: for a caller that has not looked up a
 * queue before, and so may not have noticed another session's idemq_token_epoch_advance.
 */
int64
idemq_token_epoch_latest_base(void)
{
	loaded_timeline = 0;
	return idemq_token_epoch_base();
}

/* Returns the lock that a session takes to add a row. */
static LOCKTAG
adders_lock(void)
{
	LOCKTAG tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, RelationRelationId,
					   get_relname_relid("clusters", idemq_oids()->internal), 0);
	return tag;
}

/*
 * Writes the row of this timeline, unless it exists or another transaction may be about to write
 * it.
 */
void
idemq_token_epoch_note(void)
{
	LOCKTAG tag;

	if (is_noted || is_added_here())
		return;
	tag = adders_lock();
	if (LockAcquire(&tag, ExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return;
	token_epoch_load(loaded_timeline);
	if (!is_noted)
	{
		Datum args[] = {Int64GetDatum((int64) GetSystemIdentifier()),
						Int64GetDatum(loaded_timeline), Int64GetDatum(base)};

		(void) idemq_spi_do(&add_row, args, NULL);
		added_in = GetTopTransactionId();
	}
}

/*
 * Raises all future tokens by as much as a promotion does: at least once, and until they are that
 * much greater than a token that was seen. seen is 0 after a restore without the history of its
 * timelines, and the greatest received token if a replica takes over, because the publisher may
 * have issued greater ones.  Returns the new base.  Raises 54000 if no greater tokens are possible.
 */
int64
idemq_token_epoch_advance(int64 seen)
{
	TimeLineID timeline = GetWALInsertionTimeLine();
	LOCKTAG tag = adders_lock();

	(void) LockAcquire(&tag, ExclusiveLock, false, false);
	token_epoch_load(timeline);
	do
	{
		Datum args[] = {Int64GetDatum(0), Int64GetDatum(1), Int64GetDatum(base)};
		if (idemq_token_lead(base, timeline + 1) >= MAX_LEAD)
			ereport(
				ERROR, errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				errmsg("cannot start another token epoch because tokens would exceed 2^53"),
				errhint(
					"Move the jobs to a new installation of the extension, where token numbering "
					"starts again."));
		/* The row of a cluster that does not exist; its lead is our new base. */
		(void) idemq_spi_do(&add_row, args, NULL);
		token_epoch_load(timeline);
	} while (idemq_token_next(0, 0, idemq_now(), timeline, base) - seen < idemq_token_lead(0, 1));
	return base;
}
