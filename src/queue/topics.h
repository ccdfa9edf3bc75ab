/*
 * queue/topics.h
 *		Spaces of topics: who owns them, who may publish to them and bind queues to them.
 */
#ifndef IDEMQ_QUEUE_TOPICS_H
#define IDEMQ_QUEUE_TOPICS_H

#include "nodes/pg_list.h"

typedef enum TopicPrivilege
{
	TOPIC_PUBLISH = 1,
	TOPIC_BIND = 2,
	TOPIC_ADMIN = 4
} TopicPrivilege;

#define TOPIC_ALL (TOPIC_PUBLISH | TOPIC_BIND | TOPIC_ADMIN)

/* Who may what, as the latest snapshot shows. */
typedef struct TopicSpace
{
	const char *name;
	List *grants; /* of TopicGrant */
} TopicSpace;

typedef struct TopicGrant
{
	Oid role;
	int privileges;
} TopicGrant;

extern bool idemq_topic_find(const char *name, TopicSpace *space);
extern int idemq_topic_privileges(const TopicSpace *space, Oid role);
extern void idemq_topic_open(const char *name, int wanted, TopicSpace *space);
extern void idemq_topic_keep(const char *name);

#endif
