/*
 * hooks/utility.c
 *		Utility commands that idemq follows.
 *
 *		Before they run: the worker is sent away from a database that the command
 *			needs for itself (hooks/exclusive_database.c).  COMMIT PREPARED and ROLLBACK
 *			PREPARED enter the window of the database (txn/pending_window.c).
 *
 *		After they succeeded:
 *
 *		COMMIT PREPARED, ROLLBACK PREPARED	rows changed, and no session knows
 *			which: cursors are unset, jobs in flight searched for.  Not for a
 *			transaction that changed none (hooks/prepared.c).  The apply worker of a
 *			subscription with two_phase ends them past this hook: see job/follow.c.
 *		DROP DATABASE						its entries in shared memory go.
 *		DROP EXTENSION, or anything else that drops idemq.jobs: the same, at commit.
 *		CREATE EXTENSION, ALTER EXTENSION idemq	a worker is wanted, at commit: there was
 *			none before an update.
 *		CREATE DATABASE						the template may have had the extension:
 *			a worker is wanted, at commit.
 *		CREATE SUBSCRIPTION, ALTER SUBSCRIPTION	this database follows another from then
 *			on, if it is enabled and writes idemq.jobs.
 *		ALTER TABLE ... ENABLE TRIGGER ALL, or USER, of ours	rows may have changed while
 *			triggers were off (pg_restore --disable-triggers): all is read anew, at commit.
 *		DISCARD ALL							a pooler hands the session on: its
 *			attached leases end, as with the session, and what it has claimed is
 *			forgotten (api/checkpoint.c).
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/ipc.h"
#include "tcop/utility.h"
#include "utils/lsyscache.h"

#include "base/base.h"
#include "hooks/hooks.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/counts/counts.h"
#include "shared/groups/groups.h"
#include "shared/leases/leases.h"
#include "shared/sleepers/sleepers.h"
#include "shared/slots/slots.h"
#include "txn/txn.h"

static ProcessUtility_hook_type prev_process_utility = NULL;
static object_access_hook_type prev_object_access = NULL;

/* What is to be followed once the command has succeeded. */
typedef enum Follow
{
	FOLLOW_NOTHING,
	FOLLOW_PREPARED,
	FOLLOW_DROP_DATABASE,
	FOLLOW_CREATE_EXTENSION,
	FOLLOW_CREATE_DATABASE,
	FOLLOW_SUBSCRIPTION,
	FOLLOW_TRIGGERS,
	FOLLOW_DISCARD
} Follow;

/* Returns whether a command enables all triggers of a table. */
static bool
enables_triggers(const AlterTableStmt *alter)
{
	ListCell *lc;

	foreach(lc, alter->cmds)
	{
		AlterTableType type = lfirst_node(AlterTableCmd, lc)->subtype;

		if (type == AT_EnableTrigAll || type == AT_EnableTrigUser)
			return true;
	}
	return false;
}

static Follow
what_to_follow(Node *statement, Oid *database)
{
	if (IsA(statement, TransactionStmt))
	{
		TransactionStmt *end = (TransactionStmt *) statement;

		if ((end->kind == TRANS_STMT_COMMIT_PREPARED ||
			 end->kind == TRANS_STMT_ROLLBACK_PREPARED) &&
			idemq_prepared_has_written(end->gid))
			return FOLLOW_PREPARED;
	}
	else if (IsA(statement, DropdbStmt))
	{
		*database = get_database_oid(((DropdbStmt *) statement)->dbname, true);
		if (OidIsValid(*database))
			return FOLLOW_DROP_DATABASE;
	}
	else if (IsA(statement, CreateExtensionStmt) &&
			 strcmp(((CreateExtensionStmt *) statement)->extname, IDEMQ_EXTENSION) == 0)
		return FOLLOW_CREATE_EXTENSION;
	else if (IsA(statement, AlterExtensionStmt) &&
			 strcmp(((AlterExtensionStmt *) statement)->extname, IDEMQ_EXTENSION) == 0)
		return FOLLOW_CREATE_EXTENSION;
	else if (IsA(statement, CreatedbStmt))
		return FOLLOW_CREATE_DATABASE;
	else if (IsA(statement, CreateSubscriptionStmt) || IsA(statement, AlterSubscriptionStmt))
		return FOLLOW_SUBSCRIPTION;
	else if (IsA(statement, AlterTableStmt) && enables_triggers((AlterTableStmt *) statement))
		return FOLLOW_TRIGGERS;
	else if (IsA(statement, DiscardStmt) && ((DiscardStmt *) statement)->target == DISCARD_ALL)
		return FOLLOW_DISCARD;
	return FOLLOW_NOTHING;
}

/* Runs the command itself. */
static void
run_utility(PlannedStmt *statement, const char *query, bool read_only_tree,
			ProcessUtilityContext context, ParamListInfo params, QueryEnvironment *env,
			DestReceiver *dest, QueryCompletion *completion)
{
	if (prev_process_utility)
		prev_process_utility(statement, query, read_only_tree, context, params, env, dest,
							 completion);
	else
		standard_ProcessUtility(statement, query, read_only_tree, context, params, env, dest,
								completion);
}

/* Whether this session counts among the changes under way (shared/slots/slots.c), for COMMIT PREPARED. */
static bool in_change = false;

static void
end_change(void)
{
	if (in_change)
		idemq_slots_end_change();
	in_change = false;
}

static void
end_change_at_exit(int code, Datum arg)
{
	end_change();
}

/*
 * Begins a change that an error, or the session's end, ends too.  (Not with
 * PG_ENSURE_ERROR_CLEANUP: the command itself registers a callback for the exit.)
 */
static void
begin_change(void)
{
	static bool registered = false;

	if (!registered)
		on_shmem_exit(end_change_at_exit, (Datum) 0);
	registered = true;
	idemq_slots_begin_change();
	in_change = true;
}

/* Follows a subscription that was created or changed.  (pg_upgrade fills the tables later.) */
static void
follow_subscription(void)
{
	if (!IsBinaryUpgrade && idemq_presence() == IDEMQ_HERE)
		idemq_follow_note_subscription();
}

/* Has all be read anew from the rows of our tables, which may have changed while triggers were off. */
static void
follow_triggers(const AlterTableStmt *alter)
{
	Oid relid = RangeVarGetRelid(alter->relation, NoLock, true);

	if (idemq_presence() != IDEMQ_HERE || !OidIsValid(relid) ||
		get_rel_namespace(relid) != idemq_oids()->schema)
		return;
	idemq_pending_note(ACTION_ROWS, NULL, 0);
	idemq_pending_note(ACTION_SCHEDULES, NULL, 0);
	idemq_pending_note(ACTION_SETTINGS, NULL, 0);
}

/* What shared memory has to know of a command that has run. */
static void
follow_command(Follow follow, const PlannedStmt *statement, Oid database)
{
	switch (follow)
	{
		case FOLLOW_NOTHING:
			break;
		case FOLLOW_PREPARED:
			idemq_version_move(0);
			idemq_slots_unset_database(MyDatabaseId);
			idemq_worker_note_schedules();
			idemq_wake_database(MyDatabaseId, true);
			end_change();
			break;
		case FOLLOW_DROP_DATABASE:
			idemq_lease_forget_database(database);
			idemq_lease_share_forget(database);
			idemq_buckets_forget_database(database);
			idemq_slots_forget_database(database);
			break;
		case FOLLOW_CREATE_EXTENSION:
			idemq_pending_note_extension(MyDatabaseId);
			break;
		case FOLLOW_CREATE_DATABASE:
			CommandCounterIncrement(); /* to see it */
			database = get_database_oid(((CreatedbStmt *) statement->utilityStmt)->dbname, true);
			if (OidIsValid(database))
				idemq_pending_note_extension(database);
			break;
		case FOLLOW_SUBSCRIPTION:
			follow_subscription();
			break;
		case FOLLOW_TRIGGERS:
			follow_triggers((AlterTableStmt *) statement->utilityStmt);
			break;
		case FOLLOW_DISCARD:
			idemq_lease_orphan_session();
			idemq_pending_forget_claimed();
			break;
	}
}

static void
process_utility(PlannedStmt *statement, const char *query, bool read_only_tree,
				ProcessUtilityContext context, ParamListInfo params, QueryEnvironment *env,
				DestReceiver *dest, QueryCompletion *completion)
{
	Oid database = InvalidOid;
	Follow follow = what_to_follow(statement->utilityStmt, &database);

	idemq_exclusive_make_way(statement->utilityStmt);
	if (follow == FOLLOW_PREPARED)
	{
		/* Until its own transaction ends, which follows the command, either way. */
		idemq_pending_window_enter(NULL, MyDatabaseId, GROUP_DROP_FLOOR);
		/* From the moment on that it is visible until the cursors are unset. */
		begin_change();
		PG_TRY();
		{
			run_utility(statement, query, read_only_tree, context, params, env, dest, completion);
		}
		PG_CATCH();
		{
			end_change();
			PG_RE_THROW();
		}
		PG_END_TRY();
	}
	else
		run_utility(statement, query, read_only_tree, context, params, env, dest, completion);
	follow_command(follow, statement, database);
}

/* Follows the drop of idemq.jobs. */
static void
object_access(ObjectAccessType access, Oid class_id, Oid object_id, int sub_id, void *arg)
{
	if (prev_object_access)
		prev_object_access(access, class_id, object_id, sub_id, arg);
	if (access == OAT_DROP && class_id == RelationRelationId && sub_id == 0 &&
		object_id == get_relname_relid("jobs", get_namespace_oid(IDEMQ_SCHEMA, true)))
		idemq_pending_note(ACTION_FORGET, NULL, 0);
}

/* Installs the hooks; called once, from _PG_init. */
void
idemq_utility_install(void)
{
	prev_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
	prev_object_access = object_access_hook;
	object_access_hook = object_access;
}
