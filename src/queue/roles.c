/*
 * queue/roles.c
 *		The roles that rows of idemq's tables refer to, and the privileges on the schema that they
 *		need.
 *
 * Grants and schedules contain the name of a role, because pg_dump carries names to another server,
 * and the OID that the role had at the time, so that a later role of the same name is not mistaken
 * for it.  Both must match.  Whenever the name is written, the trigger in hooks/row_triggers.c
 * writes the OID, so after a restore it is the OID of the new server's role.  If there is no such
 * role, the OID is NULL, and the name alone decides.
 *
 * PUBLIC has no USAGE on the schema.  A role has it while it holds a privilege on a queue or a
 * topic: the first grant gives USAGE to the role, and the last revoke takes it away, unless the DBA
 * has granted the role a function or a table of the schema.  As a result, DROP ROLE refuses to drop
 * a role that holds grants.
 *
 * Locks: idemq_role_lock, held until the end of the transaction, protects what one role holds.
 * After it, a lock on the schema protects the schema's privileges, which two transactions cannot
 * change at the same time.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/syscache.h"

#include "base/base.h"
#include "queue/queue.h"

static SqlStatement needs_usage =
	{.text = "SELECT FROM idemq_internal.queue_grants WHERE role_name = $2 UNION ALL "
			 "SELECT FROM idemq_internal.topic_grants WHERE role_name = $2 UNION ALL "
			 "SELECT FROM pg_catalog.pg_proc p, pg_catalog.aclexplode(p.proacl) a "
			 "WHERE p.pronamespace = 'idemq'::pg_catalog.regnamespace AND a.grantee = $1 UNION ALL "
			 "SELECT FROM pg_catalog.pg_class c, pg_catalog.aclexplode(c.relacl) a "
			 "WHERE c.relnamespace = 'idemq'::pg_catalog.regnamespace AND a.grantee = $1",
	 .types = {OIDOID, NAMEOID}};

/*
 * Returns the role with a name, or InvalidOid if that role is not the one with the OID (if given).
 */
Oid
idemq_role_of(const char *name, Oid oid)
{
	Oid role = get_role_oid(name, true);

	return OidIsValid(oid) && role != oid ? InvalidOid : role;
}

/* Returns the SQL call that grants a privilege, with the names quoted. */
const char *
idemq_grant_text(const char *queue, const char *role, const char *privilege)
{
	return psprintf("SELECT idemq.grant_queue(%s, %s, '%s')", quote_literal_cstr(queue),
					quote_literal_cstr(quote_identifier(role)), privilege);
}

/* Locks, until the end of the transaction, everything that a role holds or has created in this database. */
void
idemq_role_lock(Oid role, RoleLock what)
{
	LockDatabaseObject(AuthIdRelationId, role, (uint16) what, ShareUpdateExclusiveLock);
}

/*
 * Sets *schema and *owner; returns whether the role itself has USAGE, not through PUBLIC or a
 * group.
 */
static bool
has_usage(Oid role, Oid *schema, Oid *owner)
{
	HeapTuple tuple = SearchSysCache1(NAMESPACENAME, CStringGetDatum(IDEMQ_SCHEMA));
	bool found = false;
	bool isnull;
	Datum value;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "schema %s does not exist", IDEMQ_SCHEMA);
	*schema = ((Form_pg_namespace) GETSTRUCT(tuple))->oid;
	*owner = ((Form_pg_namespace) GETSTRUCT(tuple))->nspowner;
	value = SysCacheGetAttr(NAMESPACENAME, tuple, Anum_pg_namespace_nspacl, &isnull);
	if (!isnull)
	{
		Acl *acl = DatumGetAclP(value);
		AclItem *items = ACL_DAT(acl);

		for (int i = 0; i < ACL_NUM(acl); i++)
			found |= items[i].ai_grantee == role && (ACLITEM_GET_PRIVS(items[i]) & ACL_USAGE) != 0;
	}
	ReleaseSysCache(tuple);
	return found;
}

/*
 * Grants a role USAGE on the schema if the role has any privilege in it, and revokes USAGE
 * otherwise; acts as the schema's owner.  The role's lock must be held.
 */
void
idemq_usage_settle(Oid role)
{
	NameData name;
	Datum values[] = {ObjectIdGetDatum(role), NameGetDatum(&name)};
	bool grant;
	Oid schema;
	Oid owner;
	Oid user;
	int sec_context;
	GrantStmt *statement;
	AccessPriv *usage;
	RoleSpec *grantee;

	namestrcpy(&name, GetUserNameFromId(role, false));
	grant = idemq_spi_finds(&needs_usage, values, NULL);
	if (has_usage(role, &schema, &owner) == grant)
		return;
	LockDatabaseObject(NamespaceRelationId, schema, 0, ShareUpdateExclusiveLock);
	if (has_usage(role, &schema, &owner) == grant || role == owner)
		return;
	usage = makeNode(AccessPriv);
	usage->priv_name = "usage";
	grantee = makeNode(RoleSpec);
	grantee->roletype = ROLESPEC_CSTRING;
	grantee->rolename = NameStr(name);
	grantee->location = -1;
	statement = makeNode(GrantStmt);
	statement->is_grant = grant;
	statement->targtype = ACL_TARGET_OBJECT;
	statement->objtype = OBJECT_SCHEMA;
	statement->objects = list_make1(makeString(IDEMQ_SCHEMA));
	statement->privileges = list_make1(usage);
	statement->grantees = list_make1(grantee);
	statement->behavior = DROP_RESTRICT;
	GetUserIdAndSecContext(&user, &sec_context);
	SetUserIdAndSecContext(owner, sec_context | SECURITY_LOCAL_USERID_CHANGE);
	ExecuteGrantStmt(statement);
	SetUserIdAndSecContext(user, sec_context);
	CommandCounterIncrement();
}
