/*
 * api/job_answer.h
 *		What claim_job and acquire share: arguments and answer.
 */
#ifndef IDEMQ_API_JOB_ANSWER_H
#define IDEMQ_API_JOB_ANSWER_H

#include "fmgr.h"

#include "job/claim_by_id.h"

extern void idemq_claim_by_id_args(FunctionCallInfo fcinfo, int n, JobCall *call);
extern Datum idemq_job_answer(FunctionCallInfo fcinfo, const JobCall *call, Outcome outcome);

#endif
