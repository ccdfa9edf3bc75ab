/*
 * handler/settle.h
 *		What becomes of a job whose function has raised an error.
 */
#ifndef IDEMQ_HANDLER_SETTLE_H
#define IDEMQ_HANDLER_SETTLE_H

#include "handler/run.h"

extern bool idemq_handler_met_another(const ErrorData *error);
extern bool idemq_handler_settle_failed(HandlerRun *run, ClaimedJob *job, ErrorData *error);
extern void idemq_handler_give_back(ClaimedJob *job);
extern bool idemq_handler_end_at_exit(ClaimedJob *job, bool told, const char *text);

#endif
