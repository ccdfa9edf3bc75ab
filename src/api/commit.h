/*
 * api/commit.h
 *		Ending attempts with success.
 */
#ifndef IDEMQ_API_COMMIT_H
#define IDEMQ_API_COMMIT_H

#include "api/finish.h"

extern Finish idemq_commit_args(FunctionCallInfo fcinfo);

#endif
