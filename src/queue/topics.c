/*
 * queue/topics.c
 *		Topic spaces: which roles may administer them, publish to them and bind queues to them.
 *
 * The first word of a topic is its space, so each topic belongs to exactly one space.  Without
 * privileges on spaces, any role could bind a queue to all topics, and read what other roles
 * publish.  admin includes the other privileges, and superusers and the owner of idemq's tables
 * hold all of them.  Grants refer to roles in the same way as grants on queues (queue/roles.c).
 *
 * Grants are read in each call, which is cheap compared with the inserts of publish.
 *
 * Locks: only those of idemq_topic_keep and idemq_topic_lock_name.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "base/base.h"
#include "queue/queue.h"

typedef struct TopicGrant
{
	NameData name;
	Oid role;		  /* InvalidOid: the role no longer exists */
	int32 privileges; /* TopicPrivilege bits */
} TopicGrant;

/* Names of privileges, at the index of their TopicPrivilege bits; admin includes all of them. */
static const char *const grant_names[] = {"", "publish", "bind", "", "", "", "", "admin", NULL};
/* Returns one row for a space without grants. */
static SqlStatement read_grants =
	{.text = "SELECT g.role_name, g.role_oid, g.privilege FROM idemq_internal.topic_entries t "
			 "LEFT JOIN idemq_internal.topic_grants g ON g.topic = t.topic WHERE t.topic = $1",
	 .types = {TEXTOID},
	 .fields = (const SqlField[]){SQL_FIELD(TopicGrant, name), SQL_FIELD(TopicGrant, role),
								  SQL_CHOICE(TopicGrant, privileges, grant_names)}};

/*
 * Like a foreign key's check: a drop of the space waits, and then finds the row that refers to it.
 */
static SqlStatement topics_keep_row =
	{.text = "SELECT FROM idemq_internal.topic_entries WHERE topic = $1 FOR KEY SHARE",
	 .types = {TEXTOID}};

/* Reads a space; returns false if there is none with this name. */
bool
idemq_topic_find(const char *name, TopicSpace *space)
{
	Datum value = CStringGetTextDatum(name);

	space->name = name;
	space->grants = idemq_spi_rows(&read_grants, &value, sizeof(TopicGrant), &space->ngrants);
	for (int i = 0; i < space->ngrants; i++)
		space->grants[i].role =
			idemq_role_of(NameStr(space->grants[i].name), space->grants[i].role);
	return space->ngrants > 0;
}

/* Returns a role's privileges on a space, as TopicPrivilege bits. */
int
idemq_topic_privileges(const TopicSpace *space, Oid role)
{
	int privileges = has_privs_of_role(role, idemq_oids()->owner) ? TOPIC_ALL : 0;

	for (int i = 0; i < space->ngrants; i++)
	{
		const TopicGrant *grant = &space->grants[i];

		if ((grant->privileges & ~privileges) != 0 && OidIsValid(grant->role) &&
			has_privs_of_role(role, grant->role))
			privileges |= grant->privileges;
	}
	return privileges;
}

/* Raises 42704 because there is no such space. */
void
idemq_topic_refuse_unknown(const char *name)
{
	ereport(
		ERROR, errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("topic \"%s\" does not exist", name),
		errhint(
			"Create the topic space with SELECT idemq.create_topic('...'), or correct the first "
			"word of the topic."));
}

/*
 * Reads a space.  The current role must hold at least one of the wanted privileges (TopicPrivilege
 * bits).  Raises 42704 if there is no such space, 42501 without a privilege.
 */
void
idemq_topic_open(const char *name, int wanted, TopicSpace *space)
{
	const char *privilege = (wanted & TOPIC_PUBLISH) ? "publish"
							: (wanted & TOPIC_BIND)	 ? "bind"
													 : "admin";

	if (!idemq_topic_find(name, space))
		idemq_topic_refuse_unknown(name);
	if ((idemq_topic_privileges(space, GetUserId()) & wanted) != 0)
		return;
	ereport(
		ERROR, errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
		errmsg("permission denied for topic \"%s\"", name),
		errhint("Ask an administrator of the topic space to run SELECT idemq.grant_topic(%s, %s, "
				"'%s').",
				quote_literal_cstr(name),
				quote_literal_cstr(quote_identifier(GetUserNameFromId(GetUserId(), false))),
				privilege));
}

/* Prevents a drop of a space until the end of the transaction.  Raises 42704 if it is gone. */
void
idemq_topic_keep(const char *name)
{
	Datum value = CStringGetTextDatum(name);

	if (idemq_spi_do(&topics_keep_row, &value, NULL) == 0)
		idemq_topic_refuse_unknown(name);
}

/* Distinguishes these locks from the locks of queues and of queue names. */
#define TOPIC_NAME_LOCK 0x746f /* "to" */

/* Like idemq_queue_lock_name, for a session that creates a topic space. */
void
idemq_topic_lock_name(const char *name)
{
	LockDatabaseObject(idemq_oids()->queues, hash_bytes((const unsigned char *) name, strlen(name)),
					   TOPIC_NAME_LOCK, ExclusiveLock);
}
