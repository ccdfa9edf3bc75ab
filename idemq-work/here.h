/*
 * here.h: says that the runner is there.
 */
#ifndef IDEMQ_WORK_HERE_H
#define IDEMQ_WORK_HERE_H

#include "job.h"

/* Says so, if it is time to and the server can be asked; at the end, goodbye, if it has said anything. */
extern void here_say(struct server *server, const struct job *jobs, bool goodbye);

/* When it is to be said next. */
extern int64_t here_next(void);

#endif
