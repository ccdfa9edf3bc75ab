/*
 * worker/worker.h
 *		The background worker of one database.
 */
#ifndef IDEMQ_WORKER_WORKER_H
#define IDEMQ_WORKER_WORKER_H

#include "base/idemq.h"

extern void idemq_worker_idle_interrupts(void);
pg_noreturn extern PGDLLEXPORT void idemq_worker_main(Datum arg);

#endif
