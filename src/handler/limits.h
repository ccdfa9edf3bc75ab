/*
 * handler/limits.h
 *		How long a handler's function may run, and idemq's own statements wait.
 */
#ifndef IDEMQ_HANDLER_LIMITS_H
#define IDEMQ_HANDLER_LIMITS_H

#include "utils/guc.h"

extern void idemq_handler_limits_begin(void);
extern void idemq_handler_limit_start(int64 length);
extern void idemq_handler_limit_stop(void);
extern void idemq_handler_limit_waits(GucAction action);
extern bool idemq_handler_timed_out(void);
extern bool idemq_handler_terminated(void);

#endif
