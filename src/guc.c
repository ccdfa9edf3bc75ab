/*
 * guc.c
 *		Settings.  idemq.x is the variable idemq_x.
 */
#include "postgres.h"

#include "utils/guc.h"

#include "compat.h"
#include "guc.h"

int idemq_max_queues = 1024;
int idemq_max_leases = 65536;

/* Defines idemq's settings; called once, from shared_preload_libraries. */
void
idemq_guc_define(void)
{
	DefineCustomIntVariable("idemq.max_queues", "Queues that have a ready cursor in shared memory.",
							"More queues work, but each claim from them starts at the head of "
							"the ready index.",
							&idemq_max_queues, 1024, 1, 100000, PGC_POSTMASTER, 0, NULL, NULL,
							NULL);
	DefineCustomIntVariable("idemq.max_leases",
							"Jobs in flight whose lease is kept in shared memory.",
							"More jobs in flight work, with their leases on the row alone.",
							&idemq_max_leases, 65536, 1, 10000000, PGC_POSTMASTER, 0, NULL, NULL,
							NULL);
	MarkGUCPrefixReserved("idemq");
}
