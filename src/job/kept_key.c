/*
 * job/kept_key.c
 *		Keys that are reserved for the jobs of schedules.
 *
 * A schedule enqueues a job at each tick, with a key that consists of the schedule's name, @ and the
 * time of the tick: nightly@2026-11-21T01:30:00Z.  If a job with that key exists, the tick takes it
 * for its own (sql/parts/80_schedules.sql).  Therefore only a role that may change the schedule may
 * enqueue a job with such a key.
 *
 * A key of this form is reserved only while its queue has a schedule of that name.  A producer may
 * have used the key before the schedule was created; the tick then ignores that job, because it is
 * older than the schedule.
 *
 * The tick itself does not look up its schedule.  Its session has locked the schedule's row, and
 * tells this file so (idemq_tick_key_own).  A lookup by name would visit each dead version of a row
 * that may be written every second.
 *
 * Keys of two forms are reserved for the server.  They are refused for every role, including the
 * owner of idemq's tables and superusers, whether or not such a topic, queue or job exists.
 *
 *	 - The key of a published job is the publisher's key, @topic: and the topic's space.  If
 *	   another job of a bound queue had this key, the publisher would wait for it, or its message
 *	   would be treated as a duplicate of that job.
 *	 - The key of a dead-letter record is @dead: and the queue, id and last token of the dead job
 *	   (job/dead_letter.c).  If another job of the dead-letter queue had this key, the death would
 *	   leave no record, and a retry of the dead job would cancel that other job.
 *
 * Rows that come through COPY, a restore or replication are not checked.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"

static const char shape[] = "@dddd-dd-ddTdd:dd:ddZ";

#define SHAPE_LENGTH ((int) sizeof(shape) - 1)

/* The role that has made a schedule. */
typedef struct Creator
{
	NameData role;
	Oid oid;
} Creator;

static SqlStatement find_schedule =
	{.text = "SELECT created_by, created_by_oid FROM idemq_internal.schedule_entries "
			 "WHERE name = $1 AND queue_id = $2",
	 .types = {TEXTOID, INT4OID},
	 .fields = (const SqlField[]){SQL_FIELD(Creator, role), SQL_FIELD(Creator, oid)}};

/* The key of the tick that is being enqueued, and its queue and subtransaction. */
static struct
{
	int32 queue_id; /* 0: no tick is under way */
	int length;
	char key[IDEMQ_MAX_KEY];
	TransactionId xid;
	SubTransactionId subid;
} own = {0};

/*
 * Allows this session to use the key of a tick whose schedule it has locked; queue_id 0: no longer.
 * The end of the subtransaction also ends this.
 */
void
idemq_tick_key_own(int32 queue_id, const char *key, int length)
{
	own.queue_id = length <= IDEMQ_MAX_KEY ? queue_id : 0;
	own.length = length;
	if (own.queue_id == 0)
		return;
	memcpy(own.key, key, length);
	own.xid = GetTopTransactionId();
	own.subid = GetCurrentSubTransactionId();
}

/* If a key has the form of a tick's key, returns the length of the schedule name in it; otherwise 0. */
static int
name_length(const char *key, int length)
{
	const char *end = key + length - SHAPE_LENGTH;

	if (length <= SHAPE_LENGTH || key[length - 1] != 'Z')
		return 0;
	for (int i = 0; i < SHAPE_LENGTH; i++)
	{
		bool fits = shape[i] == 'd' ? end[i] >= '0' && end[i] <= '9' : end[i] == shape[i];

		if (!fits)
			return 0;
	}
	return length - SHAPE_LENGTH;
}

/* Raises 42501 for the key of a tick of a schedule in this queue that the role may not change. */
void
idemq_tick_key_check(int32 queue_id, Datum key)
{
	text *value = DatumGetTextPP(key);
	const char *bytes = VARDATA_ANY(value);
	int length = VARSIZE_ANY_EXHDR(value);
	int name = name_length(bytes, length);
	Creator creator;
	Datum values[2];

	IDEMQ_STOP("idemq_tick_key_check");
	if (name == 0)
		return;
	/* The key of the tick under way. */
	if (own.queue_id == queue_id && own.length == length && memcmp(own.key, bytes, length) == 0 &&
		own.xid == GetTopTransactionIdIfAny() && SubTransactionIsActive(own.subid))
		return;
	values[0] = PointerGetDatum(cstring_to_text_with_len(bytes, name));
	values[1] = Int32GetDatum(queue_id);
	if (idemq_spi_row(&find_schedule, values, &creator, sizeof(creator)) &&
		!idemq_may_change_schedule(queue_id, NameStr(creator.role), creator.oid))
		ereport(
			ERROR, errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			errmsg("the key is reserved for schedule \"%s\"",
				   text_to_cstring(DatumGetTextPP(values[0]))),
			errdetail("The schedule would treat a job with this key as one of its own ticks."),
			errhint(
				"Use another key, or let the role that created the schedule or an administrator of "
				"its queue enqueue the job."));
}

/* Returns whether a key ends with the mark of a published job and a word without a colon. */
static bool
is_of_topic(const char *key, int length)
{
	int mark = (int) strlen(TOPIC_KEY_MARK);
	int space = length;

	while (space > 0 && key[space - 1] != ':')
		space--;
	return space >= mark && space < length && memcmp(key + space - mark, TOPIC_KEY_MARK, mark) == 0;
}

/* Returns whether a key is the mark of a dead-letter record and three numbers between colons. */
static bool
is_of_dead_letter(const char *key, int length)
{
	int at = (int) strlen(DEAD_LETTER_KEY_MARK);
	int numbers = 0;

	if (length <= at || memcmp(key, DEAD_LETTER_KEY_MARK, at) != 0)
		return false;
	while (at < length && key[at] >= '0' && key[at] <= '9')
	{
		while (at < length && key[at] >= '0' && key[at] <= '9')
			at++;
		numbers++;
		if (at < length - 1 && key[at] == ':')
			at++;
	}
	return at == length && numbers == 3;
}

/* Raises 42501 for a key of a published job or a dead-letter record. */
void
idemq_reserved_key_check(Datum key)
{
	text *value = DatumGetTextPP(key);
	const char *bytes = VARDATA_ANY(value);
	int length = VARSIZE_ANY_EXHDR(value);

	if (is_of_dead_letter(bytes, length))
		ereport(ERROR, errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				errmsg("keys of the form %sN:N:N are reserved for dead-letter records",
					   DEAD_LETTER_KEY_MARK),
				errdetail("idemq would treat a job with this key as the record of a dead job."),
				errhint("Use another key."));
	if (is_of_topic(bytes, length))
		ereport(ERROR, errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				errmsg("keys that end in %s followed by a word are reserved for published jobs",
					   TOPIC_KEY_MARK),
				errdetail("idemq would treat a job with this key as a published job."),
				errhint("Use another key, or publish the job with idemq.publish."));
}
