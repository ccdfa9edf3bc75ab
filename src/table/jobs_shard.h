/*
 * table/jobs_shard.h
 *		Which ids are this database's, when it is a shard of many.
 */
#ifndef IDEMQ_TABLE_JOBS_SHARD_H
#define IDEMQ_TABLE_JOBS_SHARD_H

/* A shard's ids have its number above so many bits: 64 shards stay below 2^53. */
#define SHARD_ID_BITS 47
#define MAX_SHARDS 64

/* The ids that this database may give. */
typedef struct IdPart
{
	int32 shard; /* -1: it is no shard */
	int64 base;	 /* ids are above this ... */
	int64 most;	 /* ... and up to this */
} IdPart;

extern void idemq_id_part_of(IdPart *part, int32 shard);
extern int64 idemq_id_part_now(const IdPart *part);
extern bool idemq_shard_set(int32 shard, int32 shards);
extern void idemq_shard_assert(int32 shard, int32 shards);

#endif
