/*
 * api/stand_in.h
 *		What a session does for its queue in place of the background worker.
 */
#ifndef IDEMQ_API_STAND_IN_H
#define IDEMQ_API_STAND_IN_H

#include "queue/queue_settings.h"

extern void idemq_stand_in(const QueueInfo *queue);

#endif
