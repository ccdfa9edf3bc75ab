/*
 * queue/queues.c
 *		Lookups of queues, with their settings (queue/queue_settings.c), the current role's
 *		privileges and the queue state; and the locks of queues.
 *
 * queue/queue_cache.c keeps what was read, and rereads it after a change.  A caller gets a copy, so
 * a QueueInfo never changes.
 *
 * Privileges: admin includes the others, and superusers and the owner of idemq's tables hold all of
 * them.  Grants contain the names of roles (queue/roles.c).  A grant to a role that no longer
 * exists has no effect.
 *
 * Locks: heavyweight locks on the queue, or on its name, until the end of the transaction.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/acl.h"
#include "utils/inval.h"

#include "base/base.h"
#include "queue/queue.h"
#include "shared/queue_states/queue_states.h"

/* Like a foreign key's check, because a DELETE written by a DBA takes no other lock. */
static SqlStatement queues_keep_row =
	{.text = "SELECT FROM idemq.queues WHERE queue_id = $1 FOR KEY SHARE", .types = {INT4OID}};

/* Returns the current role's privileges on a queue. */
static int
privileges_of(CachedQueue *cached)
{
	Oid role = GetUserId();
	int privileges = 0;

	if (cached->role == role && cached->roles_at == idemq_queue_cache_roles())
		return cached->info.privileges;
	/* Read before the grants, so that a change in between is noticed by the next call. */
	cached->roles_at = idemq_queue_cache_roles();
	cached->role = InvalidOid;
	if (has_privs_of_role(role, idemq_oids()->owner))
		privileges = PRIVILEGE_ALL;
	for (int i = 0; i < cached->ngrants; i++)
	{
		const QueueGrant *grant = &cached->grants[i];
		Oid grantee = idemq_role_of(NameStr(grant->role), grant->role_oid);

		if (OidIsValid(grantee) && has_privs_of_role(role, grantee))
			privileges |= grant->privileges;
	}
	cached->info.privileges = privileges;
	cached->role = role;
	return privileges;
}

/*
 * Copies a cached queue, with the current role's privileges, and with its state if one can be had.
 * Returns false if the queue has been dropped since it was read.
 */
static bool
copy_out(CachedQueue *cached, QueueInfo *queue)
{
	int32 id = cached->id;

	if (!idemq_qstate_is_of(cached->info.qstate, id))
	{
		cached->info.qstate = idemq_qstate_for_queue(id);
		/*
		 * A drop changes the queue's version, then frees its state, perhaps before we gave it one.
		 */
		if (!idemq_queue_cache_is_fresh(cached))
		{
			cached = idemq_queue_cache_by_id(id);
			if (cached == NULL)
			{
				idemq_qstate_forget_queue(id);
				return false;
			}
			cached->info.qstate = idemq_qstate_find(MyDatabaseId, id);
		}
	}
	(void) privileges_of(cached);
	*queue = cached->info;
	queue->version = cached->version;
	return true;
}

/*
 * Raises 42501 because the current role holds none of the wanted privileges (QueuePrivilege bits).
 */
void
idemq_queue_denied(const char *name, int wanted)
{
	const char *privilege = (wanted & PRIVILEGE_ENQUEUE) ? "enqueue"
							: (wanted & PRIVILEGE_CLAIM) ? "claim"
														 : "admin";

	ereport(ERROR, errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			errmsg("permission denied for queue \"%s\"", name),
			errhint("Ask an administrator of the queue to run %s.",
					idemq_grant_text(name, GetUserNameFromId(GetUserId(), false), privilege)));
}

/* Looks up a queue by name, regardless of privileges; returns false if there is none. */
bool
idemq_queue_find(const char *name, QueueInfo *queue)
{
	CachedQueue *cached = idemq_queue_cache_by_name(name);

	return cached != NULL && copy_out(cached, queue);
}

pg_noreturn static void
refuse_unknown(const char *name)
{
	ereport(ERROR, errcode(ERRCODE_IDEMQ_NO_SUCH_QUEUE),
			errmsg("queue \"%s\" does not exist", name),
			errhint(
				"Create the queue with SELECT idemq.create_queue('...'), or correct the name."));
}

/*
 * Looks up a queue by name.  The current role must hold at least one of the wanted privileges
 * (QueuePrivilege bits).  Raises IQ005 if there is no such queue, 42501 without a privilege.
 */
void
idemq_queue_by_name(const char *name, int wanted, QueueInfo *queue)
{
	if (!idemq_queue_find(name, queue))
		refuse_unknown(name);
	if ((queue->privileges & wanted) == 0)
		idemq_queue_denied(name, wanted);
}

/* Like idemq_queue_by_name, for the queue named by argument n; also raises 22004 and 22023. */
void
idemq_queue_arg(FunctionCallInfo fcinfo, int n, const char *name, int wanted, QueueInfo *queue)
{
	idemq_queue_by_name(idemq_arg_text(fcinfo, n, name, IDEMQ_MAX_NAME_ARG), wanted, queue);
}

/* Looks up a queue by id; returns false if there is none. */
bool
idemq_queue_by_id(int32 id, QueueInfo *queue)
{
	CachedQueue *cached = idemq_queue_cache_by_id(id);

	return cached != NULL && copy_out(cached, queue);
}

/*
 * Raises 53400 if a queue that was looked up has no state, because more queues were restored than
 * there are queue states, or because idemq.max_queues was lowered.  The queue's jobs remain
 * unchanged.
 */
void
idemq_queue_need_qstate(const QueueInfo *queue)
{
	if (likely(queue->qstate != NULL))
		return;
	ereport(
		ERROR, errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
		errmsg("queue \"%s\" has no state in shared memory", queue->name),
		errdetail("All %d queue states are in use by other queues.", idemq_max_queues),
		errhint(
			"Raise idemq.max_queues, which is %d, and restart the server, or drop a queue that is "
			"no longer used.",
			idemq_max_queues));
}

/*
 * Like idemq_queue_by_id, but also returns false if the role holds none of the wanted privileges.
 */
bool
idemq_queue_allows(int32 id, int wanted, QueueInfo *queue)
{
	return idemq_queue_by_id(id, queue) && (queue->privileges & wanted) != 0;
}

/* Like idemq_queue_allows, for another role. */
bool
idemq_queue_allows_role(int32 id, Oid role, int wanted, QueueInfo *queue)
{
	Oid user;
	int sec_context;
	bool allowed;

	/* If an error is raised, the abort restores the user. */
	GetUserIdAndSecContext(&user, &sec_context);
	SetUserIdAndSecContext(role, sec_context | SECURITY_LOCAL_USERID_CHANGE);
	allowed = idemq_queue_allows(id, wanted, queue);
	SetUserIdAndSecContext(user, sec_context);
	return allowed;
}

/* Returns whether the current role may replace and end a schedule. */
bool
idemq_may_change_schedule(int32 queue_id, const char *creator, Oid creator_oid)
{
	Oid role = idemq_role_of(creator, creator_oid);
	QueueInfo queue;

	return idemq_queue_allows(queue_id, PRIVILEGE_ADMIN, &queue) ||
		   (OidIsValid(role) && has_privs_of_role(GetUserId(), role));
}

/*
 * Locks a queue until the end of the transaction.  AccessShareLock prevents a drop, which takes
 * AccessExclusiveLock.
 */
void
idemq_queue_lock(int32 id, LOCKMODE mode)
{
	LockDatabaseObject(idemq_oids()->queues, (Oid) id, 0, mode);
}

/* Distinguishes these locks from the locks of queues, whose objects have no sub-objects. */
#define QUEUE_NAME_LOCK 0x6e6d /* "nm" */

/*
 * Locks the name of a queue until the end of the transaction, even if there is no such queue.  A
 * session that creates, declares, alters or drops a queue, or sets or drops its handler, takes this
 * lock before any other lock of the queue.  Two names may share a lock.
 */
void
idemq_queue_lock_name(const char *name)
{
	LockDatabaseObject(idemq_oids()->queues, hash_bytes((const unsigned char *) name, strlen(name)),
					   QUEUE_NAME_LOCK, ExclusiveLock);
}

/*
 * Locks a queue that was looked up, and looks it up again, because it may have been dropped while
 * this session waited for the lock.  If a new queue has its name by then, that one is locked
 * instead.
 */
void
idemq_queue_hold(QueueInfo *queue, int wanted, LOCKMODE mode)
{
	int32 locked;

	do
	{
		locked = queue->id;
		idemq_queue_lock(locked, mode);
		idemq_queue_by_name(queue->name, wanted, queue);
	} while (queue->id != locked);
}

/* Like idemq_queue_arg, but also locks the queue until the end of the transaction. */
void
idemq_queue_open(FunctionCallInfo fcinfo, int n, const char *name, int wanted, LOCKMODE mode,
				 QueueInfo *queue)
{
	idemq_queue_arg(fcinfo, n, name, wanted, queue);
	idemq_queue_hold(queue, wanted, mode);
}

/*
 * Locks a queue's row against deletion until the end of the transaction, for a new row that refers
 * to the queue and that a concurrent drop would miss (idemq_internal.queue_gone_impl).  latest:
 * even if the row is newer than the transaction's snapshot.  Raises IQ005 if the row is gone.
 */
void
idemq_queue_keep(const QueueInfo *queue, bool latest)
{
	Datum id = Int32GetDatum(queue->id);

	queues_keep_row.latest = latest;
	if (idemq_spi_do(&queues_keep_row, &id, NULL) == 0)
		refuse_unknown(queue->name);
}

/* Like idemq_queue_lock, but returns false instead of waiting for another transaction. */
bool
idemq_queue_try_lock(int32 id, LOCKMODE mode)
{
	LOCKTAG tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, idemq_oids()->queues, (Oid) id, 0);
	if (LockAcquire(&tag, mode, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return false;
	AcceptInvalidationMessages();
	return true;
}

/*
 * Returns the ids of the queues on which the current role holds one of the wanted privileges, or of
 * all queues if wanted is 0.
 */
int32 *
idemq_queue_ids(int wanted, int *count)
{
	int listed;
	const int32 *all = idemq_queue_cache_ids(&listed);
	int32 *ids = palloc(Max(listed, 1) * sizeof(int32));
	int kept = 0;

	/* Copied first, because the list is valid only until the next lookup. */
	memcpy(ids, all, listed * sizeof(int32));
	for (int i = 0; i < listed; i++)
	{
		CachedQueue *cached = wanted == 0 ? NULL : idemq_queue_cache_by_id(ids[i]);

		if (wanted == 0 || (cached != NULL && (privileges_of(cached) & wanted)))
			ids[kept++] = ids[i];
	}
	*count = kept;
	return ids;
}

/* Looks up all queues of this database, so that each gets a state as long as any are free. */
void
idemq_queues_give_qstates(void)
{
	QueueInfo queue;
	int count;
	int32 *ids = idemq_queue_ids(0, &count);

	for (int i = 0; i < count; i++)
		(void) idemq_queue_by_id(ids[i], &queue);
	pfree(ids);
}
