/*
 * handler/reset.c
 *		Takes away what a handler's function has left behind in its session: settings,
 *		temporary tables, advisory locks, cursors, prepared statements, what currval knows.
 *		(What it LISTENs to: handler/run.c.)
 *
 * Not by DISCARD ALL, which ends attached leases, and is slower: where there is nothing to take
 * away, nothing is done in the catalogs.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "commands/prepare.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/guc.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"

#include "base/base.h"
#include "handler/handler.h"

/*
 * Resets the session of a role, between transactions.  Returns false when the session is
 * another role's now: then its process had better end.
 */
bool
idemq_handler_reset(Oid role)
{
	Oid namespace;
	Oid toast_namespace;

	PortalHashTableDeleteAll();
	DropAllPreparedStatements();
	ResetSequenceCaches();
	LockReleaseAll(USER_LOCKMETHOD, true);
	ResetAllOptions();
	GetTempNamespaceState(&namespace, &toast_namespace);
	if (OidIsValid(namespace))
	{
		idemq_begin_transaction();
		PushActiveSnapshot(GetTransactionSnapshot());
		ResetTempTableNamespace();
		PopActiveSnapshot();
		CommitTransactionCommand();
	}
	return GetUserId() == role && GetSessionUserId() == role && GetOuterUserId() == role;
}
