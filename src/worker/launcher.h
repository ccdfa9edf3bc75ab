/*
 * worker/launcher.h
 *		The process that keeps a worker in each database with idemq.
 */
#ifndef IDEMQ_WORKER_LAUNCHER_H
#define IDEMQ_WORKER_LAUNCHER_H

extern void idemq_launcher_install(void);

#endif
