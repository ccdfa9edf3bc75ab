/*
 * worker/chores.h
 *		What a background worker does.
 */
#ifndef IDEMQ_WORKER_CHORES_H
#define IDEMQ_WORKER_CHORES_H

extern int64 idemq_chores_do(void);

#endif
