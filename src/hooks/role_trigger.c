/*
 * hooks/role_trigger.c
 *		The trigger that writes a role's OID beside its name (queue/roles.c): before each
 *		INSERT, that of a restore as well, and each UPDATE of the name.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "utils/acl.h"
#include "utils/rel.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_role_named);

/* role_named(name column, oid column): row trigger; 0A000 when it is called otherwise. */
Datum
idemq_sql_v2_role_named(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	TupleDesc desc;
	HeapTuple row;
	int attno;
	bool isnull;
	Datum name;
	Oid role = InvalidOid;
	Datum value;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_BEFORE(data->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(data->tg_event) || TRIGGER_FIRED_BY_DELETE(data->tg_event) ||
		data->tg_trigger->tgnargs != 2)
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("this function is for idemq's own triggers only"),
						errhint("Do not call it, and do not use it in a trigger.")));
	desc = RelationGetDescr(data->tg_relation);
	row = TRIGGER_FIRED_BY_UPDATE(data->tg_event) ? data->tg_newtuple : data->tg_trigtuple;
	name = SPI_getbinval(row, desc, SPI_fnumber(desc, data->tg_trigger->tgargs[0]), &isnull);
	if (!isnull)
		role = get_role_oid(NameStr(*DatumGetName(name)), true);
	attno = SPI_fnumber(desc, data->tg_trigger->tgargs[1]);
	value = ObjectIdGetDatum(role);
	isnull = !OidIsValid(role);
	return PointerGetDatum(heap_modify_tuple_by_cols(row, desc, 1, &attno, &value, &isnull));
}
