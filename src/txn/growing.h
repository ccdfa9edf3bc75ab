/*
 * txn/growing.h
 *		Arrays in TopTransactionContext that grow.
 */
#ifndef IDEMQ_TXN_GROWING_H
#define IDEMQ_TXN_GROWING_H

extern void *idemq_grow(void *array, int *max, int64 wanted, Size size);

#endif
