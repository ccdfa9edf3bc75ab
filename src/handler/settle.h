/*
 * handler/settle.h
 *		What becomes of a job whose function has raised an error.
 */
#ifndef IDEMQ_HANDLER_SETTLE_H
#define IDEMQ_HANDLER_SETTLE_H

#include "handler/run.h"

extern bool idemq_handler_settle_failed(HandlerRun *run, ClaimedJob *job, ErrorData *error);
extern void idemq_handler_give_back(ClaimedJob *job);
extern void idemq_handler_fail_at_exit(ClaimedJob *job, const char *text);

#endif
