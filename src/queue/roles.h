/*
 * queue/roles.h
 *		Roles as rows name them, and what each needs of the schema.
 */
#ifndef IDEMQ_QUEUE_ROLES_H
#define IDEMQ_QUEUE_ROLES_H

extern Oid idemq_role_of(const char *name, Oid oid);
extern const char *idemq_grant_text(const char *queue, const char *role, const char *privilege);
/* What of a role is locked. */
typedef enum RoleLock
{
	ROLE_LOCK_GRANTS = 0x6971, /* "iq": not PostgreSQL's own */
	ROLE_LOCK_SCHEDULES
} RoleLock;

extern void idemq_role_lock(Oid role, RoleLock what);
extern void idemq_usage_grant(Oid role);
extern void idemq_usage_settle(Oid role);

#endif
