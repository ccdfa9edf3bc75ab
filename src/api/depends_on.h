/*
 * api/depends_on.h
 *		The arguments of an enqueue that say what the job waits for.
 */
#ifndef IDEMQ_API_DEPENDS_ON_H
#define IDEMQ_API_DEPENDS_ON_H

#include "fmgr.h"

#include "table/jobs_kin_write.h"

extern bool idemq_arg_parents(FunctionCallInfo fcinfo, int n, NewKin *kin);

#endif
