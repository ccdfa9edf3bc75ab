/*
 * handler/limits.h
 *		How long a handler's function may run.
 */
#ifndef IDEMQ_HANDLER_LIMITS_H
#define IDEMQ_HANDLER_LIMITS_H

extern void idemq_handler_limits_begin(void);
extern void idemq_handler_limit_start(int64 length);
extern void idemq_handler_limit_stop(void);
extern bool idemq_handler_timed_out(void);
extern bool idemq_handler_terminated(void);

#endif
