/*
 * txn/borrowed.h
 *		The attempts that this transaction ends, in whose place it may claim.
 */
#ifndef IDEMQ_TXN_BORROWED_H
#define IDEMQ_TXN_BORROWED_H

extern void idemq_borrowed_reserve(int32 queue_id);
extern void idemq_borrowed_note_end(int32 queue_id, bool frees, int count);
extern void idemq_borrowed_note_claim(int32 queue_id, int count);
extern int idemq_borrowed_free(int32 queue_id);
extern bool idemq_borrowed_uncounted(int32 queue_id);
extern void idemq_borrowed_forget(void);

#endif
