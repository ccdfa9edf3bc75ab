/*
 * api/fence.c
 *		Trigger function fence: for users' own tables whose rows carry the job and
 *		the token of the attempt that writes them.
 *
 *		CREATE TRIGGER fence BEFORE INSERT OR UPDATE ON charges
 *			FOR EACH ROW EXECUTE FUNCTION idemq.fence('job_id', 'token');
 *
 * A row with a token that is no longer the job's is refused, whichever worker has the
 * job now.  The job's row is locked FOR SHARE, as by assert_current, so that no
 * newer token is issued until the transaction ends.  A job that this transaction
 * has committed in a queue that keeps nothing has no row any more, and never gets
 * another token.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "base/base.h"
#include "job/job.h"
#include "table/table.h"

/* Returns a bigint column of the new row, named by the trigger's argument n or by default. */
static int64
column(const TriggerData *data, HeapTuple row, int n, const char *name)
{
	TupleDesc desc = RelationGetDescr(data->tg_relation);
	int attno;
	bool isnull;
	Datum value;

	if (data->tg_trigger->tgnargs > n)
		name = data->tg_trigger->tgargs[n];
	attno = SPI_fnumber(desc, name);
	if (attno <= 0 || getBaseType(SPI_gettypeid(desc, attno)) != INT8OID)
		ereport(
			ERROR, errcode(ERRCODE_UNDEFINED_COLUMN),
			errmsg("table \"%s\" has no bigint column \"%s\"",
				   RelationGetRelationName(data->tg_relation), name),
			errhint(
				"Pass the names of the columns that hold the job's id and token: EXECUTE FUNCTION "
				"idemq.fence('job_id', 'token')."));
	value = SPI_getbinval(row, desc, attno, &isnull);
	if (isnull)
		ereport(ERROR, errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("%s must not be NULL", name),
				errhint("In each row, store the job's id and token as returned by the claim."));
	return DatumGetInt64(value);
}

/*
 * fence('job_id', 'token') -> trigger; IQ001 for a stale token, IQ002 without the
 * job, 42703, 22004, 0A000, 40001.
 */
SQL_FUNCTION(idemq_sql_fence)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	HeapTuple row;
	int64 id;
	int64 token;
	JobsTable table;
	Attempt attempt;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_BEFORE(data->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(data->tg_event) || TRIGGER_FIRED_BY_DELETE(data->tg_event))
		ereport(
			ERROR, errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			errmsg("idemq.fence can be used only in BEFORE INSERT OR UPDATE triggers FOR EACH ROW"),
			errhint("Use CREATE TRIGGER ... BEFORE INSERT OR UPDATE ON ... FOR EACH ROW EXECUTE "
					"FUNCTION idemq.fence('job_id', 'token')."));
	row = TRIGGER_FIRED_BY_UPDATE(data->tg_event) ? data->tg_newtuple : data->tg_trigtuple;
	id = column(data, row, 0, "job_id");
	token = column(data, row, 1, "token");

	idemq_jobs_open(&table);
	for (;;)
	{
		Outcome outcome = idemq_attempt_find(&table, id, token, &attempt);

		if (outcome == OUTCOME_NOT_FOUND && idemq_attempt_is_gone(&table, &attempt))
			break;
		/* The attempt's own commit, in this transaction or before, issues no newer token. */
		if (outcome == OUTCOME_ALREADY_COMMITTED && attempt.job.token != token)
			outcome = OUTCOME_STALE;
		if (outcome != OUTCOME_ALREADY_COMMITTED)
		{
			idemq_attempt_count(&attempt, outcome, false);
			idemq_attempt_raise(&attempt, outcome);
		}
		if (idemq_jobs_lock(&table, &attempt.job, LockTupleShare, JOB_WAITS) == JOB_WRITTEN)
			break;
		idemq_jobs_refresh_or_raise(&table);
	}
	idemq_jobs_close(&table);
	return PointerGetDatum(row);
}
