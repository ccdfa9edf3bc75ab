/*
 * init.h: the first process of a container.
 */
#ifndef IDEMQ_WORK_INIT_H
#define IDEMQ_WORK_INIT_H

/* In the first process of a PID namespace, does not return: its child does, and is the runner. */
extern void init_start(void);

#endif
