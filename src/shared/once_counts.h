/*
 * shared/once_counts.h
 *		How often idemq.once was asked, and what it answered.
 */
#ifndef IDEMQ_SHARED_ONCE_COUNTS_H
#define IDEMQ_SHARED_ONCE_COUNTS_H

extern Size idemq_once_counts_shmem_size(void);
extern void idemq_once_counts_shmem_init(void *area, bool found);
extern void idemq_once_counts_add(bool first);
extern void idemq_once_counts_read(int64 *first, int64 *repeated);

#endif
