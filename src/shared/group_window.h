/*
 * shared/group_window.h
 *		Transactions that are about to lower the floors of FIFO groups.
 */
#ifndef IDEMQ_SHARED_GROUP_WINDOW_H
#define IDEMQ_SHARED_GROUP_WINDOW_H

#include "shared/slots.h"

extern Size idemq_group_windows_shmem_size(void);
extern void idemq_group_windows_shmem_init(void *area, bool found);
extern int idemq_group_window_of(const QueueSlot *slot, Oid database);
extern int idemq_group_window_enter(int number, int64 id);
extern void idemq_group_window_lower(int number, int generation, int64 id);
extern void idemq_group_window_leave(int number, int generation);
extern int64 idemq_group_window_least(const QueueSlot *slot, Oid database);

#endif
