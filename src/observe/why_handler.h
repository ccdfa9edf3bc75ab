/*
 * observe/why_handler.h
 *		What idemq.why says of a job that waits for its queue's handler.
 */
#ifndef IDEMQ_OBSERVE_WHY_HANDLER_H
#define IDEMQ_OBSERVE_WHY_HANDLER_H

#include "lib/stringinfo.h"

#include "queue/queue_settings.h"

extern bool idemq_why_handler(StringInfo answer, const QueueInfo *queue);

#endif
