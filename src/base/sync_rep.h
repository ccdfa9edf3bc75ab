/*
 * base/sync_rep.h
 *		Waiting until synchronous standbys have what is to be answered.
 */
#ifndef IDEMQ_BASE_SYNC_REP_H
#define IDEMQ_BASE_SYNC_REP_H

extern void idemq_sync_rep_await(void);
extern void idemq_sync_rep_await_commit(void);

#endif
