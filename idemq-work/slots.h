/*
 * slots.h: what the runner of one shard and the supervisor of all tell each other.
 */
#ifndef IDEMQ_WORK_SLOTS_H
#define IDEMQ_WORK_SLOTS_H

#include <stdbool.h>

/* The runner's end of the line; -1: there is one server, and no supervisor. */
extern int slots_fd;

/* From the runner, a byte each: a slot is wanted, is left; the map is to be read; a claim was taken. */
#define SAY_WANT 'w'
#define SAY_LEAVE 'l'
#define SAY_MAP 'm'
#define SAY_CLAIMED 'c'

/* From the supervisor: a slot; the shard's address, up to the end of the line. */
#define SAY_SLOT 'g'
#define SAY_ADDRESS 'd'

/* How many of n programs may begin now, beside those that run; asks for slots for the others. */
extern int slots_for(int n, int running);

/* Whether the answer to that is awaited. */
extern bool slots_awaited(void);

/* Leaves what those that run do not need. */
extern void slots_keep(int running);

/* Reads what the supervisor says; the shard's new address, to be freed by the caller, or NULL. */
extern char *slots_read(void);

/* Tells the supervisor something, if there is one. */
extern void slots_tell(char what);

#endif
