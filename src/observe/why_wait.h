/*
 * observe/why_wait.h
 *		What idemq.why says of a job that waits for an event.
 */
#ifndef IDEMQ_OBSERVE_WHY_WAIT_H
#define IDEMQ_OBSERVE_WHY_WAIT_H

#include "lib/stringinfo.h"

#include "table/jobs.h"
#include "queue/queue_settings.h"

extern bool idemq_why_wait(StringInfo answer, const Job *job, const QueueInfo *queue);

#endif
