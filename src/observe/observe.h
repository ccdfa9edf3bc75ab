/*
 * observe/observe.h
 *		Declarations shared by the parts of idemq.check(), and by metrics.c and why.c.
 */
#ifndef IDEMQ_OBSERVE_OBSERVE_H
#define IDEMQ_OBSERVE_OBSERVE_H

#include "fmgr.h"
#include "utils/tuplestore.h"

#include "queue/queue.h"
#include "table/table.h"

/* metrics.c */
extern TimestampTz idemq_unattended_since(const QueueInfo *queue, TimestampTz oldest,
										  TimestampTz now);

/* Maximum number of job ids in one finding. */
#define CHECK_NAMED 10
/* Maximum number of suspects that one part of the audit checks again. */
#define CHECK_SUSPECTS 1000

typedef struct CheckCall
{
	ReturnSetInfo *set; /* the result */
	JobsTable table;	/* open during the whole call, so that the table is not truncated */
	int32 *queue_ids;	/* all queues, in ascending order */
	int nqueues;
	int64 patience_ends; /* idemq_stopwatch: when idemq_check_settled must stop waiting */
} CheckCall;

/* The number of jobs, and the ids of the first ones. */
typedef struct IdList
{
	int64 count;
	int64 ids[CHECK_NAMED];
} IdList;

/* A job that seems to violate an invariant. */
typedef struct Suspect
{
	int32 queue_id;
	Datum group; /* text; 0: none, or not needed by is_known */
	int64 id;
	char version[128]; /* identifies the state that was seen: differs after a change */
} Suspect;

/* An invariant of jobs, for idemq_check_suspicion. */
typedef struct Suspicion
{
	/* Returns the jobs that violate it under the latest snapshot. */
	Suspect *(*find)(const CheckCall *call, int *count);
	/* Returns whether shared memory knows that a job needs attention; NULL: irrelevant. */
	bool (*is_known)(const Suspect *suspect);
	const char *severity;
	const char *invariant;
	const char *what; /* what is wrong with each job */
} Suspicion;

#define CHECK_ERROR "error"
#define CHECK_WARNING "warning"

/* Adds a row to the result; the detail is a format string with its values. */
#define idemq_check_report(call, severity, invariant, ...)                                         \
	idemq_check_put(call, severity, invariant, psprintf(__VA_ARGS__))

/* check_report.c */
extern void idemq_check_put(CheckCall *call, const char *severity, const char *invariant,
							const char *detail);
extern void idemq_check_findings(CheckCall *call, const char *part);
extern void idemq_check_findings_at(CheckCall *call, const char *part, TimestampTz now);
extern void idemq_check_report_jobs(CheckCall *call, const char *severity, const char *invariant,
									const IdList *jobs, const char *what);
extern void idemq_id_list_add(IdList *list, int64 id);
extern bool idemq_check_settled(CheckCall *call);
extern bool idemq_check_has_writers(Oid table);
extern Suspect *idemq_check_suspects(const char *part, int64 token, int *count);
extern void idemq_check_suspicion(CheckCall *call, const Suspicion *suspicion);

/* The parts of the audit, each in the file of that name. */
extern void idemq_check_ready(CheckCall *call);
extern void idemq_check_leases(CheckCall *call);
extern void idemq_check_groups(CheckCall *call);
extern void idemq_check_dependencies(CheckCall *call);
extern void idemq_check_limits(CheckCall *call);
extern void idemq_check_gauges(CheckCall *call);

#endif
