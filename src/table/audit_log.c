/*
 * table/audit_log.c
 *		The record of what was decided about queues and jobs, by which role, and when: idemq.audit.
 *
 * The functions that decide write this record themselves, in their own transaction, so it does not
 * contain anything that was rolled back.  What producers and workers do all the time (enqueue,
 * claim, commit, fail) is not recorded.
 *
 * Roles are stored by name, because a name survives a dump, and the role itself.
 *
 * Locks: none.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "table/table.h"

static SqlStatement add_entry =
	{.text = "INSERT INTO idemq.audit (at, session_role, role, action, queue_id, queue, job_id, "
			 "jobs, details, actor) VALUES ($1, $2, $3, $4, $5, $6, nullif($7, 0), nullif($8, 0), "
			 "coalesce($9, jsonb_object($10)), nullif(left($11, 200), ''))",
	 .types = {TIMESTAMPTZOID, NAMEOID, NAMEOID, TEXTOID, INT4OID, TEXTOID, INT8OID, INT8OID,
			   JSONBOID, TEXTARRAYOID, TEXTOID}};

/* Sets *name to the name of a role, or to its OID if it was dropped; returns it as a Datum. */
static Datum
role_name(Oid role, NameData *name)
{
	char *known = GetUserNameFromId(role, true);

	namestrcpy(name, known != NULL ? known : psprintf("%u", role));
	return NameGetDatum(name);
}

/* Records an action of the current role.  Raises the errors of an INSERT: 25006, 40001. */
void
idemq_audit(const AuditEntry *entry)
{
	Datum elements[lengthof(entry->members)];
	NameData session_role;
	NameData role;
	int count = 0;
	Datum values[] = {TimestampTzGetDatum(idemq_now()),
					  role_name(GetSessionUserId(), &session_role),
					  role_name(GetUserId(), &role),
					  CStringGetTextDatum(entry->action),
					  Int32GetDatum(entry->queue->id),
					  CStringGetTextDatum(entry->queue->name),
					  Int64GetDatum(entry->job_id),
					  Int64GetDatum(entry->jobs),
					  entry->details,
					  (Datum) 0,
					  CStringGetTextDatum(idemq_actor)};

	while (count < (int) lengthof(entry->members) && entry->members[count] != NULL)
	{
		elements[count] = CStringGetTextDatum(entry->members[count]);
		count++;
	}
	if (count > 0)
		values[lengthof(values) - 2] =
			PointerGetDatum(construct_array(elements, count, TEXTOID, -1, false, TYPALIGN_INT));

	(void) idemq_spi_do(&add_entry, values, NULL);
}
