/*
 * table/jobs_hold.c
 *		Which transactions hold a fetched version of a job's row.
 *
 * Reads the version's header and the state of transactions; never waits, and takes
 * no lock.  What it finds may be over by the time it returns.
 */
#include "postgres.h"

#include "access/multixact.h"
#include "access/subtrans.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "storage/procarray.h"

#include "table/jobs.h"
#include "table/jobs_hold.h"

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
 * Returns whether a claim could write a fetched version: no transaction holds it, or
 * for a foreign key only, which does not hinder a claim.
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

/*
 * Returns whether no other transaction locks or changes a fetched version, so that a
 * write will not wait.  One may come between; then the write waits, briefly.
 */
bool
idemq_jobs_is_free(const Job *job)
{
	HeapTupleHeader header = job_row_header(job);
	TransactionId xmax = HeapTupleHeaderGetRawXmax(header);

	if ((header->t_infomask & HEAP_XMAX_INVALID) || !TransactionIdIsValid(xmax))
		return true;
	/* It stays in the row when all of them are gone. */
	if (header->t_infomask & HEAP_XMAX_IS_MULTI)
		return idemq_jobs_hold(job, &xmax) != ROW_HELD;
	return TransactionIdIsCurrentTransactionId(xmax) || !TransactionIdIsInProgress(xmax);
}

/*
 * Returns whether a write to a fetched version would answer JOB_CHANGED: a newer
 * version is committed, or the transaction's own snapshot does not see this one.
 */
bool
idemq_jobs_is_outdated(JobsTable *table, const Job *job)
{
	HeapTupleHeader header = job_row_header(job);
	TransactionId xmax = HeapTupleHeaderGetRawXmax(header);

	if (table->crosscheck != InvalidSnapshot &&
		!table_tuple_satisfies_snapshot(table->rel, job->row, table->crosscheck))
		return true;
	if ((header->t_infomask & (HEAP_XMAX_INVALID | HEAP_XMAX_IS_MULTI)) ||
		HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask) || !TransactionIdIsNormal(xmax))
		return false;
	return !TransactionIdIsCurrentTransactionId(xmax) && !TransactionIdIsInProgress(xmax) &&
		   TransactionIdDidCommit(xmax);
}

/* Returns whether this transaction itself has written a fetched version. */
bool
idemq_jobs_is_own(const Job *job)
{
	return TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(job_row_header(job)));
}

/* Returns whether this transaction is among the lockers of a row. */
static bool
is_member(MultiXactId multi, bool only_lockers)
{
	MultiXactMember *members;
	int count = GetMultiXactIdMembers(multi, &members, false, only_lockers);
	bool found = false;

	for (int i = 0; i < count; i++)
		found |= TransactionIdIsCurrentTransactionId(members[i].xid);
	return found;
}

/* Returns whether this transaction itself holds a lock on a fetched version. */
bool
idemq_jobs_is_mine(const Job *job)
{
	HeapTupleHeader header = job_row_header(job);

	if ((header->t_infomask & HEAP_XMAX_INVALID) || !HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask))
		return false;
	if (header->t_infomask & HEAP_XMAX_IS_MULTI)
		return is_member(HeapTupleHeaderGetRawXmax(header), true);
	return TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetRawXmax(header));
}

/* Returns the process of a transaction in progress, 0 when it is prepared or has ended. */
int
idemq_transaction_pid(TransactionId xid)
{
	if (!TransactionIdIsInProgress(xid))
		return 0;
	return BackendXidGetPid(SubTransGetTopmostTransaction(xid));
}
