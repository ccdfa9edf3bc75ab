/*
 * shared/settings_version.h
 *		Numbers that move when the settings of a queue change.
 */
#ifndef IDEMQ_SHARED_SETTINGS_VERSION_H
#define IDEMQ_SHARED_SETTINGS_VERSION_H

#include "postgres_ext.h"

/* All versions of queues, copied. */
typedef struct SettingsVersions SettingsVersions;

extern Size idemq_versions_shmem_size(void);
extern void idemq_versions_shmem_init(void *area, bool found);
extern void idemq_version_move(int32 queue_id);
extern uint64 idemq_version_of_queue(int32 queue_id);
extern uint64 idemq_version_of_list(void);
extern uint64 idemq_version_of_all(void);
extern SettingsVersions *idemq_versions_copy(void);
extern uint64 idemq_versions_copied(const SettingsVersions *versions, int32 queue_id);

#endif
