/*
 * observe/check_leases.c
 *		Audits the lease table against the rows, the sessions and the queue states.
 *
 *	- Each ACTIVE entry has the row of a running job.  The table is copied, and then a snapshot is
 *	  taken.  A claim commits before its entry becomes ACTIVE, so the snapshot sees the claims of
 *	  all ACTIVE entries.  If a row does not show the attempt, a transaction has changed the row
 *	  since, and had marked the entry before it committed.  So if the entry is still ACTIVE and
 *	  unmarked afterwards, it is an error.  The exception is an adopted entry, which may lack its
 *	  row until its adopter has read the row again.  If such an entry stays, the adopter was
 *	  interrupted, which is only a warning.
 *	- The row of each running job has an entry, from before the claim is visible until after the
 *	  end of the attempt is visible.  The entry may be CLAIMING, if a transaction has ended the
 *	  attempt and claimed the job again; an abort restores the entry.  A row without an entry is a
 *	  suspect.  It is an error if, after idemq_check_settled, the queue has no recovery pending, a
 *	  later snapshot still shows the attempt, no transaction holds the row, there still is no
 *	  entry, and then there still is no recovery pending.  (A session that drops the entry of a
 *	  running job first requests recovery.)
 *	- Each CLAIMING entry, and each mark, has a transaction.  It is removed a moment after the end
 *	  of that transaction is visible; idemq_check_settled waits for this.
 *	- Each queue's next deadline is at most the deadline of each of its ACTIVE entries.  A session
 *	  that changes one of them is counted as making a change meanwhile, so we read entry, next
 *	  deadline and entry again while no session is making a change.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"

#include "base/base.h"
#include "base/compat.h"
#include "observe/observe.h"
#include "shared/leases/leases.h"
#include "shared/queue_states/queue_states.h"
#include "table/table.h"

/* How long after the next deadline a reaper may still be at work. */
#define DEADLINE_SLACK USECS_PER_SEC
/* Number of rows of running jobs that one query reads. */
#define ROWS_AT_ONCE 10000
/* How often is_overlooked tries to read while no session is making a change. */
#define MAX_READS 10000

/* A running job, as its row shows it. */
typedef struct Attempted
{
	int64 job_id;
	int64 token;
	int32 queue_id;
} Attempted;

static SqlStatement find_running =
	{.text = "SELECT id, token, queue_id FROM idemq.jobs WHERE status = 'running' AND id > $1 "
			 "ORDER BY id LIMIT $2",
	 .types = {INT8OID, INT8OID},
	 .fields = (const SqlField[]){SQL_FIELD(Attempted, job_id), SQL_FIELD(Attempted, token),
								  SQL_FIELD(Attempted, queue_id)}};

static bool
is_active(const Lease *lease)
{
	return !lease->claiming && lease->ending.finisher == NO_SESSION;
}

/* Reads an entry again, into *now; returns whether it still has the token of the copy. */
static bool
read_again(const Lease *copy, Lease *now)
{
	return idemq_lease_get(copy->key.job_id, now) && now->token == copy->token;
}

/* Fetches a job; returns whether the table's snapshot shows that attempt running. */
static bool
shows_attempt(CheckCall *call, int64 job_id, int64 token, int32 queue_id, Job *job)
{
	return idemq_jobs_fetch(&call->table, job_id, job) && job->status == JOB_RUNNING &&
		   job->token == token && job->queue_id == queue_id;
}

/*
 * Waits for an adopted entry to be removed; returns whether it is still there when patience ends.
 */
static bool
entry_stays(CheckCall *call, const Lease *suspect)
{
	Lease now;

	while (read_again(suspect, &now) && is_active(&now))
	{
		if (idemq_stopwatch() > call->patience_ends)
			return true;
		CHECK_FOR_INTERRUPTS();
		pg_usleep(10000);
	}
	return false;
}

/* Checks that the ACTIVE ones of count copied entries have rows. */
static void
check_entries(CheckCall *call, const Lease *leases, int count)
{
	IdList strays = {0};
	IdList adopted = {0};
	Lease now;
	Job job;

	idemq_jobs_refresh(&call->table);
	for (int i = 0; i < count; i++)
	{
		const Lease *lease = &leases[i];

		CHECK_FOR_INTERRUPTS();
		if (!is_active(lease) ||
			shows_attempt(call, lease->key.job_id, lease->token, lease->queue_id, &job) ||
			!read_again(lease, &now) || !is_active(&now))
			continue;
		if (now.session != NO_SESSION)
			idemq_id_list_add(&strays, lease->key.job_id);
		else if (entry_stays(call, lease))
			idemq_id_list_add(&adopted, lease->key.job_id);
	}
	idemq_check_report_jobs(
		call, CHECK_ERROR, "leases.row", &strays,
		"has a lease entry, but the job is not running with the token in that entry; idemq.reap() "
		"removes the entry after its deadline");
	idemq_check_report_jobs(
		call, CHECK_WARNING, "leases.adopted", &adopted,
		"has a lease entry left by an interrupted search; idemq.reap() removes it after its "
		"deadline");
}

/* Returns whether a queue may have running jobs without an entry. */
static bool
is_recovering(int32 queue_id)
{
	QueueStateSummary status;

	return idemq_lease_share_is_full(false) || !idemq_qstate_summary(queue_id, &status) ||
		   status.needs_recovery;
}

/* Returns whether a running job has an entry with its token, or one that is being claimed. */
static bool
check_leases_has_entry(const Attempted *attempted)
{
	Lease lease;

	return idemq_lease_get(attempted->job_id, &lease) &&
		   (lease.token == attempted->token || lease.claiming);
}

/* Returns whether a suspect is a running job that recovery will never find. */
static bool
is_forgotten(CheckCall *call, const Attempted *suspect)
{
	TransactionId holder;
	Job job;

	if (is_recovering(suspect->queue_id))
		return false;
	idemq_jobs_refresh(&call->table);
	return shows_attempt(call, suspect->job_id, suspect->token, suspect->queue_id, &job) &&
		   !idemq_jobs_is_own(&job) && idemq_jobs_hold(&job, &holder) == ROW_FREE &&
		   !check_leases_has_entry(suspect) && !is_recovering(suspect->queue_id);
}

/* Checks that the rows of running jobs have entries with their tokens. */
static void
check_attempts(CheckCall *call)
{
	IdList jobs = {0};
	IdList others = {0};
	Lease lease;
	int64 last = PG_INT64_MIN;
	int rows;

	do
	{
		Datum args[] = {Int64GetDatum(last), Int64GetDatum(ROWS_AT_ONCE)};
		Attempted *suspects = idemq_spi_rows(&find_running, args, sizeof(Attempted), &rows);
		int count = 0;

		for (int i = 0; i < rows; i++)
		{
			last = suspects[i].job_id;
			if (!check_leases_has_entry(&suspects[i]))
				suspects[count++] = suspects[i];
		}
		if (count > 0 && !idemq_check_settled(call))
		{
			idemq_check_report(
				call, CHECK_WARNING, "leases.unsettled",
				"%d running jobs cannot be checked, because a session has not finished ending its "
				"transaction; look for a stopped session",
				count);
			break;
		}
		for (int i = 0; i < count; i++)
		{
			if (is_forgotten(call, &suspects[i]))
				idemq_id_list_add(idemq_lease_get(suspects[i].job_id, &lease) ? &others : &jobs,
								  suspects[i].job_id);
		}
		pfree(suspects);
	} while (rows == ROWS_AT_ONCE);
	idemq_check_report_jobs(call, CHECK_ERROR, "leases.entry", &jobs,
							"running without a lease entry, and no search is pending; "
							"idemq.claim_job(id) finds it");
	idemq_check_report_jobs(
		call, CHECK_ERROR, "leases.token", &others,
		"running with a token that differs from the one in its lease entry; the entry prevents the "
		"job from being reclaimed until idemq.reap() removes it after its deadline");
}

/* Returns whether an entry is CLAIMING or marked, and its session has no transaction. */
static bool
session_is_idle(const Lease *lease)
{
	int32 session = lease->claiming ? lease->session : lease->ending.finisher;

	if (is_active(lease))
		return false;
	if (session == NO_SESSION || idemq_session_pid(session) == 0)
		return true;
	if (lease->claiming && idemq_lease_pid(lease) == 0)
		return true;
	return !compat_proc_in_transaction(GetPGProcByNumber(session));
}

/*
 * Returns whether an open claim, or a mark, has outlived its transaction.  A later claim would have
 * another token.  A later transaction of the same session may have put the same mark between two
 * checks, but hardly between all of them.
 */
static bool
is_outlived(CheckCall *call, const Lease *copy)
{
	Lease now = *copy;

	for (int i = 0; i < 5; i++)
	{
		if (!session_is_idle(&now) || !idemq_check_settled(call) || !read_again(copy, &now) ||
			now.claiming != copy->claiming || now.ending.finisher != copy->ending.finisher)
			return false;
	}
	return true;
}

/*
 * Returns the latest permitted next deadline (mono) for a lease.  If the lease could not be reaped
 * at its deadline, the next deadline is a moment from now.
 */
static int64
visit_due(const Lease *lease)
{
	return Max(lease->deadline, idemq_mono_now()) + DEADLINE_SLACK;
}

/* Returns whether a queue's next deadline is after that of a lease; see the top of the file. */
static bool
is_overlooked(CheckCall *call, const Lease *copy)
{
	QueueStateSummary status;
	Lease lease;

	if (!is_active(copy) || !idemq_qstate_summary(copy->queue_id, &status) ||
		status.next_deadline <= visit_due(copy) || !idemq_check_settled(call))
		return false;
	for (int i = 0; i < MAX_READS; i++)
	{
		uint64 changes = idemq_qstates_changes();

		CHECK_FOR_INTERRUPTS();
		if (!read_again(copy, &lease) || !is_active(&lease) ||
			!idemq_qstate_summary(lease.queue_id, &status) ||
			status.next_deadline <= visit_due(&lease))
			return false;
		if ((uint32) changes == 0 && read_again(copy, &lease) && is_active(&lease) &&
			idemq_qstates_changes() == changes)
			return true;
		pg_usleep(100);
	}
	return false;
}

/* Checks the lease table; see the top of the file. */
void
idemq_check_leases(CheckCall *call)
{
	int count;
	Lease *leases = idemq_lease_copy_all(&count);
	IdList outlived = {0};
	IdList overlooked = {0};

	check_entries(call, leases, count);
	for (int i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (is_outlived(call, &leases[i]))
			idemq_id_list_add(&outlived, leases[i].key.job_id);
		if (is_overlooked(call, &leases[i]))
			idemq_id_list_add(&overlooked, leases[i].key.job_id);
	}
	idemq_check_report_jobs(call, CHECK_ERROR, "leases.session", &outlived,
							"being claimed or ended by a session that has no open transaction; "
							"restart the server");
	idemq_check_report_jobs(
		call, CHECK_ERROR, "leases.deadline", &overlooked,
		"its lease expires before the next search for expired leases in its queue; idemq.reap() "
		"searches now");
	check_attempts(call);
	pfree(leases);
}
