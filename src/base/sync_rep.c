/*
 * base/sync_rep.c
 *		Waiting until synchronous standbys have what an answer shows.
 *
 * A transaction becomes visible when its wait for a synchronous standby is cut off, by a
 * cancel or the end of its session.  A repetition of its call finds its rows, writes
 * nothing, and so waits for nobody at its own commit; its answer would show what is
 * lost if a standby is promoted now.  So the call itself waits before it answers.
 *
 * What a snapshot shows was flushed here before, unless it was committed with
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

/* Returns whether the standbys have the WAL up to lsn, or none has to be waited for. */
static bool
is_replicated(XLogRecPtr lsn)
{
	int mode = synchronous_commit == SYNCHRONOUS_COMMIT_REMOTE_WRITE ? SYNC_REP_WAIT_WRITE
																	 : SYNC_REP_WAIT_FLUSH;
	bool replicated;

	if (!SyncRepRequested() || !compat_sync_standbys_defined())
		return true;
	LWLockAcquire(SyncRepLock, LW_SHARED);
	/* Asked again: the checkpointer holds the lock while it wakes the waiters and says why. */
	replicated = !compat_sync_standbys_defined() || lsn <= WalSndCtl->lsn[mode];
	LWLockRelease(SyncRepLock);
	return replicated;
}

/*
 * Waits until the synchronous standbys, if there are any and synchronous_commit asks for
 * them, have what the caller's last snapshot shows.  Raises 40003 when the wait is
 * cancelled.
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
	 * Write a record that does nothing, for the standbys to answer.  A standby that has
	 * connected, or become synchronous, since its last answer is silent until then.
	 */
	XLogBeginInsert();
	XLogSetRecordFlags(XLOG_MARK_UNIMPORTANT);
	XLogRegisterData(&nothing, sizeof(nothing));
	XLogFlush(XLogInsert(RM_XLOG_ID, XLOG_NOOP));
	/* As at a commit: the wait heeds a cancel itself, and only warns. */
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
 * Waits until the synchronous standbys have this session's last commit, whose own wait may
 * have been cancelled; raises as idemq_sync_rep_await.
 */
void
idemq_sync_rep_await_commit(void)
{
	if (!is_replicated(XactLastCommitEnd))
		idemq_sync_rep_await();
}
