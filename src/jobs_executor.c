/*
 * jobs_executor.c
 *		Writes to idemq.jobs the long way, for tables that a DBA has added to:
 *		user triggers, foreign keys that point here, generated columns, check
 *		constraints, further columns, indexes on expressions.
 *
 * Updates and deletes expect a row that the caller has locked in this
 * transaction; then they cannot meet a concurrent change.  Triggers fire as for
 * any UPDATE, and see the columns that were set.
 */
#include "postgres.h"

#include "access/sysattr.h"
#include "access/xact.h"

#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "catalog.h"
#include "compat.h"
#include "jobs.h"
#include "sql.h"

/* What the executor wants around one write. */
typedef struct Execution
{
	EState	   *estate;
	ResultRelInfo *result_rel;
	EPQState	epq;
} Execution;

/* Returns COLUMN_BITs as a set of column numbers, as triggers of columns read it. */
static Bitmapset *
column_set(uint32 columns)
{
	Bitmapset  *set = NULL;

	for (int i = 0; i < JOB_COLUMNS; i++)
	{
		if (columns & COLUMN_BIT(i))
			set = bms_add_member(set, i + 1 - FirstLowInvalidHeapAttributeNumber);
	}
	return set;
}

static void
begin_execution(Execution *execution, Relation rel, uint32 changed)
{
	execution->estate = CreateExecutorState();
	compat_init_range_table(execution->estate, rel, column_set(changed));
	execution->result_rel = makeNode(ResultRelInfo);
	InitResultRelInfo(execution->result_rel, rel, 1, NULL, 0);
	execution->estate->es_output_cid = GetCurrentCommandId(true);
	compat_eval_plan_qual_init(&execution->epq, execution->estate);
	PushActiveSnapshot(GetLatestSnapshot());
	execution->estate->es_snapshot = GetActiveSnapshot();
	AfterTriggerBeginQuery();
	ExecOpenIndices(execution->result_rel, false);
}

static void
end_execution(Execution *execution)
{
	ExecCloseIndices(execution->result_rel);
	AfterTriggerEndQuery(execution->estate);
	EvalPlanQualEnd(&execution->epq);
	ExecResetTupleTable(execution->estate->es_tupleTable, false);
	PopActiveSnapshot();
	FreeExecutorState(execution->estate);
}

/* Writes new_row over old_row; changed: the COLUMN_BITs that differ. */
void
idemq_jobs_executor_update(Relation rel, TupleTableSlot *old_row, TupleTableSlot *new_row,
						   uint32 changed)
{
	Execution	execution;

	begin_execution(&execution, rel, changed);
	EvalPlanQualSetSlot(&execution.epq, new_row);
	ExecSimpleRelationUpdate(execution.result_rel, execution.estate, &execution.epq, old_row,
							 new_row);
	end_execution(&execution);
}

/* Deletes old_row. */
void
idemq_jobs_executor_delete(Relation rel, TupleTableSlot *old_row)
{
	Execution	execution;

	begin_execution(&execution, rel, 0);
	EvalPlanQualSetSlot(&execution.epq, old_row);
	ExecSimpleRelationDelete(execution.result_rel, execution.estate, &execution.epq, old_row);
	end_execution(&execution);
}

/* Writes the index entries of a row written by direct access, whatever the indexes are. */
void
idemq_jobs_executor_index(Relation rel, TupleTableSlot *row, bool update, bool only_summarizing)
{
	Execution	execution;

	begin_execution(&execution, rel, 0);
	list_free(compat_insert_index_tuples(execution.result_rel, row, execution.estate, update,
										 only_summarizing));
	end_execution(&execution);
}

static SqlStatement insert_job = {.text = "INSERT INTO idemq.jobs (id, queue_id, created_at, priority, max_attempts, expires_at, "
	"status, attempt, token, ready_at, claimed_at, deadline, finished_at, worker, key, "
	"group_key, headers, payload, checkpoint, result, last_error) "
	"VALUES ($1, $2, $3, $4, $5, $6, $7::idemq.status, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, "
	"$19, $20, $21) ON CONFLICT (queue_id, key) WHERE key IS NOT NULL DO NOTHING", .nargs = JOB_COLUMNS, .types = {INT8OID, INT4OID, TIMESTAMPTZOID, INT2OID, INT4OID, TIMESTAMPTZOID, TEXTOID, INT4OID,
	 INT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TEXTOID, TEXTOID,
	 TEXTOID, JSONBOID, JSONBOID, JSONBOID, JSONBOID, TEXTOID}};

/*
 * Inserts a row by SQL; returns false when its key is taken.  Waits for a twin
 * whose transaction is open.  Above READ COMMITTED it raises 40001 when the twin
 * is not in the transaction's snapshot.
 */
bool
idemq_jobs_insert_sql(JobChange *columns)
{
	Datum		values[JOB_COLUMNS];
	char		nulls[JOB_COLUMNS];
	JobStatus	status = idemq_status_from_oid(DatumGetObjectId(columns->values[COL_STATUS]));
	SqlScope	scope;
	uint64		inserted;

	for (int i = 0; i < JOB_COLUMNS; i++)
		nulls[i] = columns->isnull[i] ? 'n' : ' ';
	/* The status goes as text: a saved plan outlives a type's OID. */
	memcpy(values, columns->values, sizeof(values));
	values[COL_STATUS] = CStringGetTextDatum(idemq_status_name(status));
	idemq_sql_begin(&scope);
	inserted = idemq_sql_run(&insert_job, values, nulls, SPI_OK_INSERT);
	idemq_sql_end(&scope);
	return inserted > 0;
}
