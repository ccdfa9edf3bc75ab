/*
 * table/attempt_history.h
 *		The history of attempts that did not commit, or whose job ran again.
 */
#ifndef IDEMQ_TABLE_ATTEMPT_HISTORY_H
#define IDEMQ_TABLE_ATTEMPT_HISTORY_H

#include "utils/jsonb.h"

#include "table/jobs.h"

extern void idemq_attempt_history_add(const Job *job, TimestampTz ended_at, const char *outcome,
									  text *error, Jsonb *details);
extern void idemq_attempt_history_add_commit(const Job *job);
extern bool idemq_attempt_history_has_commit(int64 job_id, int64 token);
extern bool idemq_attempt_history_ended_by(int64 job_id, const char *outcome, const char *error,
										   int attempts);
extern void idemq_attempt_history_forget(int64 job_id);
extern void idemq_attempt_history_forget_all(const int64 *job_ids, int count);

#endif
