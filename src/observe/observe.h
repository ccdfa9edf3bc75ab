/*
 * observe/observe.h
 *		What the parts of idemq.check() share.
 */
#ifndef IDEMQ_OBSERVE_OBSERVE_H
#define IDEMQ_OBSERVE_OBSERVE_H

#include "fmgr.h"
#include "utils/tuplestore.h"

#include "queue/queue.h"
#include "table/table.h"

/*
 * check_report.c
 *		What the parts of idemq.check() share.
 */

/* Job ids that a report names, and suspects that are checked twice. */
#define CHECK_NAMED 10
#define CHECK_SUSPECTS 1000

typedef struct CheckCall
{
	Tuplestorestate *store;
	TupleDesc desc;
	JobsTable table; /* open from the start: the table is not truncated meanwhile */
	int32 *queue_ids;
	int nqueues;
	int64 patience_ends; /* mono: how long idemq_check_settled may wait, in all */
} CheckCall;

/* Ids of jobs: how many, and the first of them. */
typedef struct IdList
{
	int64 count;
	int64 ids[CHECK_NAMED];
} IdList;

#define CHECK_ERROR "error"
#define CHECK_WARNING "warning"

extern void idemq_check_begin(FunctionCallInfo fcinfo, CheckCall *call);
extern void idemq_check_report(CheckCall *call, const char *severity, const char *invariant,
							   const char *format, ...) pg_attribute_printf(4, 5);
extern void idemq_check_report_jobs(CheckCall *call, const char *severity, const char *invariant,
									const IdList *jobs, const char *what);
extern void idemq_id_list_add(IdList *list, int64 id);
extern void idemq_check_read_queues(CheckCall *call);
extern bool idemq_check_has_queue(const CheckCall *call, int32 queue_id);
extern bool idemq_check_settled(CheckCall *call);

/*
 * check_limits.c
 *		The audit of what max_running counts.
 */

extern void idemq_check_limits(CheckCall *call);

/*
 * check_rows.c
 *		The audit of what one snapshot shows: rows, tokens, indexes, triggers.
 */

extern void idemq_check_rows(CheckCall *call);
extern void idemq_check_tokens(CheckCall *call);
extern void idemq_check_steps(CheckCall *call);
extern bool idemq_check_catalog(CheckCall *call);

/*
 * check_ready.c
 *		The audit of the ready cursors: nothing below one is claimable.
 */

extern void idemq_check_ready(CheckCall *call);

/*
 * check_leases.c
 *		The audit of the lease table against the rows, the sessions and the slots.
 */

extern void idemq_check_leases(CheckCall *call);

/*
 * check_groups.c
 *		The audit of FIFO groups: at most one head each, and none that is forgotten.
 */

extern void idemq_check_groups(CheckCall *call);

/*
 * check_floors.c
 *		The audit of the floors of FIFO groups.
 */

extern void idemq_check_floors(CheckCall *call);

/*
 * check_kin.c
 *		The audit of children and their parents.
 */

extern void idemq_check_kin(CheckCall *call);

/*
 * check_topics.c
 *		The audit of topics: rows that name a role, a queue or a topic which is not there.
 */

extern void idemq_check_topics(CheckCall *call);

/*
 * check_gauges.c
 *		The audit of how many jobs shared memory knows of.
 */

extern void idemq_check_gauges(CheckCall *call);

#endif
