/*
 * txn/pending_counts.h
 *		What this transaction counts.
 */
#ifndef IDEMQ_TXN_PENDING_COUNTS_H
#define IDEMQ_TXN_PENDING_COUNTS_H

#include "shared/counters.h"

/* In place of a status: the row is new, or gone. */
#define NO_ROW (-1)

extern void idemq_tally_row(int32 queue_id, int from, int to);
extern void idemq_tally_count(int32 queue_id, uint32 counters);
extern void idemq_tally_timing(int32 queue_id, Timing which, TimestampTz from, TimestampTz to);
extern void idemq_tally_apply(void);
extern void idemq_tally_release(SubTransactionId subid, SubTransactionId parent);
extern void idemq_tally_undo(SubTransactionId from);
extern void idemq_tally_forget(void);

#endif
