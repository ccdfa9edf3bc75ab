/*
 * queue/topics.c
 *		Spaces of topics: who owns them, who may publish to them and bind queues to them.
 *
 * A space is the first word of its topics.  Without owners anybody could bind a pattern for
 * everything, and read what others publish; with one word there is one space of each topic.
 * admin includes the other privileges; superusers and the owner of idemq's tables hold all
 * of them.  Grants name roles as those of queues do (queue/roles.c).
 *
 * They are read at each call: publishing to n queues costs n inserts, of which this is a
 * part.  Locks: none, but idemq_topic_keep.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "base/base.h"
#include "queue/queue.h"

static SqlStatement read_grants =
	{.text = "SELECT g.role_name, g.role_oid, g.privilege FROM idemq.topic_entries t "
			 "LEFT JOIN idemq.topic_grants g ON g.topic = t.topic WHERE t.topic = $1",
	 .nargs = 1,
	 .types = {TEXTOID}};

/* As a foreign key would: whoever drops the space waits, and finds the row that is made. */
static SqlStatement keep_row =
	{.text = "SELECT FROM idemq.topic_entries WHERE topic = $1 FOR KEY SHARE",
	 .nargs = 1,
	 .types = {TEXTOID}};

/* Returns what a row of idemq.topic_grants grants, NULL for nothing any more. */
static TopicGrant *
read_grant(uint64 row)
{
	bool isnull;
	Datum name = idemq_spi_value(row, 1, &isnull);
	TopicGrant *grant;
	char *privilege;
	Oid oid;

	if (isnull)
		return NULL;
	oid = DatumGetObjectId(idemq_spi_value(row, 2, &isnull));
	grant = palloc(sizeof(TopicGrant));
	grant->role = idemq_role_of(NameStr(*DatumGetName(name)), isnull ? InvalidOid : oid);
	if (!OidIsValid(grant->role))
		return NULL;
	privilege = TextDatumGetCString(idemq_spi_value(row, 3, &isnull));
	grant->privileges = strcmp(privilege, "publish") == 0 ? TOPIC_PUBLISH
						: strcmp(privilege, "bind") == 0  ? TOPIC_BIND
														  : TOPIC_ALL;
	return grant;
}

/* Reads a space; false when there is none of that name. */
bool
idemq_topic_find(const char *name, TopicSpace *space)
{
	Datum value = CStringGetTextDatum(name);
	MemoryContext caller = CurrentMemoryContext;
	SqlScope scope;
	uint64 rows;

	*space = (TopicSpace){name, NIL};
	idemq_spi_begin(&scope);
	rows = idemq_spi_query_latest(&read_grants, &value, NULL);
	for (uint64 i = 0; i < rows; i++)
	{
		MemoryContext old = MemoryContextSwitchTo(caller);
		TopicGrant *grant = read_grant(i);

		if (grant != NULL)
			space->grants = lappend(space->grants, grant);
		MemoryContextSwitchTo(old);
	}
	idemq_spi_end(&scope);
	return rows > 0;
}

/* Returns a role's privileges on a space, as TopicPrivilege bits. */
int
idemq_topic_privileges(const TopicSpace *space, Oid role)
{
	int privileges = has_privs_of_role(role, idemq_oids()->owner) ? TOPIC_ALL : 0;
	ListCell *lc;

	foreach(lc, space->grants)
	{
		const TopicGrant *grant = lfirst(lc);

		if ((grant->privileges & ~privileges) != 0 && has_privs_of_role(role, grant->role))
			privileges |= grant->privileges;
	}
	return privileges;
}

/* Raises 42704. */
void
idemq_topic_refuse_unknown(const char *name)
{
	ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("topic \"%s\" does not exist", name),
					errhint("Create it with SELECT idemq.create_topic('...'), or correct the first "
							"word of the topic.")));
}

/*
 * Reads a space of which the current role must hold one of the wanted privileges.  Raises
 * 42704 when there is none, 42501 without a privilege.
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
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for topic \"%s\"", name),
			 errhint("Let its administrator run SELECT idemq.grant_topic(%s, %s, '%s').",
					 quote_literal_cstr(name),
					 quote_literal_cstr(quote_identifier(GetUserNameFromId(GetUserId(), false))),
					 privilege)));
}

/* Keeps a space to the end of the transaction, for a row that names it.  Raises 42704. */
void
idemq_topic_keep(const char *name)
{
	Datum value = CStringGetTextDatum(name);
	SqlScope scope;

	idemq_spi_begin(&scope);
	if (idemq_spi_run(&keep_row, &value, NULL, SPI_OK_SELECT) == 0)
		idemq_topic_refuse_unknown(name);
	idemq_spi_end(&scope);
}
