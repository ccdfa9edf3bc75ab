/*
 * txn/prepare_check.c
 *		What PREPARE TRANSACTION refuses: what no session can answer for any more.
 *
 * An attached lease ends with its session.  The session that commits the transaction
 * does not know what it dropped.  And from PREPARE on it has no lease entries, so that
 * its jobs would not count for max_running.
 */
#include "postgres.h"

#include "queue/queue.h"
#include "txn/txn.h"

static void
refuse(const char *what, const char *hint)
{
	ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					errmsg("cannot PREPARE a transaction that %s", what), errhint("%s", hint)));
}

/*
 * Raises 0A000 for something that a transaction did and cannot be prepared.  queue_id:
 * where it claimed or ended an attempt, or 0; attached: with attach; drops: it dropped
 * or truncated queues or jobs.
 */
void
idemq_prepare_check(int32 queue_id, bool attached, bool drops)
{
	QueueInfo queue;

	if (attached)
		refuse("has claimed jobs with attach", "Claim without attach => true.");
	if (drops)
		refuse("dropped or truncated queues or jobs", "Do that in a transaction of its own.");
	if (queue_id != 0 && idemq_queue_by_id(queue_id, &queue) && queue.max_running > 0)
		refuse("has claimed or ended attempts in a queue with max_running",
			   "Commit it in one phase, or take the limit away with "
			   "SELECT idemq.alter_queue('...', max_running => 0).");
}
