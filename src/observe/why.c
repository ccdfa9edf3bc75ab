/*
 * observe/why.c
 *		SQL function why: one sentence about what a job waits for, and what to do.
 *
 * It reads the row first, then the lease table and who holds the row: the sentence
 * is true of a moment that is over when it is read.  It waits for no lock, and shows
 * neither payload nor key nor error.
 */
#include "postgres.h"

#include "access/xlog.h"
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
#include "shared/slots/slots.h"
#include "table/table.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_why);

/* Jobs that are counted before this one, and index entries that are read for it. */
#define MAX_BEFORE 1000
#define MAX_ENTRIES 20000
/* Steps that are named. */
#define MAX_STEPS 3

typedef struct WhyCall
{
	JobsTable table;
	Job job;
	QueueInfo queue;
	TimestampTz now;
	StringInfoData answer;
} WhyCall;

/* Says a time; by itself, since two calls in one statement would share a buffer. */
static void
say_time(WhyCall *call, const char *before, TimestampTz time)
{
	appendStringInfo(&call->answer, "%s%s", before, timestamptz_to_str(time));
}

static TimestampTz
finished_at(const Job *job)
{
	return job->row->tts_isnull[COL_FINISHED_AT]
			   ? DT_NOEND
			   : DatumGetTimestampTz(job->row->tts_values[COL_FINISHED_AT]);
}

static void
say_finished(WhyCall *call)
{
	const Job *job = &call->job;
	long long id = job->id;

	if (job->status == JOB_COMPLETED)
	{
		say_time(call, "completed at ", finished_at(job));
		if (job->attempt == 0)
			appendStringInfoString(&call->answer, " without a claim");
		else
			appendStringInfo(&call->answer, " by attempt %d", job->attempt);
		appendStringInfoString(&call->answer, ": nothing is left to do");
		return;
	}
	if (job->status == JOB_DEAD)
	{
		say_time(call, "dead since ", finished_at(job));
		appendStringInfo(&call->answer,
						 ", after attempt %d of %d: see idemq.attempts where job_id = %lld",
						 job->attempt, job->max_attempts, id);
	}
	else if (job->attempt == 0 && job->expires_at <= finished_at(job))
		say_time(call, "cancelled: nobody claimed it before it expired at ", job->expires_at);
	else
		say_time(call, "cancelled at ", finished_at(job));
	appendStringInfo(&call->answer, "; idemq.retry(%lld) makes it ready again", id);
}

/* Adds the jobs of one priority that are ready, below a key; false when enough were read. */
static bool
count_priority(WhyCall *call, int priority, ReadyKey from, ReadyKey below, int *before,
			   int *entries)
{
	bool enough = false;
	ReadyKey key;
	Job job;

	idemq_jobs_scan_begin(&call->table, call->queue.id, priority, from, READY_KEY_MAX);
	while (!enough && idemq_jobs_scan_next(&call->table, &key))
	{
		CHECK_FOR_INTERRUPTS();
		if (!ready_key_less(key, below) || key.ready_at > call->now)
			break;
		if (!idemq_lease_busy(key.id) && idemq_jobs_scan_row(&call->table, &job) &&
			idemq_transition_allowed(EVENT_CLAIM, job.status))
			(*before)++;
		(*entries)++;
		enough = *before >= MAX_BEFORE || *entries >= MAX_ENTRIES;
	}
	idemq_jobs_scan_end(&call->table);
	return !enough;
}

/* Returns how many ready jobs a claim would take before this one; *all: no more than these. */
static int
count_before(WhyCall *call, bool *all)
{
	ReadyKey mine = job_ready_key(&call->job);
	int priority = call->job.priority;
	int before = 0;
	int entries = 0;
	CursorView view;

	/* As a claim: the cursors first, then a snapshot. */
	idemq_cursor_read(call->queue.slot, call->queue.id, 0, &view);
	idemq_jobs_refresh(&call->table);
	*all = true;
	for (int p = 0; p <= Min(priority, IDEMQ_PRIORITIES - 1) && *all; p++)
		*all = count_priority(call, p, view.from[p], p < priority ? READY_KEY_MAX : mine, &before,
							  &entries);
	return before;
}

/* Says how far back in the line a ready job is, and whether anybody works. */
static void
say_ready(WhyCall *call)
{
	bool all;
	int before;

	say_time(call, "ready since ", call->job.ready_at);
	before = count_before(call, &all);
	if (before == 0 && all)
		appendStringInfoString(&call->answer, " and first in line");
	else
		appendStringInfo(&call->answer, ", behind %d%s ready job%s", before, all ? "" : " or more",
						 before == 1 && all ? "" : "s");
	idemq_why_worker(&call->answer, &call->queue);
}

/* Says which limit of its queue keeps a ready job; false when none does. */
static bool
say_limit(WhyCall *call)
{
	const QueueInfo *queue = &call->queue;
	LimitView view;

	if (RecoveryInProgress())
		return false;
	idemq_limit_view(queue, &view);
	switch (view.state)
	{
		case LIMIT_OPEN:
			return false;
		case LIMIT_RUNNING:
			appendStringInfo(&call->answer,
							 "queue \"%s\" is at max_running: %d of %d jobs are in processing",
							 queue->name, view.running, queue->max_running);
			break;
		case LIMIT_RATE:
			appendStringInfo(&call->answer, "the rate_limit of queue \"%s\" is used up",
							 queue->name);
			say_time(call, ": the next job may be claimed at ", view.until);
			break;
		case LIMIT_RECOVERING:
			appendStringInfo(&call->answer,
							 "queue \"%s\" has max_running, and its jobs in flight are still being "
							 "looked for; a claim, or idemq.reap('%s'), looks too",
							 queue->name, queue->name);
			break;
		case LIMIT_TABLE_FULL:
		case LIMIT_NO_SLOT:
			appendStringInfo(&call->answer,
							 "queue \"%s\" has limits that shared memory has no room to count: "
							 "raise %s and restart the server",
							 queue->name,
							 view.state == LIMIT_NO_SLOT ? "idemq.max_queues" : "idemq.max_leases");
			break;
	}
	return true;
}

/* Says which transaction holds the row of a job that waits; false when none does. */
static bool
say_held(WhyCall *call)
{
	TransactionId holder;
	int pid;

	if (idemq_jobs_hold(&call->job, &holder) != ROW_HELD)
		return false;
	pid = idemq_transaction_pid(holder);
	appendStringInfoString(&call->answer, "its row is held by ");
	if (pid != 0)
		appendStringInfo(&call->answer, "pid %d", pid);
	else
		appendStringInfoString(&call->answer,
							   RecoveryInProgress()
								   ? "a transaction of the primary"
								   : "a prepared transaction (see pg_prepared_xacts)");
	appendStringInfoString(&call->answer, ": claims skip it until that transaction ends");
	return true;
}

/* Says that a claim of the job is open; false when none is. */
static bool
say_claiming(WhyCall *call, const Lease *lease)
{
	if (!lease->claiming)
		return false;
	if (lease->session == IDEMQ_MY_PROC_NUMBER)
		appendStringInfoString(&call->answer, "being claimed by this transaction");
	else
		appendStringInfo(&call->answer, "being claimed by the open transaction of pid %d",
						 idemq_lease_pid(lease));
	appendStringInfoString(&call->answer,
						   ": its lease starts when that commits; if it rolls back, the job is "
						   "ready again");
	return true;
}

/* Says until when its queue is paused. */
static void
say_paused(WhyCall *call)
{
	appendStringInfo(&call->answer, "queue \"%s\" is paused", call->queue.name);
	if (call->queue.paused_until < DT_NOEND)
		say_time(call, " until ", call->queue.paused_until);
	appendStringInfo(&call->answer, ": idemq.resume('%s') lets it hand out jobs again",
					 call->queue.name);
}

/* Says what a job in status pending or failed waits for. */
static void
say_waiting(WhyCall *call)
{
	const Job *job = &call->job;
	Lease lease;

	if (idemq_jobs_is_own(job))
		appendStringInfoString(&call->answer,
							   "written by this transaction: others see it when that commits");
	else if ((idemq_lease_get(job->id, &lease) && say_claiming(call, &lease)) || say_held(call))
		return;
	else if (job->attempt == 0 && job->expires_at <= call->now)
		say_time(call, "the next claim cancels it: it was not claimed before it expired at ",
				 job->expires_at);
	else if (idemq_queue_is_paused(&call->queue))
		say_paused(call);
	else if (idemq_why_group_rate(&call->answer, &call->queue, job, call->now))
		return;
	else if (job->ready_at <= call->now)
	{
		if (!say_limit(call))
			say_ready(call);
	}
	else if (!idemq_why_wait(&call->answer, job, &call->queue))
	{
		say_time(call, "not due before ", job->ready_at);
		if (job->status == JOB_FAILED)
			appendStringInfo(&call->answer, ", when attempt %d of %d may begin", job->attempt + 1,
							 job->max_attempts);
		appendStringInfo(&call->answer, "; idemq.retry(%lld) makes it ready now",
						 (long long) job->id);
	}
}

/* Says who is on the job. */
static void
say_attempt(WhyCall *call, int pid)
{
	const Job *job = &call->job;

	appendStringInfo(&call->answer, "attempt %d of %d", job->attempt, job->max_attempts);
	if (!job->row->tts_isnull[COL_WORKER])
		appendStringInfo(&call->answer, " by worker \"%s\"",
						 TextDatumGetCString(job->row->tts_values[COL_WORKER]));
	if (pid != 0)
		appendStringInfo(&call->answer, ", claimed by pid %d", pid);
}

/* Says how long the lease lasts, or what follows when it is over. */
static void
say_deadline(WhyCall *call, TimestampTz deadline)
{
	if (deadline > call->now)
		say_time(call, ", lease until ", deadline);
	else
	{
		say_time(call, "; no heartbeat came before its lease ended at ", deadline);
		appendStringInfo(&call->answer,
						 ": the next claim from queue \"%s\", or idemq.reap('%s'), takes it back",
						 call->queue.name, call->queue.name);
	}
}

/* Says how long an attempt that nobody ends may last. */
static void
say_lease(WhyCall *call, const Lease *lease)
{
	say_deadline(call, idemq_timestamp_from_mono(lease->deadline));
	if (lease->limit < PG_INT64_MAX && lease->deadline > idemq_mono_now())
		say_time(call, ", and by job_timeout no longer than ",
				 idemq_timestamp_from_mono(lease->limit));
	if (lease->cancels > 0)
		appendStringInfoString(&call->answer,
							   "; a transaction that cancels it waits for the worker's, and its "
							   "heartbeats are answered cancelled");
}

/* Says who is on a job in processing, and until when. */
static void
say_processing(WhyCall *call)
{
	const Job *job = &call->job;
	Lease lease;
	int ender;

	if (!idemq_lease_get(job->id, &lease) || lease.token != job->token)
	{
		say_attempt(call, 0);
		appendStringInfoString(&call->answer, " (known from its row alone)");
		if (!RecoveryInProgress())
			say_deadline(call, idemq_row_deadline(job, &call->queue));
		return;
	}
	if (say_claiming(call, &lease))
		return;
	say_attempt(call, idemq_lease_pid(&lease));
	ender = idemq_session_pid(lease.ending.ender);
	if (lease.ending.ender == IDEMQ_MY_PROC_NUMBER)
		appendStringInfoString(&call->answer, "; this transaction is ending it");
	else if (ender != 0 && lease.ending.reaping)
		appendStringInfo(&call->answer, "; its lease ended, and pid %d is taking it back", ender);
	else if (ender != 0)
		appendStringInfo(&call->answer, "; the open transaction of pid %d is ending it", ender);
	else
		say_lease(call, &lease);
	if (lease.attached && ender == 0)
		appendStringInfoString(&call->answer, " (attached: or until that session ends)");
}

/* Says what a job that is blocked waits for: a parent, or its turn in its group. */
static void
say_blocked(WhyCall *call)
{
	if (call->job.row->tts_isnull[COL_GROUP_KEY])
	{
		idemq_why_alone(&call->answer, call->job.id);
		return;
	}
	if (!idemq_why_group(&call->answer, &call->table, &call->queue, &call->job) || say_held(call))
		return;
	appendStringInfoString(&call->answer,
						   "is next in its group: the background worker, or the next claim, "
						   "makes it pending");
}

/* Says of an unfinished job that others work on it; false when this database follows none. */
static bool
say_follows(WhyCall *call)
{
	const Following *following = idemq_following();

	if (!idemq_follows())
		return false;
	appendStringInfoString(&call->answer, "this database follows another");
	if (following->switched_on)
		say_time(call, " since ", following->since);
	appendStringInfoString(&call->answer,
						   ", as far as replication has come: ask idemq.why on the publisher; here "
						   "nothing claims it before idemq.take_over()");
	return true;
}

/* Says which steps have no answer. */
static void
say_steps(WhyCall *call)
{
	const Job *job = &call->job;
	OpenStep steps[MAX_STEPS];
	int count;

	if (job->token == 0)
		return;
	count = idemq_steps_open_of(job->id, steps, MAX_STEPS);
	for (int i = 0; i < count; i++)
	{
		const OpenStep *step = &steps[i];

		appendStringInfo(&call->answer, "; its step \"%s\" ", step->name);
		if (job_is_attempt(job, step->token))
			say_time(call, "is open: its call may last until ", step->call_until);
		else
		{
			say_time(call, "is unknown: begun at ", step->begun_at);
			appendStringInfoString(&call->answer,
								   " by an attempt that is over without an answer, ");
			if (call->now < step->call_until)
				say_time(call, "its call may arrive until ", step->call_until);
			else if (!job_status_is_finished(job->status))
				appendStringInfoString(&call->answer, "the next one asks the other side");
			else
				appendStringInfo(&call->answer,
								 "ask the other side, then idemq.finish_step(%lld, %lld, ...) or "
								 "idemq.refuse_step",
								 (long long) job->id, (long long) step->token);
		}
	}
}

static void
say_why(WhyCall *call)
{
	appendStringInfo(&call->answer, "%s: ", idemq_status_name(call->job.status));
	if (!job_status_is_finished(call->job.status) && say_follows(call))
		return;
	switch (call->job.status)
	{
		case JOB_BLOCKED:
			say_blocked(call);
			break;
		case JOB_PENDING:
		case JOB_FAILED:
			say_waiting(call);
			break;
		case JOB_PROCESSING:
			say_processing(call);
			if (!call->job.row->tts_isnull[COL_RERUN_AT])
				appendStringInfoString(&call->answer,
									   "; then it runs once more, as a later request asked");
			break;
		default:
			resetStringInfo(&call->answer);
			say_finished(call);
			break;
	}
	say_steps(call);
	if (RecoveryInProgress() && !job_status_is_finished(call->job.status))
		appendStringInfoString(&call->answer, "; this is a standby: leases, limits and workers are "
											  "known on the primary, ask idemq.why there");
}

/* why(id) -> text; 22004. */
Datum
idemq_sql_v2_why(PG_FUNCTION_ARGS)
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
		appendStringInfo(
			&call.answer,
			"job %lld does not exist, or you may neither claim from nor administer its "
			"queue",
			(long long) PG_GETARG_INT64(0));
	idemq_jobs_close(&call.table);
	PG_RETURN_TEXT_P(cstring_to_text_with_len(call.answer.data, call.answer.len));
}
