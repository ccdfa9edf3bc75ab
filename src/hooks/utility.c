/*
 * hooks/utility.c
 *		Utility commands that change what shared memory reflects.
 *
 *		Before a command: if it needs a database for itself, the worker leaves
 *			(hooks/exclusive_database.c).  COMMIT PREPARED and ROLLBACK PREPARED enter the commit
 *			window of the database (txn/pending_commit_window.c).
 *
 *		After it has succeeded:
 *
 *		COMMIT PREPARED, ROLLBACK PREPARED, if the transaction has written to our tables: rows have
 *			changed, and no session knows which.  Scan starts are unset, and running jobs are
 *			searched for.  The apply worker of a subscription with two_phase does not call this
 *			hook: see job/follow.c.
 *		DROP DATABASE: shared memory forgets the database, whose OID may be used again.
 *		DROP EXTENSION, or anything else that drops idemq.jobs: the same, at commit.
 *		CREATE EXTENSION, ALTER EXTENSION idemq: requests a worker, at commit.  There was none
 *			while the extension was outdated.
 *		CREATE DATABASE: requests a worker, at commit, because the template may have idemq.
 *		CREATE SUBSCRIPTION, ALTER SUBSCRIPTION: if the subscription is enabled and writes to
 *			idemq.jobs, this database follows another one from now on.
 *		ALTER TABLE ... ENABLE TRIGGER ALL, or USER, on one of our tables: everything is read
 *			again, at commit, because rows may have changed while triggers were off
 *			(pg_restore --disable-triggers).
 *		DISCARD ALL: a pooler gives the session to another client.  Its attached leases end, and it
 *			forgets what it has claimed (api/heartbeat.c).
 *
 * A role may end a prepared transaction after we have looked at its locks, and prepare another one
 * with the same name.  The command then ends a transaction that we have not looked at.  This harms
 * only jobs that the role has written itself.
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/twophase.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/ipc.h"
#include "storage/lock.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"

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

/* The tables that shared memory reflects. */
static const struct
{
	const char *name;
	bool is_internal; /* in schema idemq_internal */
} reflected_tables[] = {{"jobs", false},		{"queues", false},
						{"children", false},	{"dependencies", false},
						{"queue_grants", true}, {"handler_entries", true},
						{"clusters", true},		{"schedule_entries", true},
						{"hold_entries", true}, {"paused_groups", false}};

static SqlStatement prepared_find =
	{.text = "SELECT transaction FROM pg_catalog.pg_prepared_xacts WHERE gid = $1",
	 .types = {TEXTOID},
	 .fields = SQL_SCALAR(TransactionId)};

static ProcessUtility_hook_type next_process_utility = NULL;
static object_access_hook_type prev_object_access = NULL;

/*
 * This session is counted among those that are changing shared memory
 * (shared/queue_states/queue_states.c).
 */
static bool in_change = false;

/*
 * Returns whether a prepared transaction has written to a table that shared memory reflects.
 * Returns false if there is no transaction of that name, or if idemq is not in this database, or
 * not updated.
 *
 * The lock manager knows: a transaction that has written rows holds RowExclusiveLock, or a stronger
 * lock, on their table, even after it was prepared and after a restart.  A call that only reads
 * releases this lock before it returns (table/jobs.c), so a role that may not write through idemq's
 * functions cannot cause what follows a COMMIT PREPARED.
 */
static bool
prepared_has_written(const char *gid)
{
	TransactionId xid;
	bool found = false;
	Datum name;

	if (idemq_presence() != IDEMQ_HERE)
		return false;
	name = CStringGetTextDatum(gid);
	/* COMMIT PREPARED runs without a snapshot. */
	PushActiveSnapshot(GetTransactionSnapshot());
	(void) idemq_spi_row(&prepared_find, &name, &xid, sizeof(xid));
	PopActiveSnapshot();
	for (int t = 0; t < (int) lengthof(reflected_tables) && TransactionIdIsValid(xid) && !found;
		 t++)
	{
		VirtualTransactionId *holders;
		LOCKTAG tag;
		int count;

		SET_LOCKTAG_RELATION(tag, MyDatabaseId,
							 get_relname_relid(reflected_tables[t].name,
											   reflected_tables[t].is_internal
												   ? idemq_oids()->internal
												   : idemq_oids()->schema));
		/* ShareLock conflicts with RowExclusiveLock, and with stronger locks that writers take. */
		holders = GetLockConflicts(&tag, ShareLock, &count);
		for (int i = 0; i < count && !found; i++)
		{
			bool more = false;

			/* For a transaction prepared before the server started, this is its xid. */
			found = VirtualTransactionIdIsRecoveredPreparedXact(holders[i])
						? holders[i].localTransactionId == xid
						: TwoPhaseGetXidByVirtualXID(holders[i], &more) == xid;
		}
		pfree(holders);
	}
	return found;
}

/* Ends the change that a COMMIT PREPARED has begun, if any; also called when the session exits. */
static void
end_change(int code, Datum arg)
{
	if (in_change)
		idemq_qstates_end_change();
	in_change = false;
}

/*
 * If a command enables all triggers of one of our tables, notes that everything must be read
 * again.
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

/*
 * Reacts to a command that has succeeded; tag: the tag of its node.  A ROLLBACK may have freed its
 * node, but the commands below have not.
 */
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
			CommandCounterIncrement(); /* makes the new database visible */
			database = get_database_oid(((const CreatedbStmt *) statement)->dbname, true);
			if (OidIsValid(database))
				idemq_pending_note_extension(database);
			break;
		case T_CreateSubscriptionStmt:
		case T_AlterSubscriptionStmt:
			/*
			 * While pg_upgrade restores the schema, the tables of subscriptions are not filled
			 * yet.
			 */
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

/* Removes everything about a dropped database from shared memory. */
static void
forget_database(Oid database)
{
	idemq_lease_forget_database(database);
	idemq_buckets_forget_database(database);
	idemq_lease_share_forget(database);
	idemq_qstates_forget_database(database);
	idemq_worker_forget_database(database);
	idemq_count_forget_database(database);
}

/* ProcessUtility_hook. */
static void
process_utility(PlannedStmt *statement, const char *query, bool read_only_tree,
				ProcessUtilityContext context, ParamListInfo params, QueryEnvironment *env,
				DestReceiver *dest, QueryCompletion *completion)
{
	static bool exit_registered = false;
	Node *command = statement->utilityStmt;
	/* Read now, because a ROLLBACK may free its own node. */
	NodeTag tag = nodeTag(command);
	bool ends_prepared = false; /* it ends a prepared transaction that has written to our tables */
	Oid dropped = InvalidOid;

	if (tag == T_TransactionStmt)
	{
		const TransactionStmt *end = (const TransactionStmt *) command;

		ends_prepared = (end->kind == TRANS_STMT_COMMIT_PREPARED ||
						 end->kind == TRANS_STMT_ROLLBACK_PREPARED) &&
						prepared_has_written(end->gid);
	}
	if (tag == T_DropdbStmt)
		dropped = get_database_oid(((DropdbStmt *) command)->dbname, true);
	idemq_exclusive_make_way(command);
	if (ends_prepared)
	{
		/*
		 * Until this session's transaction ends, which is after the command has succeeded or
		 * failed.
		 */
		idemq_pending_commit_window_enter(NULL, MyDatabaseId, GROUP_DROP_LOW_WATER);
		/*
		 * From before the rows are visible until the scan starts are unset.
		 * PG_ENSURE_ERROR_CLEANUP cannot end the change at exit, because the command itself
		 * registers an exit callback.
		 */
		if (!exit_registered)
			on_shmem_exit(end_change, (Datum) 0);
		exit_registered = true;
		idemq_qstates_begin_change();
		in_change = true;
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
	if (ends_prepared)
	{
		idemq_version_move(0);
		idemq_qstates_unset_database(MyDatabaseId);
		idemq_worker_note_schedules();
		idemq_wake_database(MyDatabaseId, true);
		end_change(0, (Datum) 0);
	}
	else if (OidIsValid(dropped))
		forget_database(dropped);
	else
		follow_command(tag, command);
}

/*
 * object_access_hook: if idemq.jobs is dropped, notes that shared memory must forget the database.
 */
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
