/*
 * observe/check_topics.h
 *		The audit of topics: rows that name a role, a queue or a topic which is not there.
 */
#ifndef IDEMQ_OBSERVE_CHECK_TOPICS_H
#define IDEMQ_OBSERVE_CHECK_TOPICS_H

#include "observe/check_report.h"

extern void idemq_check_topics(CheckCall *call);

#endif
