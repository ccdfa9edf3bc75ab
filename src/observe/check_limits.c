/*
 * observe/check_limits.c
 *		The audit of what max_running counts.
 *
 * A queue's count is the sum over its lease entries.  Both change together, under
 * the entry's partition lock: so with all of those held, that is true at any moment,
 * and no second check is needed.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "observe/check_limits.h"
#include "observe/check_report.h"
#include "queue/queues.h"
#include "shared/lease_table.h"
#include "shared/running.h"
#include "shared/slots.h"
#include "base/settings.h"

typedef struct Counts
{
	int64 *entries; /* by the slot's index; then, instead, what the slot counts too many */
} Counts;

static bool
visit_entry(Lease *lease, void *arg)
{
	Counts *counts = arg;

	if (idemq_running_is_counted(&lease->running))
		counts->entries[lease->running.slot] += lease->running.units;
	return true;
}

/* Compares while all entries are locked. */
static void
compare(void *arg)
{
	Counts *counts = arg;

	for (int i = 0; i < idemq_max_queues; i++)
		counts->entries[i] = idemq_running_count(idemq_slot_at(i)) - counts->entries[i];
}

/* Warns of a queue with limits that cannot be counted. */
static void
check_queue(CheckCall *call, const QueueInfo *queue)
{
	if (queue->slot == NULL && (queue->max_running > 0 || queue->rate_limit > 0))
		idemq_check_report(call, CHECK_WARNING, "limits.slot",
						   "queue \"%s\" has limits, no slot to count in, and hands out nothing: "
						   "raise idemq.max_queues and restart",
						   queue->name);
	else if (queue->max_running > 0 && idemq_lease_table_is_full())
		idemq_check_report(call, CHECK_WARNING, "limits.full",
						   "queue \"%s\" has max_running, and hands out nothing while the lease "
						   "table is full: raise idemq.max_leases and restart",
						   queue->name);
}

/* Checks what is counted for limits; see the file's header. */
void
idemq_check_limits(CheckCall *call)
{
	Counts counts = {palloc0(idemq_max_queues * sizeof(int64))};

	idemq_leases_visit_all(LW_SHARED, visit_entry, compare, &counts);
	for (int i = 0; i < call->nqueues; i++)
	{
		QueueInfo queue;
		int64 excess;

		if (!idemq_queue_by_id(call->queue_ids[i], &queue))
			continue;
		check_queue(call, &queue);
		excess = queue.slot == NULL ? 0 : counts.entries[idemq_slot_index(queue.slot)];
		if (excess != 0)
			idemq_check_report(call, CHECK_ERROR, "limits.running",
							   "queue \"%s\" counts %lld running jobs more than it has lease "
							   "entries: restart the server",
							   queue.name, (long long) excess);
	}
	pfree(counts.entries);
}
