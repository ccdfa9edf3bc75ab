/*
 * hooks/exclusive_database.c
 *		Commands that require that no other session uses a database, or that would deadlock with
 *		the worker.  The worker and the handler processes leave before such a command runs, and
 *		stay away until its transaction ends (txn/pending_away.c).
 *
 *		DROP DATABASE, CREATE DATABASE with the database as the template, ALTER DATABASE ... RENAME
 *			or SET TABLESPACE: they fail while another session uses the database.
 *		ALTER EXTENSION idemq, DROP EXTENSION idemq: they lock tables in a different order than the
 *			worker's tasks do.
 *
 * The worker leaves only if the current role may run the command; otherwise, any role could stop
 * it.
 */
#include "postgres.h"

#include <signal.h>

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/latch.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/syscache.h"

#include "base/base.h"
#include "base/compat.h"
#include "hooks/hooks.h"
#include "shared/processes/processes.h"
#include "txn/txn.h"

/* We look every AWAY_STEP ms whether a process has left. */
#define AWAY_STEP 10
/* The process receives SIGTERM after this number of steps. */
#define AWAY_PATIENCE 50
/* After this number of steps we give up (report_process). */
#define AWAY_STEPS 1000

/* Returns the value of an option, or the default value if the option is not given. */
static const char *
option_value(List *options, const char *name, const char *default_value)
{
	ListCell *lc;

	foreach(lc, options)
	{
		DefElem *option = lfirst(lc);

		if (strcmp(option->defname, name) == 0 && option->arg != NULL)
			return defGetString(option);
	}
	return default_value;
}

/* Returns whether a command alters or drops the extension. */
static bool
is_about_extension(Node *statement)
{
	ListCell *lc;

	if (IsA(statement, AlterExtensionStmt))
		return strcmp(((AlterExtensionStmt *) statement)->extname, IDEMQ_EXTENSION) == 0;
	if (!IsA(statement, DropStmt) || ((DropStmt *) statement)->removeType != OBJECT_EXTENSION)
		return false;
	foreach(lc, ((DropStmt *) statement)->objects)
	{
		if (strcmp(strVal(lfirst(lc)), IDEMQ_EXTENSION) == 0)
			return true;
	}
	return false;
}

/* Returns the database that the worker must leave before a command; InvalidOid if there is none. */
static Oid
database_needed(Node *statement)
{
	const char *name = NULL;

	if (IsA(statement, DropdbStmt))
		name = ((DropdbStmt *) statement)->dbname;
	else if (IsA(statement, CreatedbStmt))
		name = option_value(((CreatedbStmt *) statement)->options, "template", "template1");
	else if (IsA(statement, AlterDatabaseStmt) &&
			 option_value(((AlterDatabaseStmt *) statement)->options, "tablespace", NULL) != NULL)
		name = ((AlterDatabaseStmt *) statement)->dbname;
	else if (IsA(statement, RenameStmt) &&
			 ((RenameStmt *) statement)->renameType == OBJECT_DATABASE)
		name = ((RenameStmt *) statement)->subname;
	else if (is_about_extension(statement))
		return MyDatabaseId;
	return name == NULL ? InvalidOid : get_database_oid(name, true);
}

/* Returns whether the current role may run a command for which the worker must leave a database. */
static bool
may_run(Node *statement, Oid database)
{
	HeapTuple role;
	HeapTuple template;
	bool may;

	if (is_about_extension(statement))
	{
		Oid extension = get_extension_oid(IDEMQ_EXTENSION, true);

		return OidIsValid(extension) && compat_owns_extension(extension);
	}
	if (!IsA(statement, CreatedbStmt))
		return compat_owns_database(database);
	if (superuser())
		return true;
	role = SearchSysCache1(AUTHOID, ObjectIdGetDatum(GetUserId()));
	template = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
	may =
		HeapTupleIsValid(role) && ((Form_pg_authid) GETSTRUCT(role))->rolcreatedb &&
		HeapTupleIsValid(template) &&
		(((Form_pg_database) GETSTRUCT(template))->datistemplate || compat_owns_database(database));
	if (HeapTupleIsValid(role))
		ReleaseSysCache(role);
	if (HeapTupleIsValid(template))
		ReleaseSysCache(template);
	return may;
}

/*
 * Reports a process that does not leave.  This is an error, because the command would fail while
 * the process has a session.  A command on the extension needs only locks, so it gets only a
 * warning.
 */
static void
report_process(const char *what, pid_t pid, Node *statement)
{
	ereport(
		is_about_extension(statement) ? WARNING : ERROR, errcode(ERRCODE_OBJECT_IN_USE),
		errmsg("idemq's %s for this database (PID %d) has not exited", what, (int) pid),
		errdetail("The process is still running %d s after SIGTERM.",
				  AWAY_STEPS * AWAY_STEP / 1000),
		errhint(
			"The process has probably been stopped, for example by a debugger or SIGSTOP. Resume "
			"it with kill -CONT %d, and run the command again.",
			(int) pid));
}

static void
sleep_a_step(void)
{
	CHECK_FOR_INTERRUPTS();
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, AWAY_STEP,
					 compat_wait_event_away());
	ResetLatch(MyLatch);
}

/*
 * If the command that is about to run requires it, makes the worker and then the handler processes
 * leave a database.  Returns when they have no session there.  They stay away until this
 * transaction ends.  Does nothing in the worker itself.
 */
void
idemq_exclusive_make_way(Node *statement)
{
	Oid database = IsTransactionState() ? database_needed(statement) : InvalidOid;
	pid_t worker;
	pid_t handler;

	if (!OidIsValid(database) || idemq_worker_self() != NULL || !may_run(statement, database))
		return;
	worker = idemq_pending_away_keep(database);
	/* The worker may not have a session yet, or may have a session but no registration any more. */
	for (int i = 0;
		 worker != 0 && (idemq_worker_signal(database, worker, 0) || BackendPidGetProc(worker));
		 i++)
	{
		if (i == AWAY_PATIENCE)
			(void) idemq_worker_signal(database, worker, SIGTERM);
		else if (i == AWAY_STEPS)
		{
			report_process("background worker", worker, statement);
			break;
		}
		sleep_a_step();
	}
	/*
	 * Only now, because the worker would start new handler processes.  A process that is running a
	 * job finishes it first, unless it receives SIGTERM; then it releases the job.
	 */
	for (int i = 0;
		 (handler = idemq_handlers_leave(database, i == AWAY_PATIENCE ? SIGTERM : 0)) != 0; i++)
	{
		if (i == AWAY_STEPS)
		{
			report_process("handler", handler, statement);
			break;
		}
		sleep_a_step();
	}
}
