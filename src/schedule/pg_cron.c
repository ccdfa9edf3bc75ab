/*
 * schedule/pg_cron.c
 *		What ticks: idemq's own worker (schedule/worker_tick.c), or, where that is turned off,
 *		what calls idemq.tick(): pg_cron, or another driver.
 *
 * There is one call a minute in each database, whatever the number of its
 * schedules, and idemq finds out what is due.  (One pg_cron job for each schedule
 * would leave the calendar to a well-kept library.  But pg_cron has one time zone for
 * all jobs, and before 1.5 none but GMT; it does not say which minute a late run is
 * for, so that no key could be made of it; it forgets the minutes in which it was
 * down; it knows no next run; and its jobs are in one database of the server, from
 * where a schedule in another cannot be made, and are not in that one's dump.)
 *
 * A schedule that nothing ticks is a lie, so there is none without a driver: the worker; pg_cron
 * in this database, whose job is made here when there is none; or a call of
 * idemq.tick() in the last minutes, by a pg_cron of another database or anything
 * else.  idemq.ticker, one row, has the time of the last call; it is not dumped,
 * since it says something of this server alone.
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/timestamp.h"
#include "utils/varlena.h"

#include "base/base.h"
#include "schedule/schedule.h"
#include "shared/processes/processes.h"

#define PG_CRON "pg_cron"
#define JOB_NAME "idemq-tick"
#define JOB_COMMAND "CALL idemq.tick()"
/* A driver calls every minute; it may have been away for so long. */
#define CALLED_LATELY (10 * USECS_PER_MINUTE)

static SqlStatement called_after = {.text = "SELECT FROM idemq.ticker WHERE called_at > $1",
									.nargs = 1,
									.types = {TIMESTAMPTZOID}};

static SqlStatement note_call =
	{.text = "INSERT INTO idemq.ticker (called_at) VALUES ($1) "
			 "ON CONFLICT (one) DO UPDATE SET called_at = excluded.called_at",
	 .nargs = 1,
	 .types = {TIMESTAMPTZOID}};

static SqlStatement count_abandoned =
	{.text = "SELECT count(*) FROM idemq.schedule_entries "
			 "WHERE created_at < $1 AND NOT EXISTS (SELECT FROM idemq.ticker WHERE called_at > $1)",
	 .nargs = 1,
	 .types = {TIMESTAMPTZOID}};

/*
 * A job that was switched off (active is false) stays off.  One of a role
 * that may not call idemq.tick is no driver.
 */
static SqlStatement find_job = {
	.text = "SELECT FROM cron.job j JOIN pg_catalog.pg_roles r ON r.rolname = j.username "
			"WHERE j.command ~* '^\\s*call\\s+idemq\\.tick\\s*\\(\\s*\\)[\\s;]*$' "
			"AND j.database = pg_catalog.current_database() "
			"AND pg_catalog.has_schema_privilege(r.oid, 'idemq', 'USAGE') "
			"AND pg_catalog.has_function_privilege(r.oid, 'idemq.tick()', 'EXECUTE') "
			"AND pg_catalog.has_function_privilege(r.oid, 'idemq.due_schedules()', 'EXECUTE')"};

static SqlStatement make_job = {.text = "SELECT cron.schedule('" JOB_NAME
										"'::text, '* * * * *'::text, '" JOB_COMMAND "'::text)"};

/* Returns whether the server has loaded pg_cron at its start. */
static bool
is_preloaded(const char *libraries)
{
	char *copy = pstrdup(libraries);
	List *names;
	ListCell *lc;

	if (!SplitDirectoriesString(copy, ',', &names))
		return false;
	foreach(lc, names)
	{
		const char *name = lfirst(lc);
		const char *slash = last_dir_separator(name);

		if (strncmp(slash != NULL ? slash + 1 : name, PG_CRON, strlen(PG_CRON)) == 0)
			return true;
	}
	return false;
}

/* Raises 55000: how to get pg_cron, with settings in it that the role may read. */
pg_noreturn static void
refuse_without_cron(const char *libraries, const char *database, bool may_read)
{
	if (!may_read)
		libraries = "...";
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("schedules need pg_cron, which is not loaded"),
			 errdetail("Nothing has called idemq.tick() in this database lately."),
			 errhint("Put the first two lines into postgresql.conf, restart the server, and run "
					 "the third in database %s:\n"
					 "shared_preload_libraries = '%s%spg_cron'\n"
					 "cron.database_name = '%s'\n"
					 "CREATE EXTENSION pg_cron;",
					 quote_identifier(database), libraries, libraries[0] != '\0' ? ", " : "",
					 database)));
}

/* Raises 55000: what to call in the database where pg_cron is; NULL when that is a secret. */
pg_noreturn static void
refuse_elsewhere(const char *cron_database, const char *database)
{
	char *where = cron_database == NULL ? pstrdup("the database that cron.database_name names")
										: psprintf("database %s", quote_identifier(cron_database));
	char *name = psprintf("%s-%s", JOB_NAME, database);

	ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					errmsg("pg_cron runs in %s, and nothing calls idemq.tick() in this one", where),
					errhint("Run the first line there, as a superuser, and the second here; then "
							"try again:\n"
							"SELECT cron.schedule_in_database(%s, '* * * * *', '%s', %s);\n"
							"%s;",
							quote_literal_cstr(name), JOB_COMMAND, quote_literal_cstr(database),
							JOB_COMMAND)));
}

/* Raises 55000: nothing calls idemq.tick(). */
pg_noreturn static void
refuse(void)
{
	bool may_read = has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_SETTINGS);
	const char *libraries = GetConfigOption("shared_preload_libraries", false, false);
	const char *cron_database = GetConfigOption("cron.database_name", true, false);
	char *database = get_database_name(MyDatabaseId);

	if (!is_preloaded(libraries))
		refuse_without_cron(libraries, database, may_read);
	if (cron_database == NULL || strcmp(cron_database, database) != 0)
		refuse_elsewhere(may_read ? cron_database : NULL, database);
	ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					errmsg("schedules need pg_cron, which is loaded, but not created"),
					errhint("Run this here, as a superuser:\nCREATE EXTENSION pg_cron;")));
}

/*
 * Ensures that something ticks in this database: the worker; or else makes pg_cron's job, if
 * there is none.  Raises 55000, with what to do, where nothing calls it.
 */
void
idemq_driver_require(void)
{
	const char *libraries = GetConfigOption("shared_preload_libraries", false, false);
	bool here = OidIsValid(get_extension_oid(PG_CRON, true)) && is_preloaded(libraries);
	Datum lately = TimestampTzGetDatum(GetCurrentTimestamp() - CALLED_LATELY);
	bool driven = true;
	SqlScope scope;

	if (idemq_worker_comes())
		return;
	idemq_spi_begin(&scope);
	if (!here)
		driven = idemq_spi_query_latest(&called_after, &lately, NULL) > 0;
	else if (idemq_spi_query_latest(&find_job, NULL, NULL) == 0)
		(void) idemq_spi_run(&make_job, NULL, NULL, SPI_OK_SELECT);
	idemq_spi_end(&scope);
	if (!driven)
		refuse();
}

/* Notes that idemq.tick() was called. */
void
idemq_driver_note_call(TimestampTz now)
{
	Datum value = TimestampTzGetDatum(now);
	SqlScope scope;

	idemq_spi_begin(&scope);
	(void) idemq_spi_run(&note_call, &value, NULL, SPI_OK_INSERT);
	idemq_spi_end(&scope);
}

/* Returns the number of schedules that nothing has ticked for lately. */
int64
idemq_driver_abandoned(void)
{
	Datum lately = TimestampTzGetDatum(GetCurrentTimestamp() - CALLED_LATELY);
	SqlScope scope;
	int64 schedules;
	bool isnull;

	if (idemq_worker_comes())
		return 0;
	idemq_spi_begin(&scope);
	(void) idemq_spi_query_latest(&count_abandoned, &lately, NULL);
	schedules = DatumGetInt64(idemq_spi_value(0, 1, &isnull));
	idemq_spi_end(&scope);
	return schedules;
}
