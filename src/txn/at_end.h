/*
 * txn/at_end.h
 *		What shared memory follows at the end of a transaction.
 */
#ifndef IDEMQ_TXN_AT_END_H
#define IDEMQ_TXN_AT_END_H

extern bool idemq_at_end_is_pending(void);
extern void idemq_at_end_install(void);

#endif
