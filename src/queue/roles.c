/*
 * queue/roles.c
 *		Roles as rows name them, and what each needs of the schema.
 *
 * Grants and schedules have a role's name, which pg_dump carries to another server, and
 * its OID at the time, by which a role that was dropped is told from the next one of that
 * name.  Both have to fit.  The trigger of hooks/row_triggers.c writes the OID whenever
 * the name is written, so that a restore finds the roles of its own server; where there
 * is no such role yet, it stays NULL, and the name alone decides.
 *
 * PUBLIC may not use the schema.  A role may while it holds a privilege on a queue or topic: the
 * first grant gives it USAGE, the last revoke takes that away, unless the DBA has granted
 * it a function or a table of the schema.  (So DROP ROLE refuses a role that holds grants.)
 *
 * Locks: idemq_role_lock, to the end of the transaction, covers what one role holds; then
 * a lock on the schema covers its list of privileges, which two transactions cannot change
 * at once.
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

/* Returns the role of that name, InvalidOid when it is not the one that was meant. */
Oid
idemq_role_of(const char *name, Oid oid)
{
	Oid role = get_role_oid(name, true);

	return OidIsValid(oid) && role != oid ? InvalidOid : role;
}

/* Returns the call that grants a privilege, to be pasted into SQL, whatever the names are. */
const char *
idemq_grant_text(const char *queue, const char *role, const char *privilege)
{
	return psprintf("SELECT idemq.grant_queue(%s, %s, '%s')", quote_literal_cstr(queue),
					quote_literal_cstr(quote_identifier(role)), privilege);
}

/* Locks what a role holds, or has made, in this database, to the end of the transaction. */
void
idemq_role_lock(Oid role, RoleLock what)
{
	LockDatabaseObject(AuthIdRelationId, role, (uint16) what, ShareUpdateExclusiveLock);
}

/* Reads the schema's owner; returns whether the role itself, not PUBLIC or a group, has USAGE. */
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
 * Gives a role that has anything in the schema USAGE of it, and takes it from one that has
 * nothing more; as the schema's owner.  The role's lock held.
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
