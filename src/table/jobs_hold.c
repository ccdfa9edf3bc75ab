/*
 * table/jobs_hold.c
 *		Who holds a fetched version of a job's row.
 *
 * Reads the version's header and the state of transactions; waits for nobody and
 * takes no lock.  What it finds may be over by the time it is said.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/multixact.h"
#include "access/stratnum.h"
#include "access/subtrans.h"
#include "access/transam.h"
#include "access/xact.h"
#include "storage/procarray.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#include "table/jobs.h"
#include "table/jobs_hold.h"
#include "base/compat.h"

/* Returns what one transaction does with a row that it has locked, or changed. */
static RowHold
hold_of(TransactionId xid, bool only_locks)
{
	if (!TransactionIdIsNormal(xid) || TransactionIdIsCurrentTransactionId(xid))
		return ROW_FREE;
	if (TransactionIdIsInProgress(xid))
		return ROW_HELD;
	return !only_locks && TransactionIdDidCommit(xid) ? ROW_CHANGED : ROW_FREE;
}

static RowHold
hold_of_multi(MultiXactId multi, bool only_locks, TransactionId *holder)
{
	MultiXactMember *members;
	int count = GetMultiXactIdMembers(multi, &members, false, only_locks);
	RowHold result = ROW_FREE;

	for (int i = 0; i < count && result != ROW_CHANGED; i++)
	{
		RowHold hold = hold_of(members[i].xid, !ISUPDATE_from_mxstatus(members[i].status));

		if (hold == ROW_HELD)
			*holder = members[i].xid;
		if (hold != ROW_FREE)
			result = hold;
	}
	if (count > 0)
		pfree(members);
	return result;
}

/*
 * Returns what others do with a fetched version; with ROW_HELD *holder is one of
 * their transactions, a subtransaction perhaps.
 */
RowHold
idemq_jobs_hold(const Job *job, TransactionId *holder)
{
	HeapTupleHeader header = job_row_header(job);
	TransactionId xmax = HeapTupleHeaderGetRawXmax(header);
	bool only_locks = HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask);

	*holder = xmax;
	if ((header->t_infomask & HEAP_XMAX_INVALID) || !TransactionIdIsValid(xmax) ||
		HEAP_LOCKED_UPGRADED(header->t_infomask))
		return ROW_FREE;
	if (header->t_infomask & HEAP_XMAX_IS_MULTI)
		return hold_of_multi(xmax, only_locks, holder);
	return hold_of(xmax, only_locks);
}

/*
 * Returns whether a claim would be let to a fetched version: nobody holds it, or
 * for a foreign key only, which a claim does not mind.
 */
bool
idemq_jobs_lets_claim(const Job *job)
{
	HeapTupleHeader header = job_row_header(job);
	MultiXactMember *members;
	TransactionId holder;
	RowHold hold;
	bool lets = true;
	int count;

	hold = idemq_jobs_hold(job, &holder);
	if (hold != ROW_HELD)
		return hold == ROW_FREE;
	if (!HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask))
		return false;
	if (!(header->t_infomask & HEAP_XMAX_IS_MULTI))
		return HEAP_XMAX_IS_KEYSHR_LOCKED(header->t_infomask);
	count = GetMultiXactIdMembers(HeapTupleHeaderGetRawXmax(header), &members, false, true);
	for (int i = 0; i < count && lets; i++)
		lets = members[i].status == MultiXactStatusForKeyShare ||
			   hold_of(members[i].xid, true) == ROW_FREE;
	if (count > 0)
		pfree(members);
	return lets;
}

/* Returns whether this transaction itself has deleted a fetched version. */
static bool
is_deleted_here(const Job *job)
{
	HeapTupleHeader header = job_row_header(job);

	return !(header->t_infomask & HEAP_XMAX_INVALID) &&
		   !HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask) &&
		   ItemPointerEquals(&header->t_ctid, &job->row->tts_tid) &&
		   TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetUpdateXid(header));
}

/* Fetches the version of a job that this transaction itself has deleted; false if it has not. */
bool
idemq_jobs_fetch_deleted(JobsTable *table, int64 id, Job *job)
{
	Relation pkey = index_open(compat_primary_key_index(table->rel), AccessShareLock);
	IndexScanDesc scan = compat_index_beginscan(table->rel, pkey, SnapshotAny, 1);
	bool found = false;
	ScanKeyData key;

	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(id));
	index_rescan(scan, &key, 1, NULL, 0);
	while (!found && index_getnext_slot(scan, ForwardScanDirection, table->row))
	{
		idemq_jobs_decode(table->row, job);
		found = is_deleted_here(job);
	}
	index_endscan(scan);
	index_close(pkey, NoLock);
	return found;
}

/* Returns the process of a transaction in progress, 0 when it is prepared or has ended. */
int
idemq_transaction_pid(TransactionId xid)
{
	if (!TransactionIdIsInProgress(xid))
		return 0;
	return BackendXidGetPid(SubTransGetTopmostTransaction(xid));
}
