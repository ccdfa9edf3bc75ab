/*
 * base/shmem.h
 *		Shared memory: size and start-up.
 */
#ifndef IDEMQ_BASE_SHMEM_H
#define IDEMQ_BASE_SHMEM_H

/* One part of idemq's shared memory; its file owns its contents and locks. */
typedef struct ShmemPart
{
	const char *name;
	Size (*size)(void);					  /* bytes; the settings are read */
	Size (*hash_size)(void);			  /* bytes of its hash tables, beside size */
	void (*init)(void *area, bool found); /* attach; fill when not found */
} ShmemPart;

extern void idemq_shmem_install(const ShmemPart *parts, int nparts);

#endif
