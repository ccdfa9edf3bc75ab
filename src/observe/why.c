/*
 * observe/why.c
 *		SQL function why: one sentence that says what a job is waiting for, and what the reader can
 *		do.
 *
 * It reads the row first, and then shared memory and the holder of the row, so the answer may be
 * out of date by the time it is read.  It waits for no lock, and shows no payload, key or error.
 * The wording of reasons found in other tables (steps, event, parents) comes from SQL
 * (idemq_internal.why_rows).
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "base/compat.h"
#include "job/job.h"
#include "observe/observe.h"
#include "queue/queue.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "table/table.h"

/* To count the jobs before this one, we stop at this many jobs or index entries. */
#define MAX_BEFORE 1000
#define MAX_ENTRIES 20000
/* Tolerance when ready_at is compared with the end of a hold or of a used-up rate: us. */
#define CLOSE 1000

/* What the job's steps, event, parents and queue say about it (idemq_internal.why_rows). */
typedef struct WhyRows
{
	Datum steps;  /* text: its steps that have begun and not finished; 0: none */
	Datum event;  /* text: the event that it waits for; 0: none */
	Datum parent; /* text: the parent that it waits for, if it is blocked without a group */
	Datum dead;	  /* text: that its queue is a dead-letter queue; 0: it is not */
} WhyRows;

typedef struct WhyCall
{
	JobsTable table;
	Job job;
	QueueInfo queue;
	TimestampTz now;
	WhyRows rows;
	StringInfoData answer;
} WhyCall;

#define say(call, ...) appendStringInfo(&(call)->answer, __VA_ARGS__)

static SqlStatement read_rows =
	{.text = "SELECT steps, event, parent, dead FROM idemq_internal.why_rows($1, $2)",
	 .types = {INT8OID, TIMESTAMPTZOID},
	 .few = true,
	 .fields = (const SqlField[]){SQL_FIELD(WhyRows, steps), SQL_FIELD(WhyRows, event),
								  SQL_FIELD(WhyRows, parent), SQL_FIELD(WhyRows, dead)}};

/* Appends a text from WhyRows; 0: nothing. */
static void
say_text(WhyCall *call, Datum words)
{
	if (words != (Datum) 0)
		appendStringInfoString(&call->answer, TextDatumGetCString(words));
}

/* Returns a time as text.  It is copied, because timestamptz_to_str has only one buffer. */
static const char *
time_text(TimestampTz time)
{
	return pstrdup(timestamptz_to_str(time));
}

/* Says when and how a job finished, and how to run it again. */
static void
say_finished(WhyCall *call)
{
	const Job *job = &call->job;
	TimestampTz finished = job->row->tts_isnull[COL_FINISHED_AT]
							   ? DT_NOEND
							   : DatumGetTimestampTz(job->row->tts_values[COL_FINISHED_AT]);

	if (job->status == JOB_COMPLETED && job->attempt == 0)
		say(call, "completed at %s without having been claimed: nothing is left to do",
			time_text(finished));
	else if (job->status == JOB_COMPLETED)
		say(call, "completed at %s by attempt %d: nothing is left to do", time_text(finished),
			job->attempt);
	else if (job->status == JOB_DEAD)
		say(call, "dead since %s, after attempt %d of %d: see idemq.attempts where job_id = %lld",
			time_text(finished), job->attempt, job->max_attempts, (long long) job->id);
	else if (job_has_expired(job, finished))
		say(call, "cancelled because no worker claimed it before it expired at %s",
			time_text(job->expires_at));
	else
		say(call, "cancelled at %s", time_text(finished));
	if (job->status != JOB_COMPLETED)
		say(call, "; call idemq.retry(%lld) to make it ready again", (long long) job->id);
}

/*
 * Returns how many ready jobs a claim would find before this one; *all: this is the exact number.
 * Like a claim, it reads the scan starts before it takes a snapshot.
 */
static int
count_before(WhyCall *call, bool *all)
{
	ReadyKey mine = job_ready_key(&call->job);
	int priority = Min(call->job.priority, IDEMQ_PRIORITIES - 1);
	int before = 0;
	int entries = 0;
	ScanStart view;

	idemq_scan_start_read(call->queue.qstate, call->queue.id, 0, &view);
	idemq_jobs_refresh(&call->table);
	*all = true;
	for (int p = 0; p <= priority && *all; p++)
	{
		ReadyKey key;
		Job job;

		idemq_jobs_scan_begin(&call->table, call->queue.id, p, view.from[p], READY_KEY_MAX);
		while (*all && idemq_jobs_scan_next(&call->table, &key) && key.ready_at <= call->now &&
			   (p < call->job.priority || ready_key_less(key, mine)))
		{
			CHECK_FOR_INTERRUPTS();
			if (idemq_lease_hold(key.id) == LEASE_HOLDS_NOT &&
				idemq_jobs_scan_row(&call->table, &job) &&
				idemq_transition_allowed(EVENT_CLAIM, job.status))
				before++;
			*all = before < MAX_BEFORE && ++entries < MAX_ENTRIES;
		}
		idemq_jobs_scan_end(&call->table);
	}
	return before;
}

/*
 * Says what the queue's handler will do with a ready job; returns false if the queue has no
 * handler.
 */
static bool
say_handler(WhyCall *call)
{
	const QueueInfo *queue = &call->queue;
	QueueStateKey key = {MyDatabaseId, queue->id};
	HandlerInfo handler;
	HandlerTarget target;
	HandlerStatus status;
	const char *why;
	int processes;
	int busy; /* not shown */

	if (!idemq_handler_read(queue->id, &handler))
		return false;
	idemq_handler_state(key, &status, &processes, &busy);
	say(call, "; the handler of queue \"%s\" ", queue->name);
	if (handler.stopped)
		say(call, "is %s", idemq_handler_stopped_text(&handler));
	else if ((why = idemq_handler_resolve(&handler, &target)) != NULL)
		say(call, "is not running: %s", why);
	else if (!idemq_worker)
		say(call, "is not running: idemq.worker is off");
	else if (processes > 0)
		say(call, "will claim it: %d of its %d processes are running", processes, handler.workers);
	else if (status.failures > 0)
		say(call, "is not running: see last_error in idemq.handlers");
	else if (status.waits)
		say(call, "is waiting for a free process: raise idemq.max_handler_workers or "
				  "max_worker_processes");
	else
		say(call, "is being started");
	return true;
}

/*
 * Says how many jobs are before a ready job, and whether the queue has a handler or a worker that
 * will claim it.  (A standby does not know.)
 */
static void
say_ready(WhyCall *call)
{
	const char *queue = call->queue.name;
	bool all;
	int before = count_before(call, &all);
	int in_flight = RecoveryInProgress() ? 0 : idemq_running_count(call->queue.qstate);
	TimestampTz unattended = idemq_unattended_since(&call->queue,
													idemq_ready_oldest(&call->queue, call->now),
													call->now);

	say(call, "ready since %s", time_text(call->job.ready_at));
	if (before == 0 && all)
		say(call, " and first in line");
	else
		say(call, ", behind %d%s ready job%s", before, all ? "" : " or more",
			before == 1 && all ? "" : "s");
	if (RecoveryInProgress() || say_handler(call))
		return;
	if (call->rows.dead != (Datum) 0)
		say(call, "; %s", TextDatumGetCString(call->rows.dead));
	else if (in_flight == 0 && unattended != DT_NOEND)
		say(call,
			"; queue \"%s\" has had no worker since %s: start a worker that calls "
			"idemq.claim('%s')",
			queue, time_text(unattended), queue);
	else if (in_flight == 0)
		say(call, "; queue \"%s\" has no running jobs: start a worker that calls idemq.claim('%s')",
			queue, queue);
	else
		say(call, "; waiting for a worker to claim it: queue \"%s\" has %d running job%s", queue,
			in_flight, in_flight == 1 ? "" : "s");
}

/*
 * Says which limit of its queue keeps a ready job waiting, or that the queue has no state.
 * Returns false if neither is true.
 */
static bool
say_limit(WhyCall *call)
{
	const QueueInfo *queue = &call->queue;
	LimitView view;

	if (RecoveryInProgress())
		return false;
	if (queue->qstate == NULL)
	{
		say(call,
			"queue \"%s\" has no state in shared memory: raise idemq.max_queues and restart the "
			"server",
			queue->name);
		return true;
	}
	idemq_limit_view(queue, &view);
	switch (view.state)
	{
		case LIMIT_OPEN:
			return false;
		case LIMIT_RUNNING:
			say(call, "queue \"%s\" is at max_running: %d of %d jobs are running", queue->name,
				view.running, queue->max_running);
			break;
		case LIMIT_RATE:
			say(call,
				"the rate_limit of queue \"%s\" is used up: the next job can be claimed at %s",
				queue->name, time_text(view.until));
			break;
		case LIMIT_RECOVERING:
			say(call,
				"queue \"%s\" has max_running, and the search for its running jobs has not "
				"finished; the next claim or idemq.reap('%s') continues it",
				queue->name, queue->name);
			break;
		case LIMIT_TABLE_FULL:
			say(call,
				"queue \"%s\" has limits, but shared memory has no room to count its running jobs: "
				"raise idemq.max_leases and restart the server",
				queue->name);
			break;
	}
	return true;
}

/* Says which transaction holds the row of a waiting job; returns false if none does. */
static bool
say_held(WhyCall *call)
{
	const char *holder = "a prepared transaction (see pg_prepared_xacts)";
	TransactionId xid;
	int pid;

	if (idemq_jobs_hold(&call->job, &xid) != ROW_HELD)
		return false;
	pid = idemq_transaction_pid(xid);
	if (pid != 0)
		holder = psprintf("pid %d", pid);
	else if (RecoveryInProgress())
		holder = "a transaction on the primary";
	say(call, "its row is locked by %s: claims skip the job until that transaction ends", holder);
	return true;
}

/* Says that an open transaction has claimed the job; returns false if none has. */
static bool
say_claiming(WhyCall *call, const Lease *lease)
{
	if (!lease->claiming)
		return false;
	say(call,
		"being claimed by %s: the lease starts when that transaction commits; if that transaction "
		"rolls back, the job is ready again",
		lease->session == IDEMQ_MY_PROC_NUMBER
			? "this transaction"
			: psprintf("the open transaction of pid %d", idemq_lease_pid(lease)));
	return true;
}

/* Says that a job waits for its group's rate limit; returns false if it does not. */
static bool
say_group_rate_limit(WhyCall *call)
{
	const Job *job = &call->job;
	TimestampTz next;

	if (call->queue.group_rate_limit == 0 || job->row->tts_isnull[COL_GROUP_KEY] ||
		call->queue.qstate == NULL || RecoveryInProgress())
		return false;
	next = idemq_group_rate_limit(&call->queue, job->row->tts_values[COL_GROUP_KEY], false);
	/* A deferred job has this time as its ready_at.  If that is later, another reason keeps it. */
	if (next <= call->now || next < job->ready_at - CLOSE)
		return false;
	say(call,
		"the group_rate_limit of queue \"%s\" is used up for this group: its next job can start at "
		"%s",
		call->queue.name, time_text(next));
	return true;
}

/* Names the hold of its queue or group that keeps a job waiting; returns false if there is none. */
static bool
say_hold(WhyCall *call)
{
	const Job *job = &call->job;
	const QueueInfo *queue = &call->queue;
	bool of_queue = idemq_queue_is_held(queue);
	Datum group = of_queue || job->row->tts_isnull[COL_GROUP_KEY]
					  ? (Datum) 0
					  : job->row->tts_values[COL_GROUP_KEY];
	Hold hold;

	if (!of_queue && (!queue->has_group_holds || group == (Datum) 0))
		return false;
	/* If its ready_at is later than the end of the hold, another reason keeps it waiting. */
	if (!idemq_hold_find(queue, group, &hold) || hold.until <= call->now ||
		hold.until < job->ready_at - CLOSE)
		return false;
	say(call, of_queue ? "queue \"%s\" " : "its group in queue \"%s\" ", queue->name);
	say(call,
		"has been held back since %s, and will be until %s, as requested by the worker of job %lld: ",
		time_text(hold.began_at), time_text(hold.until), (long long) hold.job_id);
	say(call,
		of_queue ? "call idemq.resume('%s') to end the hold"
				 : "call idemq.resume('%s', group_key => ...) to end the hold",
		queue->name);
	return true;
}

/* Says that the group of a job is paused; returns false if it is not. */
static bool
say_group_paused(WhyCall *call)
{
	const Job *job = &call->job;
	TimestampTz until;

	/* Reads the table, because a standby's shared memory does not know of paused groups. */
	if (job->row->tts_isnull[COL_GROUP_KEY] ||
		!idemq_jobs_group_pause_find(&call->table, call->queue.id,
									 job->row->tts_values[COL_GROUP_KEY], &until))
		return false;
	say(call,
		"its group in queue \"%s\" is paused%s%s: call idemq.resume('%s', group_key => ...) to let "
		"its jobs start again",
		call->queue.name, until < DT_NOEND ? " until " : "",
		until < DT_NOEND ? time_text(until) : "", call->queue.name);
	return true;
}

/* Says what a pending or retrying job is waiting for. */
static void
say_waiting(WhyCall *call)
{
	const Job *job = &call->job;
	const QueueInfo *queue = &call->queue;
	Lease lease;

	if (idemq_jobs_is_own(job))
		say(call,
			"written by this transaction: other sessions cannot see the job until this transaction "
			"commits");
	else if ((idemq_lease_get(job->id, &lease) && say_claiming(call, &lease)) || say_held(call))
		return;
	else if (job_has_expired(job, call->now))
		say(call, "expired at %s before a worker claimed it: the next claim will cancel it",
			time_text(job->expires_at));
	else if (idemq_queue_is_paused(queue))
		say(call,
			"queue \"%s\" is paused%s%s: call idemq.resume('%s') to let it hand out jobs again",
			queue->name, queue->paused_until < DT_NOEND ? " until " : "",
			queue->paused_until < DT_NOEND ? time_text(queue->paused_until) : "", queue->name);
	else if (say_group_paused(call) || say_hold(call) || say_group_rate_limit(call) ||
			 (job->ready_at <= call->now && say_limit(call)))
		return;
	else if (job->ready_at <= call->now)
		say_ready(call);
	else if (call->rows.event != (Datum) 0)
		say_text(call, call->rows.event);
	else
	{
		say(call, "not due before %s", time_text(job->ready_at));
		if (job->status == JOB_RETRYING)
			say(call, ", when attempt %d of %d may start", job->attempt + 1, job->max_attempts);
		say(call, "; call idemq.retry(%lld) to make it ready now", (long long) job->id);
	}
}

/* Says which attempt is running, and which worker and session have claimed it; pid 0: unknown. */
static void
say_attempt(WhyCall *call, int pid)
{
	const Job *job = &call->job;

	say(call, "attempt %d of %d", job->attempt, job->max_attempts);
	if (!job->row->tts_isnull[COL_WORKER])
		say(call, " by worker \"%s\"", TextDatumGetCString(job->row->tts_values[COL_WORKER]));
	if (pid != 0)
		say(call, ", claimed by pid %d", pid);
}

/* Says which worker has claimed a job that it has not begun. */
static void
say_ahead(WhyCall *call)
{
	const Job *job = &call->job;

	say(call, "claimed by ");
	if (job->row->tts_isnull[COL_WORKER])
		say(call, "a worker");
	else
		say(call, "worker \"%s\"", TextDatumGetCString(job->row->tts_values[COL_WORKER]));
	say(call, ", waits for a free place");
}

/* Says until when the lease lasts, or what follows because it has expired. */
static void
say_deadline(WhyCall *call, TimestampTz deadline)
{
	if (deadline > call->now)
		say(call, ", lease expires at %s", time_text(deadline));
	else
		say(call,
			"; its lease expired at %s without a heartbeat: the next claim from queue \"%s\", or "
			"idemq.reap('%s'), will reclaim the job",
			time_text(deadline), call->queue.name, call->queue.name);
}

/* Says which session runs the job, and until when. */
static void
say_running(WhyCall *call)
{
	const Job *job = &call->job;
	Lease lease;
	int finisher;

	if (!idemq_lease_get(job->id, &lease) || lease.token != job->token)
	{
		say_attempt(call, 0);
		say(call, " (its lease is recorded only in the row)");
		if (!RecoveryInProgress())
			say_deadline(call, idemq_row_deadline(job, &call->queue));
		return;
	}
	if (say_claiming(call, &lease))
		return;
	if (lease.ahead)
		say_ahead(call);
	else
		say_attempt(call, idemq_lease_pid(&lease));
	finisher = idemq_session_pid(lease.ending.finisher);
	if (lease.ending.finisher == IDEMQ_MY_PROC_NUMBER)
		say(call, "; this transaction is ending the attempt");
	else if (finisher != 0 && lease.ending.reaping)
		say(call, "; its lease has expired, and pid %d is reclaiming the job", finisher);
	else if (finisher != 0)
		say(call, "; the open transaction of pid %d is ending the attempt", finisher);
	else
	{
		say_deadline(call, idemq_timestamp_from_mono(lease.deadline));
		if (lease.limit < PG_INT64_MAX && lease.deadline > idemq_mono_now())
			say(call, ", and job_timeout does not allow the lease to be extended beyond %s",
				time_text(idemq_timestamp_from_mono(lease.limit)));
		if (lease.cancels > 0)
			say(call, "; a transaction that is cancelling the job is waiting for the worker's "
					  "transaction, and the worker's heartbeats return cancelled");
	}
	if (lease.attached && finisher == 0)
		say(call, " (attached: the lease also ends when that session ends)");
}

/* Says when the job that this one waits behind is due, unless it is due already. */
static void
say_due(WhyCall *call, TimestampTz due)
{
	if (due > call->now)
		say(call, " and not due before %s", time_text(due));
}

/* Says that a blocked job waits behind another job of its group. */
static void
say_head(WhyCall *call, const Job *head)
{
	const TupleTableSlot *row = head->row;

	say(call, "waits in its group behind job %lld, which is %s", (long long) head->id,
		head->status == JOB_BLOCKED ? "next" : idemq_status_name(head->status));
	if (head->status == JOB_PENDING || head->status == JOB_RETRYING)
		say_due(call, head->ready_at);
	else if (head->status == JOB_BLOCKED && !row->tts_isnull[COL_RUN_AT])
		say_due(call, DatumGetTimestampTz(row->tts_values[COL_RUN_AT]));
	if (head->status != JOB_BLOCKED)
		say(call, ": see idemq.why(%lld)", (long long) head->id);
}

/* Says what a blocked job is waiting for: a parent, or other jobs of its group. */
static void
say_blocked(WhyCall *call)
{
	Job *job = &call->job;
	const QueueInfo *queue = &call->queue;
	int64 id = job->id;
	GroupPermits permits;
	Job head;
	Datum name;
	bool found;

	if (job->row->tts_isnull[COL_GROUP_KEY])
	{
		say_text(call, call->rows.parent);
		return;
	}
	if (say_group_paused(call))
		return;
	name = PointerGetDatum(PG_DETOAST_DATUM_COPY(job->row->tts_values[COL_GROUP_KEY]));
	if (idemq_group_uses_permits(queue, name))
	{
		idemq_permits_count(&call->table, queue, name, DT_NOBEGIN, DT_NOEND, &permits);
		if (permits.next != 0)
		{
			say(call, "waits %s behind job %lld, which is the next to be claimed",
				idemq_is_no_group(name) ? "among the jobs without a group" : "in its group",
				(long long) permits.next);
			/* Permits are counted in order of ready_at, so this is the ready_at of that job. */
			say_due(call, permits.last);
			say(call, ": see idemq.why(%lld)", (long long) permits.next);
			return;
		}
		if (permits.taken >= idemq_group_permits(queue, name))
		{
			say(call,
				"its group is at group_max_running of queue \"%s\": %d of its jobs are running",
				queue->name, permits.taken);
			return;
		}
		found = idemq_jobs_group_blocked(&call->table, queue->id, name, PG_INT64_MIN, &head);
	}
	else
		found = idemq_jobs_group_first(&call->table, queue->id, name, &head);
	if (!found)
		return; /* cannot happen, because it would find at least this job */
	if (head.id != id)
		say_head(call, &head);
	else if (!say_held(call))
		say(call,
			"is next in its group: the background worker or the next claim will make it pending");
}

/* Says why a job is in its present status. */
static void
say_why(WhyCall *call)
{
	bool finished = job_status_is_finished(call->job.status);
	const Following *following = idemq_following();
	Datum args[] = {Int64GetDatum(call->job.id), TimestampTzGetDatum(call->now)};

	(void) idemq_spi_row(&read_rows, args, &call->rows, sizeof(call->rows));
	if (!finished)
		say(call, "%s: ", idemq_status_name(call->job.status));
	if (!finished && idemq_follows())
	{
		say(call,
			"this database %s%s, so this is only the replicated state: call idemq.why on the "
			"publisher; no worker can claim the job here before idemq.take_over() is called",
			following->switched_on ? "has been following another database since "
								   : "follows another database",
			following->switched_on ? time_text(following->since) : "");
		return;
	}
	switch (call->job.status)
	{
		case JOB_BLOCKED:
			say_blocked(call);
			break;
		case JOB_PENDING:
		case JOB_RETRYING:
			say_waiting(call);
			break;
		case JOB_RUNNING:
			say_running(call);
			if (!call->job.row->tts_isnull[COL_RERUN_AT])
				say(call, "; it will then run once more, as requested by a later call");
			break;
		default:
			say_finished(call);
			break;
	}
	say_text(call, call->rows.steps);
	if (RecoveryInProgress() && !finished)
		say(call,
			"; this is a standby: leases, limits and workers are known only on the primary, so "
			"call idemq.why there");
}

/* why(id) -> text; 22004. */
SQL_FUNCTION(idemq_sql_why)
{
	WhyCall call = {0};

	idemq_arg_required(fcinfo, 0, "id");
	initStringInfo(&call.answer);
	idemq_jobs_open_to_read(&call.table);
	call.now = idemq_now();
	if (idemq_jobs_fetch(&call.table, PG_GETARG_INT64(0), &call.job) &&
		idemq_queue_allows(call.job.queue_id, PRIVILEGE_CLAIM | PRIVILEGE_ADMIN, &call.queue))
		say_why(&call);
	else
		say(&call,
			"job %lld does not exist, or you have neither the claim nor the admin privilege on its "
			"queue",
			(long long) PG_GETARG_INT64(0));
	idemq_jobs_close(&call.table);
	PG_RETURN_TEXT_P(cstring_to_text_with_len(call.answer.data, call.answer.len));
}
