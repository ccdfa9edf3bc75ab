/*
 * table/jobs_hold.c
 *		Which transactions hold a fetched version of a job's row, this one among them.
 *
 * Every other session may write the header of a row, to lock or change the row.  So the
 * header is copied under the buffer's content lock, and every answer comes from the copy.
 * A read without that lock may find the xmax of one moment with the flags of another: a
 * transaction's number taken for a multixact's is an error at best, and a wrong answer
 * where there is such a multixact.  What the transactions do is looked up after the
 * unlock, since that may read from disk.
 *
 * A fetch by an index entry has copied the header already (table/jobs_version.c), and that
 * copy says whether a claim comes too late.  A look of its own would be later by a moment
 * only, and each look may sleep until somebody has written another row of the page.
 *
 * Locks: the content lock, shared, for the copy alone.  Nothing waits for a transaction.
 * An answer may be out of date by the time it is returned.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/multixact.h"
#include "access/stratnum.h"
#include "access/subtrans.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "table/table.h"

/* Copies the header of a fetched version: what makes, locks or changes it at one moment. */
static void
copy_header(const Job *job, HeapTupleHeaderData *copy)
{
	BufferHeapTupleTableSlot *slot = (BufferHeapTupleTableSlot *) job->row;

	Assert(TTS_IS_BUFFERTUPLE(job->row) && BufferIsValid(slot->buffer));
	LockBuffer(slot->buffer, BUFFER_LOCK_SHARE);
	memcpy(copy, slot->base.tuple->t_data, SizeofHeapTupleHeader);
	LockBuffer(slot->buffer, BUFFER_LOCK_UNLOCK);
}

/* Returns whether a header names no transaction that locks or changes the version. */
static bool
xmax_is_none(const HeapTupleHeaderData *header)
{
	return (header->t_infomask & HEAP_XMAX_INVALID) ||
		   !TransactionIdIsValid(HeapTupleHeaderGetRawXmax(header)) ||
		   HEAP_LOCKED_UPGRADED(header->t_infomask);
}

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

/* Like hold_of, for the members of a multixact; FOR KEY SHARE counts with key_share. */
static RowHold
hold_of_multi(MultiXactId multi, bool only_locks, bool key_share, TransactionId *holder)
{
	MultiXactMember *members;
	int count = GetMultiXactIdMembers(multi, &members, false, only_locks);
	RowHold result = ROW_FREE;

	for (int i = 0; i < count && result != ROW_CHANGED; i++)
	{
		RowHold hold;

		if (!key_share && members[i].status == MultiXactStatusForKeyShare)
			continue;
		hold = hold_of(members[i].xid, !ISUPDATE_from_mxstatus(members[i].status));
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
 * Returns what others do with a version; with ROW_HELD *holder is one of them.  key_share:
 * whether a lock counts that lets the row be updated, but not deleted.
 */
static RowHold
hold_by_header(const HeapTupleHeaderData *header, bool key_share, TransactionId *holder)
{
	bool only_locks = HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask);

	*holder = HeapTupleHeaderGetRawXmax(header);
	if (xmax_is_none(header))
		return ROW_FREE;
	if (header->t_infomask & HEAP_XMAX_IS_MULTI)
		return hold_of_multi(HeapTupleHeaderGetRawXmax(header), only_locks, key_share, holder);
	if (!key_share && only_locks && HEAP_XMAX_IS_KEYSHR_LOCKED(header->t_infomask))
		return ROW_FREE;
	return hold_of(HeapTupleHeaderGetRawXmax(header), only_locks);
}

/*
 * Returns what others do with a fetched version that keeps it from being updated; with
 * ROW_HELD *holder is one of their transactions, a subtransaction perhaps.
 */
RowHold
idemq_jobs_hold(const Job *job, TransactionId *holder)
{
	HeapTupleHeaderData header;

	copy_header(job, &header);
	return hold_by_header(&header, false, holder);
}

/*
 * Returns whether no other transaction keeps a fetched version from being updated, so that
 * an update will not wait.  One may come between; then it waits, briefly.
 */
bool
idemq_jobs_is_free(const Job *job)
{
	TransactionId holder;

	return idemq_jobs_hold(job, &holder) != ROW_HELD;
}

/*
 * Returns whether no other transaction holds a fetched version, not even against deletion
 * alone (FOR KEY SHARE), as one does that writes a step of the job, or enqueues a child of it.
 */
bool
idemq_jobs_lets_delete(const Job *job)
{
	HeapTupleHeaderData header;
	TransactionId holder;

	copy_header(job, &header);
	return hold_by_header(&header, true, &holder) != ROW_HELD;
}

/*
 * Returns whether a write to a version fetched by its index entry would answer JOB_CHANGED:
 * a newer one is committed, or the transaction's own snapshot does not see this one.  Of a
 * multixact it answers no, and the write will tell.
 */
bool
idemq_jobs_is_outdated(JobsTable *table, const Job *job)
{
	const HeapTupleHeaderData *header = &job->header;

	Assert(ItemPointerIsValid(&job->root_tid));
	if (table->crosscheck != InvalidSnapshot &&
		!table_tuple_satisfies_snapshot(table->rel, job->row, table->crosscheck))
		return true;
	if (xmax_is_none(header) || HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask) ||
		(header->t_infomask & HEAP_XMAX_IS_MULTI))
		return false;
	return hold_of(HeapTupleHeaderGetRawXmax(header), false) == ROW_CHANGED;
}

/* Returns whether this transaction itself has written a fetched version. */
bool
idemq_jobs_is_own(const Job *job)
{
	HeapTupleHeaderData header;

	copy_header(job, &header);
	return TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(&header));
}

/*
 * Returns whether this transaction itself has written a fetched version, or has locked it so that no
 * other may update it.
 */
bool
idemq_jobs_is_held_here(const Job *job)
{
	HeapTupleHeaderData header;
	MultiXactMember *members;
	int count;
	bool held = false;

	copy_header(job, &header);
	if (TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(&header)))
		return true;
	if (xmax_is_none(&header))
		return false;
	if (!(header.t_infomask & HEAP_XMAX_IS_MULTI))
		return !HEAP_XMAX_IS_KEYSHR_LOCKED(header.t_infomask) &&
			   TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetRawXmax(&header));
	count = GetMultiXactIdMembers(HeapTupleHeaderGetRawXmax(&header), &members, false,
								  HEAP_XMAX_IS_LOCKED_ONLY(header.t_infomask));
	for (int i = 0; i < count && !held; i++)
		held = members[i].status != MultiXactStatusForKeyShare &&
			   TransactionIdIsCurrentTransactionId(members[i].xid);
	if (count > 0)
		pfree(members);
	return held;
}

/*
 * Fetches a job as other transactions see it: by the latest snapshot, but without the changes of this
 * transaction.  Returns false for a job that this transaction itself has enqueued.
 */
bool
idemq_jobs_fetch_before(JobsTable *table, int64 id, Job *job)
{
	Relation pkey = index_open(idemq_jobs_primary_key(table->rel), AccessShareLock);
	SnapshotData before = *table->snapshot;
	IndexScanDesc scan;
	ScanKeyData key;
	bool found;

	before.curcid = FirstCommandId;
	scan = compat_index_beginscan(table->rel, pkey, &before, 1);
	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(id));
	index_rescan(scan, &key, 1, NULL, 0);
	found = index_getnext_slot(scan, ForwardScanDirection, table->row);
	if (found)
		idemq_jobs_decode(table->row, job);
	index_endscan(scan);
	idemq_jobs_index_close(table, pkey);
	return found;
}

/* Returns whether this transaction itself has deleted a fetched version. */
static bool
is_deleted_here(const Job *job)
{
	HeapTupleHeaderData header;

	copy_header(job, &header);
	return !xmax_is_none(&header) && !HEAP_XMAX_IS_LOCKED_ONLY(header.t_infomask) &&
		   ItemPointerEquals(&header.t_ctid, &job->row->tts_tid) &&
		   TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetUpdateXid(&header));
}

/* Fetches the version of a job that this transaction itself has deleted; false if it has not. */
bool
idemq_jobs_fetch_deleted(JobsTable *table, int64 id, Job *job)
{
	Relation pkey = index_open(idemq_jobs_primary_key(table->rel), AccessShareLock);
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
	idemq_jobs_index_close(table, pkey);
	return found;
}

/* Returns whether this transaction is a member that locks a row against being updated. */
static bool
is_member(MultiXactId multi)
{
	MultiXactMember *members;
	int count = GetMultiXactIdMembers(multi, &members, false, true);
	bool found = false;

	for (int i = 0; i < count; i++)
		found |= members[i].status != MultiXactStatusForKeyShare &&
				 TransactionIdIsCurrentTransactionId(members[i].xid);
	if (count > 0)
		pfree(members);
	return found;
}

/* Returns whether this transaction itself locks a fetched version against being updated. */
bool
idemq_jobs_is_mine(const Job *job)
{
	HeapTupleHeaderData header;

	copy_header(job, &header);
	if (xmax_is_none(&header) || !HEAP_XMAX_IS_LOCKED_ONLY(header.t_infomask))
		return false;
	if (header.t_infomask & HEAP_XMAX_IS_MULTI)
		return is_member(HeapTupleHeaderGetRawXmax(&header));
	return !HEAP_XMAX_IS_KEYSHR_LOCKED(header.t_infomask) &&
		   TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetRawXmax(&header));
}

/* Returns the process of a transaction in progress, 0 when it is prepared or has ended. */
int
idemq_transaction_pid(TransactionId xid)
{
	if (!TransactionIdIsInProgress(xid))
		return 0;
	return BackendXidGetPid(SubTransGetTopmostTransaction(xid));
}
