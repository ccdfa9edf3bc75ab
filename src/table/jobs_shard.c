/*
 * table/jobs_shard.c
 *		Makes this database a shard of a cluster, and checks which shard it is (set_shard,
 *		assert_shard).
 *
 * A job's id tells its shard: it is (shard << 47) + a number.  So a router, a client or a person
 * can find a job by its id alone, and two shards never give the same id.  64 shards of 2^47 numbers
 * are 2^53, the limit up to which JSON and JavaScript represent integers exactly.
 *
 * The sequence itself counts from (shard << 47) + its start.  So everything that reads or advances
 * it, including the column's default and nextval by hand, is right without knowing about shards,
 * and a server without shards has no extra cost.  The row of idemq.shard says which shard this is
 * when the value of the sequence cannot be relied on (jobs_id.c): after a restart, a promotion,
 * TRUNCATE ... RESTART IDENTITY, or a restore of the rows without the sequence, and for a
 * subscriber, which does not receive sequences.  The row is part of the configuration, and is
 * dumped and replicated like the rows of queues.
 *
 * In a shard, the current time to which the sequence is raised then is counted in units of 8
 * microseconds, because 2^47 microseconds end in 2030, and 2^47 such units in 2061.  So the average
 * of a shard's run is limited to 125,000 ids per second, where a server without shards may give
 * 10^6.  A gap of SHARD_GAP ids covers bursts beyond that.
 *
 * Locks: set_shard takes ShareRowExclusiveLock on the sequence until the end of its transaction.  A
 * session that takes an id holds RowExclusiveLock on it until the end of its own.  So either
 * set_shard sees the id, and refuses, or the next id belongs to the shard.  Both the restart of the
 * sequence (ALTER SEQUENCE) and the row are transactional.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "table/table.h"

typedef struct Shard
{
	int32 shard;
	int32 shards;
} Shard;

static SqlStatement read_shard = {.text = "SELECT shard, shards FROM idemq.shard",
								  .fields = (const SqlField[]){SQL_FIELD(Shard, shard),
															   SQL_FIELD(Shard, shards)}};
static SqlStatement insert_shard =
	{.locks = true,
	 .text = "INSERT INTO idemq.shard (shard, shards, since) VALUES ($1, $2, $3) "
			 "RETURNING (SELECT seqstart FROM pg_catalog.pg_sequence WHERE seqrelid = $4)",
	 .types = {INT4OID, INT4OID, TIMESTAMPTZOID, REGCLASSOID},
	 .fields = SQL_SCALAR(int64)};
static SqlStatement are_jobs = {
	.text = "SELECT FROM idemq.jobs_id_seq WHERE is_called OR EXISTS (SELECT FROM idemq.jobs)"};

/*
 * Makes this database a shard permanently; returns false if it is that shard already.  Waits for
 * open transactions that have taken an id.  Raises 55000 and 25006.
 */
bool
idemq_shard_set(int32 shard, int32 shards)
{
	Oid sequence = idemq_oids()->jobs_seq;
	Datum args[] = {Int32GetDatum(shard), Int32GetDatum(shards), TimestampTzGetDatum(idemq_now()),
					ObjectIdGetDatum(sequence)};
	char *command;
	int64 start;
	Shard is;

	idemq_jobs_check_writable();
	LockRelationOid(sequence, ShareRowExclusiveLock);
	if (idemq_spi_row(&read_shard, NULL, &is, sizeof(is)))
	{
		if (is.shard == shard && is.shards == shards)
			return false;
		ereport(
			ERROR, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			errmsg("this database is already shard %d of %d", is.shard, is.shards),
			errhint("The number of a shard cannot be changed, because it is part of the ids of its "
					"jobs. Use another database for shard %d.",
					shard));
	}
	if (idemq_spi_finds(&are_jobs, NULL, NULL))
		ereport(ERROR, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("this database already has jobs, whose ids do not contain a shard number"),
				errhint("Create shard %d in a new database: run CREATE EXTENSION idemq, and call "
						"idemq.set_shard before enqueuing the first job.",
						shard));
	(void) idemq_spi_row(&insert_shard, args, &start, sizeof(start));
	command = psprintf("ALTER SEQUENCE idemq.jobs_id_seq RESTART WITH " INT64_FORMAT,
					   ((int64) shard << SHARD_ID_BITS) + start);
	idemq_spi_command(command);
	pfree(command);
	return true;
}

/* Raises 55000 unless this database is that shard. */
void
idemq_shard_assert(int32 shard, int32 shards)
{
	Shard is;
	bool some = idemq_spi_row(&read_shard, NULL, &is, sizeof(is));

	if (!some || is.shard != shard || is.shards != shards)
		ereport(
			ERROR, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			errmsg("database \"%s\" is not shard %d of %d", get_database_name(MyDatabaseId), shard,
				   shards),
			some ? errdetail("This database is shard %d of %d.", is.shard, is.shards)
				 : errdetail("This database is not a shard."),
			errhint(
				"The connection reached a different database from the one listed for shard %d in "
				"the cluster's map. Correct the shard's address in the map, or fix the DNS entry "
				"or the pooler's configuration.",
				shard));
}
