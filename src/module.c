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
#include "shared/sleepers/sleepers.h"
#include "shared/slots/slots.h"
#include "table/table.h"
#include "txn/txn.h"
#include "worker/worker.h"

PG_MODULE_MAGIC;

void _PG_init(void);

/* In the order of start-up. */
static const ShmemPart parts[] = {
	{"idemq groups area", idemq_groups_shmem_size, idemq_groups_hash_size, idemq_groups_shmem_init},
	{"idemq group windows", idemq_group_windows_shmem_size, NULL, idemq_group_windows_shmem_init},
	{"idemq kin", idemq_kin_shmem_size, NULL, idemq_kin_shmem_init},
	{"idemq rounds", idemq_rounds_shmem_size, NULL, idemq_rounds_shmem_init},
	{"idemq secret", idemq_secret_shmem_size, NULL, idemq_secret_shmem_init},
	{"idemq clock", idemq_clock_shmem_size, NULL, idemq_clock_shmem_init},
	{"idemq counters", idemq_counters_shmem_size, NULL, idemq_counters_shmem_init},
	{"idemq settings", idemq_versions_shmem_size, NULL, idemq_versions_shmem_init},
	{"idemq once counts", idemq_once_counts_shmem_size, NULL, idemq_once_counts_shmem_init},
	{"idemq publish counts", idemq_publish_counts_shmem_size, NULL,
	 idemq_publish_counts_shmem_init},
	{"idemq queues area", idemq_slots_shmem_size, idemq_slots_hash_size, idemq_slots_shmem_init},
	{"idemq lease locks", idemq_leases_shmem_size, idemq_leases_hash_size, idemq_leases_shmem_init},
	{"idemq lease owners", idemq_lease_owners_shmem_size, NULL, idemq_lease_owners_shmem_init},
	{"idemq lease shares", idemq_lease_shares_shmem_size, NULL, idemq_lease_shares_shmem_init},
	{"idemq bucket locks", idemq_buckets_shmem_size, idemq_buckets_hash_size,
	 idemq_buckets_shmem_init},
	{"idemq workers", idemq_workers_shmem_size, NULL, idemq_workers_shmem_init},
	{"idemq full tables", idemq_full_tables_shmem_size, NULL, idemq_full_tables_shmem_init},
	{"idemq due slots", idemq_due_slots_shmem_size, NULL, idemq_due_slots_shmem_init},
	{"idemq sleepers", idemq_wake_shmem_size, NULL, idemq_wake_shmem_init},
	{"idemq handlers known", idemq_handlers_known_shmem_size, NULL,
	 idemq_handlers_known_shmem_init},
	{"idemq handlers", idemq_handlers_shmem_size, NULL, idemq_handlers_shmem_init},
	{"idemq events", idemq_notify_ring_shmem_size, NULL, idemq_notify_ring_shmem_init},
};

/* Raises 55000 with the very line to add to postgresql.conf. */
static void
refuse_without_preload(void)
{
	const char *preloaded = GetConfigOption("shared_preload_libraries", true, false);
	bool others = preloaded != NULL && preloaded[0] != '\0';

	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE), errmsg("idemq is not loaded"),
			 errdetail("It needs shared memory from the start of the server."),
			 errhint("Put this line into postgresql.conf and restart the server:\n"
					 "shared_preload_libraries = '%s%sidemq'",
					 others ? preloaded : "", others ? ", " : "")));
}

/* Installs idemq; raises 55000 outside shared_preload_libraries. */
void
_PG_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		refuse_without_preload();
	idemq_settings_define();
	idemq_shmem_install(parts, lengthof(parts));
	idemq_oids_install();
	idemq_queue_cache_install();
	idemq_following_install();
	idemq_jobs_index_install();
	idemq_jobs_id_install();
	idemq_at_end_install();
	idemq_utility_install();
	idemq_launcher_install();
}
