/*
 * shared/full_tables.h
 *		Which tables in shared memory were full, for the server's log.
 */
#ifndef IDEMQ_SHARED_FULL_TABLES_H
#define IDEMQ_SHARED_FULL_TABLES_H

typedef enum FullTable
{
	FULL_LEASES,
	FULL_BUCKETS,
	FULL_GROUPS,
	FULL_QUEUES
} FullTable;

#define FULL_TABLE_COUNT 4

extern Size idemq_full_tables_shmem_size(void);
extern void idemq_full_tables_shmem_init(void *area, bool found);
extern bool idemq_full_table_note(FullTable table);
extern bool idemq_full_table_take(FullTable table);

#endif
