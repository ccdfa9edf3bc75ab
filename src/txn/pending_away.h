/*
 * txn/pending_away.h
 *		Databases from which this transaction keeps the worker away.
 */
#ifndef IDEMQ_TXN_PENDING_AWAY_H
#define IDEMQ_TXN_PENDING_AWAY_H

extern pid_t idemq_pending_away_keep(Oid database);
extern void idemq_pending_away_let_back(void);

#endif
