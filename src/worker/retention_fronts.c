/*
 * worker/retention_fronts.c
 *		Which finished jobs are to be checked, whether their retention is over.
 *
 * The index of finished jobs has those of all queues, in the order in which they
 * finished.  Queues keep their jobs for different times: a scan from its start every
 * 10 s would read 30 days of one queue's jobs to find the last minute of another's, and
 * all dead entries before them.  So there is one front for each length of time that any
 * queue keeps jobs for: what finished before now - length is visited once for that
 * length, from where the front was to where it is now.  A job that is kept for 30 days is
 * met once by the front of one minute, and then by that of 30 days; what the first front
 * has deleted is not met again.  A job costs as many visits as there are lengths up to
 * its own.
 *
 * A front passes each position once.  It misses
 *
 *		a row that another transaction holds
 *		a row whose finished_at was written by a transaction that is still open:
 *		finished_at is the time of the call
 *
 * Both are there, or gone, when the transactions of that time have ended: then
 * there is a second scan of that part of the index.  New transactions do not put it off:
 * what is missed is gathered while an older part waits for its end.  A front cannot have
 * missed the second kind when every running transaction began after all that it visits
 * had finished.  When transactions began is known by their numbers, which are marked each
 * round.  The rest (rows moved or written by hand, a transaction that
 * had no number yet, a job whose own key_expires_at is later than any length) is for the sweep (worker/retention.c).
 *
 * All is local to this process, and begins anew with it: at the oldest row.
 * Locks: none.
 */
#include "postgres.h"

#include "access/transam.h"
#include "storage/procarray.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "worker/retention_fronts.h"
#include "table/jobs_finished.h"
#include "queue/queues.h"
#include "base/args.h"

/* Kinds of finished jobs, which a queue keeps for different times, as bits. */
#define KIND_KEYED 1
#define KIND_DEAD 2
#define KINDS 4

/* What a queue keeps jobs of each kind for. */
typedef struct QueueKeeps
{
	int32 queue_id; /* first, for idemq_compare_int32 */
	int64 keeps[KINDS];
} QueueKeeps;

static Retention *retentions = NULL;
static int nretentions = 0;
/* In the order of queue_id; the queues as the last round knew them. */
static QueueKeeps *known = NULL;
static int nknown = 0;

static int64
keep_of(const QueueInfo *queue, int kind)
{
	int64 keep = (kind & KIND_DEAD) ? queue->dead_retention : queue->retention;

	return (kind & KIND_KEYED) ? Max(keep, queue->idempotency_window) : keep;
}

/*
 * Returns for how long a finished job is kept: for its queue's retention, a dead one for
 * dead_retention; with a key, for the time in which the key answers, if that is longer:
 * until its own key_expires_at, or for the queue's window.
 */
int64
idemq_retention_of(const Job *job, const QueueInfo *queue)
{
	const TupleTableSlot *row = job->row;
	int kind = job->status == JOB_DEAD ? KIND_DEAD : 0;

	if (row->tts_isnull[COL_KEY])
		return keep_of(queue, kind);
	if (row->tts_isnull[COL_KEY_EXPIRES_AT])
		return keep_of(queue, kind | KIND_KEYED);
	return Max(keep_of(queue, kind), DatumGetTimestampTz(row->tts_values[COL_KEY_EXPIRES_AT]) -
										 DatumGetTimestampTz(row->tts_values[COL_FINISHED_AT]));
}

/* Reads what all queues keep jobs for, in the order of queue_id, in TopMemoryContext. */
static QueueKeeps *
read_keeps(int *count)
{
	int nids;
	int32 *ids = idemq_queue_ids(0, &nids);
	QueueKeeps *keeps = MemoryContextAlloc(TopMemoryContext, Max(nids, 1) * sizeof(QueueKeeps));
	QueueInfo queue;

	*count = 0;
	for (int i = 0; i < nids; i++)
	{
		if (!idemq_queue_by_id(ids[i], &queue))
			continue;
		keeps[*count].queue_id = ids[i];
		for (int kind = 0; kind < KINDS; kind++)
			keeps[*count].keeps[kind] = keep_of(&queue, kind);
		(*count)++;
	}
	qsort(keeps, *count, sizeof(QueueKeeps), idemq_compare_int32);
	return keeps;
}

static Retention *
find_retention(Retention *among, int count, int64 keep)
{
	for (int i = 0; i < count; i++)
	{
		if (among[i].keep == keep)
			return &among[i];
	}
	return NULL;
}

/*
 * Makes the list of lengths anew from what the queues keep jobs for.  Those that
 * were there go on; a length that is new begins at the oldest row, and so does one
 * that a queue has changed to.
 */
static void
follow_settings(void)
{
	int count;
	QueueKeeps *keeps = read_keeps(&count);
	Retention *made =
		MemoryContextAllocZero(TopMemoryContext, Max(KINDS * count, 1) * sizeof(Retention));
	int nmade = 0;

	for (int i = 0; i < KINDS * count; i++)
	{
		const QueueKeeps *queue = &keeps[i / KINDS];
		const QueueKeeps *before =
			nknown == 0 ? NULL
						: bsearch(queue, known, nknown, sizeof(QueueKeeps), idemq_compare_int32);
		int64 keep = queue->keeps[i % KINDS];
		Retention *old = find_retention(retentions, nretentions, keep);
		Retention *retention = find_retention(made, nmade, keep);

		if (retention == NULL)
		{
			retention = &made[nmade++];
			retention->keep = keep;
			retention->front.at = idemq_jobs_finished_from(DT_NOBEGIN);
			if (old != NULL)
				*retention = *old;
		}
		if (before != NULL && before->keeps[i % KINDS] != keep)
			retention->front.at = idemq_jobs_finished_from(DT_NOBEGIN);
	}
	if (known != NULL)
		pfree(known);
	if (retentions != NULL)
		pfree(retentions);
	known = keeps;
	nknown = count;
	retentions = made;
	nretentions = nmade;
}

/* Marks which number the next transaction has now; marks are an eighth of keep apart at least. */
static void
mark(Retention *retention, TimestampTz now, uint64 next_xid)
{
	XidMark *marks = retention->marks;

	if (retention->nmarks > 0 && now - marks[retention->nmarks - 1].at < retention->keep / 8)
		return;
	if (retention->nmarks == XID_MARKS)
	{
		memmove(marks, marks + 1, (XID_MARKS - 1) * sizeof(XidMark));
		retention->nmarks--;
	}
	marks[retention->nmarks++] = (XidMark){now, next_xid};
}

/* Returns a number that no transaction had before a time; next_xid is one. */
static uint64
xid_at(const Retention *retention, TimestampTz at, uint64 next_xid)
{
	for (int i = 0; i < retention->nmarks; i++)
	{
		if (retention->marks[i].at >= at)
			return retention->marks[i].xid;
	}
	return next_xid;
}

/* Adds a part of the index to what was missed. */
static void
gather(Retention *retention, TimestampTz from, TimestampTz until, uint64 xid)
{
	Missed *missed = &retention->gathered;

	if (missed->from >= missed->until)
		*missed = (Missed){from, until, xid};
	missed->from = Min(missed->from, from);
	missed->until = Max(missed->until, until);
	missed->xid = Max(missed->xid, xid);
}

/* Notes a row that is held: it is visited again when all transactions that run now have ended. */
void
idemq_retention_note_held(Retention *retention, TimestampTz finished_at)
{
	gather(retention, finished_at, finished_at + 1,
		   U64FromFullTransactionId(ReadNextFullTransactionId()));
}

/* Sets what one length has to visit in this round.  oldest: no transaction before it runs. */
static void
begin_round(Retention *retention, TimestampTz now, uint64 next_xid, uint64 oldest)
{
	FinishedScan *front = &retention->front;
	uint64 since;

	mark(retention, now, next_xid);
	front->until = now - retention->keep;
	since = xid_at(retention, front->until, next_xid);
	if (!finished_scan_is_over(front) && oldest < since)
		gather(retention, front->at.finished_at, front->until, since);
	if (!finished_scan_is_over(&retention->again))
		return;
	if (retention->waiting.from < retention->waiting.until && oldest >= retention->waiting.xid)
	{
		retention->again.at = idemq_jobs_finished_from(retention->waiting.from);
		retention->again.until = retention->waiting.until;
		retention->waiting.until = retention->waiting.from;
	}
	if (retention->waiting.from >= retention->waiting.until)
	{
		retention->waiting = retention->gathered;
		retention->gathered.until = retention->gathered.from;
	}
}

/*
 * Begins a round: sets all fronts to what has finished so long before now, reading
 * the queues' settings.  To be called in a transaction that has no number yet.
 */
void
idemq_retentions_begin_round(TimestampTz now)
{
	/* In this order: a transaction that gets a number between the two is younger. */
	uint64 next_xid = U64FromFullTransactionId(ReadNextFullTransactionId());
	int32 age = (int32) ((TransactionId) next_xid - GetOldestActiveTransactionId());
	uint64 oldest = next_xid - (uint64) Max(age, 0);

	follow_settings();
	for (int i = 0; i < nretentions; i++)
		begin_round(&retentions[i], now, next_xid, oldest);
}

/* Returns a scan that is not over, and its retention; NULL when the round is. */
FinishedScan *
idemq_retentions_next_scan(Retention **retention)
{
	for (int i = 0; i < nretentions; i++)
	{
		*retention = &retentions[i];
		if (!finished_scan_is_over(&retentions[i].front))
			return &retentions[i].front;
		if (!finished_scan_is_over(&retentions[i].again))
			return &retentions[i].again;
	}
	return NULL;
}

/* Returns the time before which a finished job may be past its retention in some queue. */
TimestampTz
idemq_retention_shortest(TimestampTz now)
{
	int count;
	QueueKeeps *keeps = read_keeps(&count);
	int64 shortest = PG_INT64_MAX;

	for (int i = 0; i < count; i++)
	{
		for (int kind = 0; kind < KINDS; kind++)
			shortest = Min(shortest, keeps[i].keeps[kind]);
	}
	pfree(keeps);
	return shortest == PG_INT64_MAX ? DT_NOBEGIN : now - shortest;
}
