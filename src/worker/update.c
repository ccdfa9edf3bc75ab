/*
 * worker/update.c
 *		Whether a worker can work for the extension in its database; and the extension's update,
 *		if nothing works without it and idemq.auto_update allows it.
 *
 * If the library works with the SQL objects as they are (base/version.c), the update is left to
 * the DBA.  Otherwise the worker, which is a superuser, runs ALTER EXTENSION idemq UPDATE in a
 * transaction of its own.  An error ends the worker.  The log has it, and the next life, which
 * comes later each time, tries again.
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "pgstat.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/snapmgr.h"

#include "base/base.h"
#include "worker/worker.h"

/* For a lock: longer than a call, which may hold it, waits for the update (api/outdated.c). */
#define UPDATE_PATIENCE "10s"

/* Updates the extension; raises what ALTER EXTENSION does. */
static void
update_database(void)
{
	SetConfigOption("lock_timeout", UPDATE_PATIENCE, PGC_SUSET, PGC_S_OVERRIDE);
	pgstat_report_activity(STATE_RUNNING, "ALTER EXTENSION idemq UPDATE");
	idemq_begin_transaction();
	SPI_connect();
	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_execute("ALTER EXTENSION " IDEMQ_EXTENSION " UPDATE", false, 0);
	PopActiveSnapshot();
	SPI_finish();
	idemq_log_updated();
	CommitTransactionCommand();
	pgstat_report_activity(STATE_IDLE, NULL);
	SetConfigOption("lock_timeout", IDEMQ_LOCK_PATIENCE_TEXT, PGC_SUSET, PGC_S_OVERRIDE);
}

/* Returns how the extension is in this database, and says what it lacks. */
static IdemqPresence
look(void)
{
	IdemqPresence presence;

	idemq_begin_transaction();
	PushActiveSnapshot(GetTransactionSnapshot());
	presence = idemq_presence();
	idemq_log_presence(presence, idemq_update_waits());
	PopActiveSnapshot();
	CommitTransactionCommand();
	return presence;
}

/* Returns whether this worker can work for the extension in this database; may update it first. */
bool
idemq_worker_has_extension(void)
{
	IdemqPresence presence;

	/* A commit asks for this check before its invalidations are sent. */
	InvalidateSystemCaches();
	presence = look();
	if (presence == IDEMQ_OUTDATED && idemq_auto_update)
	{
		update_database();
		presence = look();
	}
	return presence == IDEMQ_HERE;
}
