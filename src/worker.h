/*
 * worker.h
 *		The background worker of one database.
 */
#ifndef IDEMQ_WORKER_H
#define IDEMQ_WORKER_H

extern void idemq_worker_idle_interrupts(void);
extern PGDLLEXPORT void idemq_worker_main(Datum arg) pg_attribute_noreturn();

#endif
