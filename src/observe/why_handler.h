/*
 * observe/why_handler.h
 *		What idemq.why says of who will claim a job.
 */
#ifndef IDEMQ_OBSERVE_WHY_HANDLER_H
#define IDEMQ_OBSERVE_WHY_HANDLER_H

#include "lib/stringinfo.h"

#include "queue/queue_settings.h"

extern void idemq_why_worker(StringInfo answer, const QueueInfo *queue);

#endif
