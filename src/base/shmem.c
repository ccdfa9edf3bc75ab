/*
 * base/shmem.c
 *		Shared memory: asks for it before the server starts, hands each part its
 *		area when it has started, in the order in which module.c lists them.
 *
 * Everything in it is a cache of the rows, thrown away by every restart.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "base/base.h"
#include "base/compat.h"

static const ShmemPart *shmem_parts;
static int shmem_nparts;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

/* Asks for the memory of all parts. */
static void
request_memory(void)
{
	Size total = 0;

	for (int i = 0; i < shmem_nparts; i++)
	{
		total = add_size(total, CACHELINEALIGN(shmem_parts[i].size()));
		if (shmem_parts[i].hash_size != NULL)
			total = add_size(total, shmem_parts[i].hash_size());
	}
	RequestAddinShmemSpace(total);
}

COMPAT_SHMEM_REQUEST_HOOK(request_memory)

/* Attaches every part to its area. */
static void
startup_parts(void)
{
	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	for (int i = 0; i < shmem_nparts; i++)
	{
		const ShmemPart *part = &shmem_parts[i];
		bool found;
		void *area = ShmemInitStruct(part->name, part->size(), &found);

		part->init(area, found);
	}
	LWLockRelease(AddinShmemInitLock);
}

/* Installs the hooks; parts must stay valid.  For _PG_init only. */
void
idemq_shmem_install(const ShmemPart *parts, int nparts)
{
	shmem_parts = parts;
	shmem_nparts = nparts;
	compat_install_shmem_request();
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup_parts;
}
