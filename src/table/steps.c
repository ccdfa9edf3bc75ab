/*
 * table/steps.c
 *		Steps: what attempts have done, or may have done.  The rows of idemq.steps.
 *
 * A step is one row for each name in a job.  Its state is one of
 *
 *	open		an attempt has begun it: its call may have been made, and may arrive until call_until.  Once that
 *				attempt is over, its outcome is unknown
 *	done		it was finished with a response; or it was done in a transaction of this database, and was never begun
 *	refused		the other side definitely did not do it
 *	void		it belongs to an earlier payload of the job, which was replaced or run again
 *	waiting, arrived, timed_out		a wait for an event (api/events.c): see events.c
 *
 * round counts refusals and payloads.  Each round asks for a different effect, with a different
 * effect key.  The key is a hash of the database's uuid (which is drawn for the first step, and
 * dumped), the job's id, the step's name and the round.  It has the form of a UUID of version 8,
 * for providers that require a UUID, and is stored in the row.
 *
 * token belongs to the attempt that last began the call of this round.  earlier contains the tokens
 * of attempts before it, which were lost.  Each of these attempts may still report the outcome.
 *
 * Locks: a session that writes a row has locked the job's row before, FOR SHARE or FOR KEY SHARE.
 * So no other session deletes the job in the meantime (retention and purge skip it, a commit in a
 * queue that keeps nothing leaves it to retention, drop_queue waits), and a session that has
 * deleted it finds all its steps, none of which is locked.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "port/pg_bswap.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "table/table.h"

static const char *const state_names[] =
	{[STEP_NONE] = "",			 [STEP_OPEN] = "open",			 [STEP_DONE] = "done",
	 [STEP_REFUSED] = "refused", [STEP_VOID] = "void",			 [STEP_WAITING] = "waiting",
	 [STEP_ARRIVED] = "arrived", [STEP_TIMED_OUT] = "timed_out", NULL};

/*
 * An attempt that did the step in a transaction here (begun_at IS NULL) has no outcome to report.
 */
static SqlStatement lock_step =
	{.few = true,
	 .locks = true,
	 .text = "SELECT state, round, token, (token = $3 OR $3 = ANY (earlier)) "
			 "AND begun_at IS NOT NULL, begun_at IS NULL, begun_at, call_until, request, response, "
			 "effect_key, request IS NULL OR $4 IS NULL OR request = $4 FROM idemq.steps "
			 "WHERE job_id = $1 AND name = $2 FOR NO KEY UPDATE",
	 .types = {INT8OID, TEXTOID, INT8OID, JSONBOID},
	 .fields = (const SqlField[]){SQL_CHOICE(Step, state, state_names), SQL_FIELD(Step, round),
								  SQL_FIELD(Step, token), SQL_FIELD(Step, mine),
								  SQL_FIELD(Step, inside), SQL_FIELD(Step, begun_at),
								  SQL_FIELD(Step, call_until), SQL_FIELD(Step, request),
								  SQL_FIELD(Step, response), SQL_FIELD(Step, effect_key),
								  SQL_FIELD(Step, same_request)}};
/*
 * $11: the row exists, and is locked; otherwise, a row that another call has inserted since is
 * kept.
 */
static SqlStatement write_step =
	{.text =
		 "INSERT INTO idemq.steps AS s (job_id, name, queue_id, state, round, token, begun_at, "
		 "call_until, request, response, effect_key, answered_at) VALUES ($1, $2, $4, $5, 0, $3, "
		 "nullif($6, '-infinity'), nullif($7, '-infinity'), $8, $9, $10, "
		 "CASE WHEN $5 NOT IN ('open', 'waiting') THEN $12 END) "
		 "ON CONFLICT (job_id, name) DO UPDATE SET queue_id = $4, state = $5, token = $3, "
		 "earlier = '{}', begun_at = excluded.begun_at, call_until = excluded.call_until, "
		 "request = $8, response = $9, error = NULL, effect_key = $10, "
		 "answered_at = excluded.answered_at WHERE $11",
	 .types = {INT8OID, TEXTOID, INT8OID, INT4OID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID,
			   JSONBOID, JSONBOID, TEXTOID, BOOLOID, TIMESTAMPTZOID}};
static SqlStatement take_over =
	{.text = "UPDATE idemq.steps SET token = $3, earlier = CASE WHEN token = $3 THEN earlier "
			 "ELSE array_append(earlier, token) END, begun_at = $4, call_until = $5 "
			 "WHERE job_id = $1 AND name = $2",
	 .types = {INT8OID, TEXTOID, INT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID}};
/* A receipt counts more than a refusal: it is for the round that was refused, with its key. */
static SqlStatement answer_step =
	{.text = "UPDATE idemq.steps SET state = CASE state WHEN 'void' THEN 'void' ELSE 'done' END, "
			 "round = round - CASE state WHEN 'refused' THEN 1 ELSE 0 END, "
			 "response = $3, error = NULL, answered_at = $4 "
			 "WHERE job_id = $1 AND name = $2",
	 .types = {INT8OID, TEXTOID, JSONBOID, TIMESTAMPTZOID}};
static SqlStatement refuse_step =
	{.text = "UPDATE idemq.steps SET state = 'refused', round = round + 1, error = $3, "
			 "answered_at = $4 WHERE job_id = $1 AND name = $2",
	 .types = {INT8OID, TEXTOID, TEXTOID, TIMESTAMPTZOID}};
static SqlStatement find_uuid =
	{.text = "SELECT pg_catalog.uuid_send(uuid) FROM idemq_internal.database_uuid",
	 .fields = SQL_SCALAR(Datum)};
static SqlStatement draw_uuid = {
	.text = "INSERT INTO idemq_internal.database_uuid (uuid) VALUES (pg_catalog.gen_random_uuid()) "
			"ON CONFLICT DO NOTHING"};

/* Runs a statement that changes the row of a locked step. */
static void
step_change(SqlStatement *statement, const Datum *values)
{
	if (idemq_spi_do(statement, values, NULL) != 1)
		elog(ERROR, "a locked step of job %lld no longer exists",
			 (long long) DatumGetInt64(values[0]));
}

/*
 * Finds a step, and locks its row until the end of the transaction; waits for another transaction
 * that has locked it. request: compared with the step's request, or 0.  Above READ COMMITTED raises
 * 40001 if the row has changed since the snapshot.
 */
void
idemq_step_lock(const StepName *name, Datum request, Step *step)
{
	Datum values[] = {Int64GetDatum(name->job_id), name->name, Int64GetDatum(name->token), request};

	(void) idemq_spi_row(&lock_step, values, step, sizeof(*step));
}

/*
 * Writes the state, times, request, response and effect key of a step.  locked: the row exists, and
 * is locked.  Otherwise returns false if another transaction has committed a row since; then the
 * caller must look again.
 */
bool
idemq_step_write(const StepName *name, int32 queue_id, const Step *step, bool locked)
{
	bool times = step->begun_at != 0;
	Datum values[] = {Int64GetDatum(name->job_id),
					  name->name,
					  Int64GetDatum(name->token),
					  Int32GetDatum(queue_id),
					  CStringGetTextDatum(state_names[step->state]),
					  TimestampTzGetDatum(times ? step->begun_at : DT_NOBEGIN),
					  TimestampTzGetDatum(times ? step->call_until : DT_NOBEGIN),
					  step->request,
					  step->response,
					  step->effect_key,
					  BoolGetDatum(locked),
					  TimestampTzGetDatum(idemq_wall_now())};

	return idemq_spi_do(&write_step, values, NULL) > 0;
}

/* Copies the database's uuid (16 bytes), which is drawn for the first step or event. */
void
idemq_step_database_uuid(unsigned char *uuid)
{
	Datum found;

	if (!idemq_spi_row(&find_uuid, NULL, &found, sizeof(found)))
	{
		(void) idemq_spi_do(&draw_uuid, NULL, NULL);
		if (!idemq_spi_row(&find_uuid, NULL, &found, sizeof(found)))
			elog(ERROR, "idemq_internal.database_uuid has no row");
	}
	memcpy(uuid, VARDATA_ANY(DatumGetByteaPP(found)), 16);
}

/*
 * Returns the effect key of a round of a step.  Fields of fixed width are hashed before the name,
 * so that no two steps hash the same bytes.
 */
static Datum
effect_key(const StepName *name, int32 round)
{
	char *utf8 = TextDatumGetCString(name->name);
	uint64 id = pg_hton64((uint64) name->job_id);
	uint32 number = pg_hton32((uint32) round);
	StringInfoData hashed;
	unsigned char *hash;
	bytea *input;
	Datum output;

	if (GetDatabaseEncoding() != PG_SQL_ASCII)
		utf8 = pg_server_to_any(utf8, strlen(utf8), PG_UTF8);
	initStringInfo(&hashed);
	appendStringInfoSpaces(&hashed, VARHDRSZ + 16);
	idemq_step_database_uuid((unsigned char *) hashed.data + VARHDRSZ);
	appendBinaryStringInfo(&hashed, (char *) &id, sizeof(id));
	appendBinaryStringInfo(&hashed, (char *) &number, sizeof(number));
	appendStringInfoString(&hashed, utf8);
	input = (bytea *) hashed.data;
	SET_VARSIZE(input, hashed.len);
	output = DirectFunctionCall1(sha256_bytea, PointerGetDatum(input));
	hash = (unsigned char *) VARDATA_ANY(DatumGetByteaPP(output));
	hash[6] = (hash[6] & 0x0f) | 0x80; /* version 8: custom contents */
	hash[8] = (hash[8] & 0x3f) | 0x80;
	return CStringGetTextDatum(
		psprintf("%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", hash[0],
				 hash[1], hash[2], hash[3], hash[4], hash[5], hash[6], hash[7], hash[8], hash[9],
				 hash[10], hash[11], hash[12], hash[13], hash[14], hash[15]));
}

/*
 * Begins a step that does not exist, or begins a new round of a locked step that is refused or
 * void.  Returns false in the same cases as idemq_step_write.
 */
bool
idemq_step_begin(const StepName *name, int32 queue_id, const StepCall *call, Step *step)
{
	Step begun = {.state = STEP_OPEN,
				  .begun_at = call->begun_at,
				  .call_until = call->call_until,
				  .request = call->request};

	step->effect_key = begun.effect_key = effect_key(name, step->round);
	return idemq_step_write(name, queue_id, &begun, step->state != STEP_NONE);
}

/* Gives a locked, open step to the attempt name->token, which may repeat the call. */
void
idemq_step_take_over(const StepName *name, const StepCall *call)
{
	Datum values[] = {Int64GetDatum(name->job_id), name->name, Int64GetDatum(name->token),
					  TimestampTzGetDatum(call->begun_at), TimestampTzGetDatum(call->call_until)};

	step_change(&take_over, values);
}

/* Stores the response to the call of a locked step. */
void
idemq_step_answer(const StepName *name, Datum response)
{
	Datum values[] = {Int64GetDatum(name->job_id), name->name, response,
					  TimestampTzGetDatum(idemq_wall_now())};

	step_change(&answer_step, values);
}

/* Stores that the other side definitely did not do a locked step.  error: 0 is NULL. */
void
idemq_step_refuse(const StepName *name, Datum error)
{
	Datum values[] = {Int64GetDatum(name->job_id), name->name, error,
					  TimestampTzGetDatum(idemq_wall_now())};

	step_change(&refuse_step, values);
}
