/*
 * hooks/utility.c
 *		Utility commands that idemq follows.
 *
 *		Before they run: the worker is sent away from a database that the command
 *			needs for itself (hooks/exclusive_database.c).  COMMIT PREPARED and ROLLBACK
 *			PREPARED enter the commit window of the database (txn/pending_commit_window.c).
 *
 *		After they succeeded:
 *
 *		COMMIT PREPARED, ROLLBACK PREPARED	rows changed, and no session knows
 *			which: scan starts are unset, jobs in flight searched for.  Not for a
 *			transaction that changed none (hooks/prepared.c).  The apply worker of a
 *			subscription with two_phase ends them without this hook: see job/follow.c.
 *		DROP DATABASE						all that shared memory has of it goes: its share,
 *			and even its OID, may become another database's.
 *		DROP EXTENSION, or anything else that drops idemq.jobs: the same, at commit.
 *		CREATE EXTENSION, ALTER EXTENSION idemq	a worker is wanted, at commit: there was
 *			none before an update.
 *		CREATE DATABASE						the template may have had the extension:
 *			a worker is wanted, at commit.
 *		CREATE SUBSCRIPTION, ALTER SUBSCRIPTION	this database follows another from then
 *			on, if it is enabled and writes idemq.jobs.
 *		ALTER TABLE ... ENABLE TRIGGER ALL, or USER, of our tables	rows may have changed
 *			while triggers were off (pg_restore --disable-triggers): all is read anew, at
 *			commit.
 *		DISCARD ALL							a pooler hands the session on: its
 *			attached leases end, as with the session, and what it has claimed is
 *			forgotten (api/checkpoint.c).
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
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
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "shared/waiters/waiters.h"
#include "txn/txn.h"

static ProcessUtility_hook_type next_process_utility = NULL;
static object_access_hook_type prev_object_access = NULL;

/* Whether COMMIT PREPARED counts this session among the changes under way (shared/queue_states/queue_states.c). */
static bool in_change = false;

/* Also a callback for the session's end. */
static void
end_change(int code, Datum arg)
{
	if (in_change)
		idemq_qstates_end_change();
	in_change = false;
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
		on_shmem_exit(end_change, (Datum) 0);
	registered = true;
	idemq_qstates_begin_change();
	in_change = true;
}

/*
 * If a command enables all triggers of one of our tables, has all read anew from the rows: these
 * may have changed while the triggers were off.
 */
static void
follow_alter_table(const AlterTableStmt *alter)
{
	Oid relid = InvalidOid;
	ListCell *lc;

	foreach(lc, alter->cmds)
	{
		AlterTableType type = lfirst_node(AlterTableCmd, lc)->subtype;

		if (type == AT_EnableTrigAll || type == AT_EnableTrigUser)
			relid = RangeVarGetRelid(alter->relation, NoLock, true);
	}
	if (!OidIsValid(relid) || idemq_presence() != IDEMQ_HERE ||
		(get_rel_namespace(relid) != idemq_oids()->schema &&
		 get_rel_namespace(relid) != idemq_oids()->internal))
		return;
	idemq_pending_note(ACTION_ROWS, NULL, 0);
	idemq_pending_note(ACTION_SCHEDULES, NULL, 0);
	idemq_pending_note(ACTION_SETTINGS, NULL, 0);
}

/* Follows a command that has run; tag: its node's.  For the tags below the node is still there. */
static void
follow_command(NodeTag tag, const Node *statement)
{
	const char *extension = NULL;
	Oid database;

	switch (tag)
	{
		case T_CreateExtensionStmt:
			extension = ((const CreateExtensionStmt *) statement)->extname;
			break;
		case T_AlterExtensionStmt:
			extension = ((const AlterExtensionStmt *) statement)->extname;
			break;
		case T_CreatedbStmt:
			CommandCounterIncrement(); /* to see it */
			database = get_database_oid(((const CreatedbStmt *) statement)->dbname, true);
			if (OidIsValid(database))
				idemq_pending_note_extension(database);
			break;
		case T_CreateSubscriptionStmt:
		case T_AlterSubscriptionStmt:
			/* pg_upgrade fills the tables later. */
			if (!IsBinaryUpgrade && idemq_presence() == IDEMQ_HERE)
				idemq_follow_note_subscription();
			break;
		case T_AlterTableStmt:
			follow_alter_table((const AlterTableStmt *) statement);
			break;
		case T_DiscardStmt:
			if (((const DiscardStmt *) statement)->target != DISCARD_ALL)
				break;
			idemq_lease_orphan_session();
			idemq_pending_forget_claimed();
			break;
		default:
			break;
	}
	if (extension != NULL && strcmp(extension, IDEMQ_EXTENSION) == 0)
		idemq_pending_note_extension(MyDatabaseId);
}

static void
process_utility(PlannedStmt *statement, const char *query, bool read_only_tree,
				ProcessUtilityContext context, ParamListInfo params, QueryEnvironment *env,
				DestReceiver *dest, QueryCompletion *completion)
{
	/* A ROLLBACK may free its own statement. */
	const Node *command = statement->utilityStmt;
	NodeTag tag = nodeTag(command);
	bool prepared = false; /* it ends a prepared transaction that has changed our tables */
	Oid dropped = InvalidOid;

	if (tag == T_TransactionStmt)
	{
		const TransactionStmt *end = (const TransactionStmt *) statement->utilityStmt;

		prepared = (end->kind == TRANS_STMT_COMMIT_PREPARED ||
					end->kind == TRANS_STMT_ROLLBACK_PREPARED) &&
				   idemq_prepared_has_written(end->gid);
	}

	if (tag == T_DropdbStmt)
		dropped = get_database_oid(((DropdbStmt *) statement->utilityStmt)->dbname, true);
	idemq_exclusive_make_way(statement->utilityStmt);
	if (prepared)
	{
		/* Until this session's transaction ends, which it does after the command, either way. */
		idemq_pending_commit_window_enter(NULL, MyDatabaseId, GROUP_DROP_LOW_WATER);
		/* From before the rows are visible until the scan starts are unset. */
		begin_change();
	}
	PG_TRY();
	{
		next_process_utility(statement, query, read_only_tree, context, params, env, dest,
							 completion);
	}
	PG_CATCH();
	{
		end_change(0, (Datum) 0);
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (prepared)
	{
		idemq_version_move(0);
		idemq_qstates_unset_database(MyDatabaseId);
		idemq_worker_note_schedules();
		idemq_wake_database(MyDatabaseId, true);
		end_change(0, (Datum) 0);
	}
	else if (OidIsValid(dropped))
	{
		idemq_lease_forget_database(dropped);
		idemq_buckets_forget_database(dropped);
		idemq_lease_share_forget(dropped);
		idemq_qstates_forget_database(dropped);
		idemq_handlers_forget_database(dropped);
		idemq_worker_forget_database(dropped);
		idemq_count_forget_database(dropped);
	}
	else
		follow_command(tag, command);
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
	next_process_utility = ProcessUtility_hook != NULL ? ProcessUtility_hook
													   : standard_ProcessUtility;
	ProcessUtility_hook = process_utility;
	prev_object_access = object_access_hook;
	object_access_hook = object_access;
}
