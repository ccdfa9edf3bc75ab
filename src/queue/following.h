/*
 * queue/following.h
 *		Whether this database follows another by logical replication.
 */
#ifndef IDEMQ_QUEUE_FOLLOWING_H
#define IDEMQ_QUEUE_FOLLOWING_H

#include "datatype/timestamp.h"

/* What is known of it; see queue/following.c. */
typedef struct Following
{
	bool switched_on;		/* the row of this database says so */
	bool subscribed;		/* an enabled subscription writes idemq.jobs */
	TimestampTz since;		/* of switched_on */
	TimestampTz taken_over; /* when it last ended; DT_NOBEGIN: never */
	char *moved_to;			/* where it has moved for good; NULL: nowhere */
} Following;

extern const Following *idemq_following(void);
extern bool idemq_follows(void);
extern bool idemq_following_is_known(bool *does);
extern void idemq_following_refuse(void);
extern void idemq_following_refuse_moved(void);
extern TimestampTz idemq_taken_over_at(void);
extern void idemq_following_changed(Oid relation);
extern bool idemq_following_set(bool on);
extern void idemq_following_set_moved(const char *to);
extern void idemq_following_install(void);

#endif
