/*
 * observe/observe.h
 *		What the parts of idemq.check() share, and what metrics and why share.
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

/* Job ids that a report names, and suspects that are checked twice. */
#define CHECK_NAMED 10
#define CHECK_SUSPECTS 1000

typedef struct CheckCall
{
	ReturnSetInfo *set; /* the answer */
	JobsTable table;	/* open from the start: the table is not truncated meanwhile */
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

/* A job that seems wrong, or forgotten. */
typedef struct Suspect
{
	int32 queue_id;
	Datum group; /* of jobs in groups, for is_known; 0: none */
	int64 id;
	char version[128]; /* of what was seen of it: another text after a change */
} Suspect;

/* The columns of idemq_internal.suspects. */
#define SUSPECT_FIELDS                                                                             \
	(const SqlField[])                                                                             \
	{                                                                                              \
		SQL_FIELD(Suspect, queue_id), SQL_FIELD(Suspect, group), SQL_FIELD(Suspect, id),           \
			SQL_FIELD(Suspect, version)                                                            \
	}

typedef struct Suspicion
{
	Suspect *(*find)(const CheckCall *call, int *count); /* by the latest snapshot */
	bool (*is_known)(const Suspect *suspect); /* a session will see to it; NULL: not asked */
	const char *severity;
	const char *invariant;
	const char *what; /* is wrong with each */
} Suspicion;

#define CHECK_ERROR "error"
#define CHECK_WARNING "warning"

/* Adds a row to the answer; the detail is a format with its values. */
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
extern Suspect *idemq_check_suspects(const char *part, int64 token, int *count);
extern void idemq_check_suspicion(CheckCall *call, const Suspicion *suspicion);

/* The parts, each in a file of its name. */
extern void idemq_check_ready(CheckCall *call);
extern void idemq_check_leases(CheckCall *call);
extern void idemq_check_groups(CheckCall *call);
extern void idemq_check_dependencies(CheckCall *call);
extern void idemq_check_limits(CheckCall *call);
extern void idemq_check_gauges(CheckCall *call);

#endif
