/*
 * keeper.h: the process that ends the programs of a runner that was killed.
 */
#ifndef IDEMQ_WORK_KEEPER_H
#define IDEMQ_WORK_KEEPER_H

#include <sys/types.h>

/* Before the first connection: the keeper would keep it open. */
extern void keeper_start(void);

/* In the program's process, before it becomes the program. */
extern void keeper_watch(pid_t group);

/* Before the process is reaped: its number may be another's at once. */
extern void keeper_forget(pid_t group);

/* Ends it, at the end of the runner. */
extern void keeper_stop(void);

#endif
