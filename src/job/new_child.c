/*
 * job/new_child.c
 *		A new job that waits for its parents: enqueue with depends_on.
 *
 * The row of the child is written blocked, without a ready_at and without its group, which it joins
 * when its parents are done.  Otherwise the child could come before one of its parents in the same
 * group, and neither would ever run.  Parents and group are stored in other tables
 * (table/jobs_dependencies.c).  After the commit the child is marked, and looked at like any child
 * (job/dependencies.c), even if all its parents are already done.
 *
 * Parents are looked up by the latest snapshot, and the end of a parent may become visible at any
 * time; shared/groups/dependencies.c proves that no end is missed.  Until this transaction ends, no
 * other transaction can delete a parent, because the parent's row is locked FOR KEY SHARE, and its
 * queue is locked against being dropped.  Otherwise the parent could be cancelled and deleted
 * before the child is visible: then the child's row would not be updated, and the parent would
 * count as completed.  The row lock only blocks deletions: retention and purge skip the row, and a
 * commit in a queue that keeps nothing leaves the row to retention.
 *
 * If another transaction is deleting a parent, this one waits for it, even if it is a commit in a
 * queue that keeps nothing.  If that transaction rolls back, the row exists again without our lock,
 * and the parent may be cancelled and deleted before the child is visible.
 *
 * A parent must exist, in a queue on which the role has a privilege, because the role will learn
 * the parent's result.  The same applies to idemq.wait_result.
 */
#include "postgres.h"

#include "lib/qunique.h"
#include "miscadmin.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/groups/groups.h"
#include "table/table.h"

/*
 * Makes a new job blocked; all of its columns are set, and depends has its parents.  Sorts the
 * parents, and removes duplicates.
 */
void
idemq_new_child(JobChange *columns, NewDependencies *depends)
{
	qsort(depends->parents, depends->count, sizeof(int64), idemq_compare_int64);
	depends->count =
		(int) qunique(depends->parents, depends->count, sizeof(int64), idemq_compare_int64);
	depends->group = (Datum) 0;
	if (columns->set & COLUMN_BIT(COL_GROUP_KEY))
	{
		depends->group = columns->values[COL_GROUP_KEY];
		columns->set &= ~COLUMN_BIT(COL_GROUP_KEY);
		return; /* it is blocked, and its time is in run_at */
	}
	if (DatumGetTimestampTz(columns->values[COL_READY_AT]) >
		DatumGetTimestampTz(columns->values[COL_ENQUEUED_AT]))
		job_set(columns, COL_RUN_AT, columns->values[COL_READY_AT]);
	columns->set &= ~COLUMN_BIT(COL_READY_AT);
	job_set(columns, COL_STATUS, ObjectIdGetDatum(idemq_oids()->status[JOB_BLOCKED]));
}

/* Raises IQ002.  A role without the privilege cannot tell whether the job exists. */
pg_noreturn static void
refuse(int64 parent, const char *argument)
{
	ereport(
		ERROR, errcode(ERRCODE_IDEMQ_NO_SUCH_JOB),
		errmsg("job %lld in %s does not exist", (long long) parent, argument),
		errhint(
			"The job was deleted, the transaction that enqueued it did not commit, or you have no "
			"privilege on its queue."));
}

/*
 * Looks up a parent that is passed in an argument, adds it to the filter of jobs with dependencies,
 * and locks its row. *queue: in, the queue of the previous parent; out, that of this one.  Raises
 * IQ002.  Returns false if another transaction is deleting the parent or dropping its queue, and
 * the caller does not wait.
 */
bool
idemq_parent_hold(JobsTable *table, const char *argument, int64 parent, JobWait wait,
				  QueueInfo *queue, Job *job)
{
	for (;;)
	{
		JobWrite write;

		CHECK_FOR_INTERRUPTS();
		if (!idemq_jobs_fetch(table, parent, job))
			refuse(parent, argument);
		if (job->queue_id != queue->id)
		{
			/*
			 * Before the lock, because waiting for it would reveal that the job exists; and after
			 * it, because the queue may have been dropped.
			 */
			if (!idemq_queue_allows(job->queue_id, PRIVILEGE_ALL, queue))
				refuse(parent, argument);
			if (wait == JOB_WAITS)
				idemq_queue_lock(job->queue_id, AccessShareLock);
			else if (!idemq_queue_try_lock(job->queue_id, AccessShareLock))
				return false;
			if (!idemq_queue_allows(job->queue_id, PRIVILEGE_ALL, queue))
				refuse(parent, argument);
		}
		idemq_queue_need_qstate(queue);
		idemq_dependency_note(queue->qstate, parent);
		/* No other transaction can delete a row that this one has written. */
		if (idemq_jobs_is_own(job))
			return true;
		write = idemq_jobs_keep(table, job, wait);
		if (write != JOB_CHANGED)
			return write == JOB_WRITTEN;
		idemq_jobs_refresh(table);
	}
}

/*
 * Records a parent that has failed, because retention may delete it before the child is looked at.
 */
void
idemq_parent_note(NewDependencies *depends, const Job *parent)
{
	if (parent->status == JOB_DEAD || parent->status == JOB_CANCELLED)
		depends->failures[depends->failed++] = parent->id;
}

/*
 * Adds the parents of a job that this transaction has inserted.  Raises IQ002 for a parent that
 * does not exist, or that the role may not see.
 */
void
idemq_new_child_add(JobsTable *table, const QueueInfo *queue, int64 id, NewDependencies *depends)
{
	QueueInfo last = *queue;

	depends->child = id;
	depends->queue_id = queue->id;
	depends->failures = palloc(depends->count * sizeof(int64));
	depends->failed = 0;
	idemq_dependency_note(queue->qstate, id);
	/* An insert with a key may have waited. */
	idemq_jobs_refresh(table);
	for (int i = 0; i < depends->count; i++)
	{
		Job parent;

		/* The id of the child itself, which can be guessed: the child would wait indefinitely. */
		if (depends->parents[i] == id)
			refuse(id, "depends_on");
		(void) idemq_parent_hold(table, "depends_on", depends->parents[i], JOB_WAITS, &last,
								 &parent);
		idemq_parent_note(depends, &parent);
	}
	idemq_dependencies_add(depends);
}
