/*
 * queue/queue.h
 *		A queue: settings and privileges, its state, the count of its jobs.
 */
#ifndef IDEMQ_QUEUE_QUEUE_H
#define IDEMQ_QUEUE_QUEUE_H

#include "datatype/timestamp.h"
#include "fmgr.h"
#include "nodes/pg_list.h"
#include "storage/lockdefs.h"
#include "utils/snapshot.h"

#include "shared/counts/counts.h"
#include "shared/queue_states/queue_states.h"

/*
 * queue_settings.c
 *		The settings of a queue.
 */

typedef char QueueName[IDEMQ_MAX_QUEUE_NAME + 1];

/*
 * The settings of a queue, each with its name, kind, minimum and maximum.  They are columns of idemq.queues,
 * fields of QueueInfo, and, in this order after the queue's name, the arguments of create_queue and
 * alter_queue.  Intervals are in microseconds, and have the same maximum as all interval
 * arguments.  CONTRIBUTING.md describes how to add a setting.
 */
/* clang-format off */
#define QUEUE_SETTINGS(SETTING)                                                                    \
	SETTING(lease, INTERVAL, 1, 0)                                                                 \
	SETTING(max_attempts, INT, 1, PG_INT32_MAX)                                                    \
	SETTING(retry_base, INTERVAL, 1, 0)                                                            \
	SETTING(retry_factor, FLOAT, 1, 1000)                                                          \
	SETTING(retry_max, INTERVAL, 1, 0)                                                             \
	SETTING(retry_jitter, FLOAT, 0, 1)                                                             \
	SETTING(retention, INTERVAL, 0, 0)                                                             \
	SETTING(idempotency_window, INTERVAL, 0, 0)                                                    \
	SETTING(max_running, LIMIT, 1, PG_INT32_MAX)                                                   \
	SETTING(rate_limit, LIMIT, 1, PG_INT32_MAX)      /* claims in rate_period */                   \
	SETTING(rate_period, INTERVAL, 1, 0)                                                           \
	SETTING(dead_letter_queue, QUEUE, 0, 0)                                                        \
	SETTING(dead_retention, INTERVAL, 0, 0)                                                        \
	SETTING(max_lease, INTERVAL, 1, 0)               /* no claim or heartbeat may ask for more */  \
	SETTING(job_timeout, TIMEOUT, 1, 0)              /* an attempt may run so long */              \
	SETTING(dead_letter_cancelled, BOOL, 0, 0)       /* cancelled ones that were begun go there */ \
	SETTING(group_max_running, INT, 1, PG_INT32_MAX) /* of one group running at once */      \
	SETTING(group_rate_limit, LIMIT, 1, PG_INT32_MAX) /* starts in group_rate_period */            \
	SETTING(group_rate_period, INTERVAL, 1, 0)                                                     \
	SETTING(expect_workers, BOOL, 0, 0)              /* false: having none is normal */            \
	SETTING(rate_burst, LIMIT, 1, PG_INT32_MAX)      /* 0: rate_limit is exact (base/rates.c) */   \
	SETTING(group_rate_burst, LIMIT, 1, PG_INT32_MAX)                                              \
	SETTING(max_hold_back, INTERVAL, 0, 0)           /* 0: no worker may hold jobs back */         \
	SETTING(max_unfinished, LIMIT, 1, PG_INT32_MAX)  /* jobs that have not finished */             \
	SETTING(group_max_unfinished, LIMIT, 1, 10000)   /* the same, in each group */                 \
	SETTING(notify_finished, BOOL, 0, 0)             /* finished jobs are announced by NOTIFY */

/* The kinds, and what each is in QueueInfo. */
#define SETTING_TYPE_INTERVAL int64
#define SETTING_TYPE_FLOAT double
#define SETTING_TYPE_INT int32
#define SETTING_TYPE_LIMIT int32     /* 0: no limit, which is NULL in the table */
#define SETTING_TYPE_TIMEOUT int64   /* 0: none, likewise */
#define SETTING_TYPE_QUEUE QueueName /* "": none, likewise */
#define SETTING_TYPE_BOOL bool
#define SETTING_MEMBER(name, kind, least, most) SETTING_TYPE_##kind name;
/* clang-format on */

typedef enum SettingKind
{
	SETTING_INTERVAL,
	SETTING_FLOAT,
	SETTING_INT,
	SETTING_LIMIT,	 /* NULL is "no limit", and 0 to alter_queue */
	SETTING_TIMEOUT, /* NULL is "none", and 0 to alter_queue */
	SETTING_QUEUE,	 /* NULL is "none", and '' to alter_queue */
	SETTING_BOOL
} SettingKind;

typedef struct QueueSetting
{
	const char *name;
	SettingKind kind;
	double least;
	double most;
} QueueSetting;

extern const QueueSetting idemq_queue_settings[]; /* in the order of QUEUE_SETTINGS */
/* The SQL type of a SettingKind; and what alter_queue takes for "none", in SQL, or NULL. */
extern const Oid idemq_setting_types[];
extern const char *const idemq_setting_nones[];

/* A queue and its settings. */
typedef struct QueueInfo
{
	int32 id;
	QueueName name;
	QUEUE_SETTINGS(SETTING_MEMBER)
	NameData dead_letter_role; /* the role that has set dead_letter_queue; "": none is checked */
	Oid dead_letter_role_oid;
	bool paused;			  /* see idemq_queue_is_paused */
	TimestampTz paused_until; /* DT_NOEND: until it is resumed */
	TimestampTz held_until;	  /* latest end of a hold of the queue, perhaps past; or DT_NOBEGIN */
	bool has_group_holds;	  /* there are rows for holds of its groups, perhaps ended */
	TimestampTz created_at;
	bool has_paused_groups;		  /* see idemq_queue_may_have_pauses */
	TimestampTz group_pauses_end; /* when the first of them ends; DT_NOEND: only by idemq.resume */
	uint64 version;				  /* idemq_version_of_queue, before this was read */
	int privileges;				  /* the current role's, as QueuePrivilege bits */
	QueueState *qstate;
} QueueInfo;

extern void idemq_settings_check(FunctionCallInfo fcinfo, bool is_new);
extern void idemq_settings_check_lease(const QueueInfo *queue, int64 lease);
extern int64 idemq_settings_lease(const QueueInfo *queue, int64 asked);
extern int idemq_setting_arg(const char *name);
extern bool idemq_settings_insert(FunctionCallInfo fcinfo, const char *name, int32 *id);
extern bool idemq_settings_is_inserting(void);
extern void idemq_settings_update(FunctionCallInfo fcinfo, const char *name, bool latest);
extern Datum idemq_settings_document(int32 queue_id, Datum before, bool latest);
extern uint64 idemq_settings_load(const Datum *range, Snapshot snapshot);
extern void idemq_settings_read(uint64 row, QueueInfo *queue);

/* Returns whether a queue is paused now; see job/pausing.c. */
static inline bool
idemq_queue_is_paused(const QueueInfo *queue)
{
	return queue->paused && (queue->paused_until == DT_NOEND || idemq_now() < queue->paused_until);
}

/* Returns whether a worker is holding back all jobs of a queue now; see job/holds.c. */
static inline bool
idemq_queue_is_held(const QueueInfo *queue)
{
	return unlikely(queue->held_until != DT_NOBEGIN) && idemq_now() < queue->held_until;
}

/* Returns whether a queue hands out no jobs now because it is paused or held back. */
static inline bool
idemq_queue_is_closed(const QueueInfo *queue)
{
	return idemq_queue_is_paused(queue) || idemq_queue_is_held(queue);
}

/*
 * Returns until when a queue hands out no jobs because it is paused or held back; DT_NOBEGIN if it
 * hands out jobs, DT_NOEND if only idemq.resume ends its pause.
 */
static inline TimestampTz
idemq_queue_closed_until(const QueueInfo *queue)
{
	TimestampTz until = idemq_queue_is_paused(queue) ? queue->paused_until : DT_NOBEGIN;

	return idemq_queue_is_held(queue) ? Max(until, queue->held_until) : until;
}

/*
 * Returns whether a looked-up queue may have paused groups: either it had one, or the version of
 * its settings, which include the paused groups, has changed since.  See job/group_pause.c.
 */
static inline bool
idemq_queue_may_have_pauses(const QueueInfo *queue)
{
	return queue->has_paused_groups || queue->version != idemq_version_of_queue(queue->id);
}

/*
 * declared.c
 *		The settings that idemq.ensure_queue was called with.
 */

/* How a declaration differs from the last one, and from the settings.  Bit i is setting i. */
typedef struct DeclaredDifference
{
	int64 is_new;		/* bits: declared with a new value, or for the first time */
	int64 differs;		/* bits: the queue has a different value now */
	Datum new_names;	/* text: the names of is_new, separated by commas */
	Datum kept_names;	/* text: the names of the settings that differ but are not new */
	Datum kept_details; /* text: the same with both values */
} DeclaredDifference;

extern void idemq_declared_name_all(FunctionCallInfo settings);
extern void idemq_declared_for_create(FunctionCallInfo settings);
extern bool idemq_declared_compare(FunctionCallInfo settings, int32 queue_id,
								   DeclaredDifference *difference);
extern void idemq_declared_store(FunctionCallInfo settings, int32 queue_id);

/*
 * queue_cache.c
 *		What this session has read of the queues: settings and grants.
 */

typedef struct QueueGrant
{
	int32 queue_id;
	NameData role;
	Oid role_oid;	  /* InvalidOid: the name alone decides */
	int32 privileges; /* QueuePrivilege bits */
} QueueGrant;

typedef struct CachedQueue
{
	int32 id;		 /* hash key */
	bool exists;	 /* if false, the fields below are empty */
	uint64 version;	 /* of the queue when it was read (idemq_version_of_queue); 0: read it again */
	QueueInfo info;	 /* queue/queues.c sets privileges and qstate */
	Oid role;		 /* the role that has info.privileges; InvalidOid: not computed */
	uint64 roles_at; /* idemq_queue_cache_roles() when they were computed */
	int ngrants;
	QueueGrant *grants;
} CachedQueue;

extern void idemq_queue_cache_install(void);
extern CachedQueue *idemq_queue_cache_by_id(int32 id);
extern CachedQueue *idemq_queue_cache_by_name(const char *name);
extern const int32 *idemq_queue_cache_ids(int *count);
extern bool idemq_queue_cache_is_fresh(const CachedQueue *cached);
extern uint64 idemq_queue_cache_roles(void);
extern void idemq_queue_cache_changed(int32 id);
extern void idemq_queue_cache_forget(int32 id);
extern uint64 idemq_queue_cache_version(void);
extern bool idemq_queue_cache_limits_groups(int32 id);

/* Whether any queue in this session's cache has group_max_unfinished. */
extern bool idemq_any_limits_groups;

/*
 * Returns whether a queue has group_max_unfinished, according to this session's cache.  Does not
 * read any rows; costs one comparison if no queue has the limit.
 */
static inline bool
idemq_queue_limits_groups(int32 id)
{
	return unlikely(idemq_any_limits_groups) && idemq_queue_cache_limits_groups(id);
}

/*
 * queue_state_life.c
 *		How a queue gets its state in shared memory, and loses it.
 */

extern QueueState *idemq_qstate_for_queue(int32 queue_id);
extern TableUsage idemq_qstates_usage(void);
extern void idemq_qstate_forget_queue(int32 queue_id);
extern void idemq_qstates_forget_database(Oid database);
extern void idemq_qstates_unset_database(Oid database);

/*
 * queues.c
 *		Queue settings and privileges.
 */

typedef enum QueuePrivilege
{
	PRIVILEGE_ENQUEUE = 1,
	PRIVILEGE_CLAIM = 2,
	PRIVILEGE_ADMIN = 4
} QueuePrivilege;

#define PRIVILEGE_ALL (PRIVILEGE_ENQUEUE | PRIVILEGE_CLAIM | PRIVILEGE_ADMIN)

extern void idemq_queue_by_name(const char *name, int wanted, QueueInfo *queue);
extern void idemq_queue_arg(FunctionCallInfo fcinfo, int n, const char *name, int wanted,
							QueueInfo *queue);
extern void idemq_queue_open(FunctionCallInfo fcinfo, int n, const char *name, int wanted,
							 LOCKMODE mode, QueueInfo *queue);
extern void idemq_queue_hold(QueueInfo *queue, int wanted, LOCKMODE mode);
extern void idemq_queue_keep(const QueueInfo *queue, bool latest);
extern bool idemq_queue_find(const char *name, QueueInfo *queue);
extern bool idemq_queue_by_id(int32 id, QueueInfo *queue);
extern void idemq_queue_need_qstate(const QueueInfo *queue);
extern void idemq_queues_give_qstates(void);
extern bool idemq_queue_allows(int32 id, int wanted, QueueInfo *queue);
extern bool idemq_queue_allows_role(int32 id, Oid role, int wanted, QueueInfo *queue);
extern bool idemq_may_change_schedule(int32 queue_id, const char *creator, Oid creator_oid);
extern void idemq_queue_lock(int32 id, LOCKMODE mode);
extern void idemq_queue_lock_name(const char *name);
extern bool idemq_queue_try_lock(int32 id, LOCKMODE mode);
extern int32 *idemq_queue_ids(int wanted, int *count);
pg_noreturn extern void idemq_queue_denied(const char *name, int wanted);

/*
 * roles.c
 *		Roles as rows name them, and what each needs of the schema.
 */

extern Oid idemq_role_of(const char *name, Oid oid);
extern const char *idemq_grant_text(const char *queue, const char *role, const char *privilege);
/* What idemq_role_lock locks. */
typedef enum RoleLock
{
	ROLE_LOCK_GRANTS = 0x6971, /* "iq": not PostgreSQL's own */
	ROLE_LOCK_SCHEDULES
} RoleLock;

extern void idemq_role_lock(Oid role, RoleLock what);
extern void idemq_usage_settle(Oid role);

/*
 * topics.c
 *		Spaces of topics: who owns them, who may publish to them and bind queues to them.
 */

typedef enum TopicPrivilege
{
	TOPIC_PUBLISH = 1,
	TOPIC_BIND = 2,
	TOPIC_ADMIN = 4
} TopicPrivilege;

#define TOPIC_ALL (TOPIC_PUBLISH | TOPIC_BIND | TOPIC_ADMIN)

/* A space and its grants, as the latest snapshot shows them. */
typedef struct TopicSpace
{
	const char *name;
	int ngrants;
	struct TopicGrant *grants;
} TopicSpace;

extern bool idemq_topic_find(const char *name, TopicSpace *space);
extern int idemq_topic_privileges(const TopicSpace *space, Oid role);
extern void idemq_topic_open(const char *name, int wanted, TopicSpace *space);
extern void idemq_topic_keep(const char *name);
extern void idemq_topic_lock_name(const char *name);
pg_noreturn extern void idemq_topic_refuse_unknown(const char *name);

/*
 * handlers.c
 *		The handler of a queue: which function runs its jobs, as whom.
 */

/* A row of idemq_internal.handler_entries. */
typedef struct HandlerInfo
{
	int32 queue_id;
	NameData schema;
	NameData function;
	NameData role;
	Oid role_oid;	/* InvalidOid: the name alone decides */
	NameData owner; /* of the function, when the handler was set */
	Oid owner_oid;	/* as role_oid */
	int32 workers;
	int32 batch;
	int64 max_idle; /* microseconds */
	TimestampTz set_at;
	int32 crashes;
	bool stopped;
} HandlerInfo;

/* Why a handler does not run if its queue has no state. */
#define HANDLER_WITHOUT_QUEUE_STATE                                                                \
	"its queue has no state in shared memory: raise idemq.max_queues and restart the server"

/* The role and the function of a handler, as they are now. */
typedef struct HandlerTarget
{
	Oid role;
	Oid function;
	bool returns_void;
} HandlerTarget;

extern bool idemq_handler_read(int32 queue_id, HandlerInfo *info);
extern bool idemq_handler_same(const HandlerInfo *a, const HandlerInfo *b);
extern char *idemq_handler_resolve(const HandlerInfo *info, HandlerTarget *target);
extern const char *idemq_handler_stopped_text(const HandlerInfo *info);

/*
 * following.c
 *		Whether this database follows another by logical replication.
 */

/* See queue/following.c. */
typedef struct Following
{
	bool switched_on;		/* the row of this database says so */
	bool subscribed;		/* an enabled subscription writes idemq.jobs */
	TimestampTz since;		/* of switched_on */
	TimestampTz taken_over; /* when it last ceased to follow; DT_NOBEGIN: never */
	char *moved_to;			/* the address to which it has moved; NULL: it has not moved */
} Following;

extern const Following *idemq_following(void);
extern bool idemq_follows(void);
extern bool idemq_following_is_known(bool *does);
extern void idemq_following_refuse(void);
extern void idemq_following_refuse_moved(void);
extern TimestampTz idemq_taken_over_at(void);
extern void idemq_following_changed(Oid relation);
extern bool idemq_following_set(bool on);
extern void idemq_following_set_moved(const char *to);
extern void idemq_following_install(void);

/*
 * queue_counts.c
 *		Counting the jobs of each queue by SQL.
 */

extern bool idemq_queue_counts_run_if_due(void);
extern CountStart idemq_queue_counts_try(int64 *jobs);
extern QueueCount *idemq_queue_counts_by_sql(int *ncounts);
extern void idemq_queue_count_refusal(const QueueInfo *queue, Counter counter);

#endif
