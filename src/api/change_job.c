/*
 * api/change_job.c
 *		SQL functions that change what becomes of a job: cancel, cancel_by_key, cancel_many and
 *		cancel_matching end jobs without running them; retry, retry_many, and the C function of
 *		redrive (sql/parts/40_jobs.sql) make finished jobs run again; and reschedule gives a
 *		waiting job another time or priority.
 *
 * All of them decide on the latest version of the job's row, and write that same version.  If it
 * has changed in between, they decide again (change_job).
 *
 * The calls for many jobs never wait for a row.  If another transaction holds the row of a job, the
 * job's outcome is locked, and the next call may change it.  So neither a worker with a long
 * transaction nor another such call delays them, and no two of them deadlock.  They process jobs in
 * the order of their ids, as all batches do.
 *
 * cancel_matching uses SQL, under the latest snapshot, to find out which jobs match, and then
 * decides on the latest version of each, because a request may have given the job another kind
 * since then (on_duplicate).  The queue, group and key of an unfinished job that matched cannot
 * change.
 *
 * reschedule leaves status, attempts and error as they are.  What changes is the job's position in
 * the ready index: after a commit, the scan start of the new priority is lowered to the new key;
 * after a rollback, the scan start of the old priority is lowered to the old key
 * (job/transition.c).  A job of a group keeps its position in the group.  The time of a blocked job
 * counts once its turn has come (run_at).  The time of a head changes at once, and is never before
 * now, so that the head does not come below its group's low-water mark (shared/groups/groups.c).
 */
#include "postgres.h"

#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "lib/qunique.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "api/api.h"
#include "base/base.h"
#include "base/compat.h"
#include "job/job.h"
#include "queue/queue.h"
#include "table/table.h"
#include "txn/txn.h"

/* Adds a member to the details of an audit entry. */
static void
change_job_note(AuditEntry *entry, const char *name, const char *value)
{
	int n = 0;

	while (entry->members[n] != NULL)
		n += 2;
	Assert(n + 1 < (int) lengthof(entry->members));
	entry->members[n] = name;
	entry->members[n + 1] = value;
}

/*
 * Cancels the record of a job's last death in the dead-letter queue, because the job is ready
 * again.  Returns whether there was such a record.
 *
 * The record loses its key, because the job may be cancelled and retried before its next attempt,
 * which would add another record with this key.  The record stays if it is running or finished, if
 * its row is held, or if it is in another queue than the dead-letter queue at the time of the job's
 * death.  Never waits.
 */
static bool
take_record_back(const QueueInfo *queue, int64 id, int64 token)
{
	EventArgs args = {.now = idemq_now()};
	JobChange keyless = {0};
	QueueInfo dead;
	JobsTable table;
	Job record;
	bool taken;

	if (queue->dead_letter_queue[0] == '\0' || !idemq_queue_find(queue->dead_letter_queue, &dead) ||
		!idemq_dead_letter_allowed(queue, &dead))
		return false;
	args.error = cstring_to_text(psprintf("job %lld was retried", (long long) id));
	job_set_null(&keyless, COL_KEY);
	idemq_jobs_open(&table);
	taken =
		idemq_jobs_find_key(&table, dead.id, idemq_dead_letter_key(queue, id, token), &record) &&
		idemq_transition_allowed(EVENT_EXPIRE, record.status) &&
		idemq_jobs_update(&table, &record, &keyless, JOB_SKIPS) == JOB_WRITTEN;
	if (taken)
	{
		int64 copy_id = record.id;

		idemq_jobs_refresh(&table);
		if (!idemq_jobs_fetch(&table, copy_id, &record) ||
			idemq_transition(&table, &record, &dead, EVENT_EXPIRE, &args, JOB_SKIPS) != JOB_WRITTEN)
			elog(ERROR, "job %lld was changed after this transaction had written it",
				 (long long) copy_id);
	}
	idemq_jobs_close(&table);
	return taken;
}

/*
 * Applies a decision to the latest version of a job.  If queue_id is not NULL, sets it to the job's
 * queue, or to 0 if nothing was changed.
 */
static Outcome
change_job(JobsTable *table, int64 id, const JobChanger *changer, int32 *queue_id)
{
	if (queue_id != NULL)
		*queue_id = 0;
	for (;;)
	{
		AuditEntry entry = changer->audit;
		EventArgs args = {0};
		QueueInfo queue;
		JobEvent event;
		JobWrite write;
		Outcome outcome;
		Job job;

		entry.queue = &queue;
		entry.job_id = id;
		if (!idemq_jobs_fetch(table, id, &job) ||
			!idemq_queue_allows(job.queue_id, changer->privileges, &queue))
			return OUTCOME_NOT_FOUND;
		args.now = args.ready_at = idemq_now();
		if (!changer->decide(&job, changer->arg, &args, &event, &outcome))
			return outcome;
		/* The write frees the fetched row. */
		if (entry.action != NULL && !job.row->tts_isnull[COL_KIND])
			change_job_note(&entry, "kind", TextDatumGetCString(job.row->tts_values[COL_KIND]));
		/*
		 * The write may have to wait for the worker's transaction, so the worker is told first.  It
		 * is not told by a call that does not wait, because it would stop, but the job might stay
		 * as it is.  Nor does a handler tell itself if it cancels its own job in its own
		 * transaction: it would interrupt itself, and the rollback would undo the cancellation.
		 */
		if ((event == EVENT_CANCEL || event == EVENT_RELEASE) && job.status == JOB_RUNNING)
			idemq_pending_note_cancel(queue.id, id, job.token,
									  changer->wait != JOB_SKIPS && !idemq_jobs_is_held_here(&job));
		write = idemq_transition(table, &job, &queue, event, &args, changer->wait);
		if (write == JOB_LOCKED)
			return OUTCOME_LOCKED;
		if (write == JOB_WRITTEN)
		{
			if (queue_id != NULL)
				*queue_id = queue.id;
			if ((event == EVENT_REDRIVE || event == EVENT_REDRIVE_GROUPED) &&
				take_record_back(&queue, id, job.token))
			{
				(*changer->dead_letter_records)++;
				change_job_note(&entry, "dead_letter_records", "1");
			}
			if (entry.action != NULL)
				idemq_audit(&entry);
			return outcome;
		}
		idemq_jobs_refresh_or_raise(table);
	}
}

/* Like change_job, for the job of argument id. */
Datum
idemq_change_one(FunctionCallInfo fcinfo, const JobChanger *changer)
{
	JobsTable table;
	Outcome outcome;

	idemq_arg_required(fcinfo, 0, "id");
	idemq_jobs_open(&table);
	outcome = change_job(&table, PG_GETARG_INT64(0), changer, NULL);
	idemq_jobs_close(&table);
	return idemq_outcome_datum(outcome);
}

/* Number of jobs of a queue that were changed. */
typedef struct QueueChanged
{
	int32 queue_id;
	int64 jobs;
} QueueChanged;

/* Adds 1 to a queue's number of changed jobs.  Most calls change jobs of few queues. */
static List *
change_job_count_in(List *counts, int32 queue_id)
{
	QueueChanged *count;
	ListCell *lc;

	foreach(lc, counts)
	{
		count = lfirst(lc);
		if (count->queue_id == queue_id)
		{
			count->jobs++;
			return counts;
		}
	}
	count = palloc(sizeof(QueueChanged));
	*count = (QueueChanged){queue_id, 1};
	return lappend(counts, count);
}

/*
 * Like change_job, for each job of argument ids.  Returns one row per id, in ascending order.  Adds
 * an audit entry with the given action for each queue whose jobs were changed.
 */
static Datum
change_many(FunctionCallInfo fcinfo, const JobChanger *changer, const char *action)
{
	ArrayArg arg;
	int64 *ids;
	int count;
	List *counts = NIL;
	const ListCell *lc;
	ReturnSetInfo *set;
	JobsTable table;

	idemq_arg_array(fcinfo, 0, "ids", INT8OID, false, &arg);
	ids = palloc(Max(arg.count, 1) * sizeof(int64));
	for (int i = 0; i < arg.count; i++)
		ids[i] = DatumGetInt64(arg.values[i]);
	/* Each id once, in ascending order, so that two batches do not deadlock. */
	qsort(ids, arg.count, sizeof(int64), idemq_compare_int64);
	count = (int) qunique(ids, arg.count, sizeof(int64), idemq_compare_int64);
	set = idemq_srf_begin(fcinfo);
	idemq_jobs_open(&table);
	for (int i = 0; i < count; i++)
	{
		bool nulls[2] = {false};
		Datum values[2];
		Outcome outcome;
		int32 queue_id;

		CHECK_FOR_INTERRUPTS();
		outcome = change_job(&table, ids[i], changer, &queue_id);
		if (queue_id != 0)
			counts = change_job_count_in(counts, queue_id);
		values[0] = Int64GetDatum(ids[i]);
		values[1] = idemq_outcome_datum(outcome);
		tuplestore_putvalues(set->setResult, set->setDesc, values, nulls);
	}
	idemq_jobs_close(&table);
	foreach(lc, counts)
	{
		const QueueChanged *changed = lfirst(lc);
		QueueInfo queue;

		if (idemq_queue_by_id(changed->queue_id, &queue))
			idemq_audit(&(AuditEntry){.action = action, .queue = &queue, .jobs = changed->jobs});
	}
	return (Datum) 0;
}

/* Arguments of cancel_matching, and parameters of its statements. */
enum
{
	MATCH_QUEUE,
	MATCH_KIND,
	MATCH_GROUP,
	MATCH_PREFIX,
	MATCH_MAX_JOBS,
	MATCH_BEHIND = MATCH_MAX_JOBS, /* the first key after all keys with the prefix */
	MATCH_PARAMS
};

/*
 * The rows are sorted after they are found.  With ORDER BY, the planner would read the jobs of all
 * queues in the order of their ids.
 */
#define MATCH_UNFINISHED                                                                           \
	"SELECT id FROM (SELECT id FROM idemq.jobs WHERE queue_id = $1 AND finished_at IS NULL "       \
	"AND ($2 IS NULL OR kind = $2) AND ($3 IS NULL OR group_key = $3) "                            \
	"AND ($4 IS NULL OR starts_with(key, $4)) "
#define MATCH_BY_ID "OFFSET 0) j ORDER BY id"
#define MATCH_TYPES                                                                                \
	{                                                                                              \
		INT4OID, TEXTOID, TEXTOID, TEXTOID, TEXTOID                                                \
	}

#define MATCH_IDS                                                                                  \
	(const SqlField[])                                                                             \
	{                                                                                              \
		{                                                                                          \
			0, sizeof(int64), NULL                                                                 \
		}                                                                                          \
	}

static SqlStatement of_group = {.few = true,
								.fields = MATCH_IDS,
								.text = MATCH_UNFINISHED "AND group_key = $3 " MATCH_BY_ID,
								.types = MATCH_TYPES};
static SqlStatement of_keys = {.few = true,
							   .fields = MATCH_IDS,
							   .text = MATCH_UNFINISHED
							   "AND key >= $4 AND ($5 IS NULL OR key < $5) " MATCH_BY_ID,
							   .types = MATCH_TYPES};
static SqlStatement of_queue = {.fields = MATCH_IDS,
								.text = MATCH_UNFINISHED MATCH_BY_ID,
								.types = MATCH_TYPES};

static bool
decide_cancel(const Job *job, const void *arg, EventArgs *args, JobEvent *event, Outcome *outcome)
{
	bool allowed = idemq_transition_allowed(EVENT_CANCEL, job->status);

	*event = EVENT_CANCEL;
	*outcome = allowed ? OUTCOME_CANCELLED : idemq_outcome_of_status(job->status);
	return allowed;
}

static const JobChanger canceller = {.decide = decide_cancel,
									 .privileges = PRIVILEGE_CHANGE,
									 .audit = {.action = "cancel"}};

/* cancel(id) -> cancelled | completed | dead | not_found; 22004, 40001. */
SQL_FUNCTION(idemq_sql_cancel)
{
	return idemq_change_one(fcinfo, &canceller);
}

/* cancel_by_key(queue, key) -> as cancel; IQ005, 42501, 22004, 22023, 40001. */
SQL_FUNCTION(idemq_sql_cancel_by_key)
{
	char *name = idemq_arg_text(fcinfo, 0, "queue", IDEMQ_MAX_NAME_ARG);
	Outcome outcome = OUTCOME_NOT_FOUND;
	QueueInfo queue;
	JobsTable table;
	Job job;

	idemq_arg_required(fcinfo, 1, "key");
	idemq_check_key("key", VARSIZE_ANY_EXHDR(PG_GETARG_TEXT_PP(1)));
	idemq_queue_by_name(name, PRIVILEGE_CHANGE, &queue);
	idemq_jobs_open(&table);
	if (idemq_jobs_find_key(&table, queue.id, PointerGetDatum(PG_GETARG_TEXT_PP(1)), &job))
		outcome = change_job(&table, job.id, &canceller, NULL);
	idemq_jobs_close(&table);
	return idemq_outcome_datum(outcome);
}

/* cancel_many(ids) -> setof (id, outcome as cancel, or locked); 22004, 22023, 40001. */
SQL_FUNCTION(idemq_sql_cancel_many)
{
	static const JobChanger skipper = {.decide = decide_cancel,
									   .privileges = PRIVILEGE_CHANGE,
									   .wait = JOB_SKIPS};

	return change_many(fcinfo, &skipper, "cancel_many");
}

/* Like decide_cancel, if the job still has the kind *arg; 0: any kind. */
static bool
decide_cancel_kind(const Job *job, const void *arg, EventArgs *args, JobEvent *event,
				   Outcome *outcome)
{
	Datum kind = *(const Datum *) arg;
	const TupleTableSlot *row = job->row;

	*outcome = OUTCOME_CURRENT;
	if (kind != 0 && (row->tts_isnull[COL_KIND] ||
					  !DatumGetBool(DirectFunctionCall2Coll(texteq, C_COLLATION_OID, kind,
															row->tts_values[COL_KIND]))))
		return false;
	return decide_cancel(job, NULL, args, event, outcome);
}

/*
 * Returns the smallest text, compared byte by byte, that is greater than all texts with a prefix; 0
 * if there is none.  It may be invalid in the encoding, so it may be compared only under the
 * collation "C".
 */
static Datum
behind_prefix(Datum prefix)
{
	text *behind = DatumGetTextPCopy(prefix);
	int bytes = VARSIZE(behind) - VARHDRSZ;

	while (bytes > 0 && (unsigned char) VARDATA(behind)[bytes - 1] == 0xFF)
		bytes--;
	if (bytes == 0)
		return (Datum) 0;
	VARDATA(behind)[bytes - 1]++;
	SET_VARSIZE(behind, VARHDRSZ + bytes);
	return PointerGetDatum(behind);
}

/* Reads the arguments that select jobs into values, and into *entry for the audit. */
static void
read_match(FunctionCallInfo fcinfo, Datum *values, AuditEntry *entry)
{
	static const char *const names[] =
		{[MATCH_KIND] = "kind", [MATCH_GROUP] = "group_key", [MATCH_PREFIX] = "key_prefix"};
	int members = 0;

	for (int arg = MATCH_KIND; arg <= MATCH_PREFIX; arg++)
	{
		int bytes;

		if (PG_ARGISNULL(arg))
			continue;
		values[arg] = PointerGetDatum(PG_GETARG_TEXT_PP(arg));
		bytes = VARSIZE_ANY_EXHDR(DatumGetPointer(values[arg]));
		if (arg == MATCH_KIND)
			idemq_check_kind(bytes);
		else
			idemq_check_key(names[arg], bytes);
		entry->members[members++] = names[arg];
		entry->members[members++] = TextDatumGetCString(values[arg]);
	}
	if (members == 0)
		ereport(ERROR, errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				errmsg("kind, group_key and key_prefix must not all be NULL"),
				errhint("Pass at least one of the three arguments to select jobs."));
	if (values[MATCH_PREFIX] != 0)
		values[MATCH_BEHIND] = behind_prefix(values[MATCH_PREFIX]);
}

/*
 * cancel_matching(queue, kind, group_key, key_prefix, max_jobs) -> (cancelled, locked);
 * IQ005, 42501, 22004 when no job is described, 22023, 40001.
 */
SQL_FUNCTION(idemq_sql_cancel_matching)
{
	AuditEntry entry = {.action = "cancel_matching"};
	Datum values[MATCH_PARAMS] = {0};
	SqlStatement *statement = &of_queue;
	int64 max_jobs = PG_INT64_MAX;
	int64 jobs[] = {0, 0};
	JobChanger canceller_of = {.decide = decide_cancel_kind,
							   .arg = &values[MATCH_KIND],
							   .privileges = PRIVILEGE_CHANGE,
							   .wait = JOB_SKIPS};
	Datum answer[2];
	bool isnull[2] = {false};
	JobsTable table;
	QueueInfo queue;
	int64 *ids;
	int count;

	idemq_queue_arg(fcinfo, MATCH_QUEUE, "queue", PRIVILEGE_CHANGE, &queue);
	values[MATCH_QUEUE] = Int32GetDatum(queue.id);
	read_match(fcinfo, values, &entry);
	if (!PG_ARGISNULL(MATCH_MAX_JOBS))
		max_jobs = idemq_arg_int(fcinfo, MATCH_MAX_JOBS, "max_jobs", 1, PG_INT32_MAX);
	if (values[MATCH_GROUP] != 0)
		statement = &of_group;
	else if (values[MATCH_PREFIX] != 0)
		statement = &of_keys;
	ids = idemq_spi_rows(statement, values, sizeof(int64), &count);
	idemq_jobs_open(&table);
	for (int i = 0; i < count && jobs[0] < max_jobs; i++)
	{
		int32 changed;

		CHECK_FOR_INTERRUPTS();
		jobs[1] += change_job(&table, ids[i], &canceller_of, &changed) == OUTCOME_LOCKED;
		jobs[0] += changed != 0;
	}
	idemq_jobs_close(&table);
	entry.queue = &queue;
	entry.jobs = jobs[0];
	if (jobs[0] > 0)
		idemq_audit(&entry);
	answer[0] = Int64GetDatum(jobs[0]);
	answer[1] = Int64GetDatum(jobs[1]);
	return idemq_row_datum(fcinfo, answer, isnull);
}

static bool
decide_retry(const Job *job, const void *arg, EventArgs *args, JobEvent *event, Outcome *outcome)
{
	*event = EVENT_RETRY;
	*outcome = OUTCOME_RETRYING;
	switch (job->status)
	{
		case JOB_DEAD:
		case JOB_CANCELLED:
			*event = idemq_job_waits_again(job) ? EVENT_REDRIVE_GROUPED : EVENT_REDRIVE;
			return true;
		case JOB_RETRYING:
			return true;
		case JOB_PENDING:
			if (job->ready_at > args->now)
				return true;
			pg_fallthrough;
		default:
			*outcome = idemq_outcome_of_status(job->status);
			return false;
	}
}

/* Sends a notice with the number of dead-letter records that were cancelled. */
static void
retry_report_records(int64 dead_letter_records)
{
	if (dead_letter_records > 0)
		ereport(NOTICE,
				(errmsg("cancelled dead-letter records: %lld", (long long) dead_letter_records)));
}

/* retry(id) -> retrying | current | locked | blocked | completed | not_found; 22004, 40001. */
SQL_FUNCTION(idemq_sql_retry)
{
	int64 dead_letter_records = 0;
	JobChanger retrier = {.decide = decide_retry,
						  .privileges = PRIVILEGE_CHANGE,
						  .audit = {.action = "retry"},
						  .dead_letter_records = &dead_letter_records};
	Datum outcome = idemq_change_one(fcinfo, &retrier);

	retry_report_records(dead_letter_records);
	return outcome;
}

/* retry_many(ids) -> setof (id, outcome as retry); 22004, 22023, 40001. */
SQL_FUNCTION(idemq_sql_retry_many)
{
	int64 dead_letter_records = 0;
	JobChanger retrier = {.decide = decide_retry,
						  .privileges = PRIVILEGE_CHANGE,
						  .dead_letter_records = &dead_letter_records};
	Datum none = change_many(fcinfo, &retrier, "retry_many");

	retry_report_records(dead_letter_records);
	return none;
}

/* Decides whether to retry a job that the attempt with token *arg has left dead. */
static bool
decide_redrive(const Job *job, const void *arg, EventArgs *args, JobEvent *event, Outcome *outcome)
{
	bool is_that = job->status == JOB_DEAD && job->token == *(const int64 *) arg;

	*event = idemq_job_waits_again(job) ? EVENT_REDRIVE_GROUPED : EVENT_REDRIVE;
	*outcome = is_that ? OUTCOME_RETRYING : OUTCOME_CURRENT;
	return is_that;
}

/*
 * redrive_job(id, token) -> (whether that attempt had left the job dead, so that it now runs again;
 * number of its records that were cancelled in the dead-letter queue); 40001.
 */
SQL_FUNCTION(idemq_sql_internal_redrive_job)
{
	int level = idemq_wrapper_become_caller();
	int64 token = PG_GETARG_INT64(1);
	int64 dead_letter_records = 0;
	JobChanger redriver = {.decide = decide_redrive,
						   .arg = &token,
						   .privileges = PRIVILEGE_ADMIN,
						   .dead_letter_records = &dead_letter_records};
	JobsTable table;
	Outcome outcome;

	idemq_jobs_open(&table);
	outcome = change_job(&table, PG_GETARG_INT64(0), &redriver, NULL);
	idemq_jobs_close(&table);
	idemq_wrapper_become_owner(level);
	return idemq_row_datum(fcinfo,
						   (Datum[]){BoolGetDatum(outcome == OUTCOME_RETRYING),
									 Int64GetDatum(dead_letter_records)},
						   (bool[]){false, false});
}

/* Arguments of reschedule. */
typedef struct Schedule
{
	bool has_run_at;
	TimestampTz run_at;
	int priority; /* -1: unchanged */
} Schedule;

static bool
decide_reschedule(const Job *job, const void *arg, EventArgs *args, JobEvent *event,
				  Outcome *outcome)
{
	const Schedule *schedule = arg;

	args->new_run_at = schedule->has_run_at;
	args->ready_at = schedule->has_run_at ? Max(schedule->run_at, args->now) : job->ready_at;
	args->priority = schedule->priority >= 0 ? schedule->priority : job->priority;
	*outcome = OUTCOME_ACCEPTED;
	switch (job->status)
	{
		case JOB_PENDING:
			*event = EVENT_RESCHEDULE;
			return true;
		case JOB_RETRYING:
			*event = EVENT_RESCHEDULE_RETRYING;
			return true;
		case JOB_BLOCKED:
			*event = EVENT_RESCHEDULE_BLOCKED;
			return true;
		default:
			*outcome = idemq_outcome_of_status(job->status);
			return false;
	}
}

/*
 * reschedule(id, run_at, priority) -> accepted | locked | completed | dead | cancelled |
 *		not_found; 22004, 22023, 40001.
 */
SQL_FUNCTION(idemq_sql_reschedule)
{
	Schedule schedule = {!PG_ARGISNULL(1), 0, -1};
	JobChanger rescheduler = {.decide = decide_reschedule,
							  .arg = &schedule,
							  .privileges = PRIVILEGE_CHANGE,
							  .audit = {.action = "reschedule"}};
	const char **member = rescheduler.audit.members;

	idemq_arg_required(fcinfo, 0, "id");
	if (PG_ARGISNULL(1) && PG_ARGISNULL(2))
		ereport(ERROR, errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				errmsg("run_at and priority must not both be NULL"),
				errhint("Pass a time, a priority from 0 to 9, or both."));
	if (schedule.has_run_at)
	{
		schedule.run_at = PG_GETARG_TIMESTAMPTZ(1);
		if (TIMESTAMP_NOT_FINITE(schedule.run_at))
			ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					errmsg("run_at must be finite"),
					errhint(
						"Pass a finite time. To prevent the job from running, call idemq.cancel."));
		*member++ = "run_at";
		*member++ = pstrdup(timestamptz_to_str(schedule.run_at));
	}
	if (!PG_ARGISNULL(2))
	{
		schedule.priority = idemq_arg_int(fcinfo, 2, "priority", 0, IDEMQ_PRIORITIES - 1);
		*member++ = "priority";
		*member++ = psprintf("%d", schedule.priority);
	}
	return idemq_change_one(fcinfo, &rescheduler);
}
