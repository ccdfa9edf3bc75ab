/*
 * api/claim_row.h
 *		A claimed job as a row for its worker.
 */
#ifndef IDEMQ_API_CLAIM_ROW_H
#define IDEMQ_API_CLAIM_ROW_H

#include "job/transition.h"

/* id, token, attempt, max_attempts, deadline, payload, key, group_key, checkpoint,
 * enqueued_at, headers, kind; where others follow the headers, the kind is the last of all */
#define CLAIM_COLUMN_COUNT 12
#define CLAIM_KIND (CLAIM_COLUMN_COUNT - 1)

extern void idemq_claim_row_fill(const Job *job, const EventArgs *args, Datum *values, bool *nulls);
extern Datum idemq_job_document(const Job *job, JobColumn column, bool *isnull);

#endif
