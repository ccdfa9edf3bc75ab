/*
 * table/steps.c
 *		What attempts have done, or may have: the rows of idemq.steps.
 *
 * A step is one row for each name of a job:
 *
 *	open		begun by an attempt: its call may have been made, and may arrive until
 *				call_until.  It is unknown once that attempt is over.
 *	done		answered, with a response; or done in a transaction of this database, and
 *				then it was never begun
 *	refused		the other side definitely did not do it
 *	void		of an earlier payload of the job, which was replaced or asked to rerun
 *	waiting, arrived, timed_out		a wait for an event, written by table/waits.c
 *
 * round counts refusals and payloads: each is another effect, under another effect key.
 * The key is a hash of the database's uuid (drawn at the first step, and dumped), the job's
 * id, the step's name and the round, with the form of a UUID of version 8, which providers
 * take that ask for a UUID; it stays in the row.
 *
 * token is of the attempt that began the round's call last, earlier are those of attempts
 * before, which were lost: each of them may still bring the answer.
 *
 * Locks: whoever writes a row holds the job's row, FOR SHARE or FOR KEY SHARE, taken
 * first.  So nobody deletes the job meanwhile (retention and purge skip it, a commit in a queue
 * that keeps nothing leaves it to retention, drop_queue waits), and whoever has deleted it finds
 * all its steps, and meets no lock on them.
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

static SqlStatement lock_step = {
	.few = true,
	.text =
		"SELECT state, round, token, token = $3 OR $3 = ANY (earlier), begun_at, call_until, request, "
		"response, effect_key, request IS NULL OR $4 IS NULL OR request = $4 FROM idemq.steps "
		"WHERE job_id = $1 AND name = $2 FOR NO KEY UPDATE",
	.types = {INT8OID, TEXTOID, INT8OID, JSONBOID}};
static SqlStatement insert_open =
	{.text =
		 "INSERT INTO idemq.steps (job_id, name, queue_id, state, round, request, token, begun_at, "
		 "call_until, effect_key) VALUES ($1, $2, $4, 'open', 0, $5, $3, $6, $7, $8) "
		 "ON CONFLICT (job_id, name) DO NOTHING",
	 .types = {INT8OID, TEXTOID, INT8OID, INT4OID, JSONBOID, TIMESTAMPTZOID, TIMESTAMPTZOID,
			   TEXTOID}};
static SqlStatement begin_again =
	{.text = "UPDATE idemq.steps SET state = 'open', request = $4, response = NULL, error = NULL, "
			 "token = $3, earlier = '{}', begun_at = $5, call_until = $6, answered_at = NULL, "
			 "effect_key = $7 WHERE job_id = $1 AND name = $2",
	 .types = {INT8OID, TEXTOID, INT8OID, JSONBOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TEXTOID}};
static SqlStatement take_over =
	{.text = "UPDATE idemq.steps SET token = $3, earlier = CASE WHEN token = $3 THEN earlier "
			 "ELSE array_append(earlier, token) END, begun_at = $4, call_until = $5 "
			 "WHERE job_id = $1 AND name = $2",
	 .types = {INT8OID, TEXTOID, INT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID}};
static SqlStatement insert_done =
	{.text = "INSERT INTO idemq.steps (job_id, name, queue_id, state, round, response, token, "
			 "answered_at) VALUES ($1, $2, $4, 'done', 0, $5, $3, clock_timestamp()) "
			 "ON CONFLICT (job_id, name) DO NOTHING",
	 .types = {INT8OID, TEXTOID, INT8OID, INT4OID, JSONBOID}};
static SqlStatement do_inside =
	{.text = "UPDATE idemq.steps SET state = 'done', request = NULL, response = $4, error = NULL, "
			 "token = $3, earlier = '{}', begun_at = NULL, call_until = NULL, "
			 "answered_at = clock_timestamp(), effect_key = NULL WHERE job_id = $1 AND name = $2",
	 .types = {INT8OID, TEXTOID, INT8OID, JSONBOID}};
/* A receipt outweighs a refusal: of the round that was refused, under its key. */
static SqlStatement answer_step =
	{.text = "UPDATE idemq.steps SET state = CASE state WHEN 'void' THEN 'void' ELSE 'done' END, "
			 "round = round - CASE state WHEN 'refused' THEN 1 ELSE 0 END, "
			 "response = $3, error = NULL, answered_at = clock_timestamp() "
			 "WHERE job_id = $1 AND name = $2",
	 .types = {INT8OID, TEXTOID, JSONBOID}};
static SqlStatement refuse_step =
	{.text = "UPDATE idemq.steps SET state = 'refused', round = round + 1, error = $3, "
			 "answered_at = clock_timestamp() WHERE job_id = $1 AND name = $2",
	 .types = {INT8OID, TEXTOID, TEXTOID}};
static SqlStatement find_uuid = {
	.text = "SELECT pg_catalog.uuid_send(uuid) FROM idemq.database_uuid"};
static SqlStatement draw_uuid = {
	.text = "INSERT INTO idemq.database_uuid (uuid) VALUES (pg_catalog.gen_random_uuid()) "
			"ON CONFLICT DO NOTHING"};

/* Runs a statement that changes the step's one row. */
static void
change(SqlStatement *statement, Datum *values, const char *nulls)
{
	if (idemq_spi_do(statement, values, nulls) != 1)
		elog(ERROR, "a locked step of job %lld is gone", (long long) DatumGetInt64(values[0]));
}

static char
null_flag(Datum value)
{
	return value == (Datum) 0 ? 'n' : ' ';
}

static StepState
state_from_name(const char *name)
{
	static const char *const names[] = {
		[STEP_NONE] = "",			[STEP_OPEN] = "open",			[STEP_DONE] = "done",
		[STEP_REFUSED] = "refused", [STEP_VOID] = "void",			[STEP_WAITING] = "waiting",
		[STEP_ARRIVED] = "arrived", [STEP_TIMED_OUT] = "timed_out",
	};

	for (int i = 0; i < (int) lengthof(names); i++)
	{
		if (strcmp(names[i], name) == 0)
			return (StepState) i;
	}
	elog(ERROR, "unknown state \"%s\" of a step", name);
}

/* Returns a column of the found row, a varlena, in the caller's memory context; 0 is NULL. */
static Datum
copied(int column, MemoryContext caller)
{
	bool isnull;
	Datum value = idemq_spi_value(0, column, &isnull);
	MemoryContext old = MemoryContextSwitchTo(caller);

	value = isnull ? (Datum) 0 : PointerGetDatum(PG_DETOAST_DATUM_COPY(value));
	MemoryContextSwitchTo(old);
	return value;
}

static void
read_step(Step *step, MemoryContext caller)
{
	Datum key;

	step->state = state_from_name(TextDatumGetCString(idemq_spi_value(0, 1, NULL)));
	step->round = DatumGetInt32(idemq_spi_value(0, 2, NULL));
	step->token = idemq_spi_int64(0, 3, NULL);
	step->begun_at = idemq_spi_int64(0, 5, &step->inside);
	/* Who did it here has no answer to bring: it is fenced, now as then. */
	step->mine = !step->inside && DatumGetBool(idemq_spi_value(0, 4, NULL));
	step->call_until = idemq_spi_int64(0, 6, NULL);
	step->request = copied(7, caller);
	step->response = copied(8, caller);
	key = copied(9, caller);
	if (key != (Datum) 0)
	{
		MemoryContext old = MemoryContextSwitchTo(caller);

		step->effect_key = TextDatumGetCString(key);
		MemoryContextSwitchTo(old);
	}
	step->same_request = DatumGetBool(idemq_spi_value(0, 10, NULL));
}

/*
 * Finds a step, locks its row to the end of the transaction, and waits for one that does
 * likewise.  request: what is asked for, 0 to compare with none.  Raises 40001 above READ
 * COMMITTED when it was changed since.
 */
void
idemq_step_lock(const StepName *name, Datum request, Step *step)
{
	Datum values[] = {Int64GetDatum(name->job_id), name->name, Int64GetDatum(name->token), request};
	char nulls[] = {' ', ' ', ' ', null_flag(request), '\0'};
	MemoryContext caller = CurrentMemoryContext;
	SqlScope scope;

	memset(step, 0, sizeof(Step));
	idemq_spi_begin(&scope);
	if (idemq_spi_run(&lock_step, values, nulls, SPI_OK_SELECT) > 0)
		read_step(step, caller);
	idemq_spi_end(&scope);
}

/* Copies the database's uuid, 16 bytes, which the first step or event draws. */
void
idemq_step_database_uuid(unsigned char *uuid)
{
	SqlScope scope;

	idemq_spi_begin(&scope);
	if (idemq_spi_query_latest(&find_uuid, NULL, NULL) == 0)
	{
		(void) idemq_spi_run(&draw_uuid, NULL, NULL, SPI_OK_INSERT);
		if (idemq_spi_query_latest(&find_uuid, NULL, NULL) == 0)
			elog(ERROR, "idemq.database_uuid has no row");
	}
	memcpy(uuid, VARDATA_ANY(DatumGetByteaPP(idemq_spi_value(0, 1, NULL))), 16);
	idemq_spi_end(&scope);
}

/*
 * Returns the effect key of a round of a step.  What has a fixed width comes first in what
 * is hashed, so that no two steps are the same bytes.
 */
static char *
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
	hash[6] = (hash[6] & 0x0f) | 0x80; /* version 8: what it is made of is its maker's */
	hash[8] = (hash[8] & 0x3f) | 0x80;
	return psprintf("%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", hash[0],
					hash[1], hash[2], hash[3], hash[4], hash[5], hash[6], hash[7], hash[8], hash[9],
					hash[10], hash[11], hash[12], hash[13], hash[14], hash[15]);
}

/*
 * Adds a step that begins.  False when it is there by now: a twin's transaction has
 * committed; the caller looks again.
 */
bool
idemq_step_insert_open(const StepName *name, int32 queue_id, const StepCall *call, Step *step)
{
	Datum values[8] = {Int64GetDatum(name->job_id),
					   name->name,
					   Int64GetDatum(name->token),
					   Int32GetDatum(queue_id),
					   call->request,
					   TimestampTzGetDatum(call->begun_at),
					   TimestampTzGetDatum(call->call_until)};
	bool added;

	step->effect_key = effect_key(name, 0);
	values[7] = CStringGetTextDatum(step->effect_key);
	added = idemq_spi_do(&insert_open, values, NULL) > 0;
	return added;
}

/* Begins a locked step that was refused, or is void: as another effect. */
void
idemq_step_begin_again(const StepName *name, const StepCall *call, Step *step)
{
	Datum values[7] = {Int64GetDatum(name->job_id),			name->name,
					   Int64GetDatum(name->token),			call->request,
					   TimestampTzGetDatum(call->begun_at), TimestampTzGetDatum(call->call_until)};

	step->effect_key = effect_key(name, step->round);
	values[6] = CStringGetTextDatum(step->effect_key);
	change(&begin_again, values, NULL);
}

/* Gives a locked step that is open to the attempt that asks: it may call again. */
void
idemq_step_take_over(const StepName *name, const StepCall *call)
{
	Datum values[] = {Int64GetDatum(name->job_id), name->name, Int64GetDatum(name->token),
					  TimestampTzGetDatum(call->begun_at), TimestampTzGetDatum(call->call_until)};

	change(&take_over, values, NULL);
}

/* Adds a step that this transaction does; false as idemq_step_insert_open. */
bool
idemq_step_insert_done(const StepName *name, int32 queue_id, Datum response)
{
	Datum values[] = {Int64GetDatum(name->job_id), name->name, Int64GetDatum(name->token),
					  Int32GetDatum(queue_id), response};
	char nulls[] = {' ', ' ', ' ', ' ', null_flag(response), '\0'};
	bool added;

	added = idemq_spi_do(&insert_done, values, nulls) > 0;
	return added;
}

/* Makes a locked step, of which nothing was done, one that this transaction does. */
void
idemq_step_do_inside(const StepName *name, Datum response)
{
	Datum values[] = {Int64GetDatum(name->job_id), name->name, Int64GetDatum(name->token),
					  response};
	char nulls[] = {' ', ' ', ' ', null_flag(response), '\0'};

	change(&do_inside, values, nulls);
}

/* Stores the answer to a locked step's call. */
void
idemq_step_answer(const StepName *name, Datum response)
{
	Datum values[] = {Int64GetDatum(name->job_id), name->name, response};
	char nulls[] = {' ', ' ', null_flag(response), '\0'};

	change(&answer_step, values, nulls);
}

/* Stores that the other side did not do what a locked step asked for.  error: 0 is none. */
void
idemq_step_refuse(const StepName *name, Datum error)
{
	Datum values[] = {Int64GetDatum(name->job_id), name->name, error};
	char nulls[] = {' ', ' ', null_flag(error), '\0'};

	change(&refuse_step, values, nulls);
}
