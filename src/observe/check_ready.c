/*
 * observe/check_ready.c
 *		Audits scan starts and read-ahead buffers: no job below a scan start can be claimed, nor
 *		can a job in the range of a read-ahead buffer that the buffer does not contain.
 *
 * For each queue and priority, these steps run in this order:
 *
 *		r	read the scan start, its sequence number, and the read-ahead buffer
 *		s	take a snapshot
 *			scan the ready index up to the scan start or the end of the buffer, whichever is greater
 *			wait (idemq_check_settled)
 *		h	read the history of the scan start
 *
 * A suspect is a row below the scan start, or in the range of the buffer and not in it, whose
 * version in the snapshot is claimable, and which after s has no lease entry, no newer committed
 * version, and no transaction that holds it.  If the scan start was lowered to the suspect's key,
 * or further, after r, then claims will find the job.  All other suspects are reported.
 *
 * No false alarm: suppose that the scan start was above the row from r to h.  Then it was above
 * the row at s, when the row's committed version was claimable.  By the invariant of scan starts
 * (shared/queue_states/scan_start.c), one of these was true at s:
 *	- The job had a lease entry, which is gone.  A session that drops the entry of a job whose
 *	  committed version is claimable then lowers the scan start to the job's key, or unsets it.
 *	  (These are an aborted claim, the end of an attempt whose entry other sessions have skipped,
 *	  and an adoption that was undone.)
 *	- The writer of the row had committed, but not lowered the scan start yet.
 *	- A transaction was changing the row.  There is no newer committed version, no transaction holds
 *	  the row, and the row is not ours, so that transaction has aborted, and lowers the scan start.
 *	- A prepared transaction that has ended since was changing the row.  Its end unsets the scan
 *	  starts.
 * In each case, the scan start is lowered to the row's key, or further, after r, and this has
 * happened when idemq_check_settled returns, so the history shows it.  For read-ahead buffers, the
 * same follows from their invariant (shared/queue_states/read_ahead.c).
 *
 * No violation is missed: a row that stays claimable below the scan start, without a lease entry
 * and without a transaction that holds it, is a suspect.  Only a lowering clears it, which also
 * repairs the violation.  (A history that was compacted may clear it once, but the next call has a
 * later r.)
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/compat.h"
#include "job/job.h"
#include "observe/observe.h"
#include "shared/leases/leases.h"
#include "shared/queue_states/queue_states.h"
#include "table/table.h"

/* One priority of a queue: its scan start and read-ahead buffer at r, and the suspects. */
typedef struct Suspects
{
	ScanStart view;
	ReadAhead read_ahead;
	int count;
	ReadyKey keys[CHECK_SUSPECTS];
} Suspects;

/* Returns whether claims would not find the job at which the scan is. */
static bool
is_hidden(CheckCall *call, const Suspects *suspects, int priority, ReadyKey key)
{
	ReadyEntry entry = {key, idemq_jobs_scan_tid(&call->table)};

	return ready_key_less(key, suspects->view.from[priority]) ||
		   (suspects->read_ahead.file == compat_file_number(call->table.rel) &&
			idemq_read_ahead_hides(&suspects->read_ahead, suspects->view.from, priority, &entry));
}

/* Collects the suspects of one priority, at most CHECK_SUSPECTS. */
static void
collect_suspects(CheckCall *call, int32 queue_id, int priority, Suspects *suspects)
{
	ReadyKey end = suspects->view.from[priority];
	ReadyKey read_ahead_end = idemq_read_ahead_end(&suspects->read_ahead);
	ReadyKey until = READY_KEY_MAX;
	TransactionId holder;
	ReadyKey key;
	Job job;

	if (suspects->read_ahead.priority == priority && ready_key_less(end, read_ahead_end))
		end = read_ahead_end;
	if (end.ready_at < PG_INT64_MAX)
		until = idemq_jobs_scan_limit(READY_KEY_MIN, end);
	idemq_jobs_scan_begin(&call->table, queue_id, priority, READY_KEY_MIN, until);
	while (suspects->count < CHECK_SUSPECTS && idemq_jobs_scan_next(&call->table, &key))
	{
		CHECK_FOR_INTERRUPTS();
		if (!ready_key_less(key, end))
			break;
		if (!is_hidden(call, suspects, priority, key))
			continue;
		/* The entry is read again after the row, because the job may be claimed in between. */
		if (idemq_lease_hold(key.id) == LEASE_HOLDS_NOT &&
			idemq_jobs_scan_row(&call->table, &job) &&
			idemq_transition_allowed(EVENT_CLAIM, job.status) && !idemq_jobs_is_own(&job) &&
			idemq_jobs_hold(&job, &holder) == ROW_FREE &&
			idemq_lease_hold(key.id) == LEASE_HOLDS_NOT)
			suspects->keys[suspects->count++] = key;
	}
	idemq_jobs_scan_end(&call->table);
}

/* Reports the suspects to whose keys the scan start has not been lowered since r. */
static void
check_ready_judge(CheckCall *call, int32 queue_id, int priority, const Suspects *suspects)
{
	IdList jobs = {0};
	char *what;

	if (suspects->count == 0)
		return;
	what = psprintf(
		"ready, but the scan start of queue %d, priority %d has passed it, or it is missing from "
		"the read-ahead buffer; a claim that finds no job scans from the beginning and repairs "
		"this",
		queue_id, priority);
	if (!idemq_check_settled(call))
	{
		idemq_check_report(
			call, CHECK_WARNING, "scan_start.unsettled",
			"%d jobs of queue %d, priority %d cannot be checked, because a session has not "
			"finished ending its transaction; look for a stopped session",
			suspects->count, queue_id, priority);
		return;
	}
	for (int i = 0; i < suspects->count; i++)
	{
		if (!idemq_scan_start_lowered_since(&suspects->view, queue_id, priority, suspects->keys[i]))
			idemq_id_list_add(&jobs, suspects->keys[i].id);
	}
	idemq_check_report_jobs(call, CHECK_ERROR, "scan_start.claimable", &jobs, what);
}

/* Checks the scan starts of all queues that have a state; see the top of the file. */
void
idemq_check_ready(CheckCall *call)
{
	Suspects *suspects = palloc(sizeof(Suspects));

	for (int q = 0; q < call->nqueues; q++)
	{
		int32 queue_id = call->queue_ids[q];

		for (int p = 0; p < IDEMQ_PRIORITIES; p++)
		{
			const ScanStart *view = &suspects->view;

			/* Read anew for each priority, so that the short history reaches back to r. */
			idemq_scan_start_read_whole(idemq_qstate_find(MyDatabaseId, queue_id), queue_id,
										&suspects->view, &suspects->read_ahead);
			if (view->qstate == NULL || !ready_key_less(READY_KEY_MIN, view->from[p]))
				continue;
			idemq_jobs_refresh(&call->table);
			suspects->count = 0;
			collect_suspects(call, queue_id, p, suspects);
			check_ready_judge(call, queue_id, p, suspects);
		}
	}
	pfree(suspects);
}
