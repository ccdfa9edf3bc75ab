/*
 * worker/turns.h
 *		In which order the background worker comes to its database's queues.
 */
#ifndef IDEMQ_WORKER_TURNS_H
#define IDEMQ_WORKER_TURNS_H

extern void idemq_turns_begin(void);
extern void idemq_turns_put(int slot, int64 due, int64 since);
extern bool idemq_turns_take(int64 now, int *slot, int *stage);
extern void idemq_turns_cut(int slot, int stage);
extern int64 idemq_turns_next(void);

#endif
