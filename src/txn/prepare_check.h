/*
 * txn/prepare_check.h
 *		What PREPARE TRANSACTION refuses.
 */
#ifndef IDEMQ_TXN_PREPARE_CHECK_H
#define IDEMQ_TXN_PREPARE_CHECK_H

extern void idemq_prepare_check(int32 queue_id, bool attached, bool drops);

#endif
