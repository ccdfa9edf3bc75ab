/*
 * worker.h
 *		The background worker of one database.
 */
#ifndef IDEMQ_WORKER_H
#define IDEMQ_WORKER_H

#include "idemq.h"

pg_noreturn extern PGDLLEXPORT void idemq_worker_main(Datum arg);

#endif
