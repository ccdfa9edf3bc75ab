/*
 * signals.h: signals that wake poll().
 */
#ifndef IDEMQ_WORK_SIGNALS_H
#define IDEMQ_WORK_SIGNALS_H

#include <stdint.h>

extern void signals_catch(void);
extern void signals_leave(void);
extern int signals_told(void);
extern int64_t signals_told_at(void);
extern int64_t signals_deadline(void);
extern int signals_fd(void);
extern void signals_heard(void);

#endif
