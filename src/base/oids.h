/*
 * base/oids.h
 *		The OIDs of idemq's own objects.
 */
#ifndef IDEMQ_BASE_OIDS_H
#define IDEMQ_BASE_OIDS_H

#include "base/idemq.h"

typedef struct ObjectOids
{
	Oid schema;
	Oid jobs;	  /* idemq.jobs */
	Oid jobs_seq; /* its identity's sequence */
	Oid queues;
	Oid queues_seq;
	Oid queue_grants;
	Oid steps;		  /* may be invalid within CREATE EXTENSION */
	Oid dependencies; /* as steps */
	Oid owner;		  /* of idemq.jobs: the role that SQL runs as */
	Oid status_type;
	Oid status[JOB_STATUS_COUNT];
	Oid outcome[OUTCOME_COUNT];
} ObjectOids;

typedef enum IdemqPresence
{
	IDEMQ_ABSENT,
	IDEMQ_OUTDATED, /* ALTER EXTENSION idemq UPDATE is to come */
	IDEMQ_HERE
} IdemqPresence;

extern IdemqPresence idemq_presence(void);
pg_noreturn extern void idemq_refuse_outdated(void);
extern const ObjectOids *idemq_oids(void);
extern void idemq_oids_install(void);
extern JobStatus idemq_status_from_oid(Oid value);
extern JobStatus idemq_status_from_name(const char *name);
extern const char *idemq_status_name(JobStatus status);
extern Datum idemq_outcome_datum(Outcome outcome);

#endif
