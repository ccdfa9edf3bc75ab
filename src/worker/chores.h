/*
 * worker/chores.h
 *		What a background worker does.
 */
#ifndef IDEMQ_WORKER_CHORES_H
#define IDEMQ_WORKER_CHORES_H

extern bool idemq_chores_begin(void);
extern int64 idemq_chores_do(void);

#endif
