/*
 * base/settings.h
 *		Settings.
 */
#ifndef IDEMQ_BASE_SETTINGS_H
#define IDEMQ_BASE_SETTINGS_H

/* The most that idemq.max_document can be; base/documents.c says why. */
#define IDEMQ_MAX_DOCUMENT_KB 65536

extern int idemq_max_queues;
extern int idemq_max_leases;
extern int idemq_max_leases_per_database; /* -1: three quarters of them */
extern int idemq_reserved_leases;		  /* -1: one eighth of them */
extern int idemq_max_buckets;
extern bool idemq_worker;
extern bool idemq_notify;
extern int idemq_attach_grace; /* ms */
extern int idemq_notify_delay; /* ms */
extern int idemq_max_handler_workers;
extern int idemq_max_document;			 /* kB */
extern int idemq_audit_retention;		 /* minutes; below 0: for ever */
extern int idemq_purge_interval;		 /* ms; not above 0: off */
extern int idemq_max_schedules_per_role; /* -1: no limit */

extern void idemq_settings_define(void);

#endif
