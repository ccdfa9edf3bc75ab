/*
 * hooks/exclusive_database.c
 *		Commands that need a database for themselves: its worker is sent away before
 *		they run, and kept away until their transaction ends.
 *
 *		DROP DATABASE, CREATE DATABASE with it as the template, ALTER DATABASE ...
 *			RENAME, SET TABLESPACE: they fail while there is another session;
 *		ALTER EXTENSION, DROP EXTENSION idemq: they lock one table after the other,
 *			in another order than a maintenance task does.
 *
 * The worker is sent away only for a role that may run the command: no other role may stop a
 * worker.  Which databases are held, until when, is in txn/pending_away.c.
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

/* A worker gets so many steps of AWAY_STEP to go by itself, then SIGTERM. */
#define AWAY_PATIENCE 50
/* After so many steps the command fails, or goes on with a warning: see name_process. */
#define AWAY_STEPS 1000
#define AWAY_STEP 10 /* ms */

/* Returns the value of an option, otherwise when it is not given. */
static const char *
option_value(List *options, const char *name, const char *otherwise)
{
	ListCell *lc;

	foreach(lc, options)
	{
		DefElem *option = lfirst(lc);

		if (strcmp(option->defname, name) == 0 && option->arg != NULL)
			return defGetString(option);
	}
	return otherwise;
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

/* Returns the database that a command needs for itself; InvalidOid for none. */
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

/* Returns whether the current role may copy a database. */
static bool
may_copy(Oid database)
{
	HeapTuple role = SearchSysCache1(AUTHOID, ObjectIdGetDatum(GetUserId()));
	HeapTuple copied = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
	bool may =
		HeapTupleIsValid(role) && ((Form_pg_authid) GETSTRUCT(role))->rolcreatedb &&
		HeapTupleIsValid(copied) &&
		(((Form_pg_database) GETSTRUCT(copied))->datistemplate || compat_owns_database(database));

	if (HeapTupleIsValid(role))
		ReleaseSysCache(role);
	if (HeapTupleIsValid(copied))
		ReleaseSysCache(copied);
	return may;
}

/* Returns whether the current role may run a command that needs a database for itself. */
static bool
may_have(Oid database, Node *statement)
{
	if (is_about_extension(statement))
	{
		Oid extension = get_extension_oid(IDEMQ_EXTENSION, true);

		return OidIsValid(extension) && compat_owns_extension(extension);
	}
	if (IsA(statement, CreatedbStmt))
		return superuser() || may_copy(database);
	return compat_owns_database(database);
}

/*
 * Says which process does not end.  A process that is stopped can only be named: the command
 * itself would count it as a session.  A command on the extension needs only locks, and goes on.
 */
static void
name_process(const char *what, pid_t pid, Node *statement)
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
 * Has a database's processes that run handlers end, once no worker starts any: those without a
 * job at once, the others after their job.  After AWAY_PATIENCE they end in the middle of it, and
 * give it back.
 */
static void
send_handlers_away(Oid database, Node *statement)
{
	pid_t pid = 0;

	for (int i = 0; i < AWAY_STEPS; i++)
	{
		pid = idemq_handlers_leave(database, i == AWAY_PATIENCE ? SIGTERM : 0);
		if (pid == 0)
			return;
		sleep_a_step();
	}
	name_process("handler", pid, statement);
}

/*
 * Sends the worker away from a database that a command, which is about to run, needs for itself,
 * until this transaction ends.  Waits until the worker has no session there, and will get none, and
 * until its handlers are gone.  Does nothing in the worker itself.
 */
void
idemq_exclusive_make_way(Node *statement)
{
	Oid database = IsTransactionState() ? database_needed(statement) : InvalidOid;
	pid_t pid;

	if (!OidIsValid(database) || idemq_worker_self() != NULL || !may_have(database, statement))
		return;
	pid = idemq_pending_away_keep(database);
	/* The worker may be a session already, not yet, or still. */
	for (int i = 0; pid != 0 && (idemq_worker_signal(database, pid, 0) || BackendPidGetProc(pid));
		 i++)
	{
		if (i == AWAY_PATIENCE)
			(void) idemq_worker_signal(database, pid, SIGTERM);
		else if (i == AWAY_STEPS)
		{
			name_process("background worker", pid, statement);
			break;
		}
		sleep_a_step();
	}
	send_handlers_away(database, statement);
}
