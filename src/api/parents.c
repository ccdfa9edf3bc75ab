/*
 * api/parents.c
 *		SQL functions about the parents of a job: parents returns their statuses and results, and
 *		add_parents lets a running job add parents to a child.
 *
 * A role that may claim from the job's queue, or administer it, sees the results of the job's
 * parents, even if it has no privilege on the queues of the parents: the role that enqueued the job
 * was allowed to see them (job/new_child.c), and has passed them on.  It sees only the results with
 * which the job came to run, because a parent may run again after that privilege was revoked.
 *
 * Locks: parents only reads rows; job/add_parents.c describes the locks of add_parents.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "table/table.h"

/* parent, queue, status, result */
#define PARENT_COLUMNS 4

/*
 * Adds a parent's row.  If the parent was deleted, its status is the one before the deletion, if
 * known.  A role without a privilege on the parent's queue sees the result only after the child has
 * been claimed, and sees neither status nor result if the parent was claimed again since then.
 */
static void
add_parent_row(JobsTable *table, const DependencyGone *parent, ReturnSetInfo *set)
{
	Datum values[PARENT_COLUMNS] = {Int64GetDatum(parent->id)};
	bool nulls[PARENT_COLUMNS] = {false, true, true, true};
	QueueInfo queue;
	Job job;

	if (idemq_jobs_fetch(table, parent->id, &job))
	{
		bool allowed = idemq_queue_allows(job.queue_id, PRIVILEGE_ALL, &queue);
		bool seen = parent->seen_token != 0 && job.token <= parent->seen_token;

		nulls[1] = !idemq_queue_by_id(job.queue_id, &queue);
		if (!nulls[1])
			values[1] = CStringGetTextDatum(queue.name);
		values[2] = ObjectIdGetDatum(idemq_oids()->status[job.status]);
		nulls[2] = !allowed && !seen && parent->seen_token != 0;
		values[3] = job.row->tts_values[COL_RESULT];
		nulls[3] = job.row->tts_isnull[COL_RESULT] || (!allowed && !seen);
	}
	else if (parent->gone)
	{
		values[2] = ObjectIdGetDatum(idemq_oids()->status[parent->gone_as]);
		nulls[2] = false;
	}
	tuplestore_putvalues(set->setResult, set->setDesc, values, nulls);
}

/*
 * parents(id) -> setof (parent, queue, status, result); no rows if the role may not see the job;
 * 22004.
 */
SQL_FUNCTION(idemq_sql_parents)
{
	int64 id;
	JobsTable table;
	ReturnSetInfo *set;
	QueueInfo queue;
	Job job;

	idemq_arg_required(fcinfo, 0, "id");
	id = PG_GETARG_INT64(0);
	set = idemq_srf_begin(fcinfo);
	idemq_jobs_open_to_read(&table);
	if (idemq_jobs_fetch(&table, id, &job) &&
		idemq_queue_allows(job.queue_id, PRIVILEGE_CLAIM | PRIVILEGE_ADMIN, &queue))
	{
		int count;
		DependencyGone *parents = idemq_dependency_parents(&table, id, &count);

		for (int i = 0; i < count; i++)
			add_parent_row(&table, &parents[i], set);
	}
	idemq_jobs_close(&table);
	return (Datum) 0;
}

/* parent, outcome */
#define ADDED_COLUMNS 2

/*
 * add_parents(child, parents, id, token) -> setof (parent, outcome), in the order of the parents' ids;
 * outcome: added, already or locked.  Raises IQ001, IQ002, IQ006, 22004, 22023, 42501, 53400, 55000.
 */
SQL_FUNCTION(idemq_sql_add_parents)
{
	ParentsCall call;
	ArrayArg parents;
	ReturnSetInfo *set;

	idemq_arg_required(fcinfo, 0, "child");
	idemq_arg_array(fcinfo, 1, "parents", INT8OID, false, &parents);
	idemq_arg_required(fcinfo, 2, "id");
	idemq_arg_required(fcinfo, 3, "token");
	call = (ParentsCall){.child = PG_GETARG_INT64(0),
						 .id = PG_GETARG_INT64(2),
						 .token = PG_GETARG_INT64(3),
						 .count = parents.count,
						 .parents = palloc(Max(parents.count, 1) * sizeof(int64)),
						 .outcomes = palloc(Max(parents.count, 1) * sizeof(Outcome))};
	for (int i = 0; i < parents.count; i++)
		call.parents[i] = DatumGetInt64(parents.values[i]);
	set = idemq_srf_begin(fcinfo);
	idemq_jobs_check_writable();
	idemq_add_parents(&call);
	for (int i = 0; i < call.count; i++)
	{
		Datum values[ADDED_COLUMNS] = {Int64GetDatum(call.parents[i]),
									   idemq_outcome_datum(call.outcomes[i])};
		bool nulls[ADDED_COLUMNS] = {false, false};

		tuplestore_putvalues(set->setResult, set->setDesc, values, nulls);
	}
	return (Datum) 0;
}
