/*
 * base/sync_rep.c
 *		Waits until synchronous standbys have what a result shows.
 *
 * If the wait of a COMMIT for a synchronous standby is interrupted, by a cancellation or the end of
 * its session, the transaction becomes visible all the same.  A client that repeats its call then
 * finds the rows and writes nothing, so its own COMMIT does not wait either.  Its result would show
 * rows that are lost if a standby is promoted now.  Therefore such a call waits before it returns.
 *
 * Everything that a snapshot shows has been flushed on this server, unless it was committed with
 * synchronous_commit = off, which promises nothing.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "catalog/pg_control.h"
#include "miscadmin.h"
#include "replication/syncrep.h"
#include "storage/lwlock.h"

#include "base/base.h"
#include "base/compat.h"

/* Returns whether the synchronous standbys have the WAL up to lsn, or there is none to wait for. */
static bool
is_replicated(XLogRecPtr lsn)
{
	int mode = synchronous_commit == SYNCHRONOUS_COMMIT_REMOTE_WRITE ? SYNC_REP_WAIT_WRITE
																	 : SYNC_REP_WAIT_FLUSH;
	bool replicated;

	if (!SyncRepRequested() || !compat_sync_standbys_defined())
		return true;
	LWLockAcquire(SyncRepLock, LW_SHARED);
	/* Read again, because the checkpointer changes it while it holds the lock. */
	replicated = !compat_sync_standbys_defined() || lsn <= WalSndCtl->lsn[mode];
	LWLockRelease(SyncRepLock);
	return replicated;
}

/*
 * Waits until the synchronous standbys have everything that the caller's last snapshot shows.  Does
 * nothing if there are none, or if synchronous_commit does not require them.  Raises 40003 if the
 * wait is cancelled.
 */
void
idemq_sync_rep_await(void)
{
	XLogRecPtr lsn;
	char nothing = 0;

	if (!SyncRepRequested() || !compat_sync_standbys_defined() || RecoveryInProgress())
		return;
	lsn = GetFlushRecPtr(NULL);
	if (is_replicated(lsn))
		return;
	/*
	 * Write a record that has no effect, so that the standbys reply.  A standby that has
	 * connected, or become synchronous, since its last reply would otherwise not reply again.
	 */
	XLogBeginInsert();
	XLogSetRecordFlags(XLOG_MARK_UNIMPORTANT);
	XLogRegisterData(&nothing, sizeof(nothing));
	XLogFlush(XLogInsert(RM_XLOG_ID, XLOG_NOOP));
	/* As in COMMIT: if the wait is cancelled, it ends with a warning. */
	HOLD_INTERRUPTS();
	SyncRepWaitForLSN(lsn, false);
	RESUME_INTERRUPTS();
	CHECK_FOR_INTERRUPTS();
	if (!is_replicated(lsn))
		ereport(ERROR, errcode(ERRCODE_T_R_STATEMENT_COMPLETION_UNKNOWN),
				errmsg("the result of this call has not been replicated to a synchronous standby"),
				errdetail(
					"The wait for synchronous replication was canceled. This transaction has not "
					"committed."),
				errhint("Repeat the call."));
}

/*
 * Like idemq_sync_rep_await, but does nothing if the standbys have this session's last commit,
 * whose own wait may have been cancelled.
 */
void
idemq_sync_rep_await_commit(void)
{
	if (!is_replicated(XactLastCommitEnd))
		idemq_sync_rep_await();
}
