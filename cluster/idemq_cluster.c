/*
 * idemq_cluster.c
 *		What the router of a cluster cannot see from SQL: whether a call that takes effect at
 *		once runs in a transaction that may yet be rolled back.
 *
 * The router needs no idemq of its own, and preloads nothing.
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(idemq_cluster_in_transaction);

/*
 * in_transaction() -> boolean: a transaction block, one that several statements of a message
 * make among them, or a statement that has written something here.
 */
Datum
idemq_cluster_in_transaction(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(IsTransactionBlock() || TransactionIdIsValid(GetTopTransactionIdIfAny()));
}
