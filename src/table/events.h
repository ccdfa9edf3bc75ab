/*
 * table/events.h
 *		Events that were sent to a queue: the rows of idemq.events.
 */
#ifndef IDEMQ_TABLE_EVENTS_H
#define IDEMQ_TABLE_EVENTS_H

#include "datatype/timestamp.h"
#include "storage/lockdefs.h"

#define EVENT_MAX_NAME 256 /* bytes: that of a step, which a wait is */

/* Which event. */
typedef struct EventName
{
	int32 queue_id;
	Datum name; /* text */
} EventName;

extern void idemq_event_lock(const EventName *event, LOCKMODE mode);
extern bool idemq_event_find(const EventName *event, TimestampTz now, Datum *payload);
extern void idemq_event_write(const EventName *event, Datum payload, TimestampTz now,
							  TimestampTz keep_until);

#endif
