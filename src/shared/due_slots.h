/*
 * shared/due_slots.h
 *		The slots whose times have changed, for the background worker of a database.
 */
#ifndef IDEMQ_SHARED_DUE_SLOTS_H
#define IDEMQ_SHARED_DUE_SLOTS_H

extern Size idemq_due_slots_shmem_size(void);
extern void idemq_due_slots_shmem_init(void *area, bool found);

extern void idemq_due_slots_mark(int place, int slot);
extern void idemq_due_slots_mark_all(int place);
extern bool idemq_due_slots_take(int place, void (*function)(int slot, void *arg), void *arg);

#endif
