/*
 * table/audit_log.h
 *		What was decided about queues and jobs, by whom and when: idemq.audit.
 */
#ifndef IDEMQ_TABLE_AUDIT_LOG_H
#define IDEMQ_TABLE_AUDIT_LOG_H

#include "queue/queue_settings.h"

/* An action, as a row of idemq.audit; what is 0 or NULL is not known of it. */
typedef struct AuditEntry
{
	const char *action; /* the function's name */
	const QueueInfo *queue;
	int64 job_id;
	int64 jobs;				/* how many it concerned, if not one */
	Datum details;			/* jsonb */
	const char *members[6]; /* or the members of details: a name and its text, ... */
} AuditEntry;

extern void idemq_audit(const AuditEntry *entry);

#endif
