/*
 * txn/pending_counts.h
 *		What this transaction counts.
 */
#ifndef IDEMQ_TXN_PENDING_COUNTS_H
#define IDEMQ_TXN_PENDING_COUNTS_H

#include "shared/counters.h"

/* In place of a status: the row is new, or gone. */
#define NO_ROW (-1)

extern void idemq_pending_counts_row(int32 queue_id, int from, int to);
extern void idemq_pending_counts_event(int32 queue_id, uint32 counters);
extern void idemq_pending_counts_timing(int32 queue_id, Timing which, TimestampTz from,
										TimestampTz to);
extern void idemq_pending_counts_apply(void);
extern void idemq_pending_counts_release(SubTransactionId subid, SubTransactionId parent);
extern void idemq_pending_counts_undo(SubTransactionId from);
extern void idemq_pending_counts_forget(void);

#endif
