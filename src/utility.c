/*
 * utility.c
 *		Utility commands that idemq follows, after they succeeded:
 *
 *		COMMIT PREPARED, ROLLBACK PREPARED	rows changed, and no session knows
 *			which: cursors are unset, jobs in flight looked for.
 *		DROP DATABASE						its entries in shared memory go.
 *		DISCARD ALL							a pooler hands the session on: its
 *			attached leases end, as with the session.
 */
#include "postgres.h"

#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "tcop/utility.h"

#include "cursor.h"
#include "leases.h"
#include "utility.h"

static ProcessUtility_hook_type prev_process_utility = NULL;

/* What is to be followed once the command has succeeded. */
typedef enum Follow
{
	FOLLOW_NOTHING,
	FOLLOW_PREPARED,
	FOLLOW_DROP_DATABASE,
	FOLLOW_DISCARD
} Follow;

static Follow
what_to_follow(Node *statement, Oid *database)
{
	if (IsA(statement, TransactionStmt))
	{
		TransactionStmtKind kind = ((TransactionStmt *) statement)->kind;

		if (kind == TRANS_STMT_COMMIT_PREPARED || kind == TRANS_STMT_ROLLBACK_PREPARED)
			return FOLLOW_PREPARED;
	}
	else if (IsA(statement, DropdbStmt))
	{
		*database = get_database_oid(((DropdbStmt *) statement)->dbname, true);
		if (OidIsValid(*database))
			return FOLLOW_DROP_DATABASE;
	}
	else if (IsA(statement, DiscardStmt) && ((DiscardStmt *) statement)->target == DISCARD_ALL)
		return FOLLOW_DISCARD;
	return FOLLOW_NOTHING;
}

static void
process_utility(PlannedStmt *statement, const char *query, bool read_only_tree,
				ProcessUtilityContext context, ParamListInfo params, QueryEnvironment *env,
				DestReceiver *dest, QueryCompletion *completion)
{
	Oid			database = InvalidOid;
	Follow		follow = what_to_follow(statement->utilityStmt, &database);

	if (prev_process_utility)
		prev_process_utility(statement, query, read_only_tree, context, params, env, dest,
							 completion);
	else
		standard_ProcessUtility(statement, query, read_only_tree, context, params, env, dest,
								completion);

	switch (follow)
	{
		case FOLLOW_NOTHING:
			break;
		case FOLLOW_PREPARED:
			idemq_cursor_unset_database(MyDatabaseId);
			break;
		case FOLLOW_DROP_DATABASE:
			idemq_lease_forget_database(database);
			idemq_cursor_forget_database(database);
			break;
		case FOLLOW_DISCARD:
			idemq_lease_orphan_session();
			break;
	}
}

/* Installs the hook; called once, from _PG_init. */
void
idemq_utility_install(void)
{
	prev_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
}
