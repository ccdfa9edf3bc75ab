/*
 * module.c
 *		Entry point of the library: what is installed when the server preloads it.
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/guc.h"

#include "base/base.h"
#include "hooks/hooks.h"
#include "queue/queue.h"
#include "shared/counts/counts.h"
#include "shared/groups/groups.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "shared/waiters/waiters.h"
#include "table/table.h"
#include "txn/txn.h"
#include "worker/worker.h"

PG_MODULE_MAGIC;

void _PG_init(void);

/* In the order of start-up. */
static const ShmemPart *const parts[] = {
	&idemq_groups_part,		   &idemq_commit_windows_part, &idemq_dependencies_part,
	&idemq_secret_part,		   &idemq_clock_part,		   &idemq_counters_part,
	&idemq_versions_part,	   &idemq_server_counts_part,  &idemq_qstates_part,
	&idemq_leases_part,		   &idemq_lease_sessions_part, &idemq_lease_shares_part,
	&idemq_buckets_part,	   &idemq_workers_part,		   &idemq_worker_marks_part,
	&idemq_wake_part,		   &idemq_wanted_room_part,	   &idemq_handlers_part,
	&idemq_rings_part,		   &idemq_unfinished_part,	   &idemq_unfinished_open_part,
	&idemq_group_room_part,	   &idemq_listeners_part,	   &idemq_queue_events_part,
	&idemq_finished_jobs_part,
};

/* Raises 55000 with the very line to add to postgresql.conf. */
static void
refuse_without_preload(void)
{
	const char *preloaded = GetConfigOption("shared_preload_libraries", true, false);
	bool others = preloaded != NULL && preloaded[0] != '\0';

	ereport(
		ERROR, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE), errmsg("idemq is not loaded"),
		errdetail("idemq requires shared memory that is allocated when the server starts."),
		errhint(
			"Add this line to postgresql.conf, and restart the server:\nshared_preload_libraries = "
			"'%s%sidemq'",
			others ? preloaded : "", others ? ", " : ""));
}

/* Installs idemq; raises 55000 outside shared_preload_libraries. */
void
_PG_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		refuse_without_preload();
	idemq_settings_define();
	idemq_shmem_install(parts, lengthof(parts));
	idemq_context_install();
	idemq_oids_install();
	idemq_queue_cache_install();
	idemq_following_install();
	idemq_jobs_index_install();
	idemq_jobs_id_install();
	idemq_at_end_install();
	idemq_utility_install();
	idemq_row_estimates_install();
	idemq_launcher_install();
}
