/*
 * api/once.c
 *		Functions that make an effect happen only once: once, for an effect without a job;
 *		commit_once, which claims and commits a job in the transaction of its effect; and the
 *		trigger function fence, for users' own tables.
 *
 * once: idemq_internal.seen contains a row for each pair of scope and key.  Its unique index
 * decides which call is first, and waits for a concurrent duplicate whose transaction is open.  A
 * row that has expired does not count.  No index contains expires_at, so renewing a row is a HOT
 * update, except once per minute (visit_at) and when the page is full.  So even a key that is used
 * very often leaves few index entries behind, even while an old snapshot exists, and looking it up
 * stays cheap.  The function begins with a query, and repeats it after a wait.  An upsert alone would
 * lock the row that it finds, so each call would wait for the transaction of the previous one.
 *
 * commit_once: job/claim_by_id.c does the work.
 *
 * fence: the rows of the user's table contain the job, and the token of the attempt that writes
 * them.
 *
 *		CREATE TRIGGER fence BEFORE INSERT OR UPDATE ON charges
 *			FOR EACH ROW EXECUTE FUNCTION idemq.fence('job_id', 'token');
 *
 * The trigger refuses a row whose token is no longer the job's current token.  It locks the job's
 * row FOR SHARE, as assert_current does, so no newer token is issued until the transaction ends.  If
 * this transaction has committed the job in a queue without retention, the job's row no longer
 * exists, and the job never gets another token.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "shared/counts/counts.h"
#include "table/table.h"

#define MAX_SCOPE 256 /* bytes */

/* Parameters of all three statements: scope, key, now, the new expires_at. */
static SqlStatement find =
	{.text = "SELECT $4 FROM idemq_internal.seen WHERE scope = $1 AND key = $2 AND expires_at > $3",
	 .types = {TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID}};
static SqlStatement insert =
	{.text = "INSERT INTO idemq_internal.seen (scope, key, expires_at) SELECT $1, $2, $4 "
			 "WHERE $3 IS NOT NULL ON CONFLICT (scope, key) DO NOTHING",
	 .types = {TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID}};
static SqlStatement renew =
	{.text = "UPDATE idemq_internal.seen SET expires_at = $4 WHERE scope = $1 AND key = $2 "
			 "AND expires_at <= $3",
	 .types = {TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID}};

/*
 * Returns whether the key is new.  The second query finds a concurrent duplicate that committed
 * after the first one.  A row that has expired by then is renewed; if it has been deleted, the loop
 * starts again.
 */
static bool
is_first(const Datum *values)
{
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		if (idemq_spi_query_latest(&find, values, NULL) > 0)
			return false;
		if (idemq_spi_run(&insert, values, NULL) > 0)
			return true;
		if (idemq_spi_query_latest(&find, values, NULL) > 0)
			return false;
		if (idemq_spi_run(&renew, values, NULL) > 0)
			return true;
	}
}

/*
 * once(scope, key, ttl) -> whether the pair is new, or was last seen longer than its ttl ago;
 * 22004, 22023, 25006; 40001 above READ COMMITTED.
 */
SQL_FUNCTION(idemq_sql_once)
{
	TimestampTz now = idemq_now();
	int64 ttl = idemq_arg_interval(fcinfo, 2, "ttl", 1);
	Datum values[4];
	SqlScope scope;
	bool first;

	(void) idemq_arg_text(fcinfo, 0, "scope", MAX_SCOPE);
	idemq_arg_required(fcinfo, 1, "key");
	idemq_check_key("key", VARSIZE_ANY_EXHDR(PG_GETARG_TEXT_PP(1)));
	idemq_jobs_check_writable();
	values[0] = PG_GETARG_DATUM(0);
	values[1] = PG_GETARG_DATUM(1);
	values[2] = TimestampTzGetDatum(now);
	values[3] = TimestampTzGetDatum(now + ttl);
	idemq_spi_begin(&scope);
	first = is_first(values);
	idemq_spi_end(&scope);
	idemq_count(first ? COUNT_ONCE_FIRST : COUNT_ONCE_REPEATED, 1);
	if (!first)
		idemq_sync_rep_await();
	PG_RETURN_BOOL(first);
}

/*
 * commit_once(id, result) -> committed | already_committed | locked | dead |
 * cancelled | blocked | not_due | not_found; 22004, 40001, 54000.
 */
SQL_FUNCTION(idemq_sql_commit_once)
{
	JobCall call = {0};
	JobsTable table;
	Outcome outcome;

	idemq_arg_required(fcinfo, 0, "id");
	call.id = PG_GETARG_INT64(0);
	call.event = EVENT_COMMIT_ONCE;
	if (!PG_ARGISNULL(1))
		call.args.document = PointerGetDatum(PG_DETOAST_DATUM(PG_GETARG_DATUM(1)));
	idemq_check_document("result", call.args.document, 0);
	idemq_jobs_open(&table);
	outcome = idemq_claim_by_id(&call, &table);
	idemq_jobs_close(&table);
	return idemq_outcome_datum(outcome);
}

/* Returns a bigint column of the new row, named by the trigger's argument n or by default. */
static int64
fence_column(const TriggerData *data, HeapTuple row, int n, const char *name)
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
 * fence('job_id', 'token') -> trigger; IQ001 for a stale token, IQ002 if the job does not exist,
 * 42703, 22004, 0A000, 40001.
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
	id = fence_column(data, row, 0, "job_id");
	token = fence_column(data, row, 1, "token");

	idemq_jobs_open(&table);
	for (;;)
	{
		Outcome outcome = idemq_attempt_find(&table, id, token, &attempt);

		if (outcome == OUTCOME_NOT_FOUND && idemq_attempt_is_gone(&table, &attempt))
			break;
		/*
		 * The attempt's own commit, in this transaction or an earlier one, issues no newer token.
		 */
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
