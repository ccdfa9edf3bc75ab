/*
 * observe/check_ready.c
 *		The audit of the scan starts and read-ahead buffers: nothing below a scan start is
 *		claimable, nor is any entry that a read-ahead buffer lacks within its range.
 *
 * For each queue and priority, in this order: sequence, scan start and read-ahead buffer (r), a
 * snapshot (s), a scan of the ready index up to that scan start, or the end of the read-ahead
 * buffer.  A suspect is a row there, below the scan start or missing in the read-ahead buffer,
 * whose version in the snapshot is claimable, and which after s has no lease entry, no transaction
 * that holds it, and no newer version committed.  Then idemq_check_settled; then the scan start's
 * history (h).  If the scan start was lowered to the key of a suspect, or below, since r, the
 * suspect is acquitted: claims meet it again.  The others are reported.
 *
 * Why that is no false alarm: the scan start was above the row from r to h, hence at
 * the moment s, at which the row's committed version was claimable.  By the
 * invariant (shared/queue_states/scan_start.c) then at s either
 *   - it had an entry, which has gone since.  A session that drops the entry of a
 *     job whose committed version is claimable lowers to its key after that, or
 *     unsets the scan starts: an aborted claim, the end of an attempt whose entry others
 *     had passed by, a search that adopted in vain; or
 *   - its writer had committed and was still to lower; or
 *   - it was being written.  Since no newer version is committed, no transaction
 *     holds the row and it is not ours, that writer has aborted, and lowers; or
 *   - it was being changed by a prepared transaction that has ended since: the
 *     scan starts are unset.
 * Each of these lowers to the row's key, or below, after r, and is past it when
 * idemq_check_settled returns: the history shows it.  For a row that a read-ahead buffer misses the
 * same holds from its invariant (shared/queue_states/read_ahead.c).
 *
 * Why what is broken is found: a row that stays claimable below the scan start with no
 * entry and no holder is a suspect, and only a lowering acquits it, which repairs
 * it.  (A merged history may acquit it once: the next call has a new r.)
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/compat.h"
#include "job/job.h"
#include "observe/observe.h"
#include "shared/leases/leases.h"
#include "shared/queue_states/queue_states.h"
#include "table/table.h"

/* What shared memory said of one priority, and what the scan of it found. */
typedef struct Suspects
{
	ScanStart view;
	ReadAhead read_ahead;
	int count;
	ReadyKey keys[CHECK_SUSPECTS];
} Suspects;

/* Returns whether claims do not meet the entry that the scan has come to. */
static bool
is_passed(CheckCall *call, const Suspects *suspects, int priority, ReadyKey key)
{
	ReadyEntry entry = {key, idemq_jobs_scan_tid(&call->table)};

	return ready_key_less(key, suspects->view.from[priority]) ||
		   (suspects->read_ahead.file == compat_file_number(call->table.rel) &&
			idemq_read_ahead_hides(&suspects->read_ahead, suspects->view.from, priority, &entry));
}

/* Collects the suspects of one priority, up to their maximum. */
static void
collect(CheckCall *call, int32 queue_id, int priority, Suspects *suspects)
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
		if (!is_passed(call, suspects, priority, key))
			continue;
		/* The row, then the entry: a job that is claimed in between has one, or had. */
		if (idemq_lease_hold(key.id) == LEASE_HOLDS_NOT &&
			idemq_jobs_scan_row(&call->table, &job) &&
			idemq_transition_allowed(EVENT_CLAIM, job.status) && !idemq_jobs_is_own(&job) &&
			idemq_jobs_hold(&job, &holder) == ROW_FREE &&
			idemq_lease_hold(key.id) == LEASE_HOLDS_NOT)
			suspects->keys[suspects->count++] = key;
	}
	idemq_jobs_scan_end(&call->table);
}

/* Reports the suspects that no lowering acquits. */
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

/* Checks the scan starts of all queues that have a state; see the file's header. */
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

			/* A view and a snapshot for each: a short history reaches far enough back. */
			idemq_scan_start_read_whole(idemq_qstate_find(MyDatabaseId, queue_id), queue_id,
										&suspects->view, &suspects->read_ahead);
			if (view->qstate == NULL || !ready_key_less(READY_KEY_MIN, view->from[p]))
				continue;
			idemq_jobs_refresh(&call->table);
			suspects->count = 0;
			collect(call, queue_id, p, suspects);
			check_ready_judge(call, queue_id, p, suspects);
		}
	}
	pfree(suspects);
}
