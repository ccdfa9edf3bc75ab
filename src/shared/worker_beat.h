/*
 * shared/worker_beat.h
 *		What a background worker, and who calls it, leave for its watcher.
 */
#ifndef IDEMQ_SHARED_WORKER_BEAT_H
#define IDEMQ_SHARED_WORKER_BEAT_H

#include "shared/worker_place.h"

/* A worker that has not moved for that long is stuck: a chore waits 200 ms for a lock at most. */
#define STUCK_AFTER INT64CONST(600000)

extern void idemq_watch_begins(Place *place);
extern void idemq_watch_called(Place *place);
extern void idemq_watch_moves(Place *place);
extern int64 idemq_watch_still_since(Place *place);

#endif
