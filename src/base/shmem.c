/*
 * base/shmem.c
 *		Requests shared memory before the server starts, and divides it among the parts, in the
 *		order in which module.c lists them.
 *
 * There is one area for parts of fixed size, and one for each setting on which the size of parts
 * depends, so that pg_shmem_allocations shows how much memory the setting takes.  Within an area,
 * the parts follow one another.
 *
 * All of the contents are caches of the rows, and are lost in every restart.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "base/base.h"
#include "base/compat.h"

/* Names in pg_shmem_allocations, in the order of ShmemArea. */
static const char *const area_names[AREAS] = {"idemq", "idemq per queue", "idemq per worker",
											  "idemq per session"};

static const ShmemPart *const *shmem_parts;
static int shmem_nparts;
static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

/* Returns the size of a part without its hash table. */
static Size
part_size(const ShmemPart *part)
{
	Size elements = part->count == NULL ? 0 : mul_size(part->each, part->count());

	return CACHELINEALIGN(add_size(part->size, elements));
}

/* Returns the size of the array of tranche ids at the beginning of AREA_FIXED. */
static Size
tranches_size(void)
{
	return CACHELINEALIGN(shmem_nparts * sizeof(int));
}

/* Returns the size of an area. */
static Size
area_size(ShmemArea area)
{
	Size size = area == AREA_FIXED ? tranches_size() : 0;

	for (int i = 0; i < shmem_nparts; i++)
		size = add_size(size, shmem_parts[i]->lies_in == area ? part_size(shmem_parts[i]) : 0);
	return size;
}

/* shmem_request_hook. */
static void
request_memory(void)
{
	Size total = tranches_size();

	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	for (int i = 0; i < shmem_nparts; i++)
	{
		const ShmemPart *part = shmem_parts[i];

		total = add_size(total, part_size(part));
		if (part->hash != NULL)
			total = add_size(total, hash_estimate_size(*part->hash_entries, part->entry_size));
	}
	RequestAddinShmemSpace(total);
}

/* shmem_startup_hook: gives each part its memory, and initializes it in the first process. */
static void
startup_parts(void)
{
	char *next[AREAS];
	int *tranches;
	bool found;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	for (int i = 0; i < AREAS; i++)
	{
		next[i] = ShmemInitStruct(area_names[i], area_size(i), &found);
		if (!found)
			memset(next[i], 0, area_size(i));
	}
	tranches = (int *) next[AREA_FIXED];
	next[AREA_FIXED] += tranches_size();
	for (int i = 0; i < shmem_nparts; i++)
	{
		const ShmemPart *part = shmem_parts[i];

		*part->area = next[part->lies_in];
		next[part->lies_in] += part_size(part);
		if (part->tranche != NULL && !found)
			tranches[i] = compat_tranche_new(part->tranche);
		if (part->tranche != NULL)
			compat_tranche_name(tranches[i], part->tranche);
		if (part->hash != NULL)
		{
			HASHCTL info = {.keysize = part->key_size,
							.entrysize = part->entry_size,
							.num_partitions = part->partitions};

			*part->hash = compat_shmem_hash(part->hash_name, *part->hash_entries, &info,
											HASH_ELEM | HASH_BLOBS | HASH_FIXED_SIZE |
												(part->partitions > 0 ? HASH_PARTITION : 0));
		}
		if (part->init != NULL && !found)
			part->init(tranches[i]);
	}
	LWLockRelease(AddinShmemInitLock);
}

/* Installs the hooks; called once, from _PG_init.  The array of parts must stay valid. */
void
idemq_shmem_install(const ShmemPart *const *parts, int nparts)
{
	shmem_parts = parts;
	shmem_nparts = nparts;
	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_memory;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup_parts;
}
