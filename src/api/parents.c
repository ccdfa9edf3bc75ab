/*
 * api/parents.c
 *		SQL function parents: what a job's parents have come to.
 *
 * A role that may claim from the job's queue, or administers it, is told the results of the job's
 * parents, also in queues on which it has no privilege: whoever enqueued the job could ask for
 * them (job/new_child.c), and has handed them on.  It is told the results of the ends by which
 * the job came to run, and no others: a parent may run again after the right to ask for it was
 * revoked.
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "base/base.h"
#include "queue/queue.h"
#include "table/table.h"

#define COLUMNS 4

/*
 * Adds a parent's row.  A parent that is gone has the status of its deletion, or none.  To a role
 * without a privilege on the parent's queue it shows no result before the child has come to run,
 * and neither status nor result if it was claimed again since then.
 */
static void
add_row(JobsTable *table, const DependencyGone *parent, ReturnSetInfo *set)
{
	Datum values[COLUMNS] = {Int64GetDatum(parent->id)};
	bool nulls[COLUMNS] = {false, true, true, true};
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

/* parents(id) -> setof (parent, queue, status, result), none if the role may not know; 22004. */
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
			add_row(&table, &parents[i], set);
	}
	idemq_jobs_close(&table);
	return (Datum) 0;
}
