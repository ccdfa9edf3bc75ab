/*
 * base/shmem.c
 *		Shared memory: asks for it before the server starts, and hands each part its
 *		area when it has started, in the order in which module.c lists them.
 *
 * There is one area for what has a fixed size, and one for each setting on which the size of parts
 * depends, so that pg_shmem_allocations shows what the setting costs.  The parts of an area lie one
 * behind the other.
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

/* Of ShmemArea, in pg_shmem_allocations. */
static const char *const area_names[AREAS] = {"idemq", "idemq per queue", "idemq per worker",
											  "idemq per session"};

static const ShmemPart *const *shmem_parts;
static int shmem_nparts;
static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

/* Returns the bytes of a part without its hash table. */
static Size
size_of(const ShmemPart *part)
{
	Size more = part->count == NULL ? 0 : mul_size(part->each, part->count());

	return CACHELINEALIGN(add_size(part->size, more));
}

/* Returns the bytes of the array of tranches, with which the area "idemq" begins. */
static Size
tranches_size(void)
{
	return CACHELINEALIGN(shmem_nparts * sizeof(int));
}

static Size
area_size(ShmemArea area)
{
	Size size = area == AREA_FIXED ? tranches_size() : 0;

	for (int i = 0; i < shmem_nparts; i++)
		size = add_size(size, shmem_parts[i]->lies_in == area ? size_of(shmem_parts[i]) : 0);
	return size;
}

static void
request_memory(void)
{
	Size total = tranches_size();

	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	for (int i = 0; i < shmem_nparts; i++)
	{
		const ShmemPart *part = shmem_parts[i];

		total = add_size(total, size_of(part));
		if (part->hash != NULL)
			total = add_size(total, hash_estimate_size(*part->hash_entries, part->entry_size));
	}
	RequestAddinShmemSpace(total);
}

/* Attaches every part to its memory, and fills it when this is the first process. */
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
		next[part->lies_in] += size_of(part);
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

/* Installs the hooks; parts must stay valid.  For _PG_init only. */
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
