/*
 * observe/why_parents.h
 *		What a job that depends on others waits for, in words.
 */
#ifndef IDEMQ_OBSERVE_WHY_PARENTS_H
#define IDEMQ_OBSERVE_WHY_PARENTS_H

#include "lib/stringinfo.h"

extern void idemq_why_alone(StringInfo answer, int64 job_id);

#endif
