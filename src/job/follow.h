/*
 * job/follow.h
 *		Beginning to follow another database, and taking over from it.
 */
#ifndef IDEMQ_JOB_FOLLOW_H
#define IDEMQ_JOB_FOLLOW_H

extern bool idemq_follow_begin(void);
extern void idemq_follow_note_subscription(void);
extern bool idemq_follow_end(void);
extern bool idemq_follow_retire(const char *moved_to);

#endif
