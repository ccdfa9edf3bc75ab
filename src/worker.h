/*
 * worker.h
 *		The background worker of one database.
 */
#ifndef IDEMQ_WORKER_H
#define IDEMQ_WORKER_H

extern PGDLLEXPORT void idemq_worker_main(Datum arg) pg_attribute_noreturn();

#endif
