/*
 * job/claim_row.c
 *		The row that a claim returns to its worker.
 *
 * Values that are stored in the TOAST table are fetched here, because the job may be deleted before
 * the worker's session reads the row.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "utils/timestamp.h"

#include "job/job.h"

/* Returns a text or jsonb column of a fetched job; a value in the TOAST table is fetched. */
Datum
idemq_job_document(const Job *job, JobColumn column, bool *isnull)
{
	Datum value;

	*isnull = !job_has(job, column);
	if (*isnull)
		return (Datum) 0;
	value = job_value(job, column);
	if (!VARATT_IS_EXTERNAL(DatumGetPointer(value)))
		return value;
	return PointerGetDatum(detoast_external_attr((struct varlena *) DatumGetPointer(value)));
}

/* Fills the columns of idemq.claim. job: as fetched, before the claim; args: those of the claim. */
void
idemq_claim_row_fill(const Job *job, const EventArgs *args, Datum *values, bool *nulls)
{
	IDEMQ_STOP("idemq_claim_row_fill");
	memset(nulls, 0, CLAIM_COLUMN_COUNT * sizeof(bool));
	values[0] = Int64GetDatum(job->id);
	values[1] = Int64GetDatum(args->token);
	values[2] = Int32GetDatum(job->attempt + 1);
	values[3] = Int32GetDatum(job->max_attempts);
	values[4] = TimestampTzGetDatum(args->deadline);
	values[5] = idemq_job_document(job, COL_PAYLOAD, &nulls[5]);
	values[6] = idemq_job_document(job, COL_KEY, &nulls[6]);
	values[7] = idemq_job_document(job, COL_GROUP_KEY, &nulls[7]);
	nulls[7] = nulls[7] || idemq_is_no_group(values[7]);
	values[8] = idemq_job_document(job, COL_CHECKPOINT, &nulls[8]);
	values[9] = job_value(job, COL_ENQUEUED_AT);
	values[10] = idemq_job_document(job, COL_HEADERS, &nulls[10]);
	values[CLAIM_KIND] = idemq_job_document(job, COL_KIND, &nulls[CLAIM_KIND]);
}
