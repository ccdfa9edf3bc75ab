/*
 * api/fallback_maintenance.c
 *		The fallback maintenance: what a session that sleeps in idemq.wait does for its queue while
 *		there is no background worker, or it is stuck: takes back leases, ends pauses of groups,
 *		and promotes heads of groups.
 *
 * It waits for a lock no longer than a maintenance task of the worker does: what holds the worker
 * up may hold this session up as well, while its client waits for jobs.  So all of it runs in a
 * subtransaction.  If a lock cannot be had, that is rolled back, and tried again at the next check.
 * Other errors are the caller's, as they are for a claim.
 */
#include "postgres.h"

#include "access/xact.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/resowner.h"

#include "api/api.h"
#include "base/base.h"
#include "job/job.h"

/* Heads of groups that one call promotes, at most. */
#define PROMOTE_ALONE 64

/* Does what is due for a queue; nothing, if a lock cannot be had in time. */
void
idemq_do_fallback_maintenance(const QueueInfo *queue)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	int guc_level;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	guc_level = NewGUCNestLevel();
	if (LockTimeout == 0 || LockTimeout > IDEMQ_LOCK_PATIENCE)
		idemq_spi_set("lock_timeout", IDEMQ_LOCK_PATIENCE_TEXT);
	PG_TRY();
	{
		(void) idemq_reap_some(queue);
		if (idemq_group_pause_is_over(queue))
			(void) idemq_group_pauses_end(queue);
		if (idemq_promote_wanted(queue))
			(void) idemq_promote_some(queue, PROMOTE_ALONE);
		AtEOXact_GUC(true, guc_level);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		if (geterrcode() != ERRCODE_LOCK_NOT_AVAILABLE)
			PG_RE_THROW();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
}
