// The statements of the pages.  Each one is cheap even with a million jobs, because it uses an index or
// a range of ids.  The next page shows the rows that it leaves out.

const PAGE = 50;

export const overview = `
  SELECT m.queue, m.queue_id, m.paused, m.pending, m.blocked, m.running, m.retrying, m.completed, m.dead, m.cancelled,
    extract(epoch FROM m.oldest_ready)::float8 AS oldest_ready, m.enqueued_total, m.committed_total, m.failed_total,
    extract(epoch FROM m.held_until - idemq.clock_timestamp())::float8 AS held_for, m.groups_held, m.unfinished, m.max_unfinished,
    extract(epoch FROM m.unattended_for)::float8 AS unattended_for, m.is_dead_letter_queue, coalesce('admin' = ANY (p.privileges), false) AS may_administer
  FROM idemq.metrics m LEFT JOIN idemq.queue_privileges p USING (queue_id) ORDER BY m.queue`;

const latest = (value) => `(array_agg(${value} ORDER BY h.at DESC))[1]`;
const percentile = (name, percent) => `
    extract(epoch FROM idemq.percentile(idemq.sum_counts(h.${name}_counts), 0.${percent}))::float8 AS ${name}_p${percent}`;
const sums = `extract(epoch FROM max(h.at))::float8 AS until, extract(epoch FROM max(h.oldest_due))::float8 AS oldest_due,
    sum(h.enqueued) AS enqueued, sum(h.completed) AS completed, sum(h.failures) AS failures, sum(h.died) AS died`;
const gauges = `${latest('h.pending')} AS pending, ${latest('h.running')} AS running, ${latest('extract(epoch FROM h.oldest_due)::float8')} AS due_last`;
const times = [percentile('wait', 50), percentile('wait', 95), percentile('run', 50), percentile('run', 95)].join(',');
const stepsOf = (which) => `FROM (SELECT h.*, ceil(extract(epoch FROM h.at)::float8 / $2::int)::int AS point FROM idemq.history h
    WHERE h.step = $1::int AND h.place = ANY ($4::int[]) AND h.at > $3::timestamptz AND h.at <= idemq.clock_timestamp() AND ${which}) h`;
/** The history at each point of a span, for one queue and for all queues together.  A point covers $2 seconds. */
export const historyOfQueue = `
  SELECT h.point, ${sums}, ${gauges}, ${times} ${stepsOf('h.queue = $5::text')} GROUP BY h.point`;
export const historyOfAll = `
  SELECT h.point, ${sums}, ${gauges}, ${times} ${stepsOf('h.queue IS NULL')} GROUP BY h.point`;
/** The beginning of the history of all queues together. */
export const historyBegun = `
  SELECT extract(epoch FROM min(h.at))::float8 AS begun FROM idemq.history h WHERE h.step = $1::int AND h.queue IS NULL`;
export const historyOfSomeBegun = `
  SELECT extract(epoch FROM min(h.at))::float8 AS begun FROM idemq.history h WHERE h.step = $1::int`;
/** The gauges of a queue before a time.  If $3 is NULL: those of all queues together. */
export const historyBefore = `
  SELECT ${gauges} FROM (SELECT h.* FROM idemq.history h
    WHERE h.step = $1::int AND h.at <= $2::timestamptz AND h.queue IS NOT DISTINCT FROM $3::text ORDER BY h.at DESC LIMIT 1) h`;
/** All visible queues together, for a role that sees only some queues.  Without gauges, which are added up from each queue. */
export const historyOfSome = `
  SELECT h.point, ${sums}, ${times} ${stepsOf('h.queue IS NOT NULL')} GROUP BY h.point`;
/** The history of each queue, for the table of queues. */
export const historyOfEach = `
  SELECT h.queue, h.point, ${sums}, ${gauges}, ${percentile('wait', 95)}, ${percentile('run', 95)}
  ${stepsOf('h.queue IS NOT NULL')} GROUP BY h.queue, h.point`;

export const server = `
  SELECT current_database() AS database, session_user AS role, pg_is_in_recovery() AS standby,
    current_setting('server_version') AS postgresql, current_setting('idemq.version', true) AS idemq,
    current_setting('server_version_num')::int AS number, current_setting('idemq.test_clock', true) = 'on' AS tests`;

/** How far ahead the clock of a test server is. */
export const testClock = 'SELECT extract(epoch FROM idemq.test_clock_ahead())::float8 AS ahead';

export const health = `
  SELECT w.pid, extract(epoch FROM w.stuck_for)::float8 AS stuck_for FROM idemq.background_worker w`;

/** A queue; changed_since contains the values declared with idemq.ensure_queue from which the queue's settings differ. */
export const queue = `
  SELECT q.*, extract(epoch FROM q.lease)::float8 AS lease_seconds,
    (SELECT jsonb_object_agg(d.key, d.value) FROM jsonb_each_text(q.declared) d JOIN jsonb_each_text(to_jsonb(q)) s USING (key)
      JOIN pg_catalog.pg_attribute a ON a.attrelid = 'idemq.queues'::regclass AND a.attname = d.key
      WHERE CASE WHEN a.atttypid = 'interval'::regtype THEN d.value::interval IS DISTINCT FROM s.value::interval
        ELSE d.value IS DISTINCT FROM s.value END) AS changed_since
  FROM idemq.queues q WHERE q.name = $1`;

/** The statements of the search: a job by its key, queues by part of their name, jobs by the beginning of their key, and kinds of the newest jobs. */
export const jobByKey = `
  SELECT f.id FROM idemq.queues q, LATERAL (SELECT j.id FROM idemq.jobs j WHERE j.queue_id = q.queue_id AND j.key = $1) f LIMIT 1`;
export const queuesNamed = `
  SELECT q.name FROM idemq.queues q WHERE strpos(lower(q.name), lower($1)) > 0 ORDER BY q.name <> $1, q.name LIMIT 20`;
export const keysFrom = `
  SELECT q.name AS queue, f.id, f.key, f.kind, f.status FROM idemq.queues q, LATERAL (SELECT j.id, j.key, j.kind, j.status FROM idemq.jobs j
    WHERE j.queue_id = q.queue_id AND j.key >= $1 COLLATE "C" AND j.key < $2 COLLATE "C" ORDER BY j.key LIMIT 20) f LIMIT 20`;
export const kindsNamed = `
  SELECT q.name AS queue, j.kind, count(*) AS jobs FROM (SELECT * FROM idemq.jobs j ORDER BY j.id DESC LIMIT 5000) j JOIN idemq.queues q USING (queue_id)
  WHERE strpos(lower(j.kind), lower($1)) > 0 GROUP BY q.name, j.kind ORDER BY jobs DESC LIMIT 20`;

/** The holds in force in a queue. */
export const holds = `
  SELECT h.scope, h.group_key, h.job_id::text AS job_id, h.began_at, h.until, extract(epoch FROM h.until - idemq.clock_timestamp())::float8 AS left
  FROM idemq.holds h WHERE h.queue = $1 ORDER BY h.scope DESC, h.until DESC LIMIT 21`;

/** The most frequent errors of a queue; and the errors of its newest jobs after which a retry succeeded. */
export const errorsOfQueue = `
  SELECT e.sqlstate, left(e.error, 300) AS error, e.fingerprint, e.jobs - e.dead AS retrying, e.dead, e.first_seen, e.last_seen, e.example_id, e.kinds
  FROM idemq.errors e WHERE e.queue = $1 ORDER BY e.dead DESC, e.jobs DESC LIMIT 20`;
export const healedOfQueue = `
  SELECT e.sqlstate, left(e.error, 300) AS error, e.fingerprint, count(*) AS healed, min(e.failed_at) AS first_seen, max(e.failed_at) AS last_seen,
    max(e.job_id) AS example_id, array_agg(DISTINCT e.kind) FILTER (WHERE e.kind IS NOT NULL) AS kinds
  FROM (SELECT j.id, j.queue_id, j.status, j.last_error FROM idemq.jobs j ORDER BY j.id DESC LIMIT 5000) j
    CROSS JOIN LATERAL (SELECT * FROM idemq.job_errors e WHERE e.job_id = j.id OFFSET 0) e
  WHERE j.queue_id = $1 AND j.status = 'completed' AND j.last_error IS NOT NULL
  GROUP BY e.sqlstate, e.error, e.fingerprint ORDER BY healed DESC LIMIT 20`;

/** The workers that have reported that they serve a queue, and its handler. */
export const workersOfQueue = `
  SELECT w.worker, w.state, w.host, w.program, w.concurrency, w.running, w.seen_at FROM idemq.workers w
  WHERE $1 = ANY (w.queues) AND w.state <> 'gone' ORDER BY w.state, w.worker LIMIT 21`;

/** The queues that use a queue as their dead-letter queue. */
export const servedBy = `
  SELECT q.name FROM idemq.queues q JOIN idemq.queues d ON d.name = q.dead_letter_queue WHERE d.queue_id = $1 ORDER BY q.name LIMIT 20`;

export const page = { size: PAGE };

export const errors = `
  SELECT e.queue, e.sqlstate, left(e.error, 2000) AS error, e.fingerprint, e.jobs, e.dead, e.first_seen, e.last_seen,
    e.example_id, 'admin' = ANY (p.privileges) AS may_administer
  FROM idemq.errors e JOIN idemq.queue_privileges p ON p.queue = e.queue
  WHERE $1::text IS NULL OR e.queue = $1 ORDER BY e.jobs DESC, e.last_seen DESC LIMIT 200`;

/** The causes of failures between two times, with the jobs that a retry has completed since.  Each job counts for its last failure. */
export const errorsWithin = `
  WITH failed AS MATERIALIZED (
    SELECT j.id FROM idemq.jobs j WHERE ($1::text IS NULL OR j.queue_id = (SELECT q.queue_id FROM idemq.queues q WHERE q.name = $1)) AND j.last_error IS NOT NULL
      AND j.status <> 'cancelled' AND j.enqueued_at <= $3::timestamptz AND (j.finished_at IS NULL OR j.finished_at >= $2::timestamptz) ORDER BY j.id DESC LIMIT 20000
  ), found AS MATERIALIZED (
    SELECT e.* FROM failed f CROSS JOIN LATERAL (SELECT * FROM idemq.job_errors e WHERE e.job_id = f.id OFFSET 0) e WHERE e.failed_at >= $2::timestamptz AND e.failed_at <= $3::timestamptz)
  SELECT e.queue, e.sqlstate, left(e.error, 2000) AS error, e.fingerprint, count(*) FILTER (WHERE e.status <> 'completed') AS jobs, count(*) FILTER (WHERE e.status = 'dead') AS dead,
    count(*) FILTER (WHERE e.status NOT IN ('dead', 'completed')) AS retrying, count(*) FILTER (WHERE e.status = 'completed') AS healed, min(e.failed_at) AS first_seen, max(e.failed_at) AS last_seen,
    max(e.job_id) AS example_id, array_agg(DISTINCT e.kind) FILTER (WHERE e.kind IS NOT NULL) AS kinds,
    (SELECT 'admin' = ANY (p.privileges) FROM idemq.queue_privileges p WHERE p.queue = e.queue) AS may_administer
  FROM found e GROUP BY e.queue, e.sqlstate, e.error, e.fingerprint ORDER BY count(*) DESC, max(e.failed_at) DESC LIMIT 200`;

/** The newest jobs of all queues that a retry has completed, by the error before it. */
export const healedOfAll = `
  SELECT e.queue, e.sqlstate, left(e.error, 2000) AS error, e.fingerprint, count(*) AS healed, min(e.failed_at) AS first_seen, max(e.failed_at) AS last_seen,
    max(e.job_id) AS example_id
  FROM (SELECT j.id, j.status, j.last_error FROM idemq.jobs j ORDER BY j.id DESC LIMIT 5000) j
    CROSS JOIN LATERAL (SELECT * FROM idemq.job_errors e WHERE e.job_id = j.id OFFSET 0) e
  WHERE j.status = 'completed' AND j.last_error IS NOT NULL
  GROUP BY e.queue, e.sqlstate, e.error, e.fingerprint ORDER BY healed DESC LIMIT 100`;

/** Maximum number of failed jobs of a queue that the page of a cause reads, and of jobs whose workers it looks up. */
export const FAILED = 5000;
export const NEWEST = 200;
/** The newest jobs of a queue that have failed, with the fingerprint of their errors. */
export const failedJobs = `
  WITH failed AS MATERIALIZED (
    SELECT j.id, j.key, j.ready_at FROM idemq.jobs j WHERE j.queue_id = $1 AND j.last_error IS NOT NULL AND j.status <> 'cancelled' ORDER BY j.id DESC LIMIT ${FAILED})
  SELECT e.job_id, e.kind, e.status, e.fingerprint, e.sqlstate, left(e.error, 2000) AS error, e.failed_at, extract(epoch FROM e.failed_at)::float8 AS at, f.key,
    coalesce(f.ready_at > idemq.clock_timestamp(), false) AS later
  FROM failed f CROSS JOIN LATERAL (SELECT * FROM idemq.job_errors e WHERE e.job_id = f.id OFFSET 0) e ORDER BY f.id DESC`;
export const cause = `
  SELECT left(e.error, 2000) AS error, e.sqlstate, e.dead FROM idemq.errors e WHERE e.queue = $1 AND e.fingerprint = $2`;
/** The workers whose attempts failed last, with their versions. */
export const causeWorkers = `
  WITH failed AS MATERIALIZED (
    SELECT t.worker, t.ended_at, t.claimed_at FROM unnest($1::bigint[]) i (id) CROSS JOIN LATERAL (SELECT a.worker, a.ended_at, a.claimed_at FROM idemq.attempts a
      WHERE a.job_id = i.id AND a.outcome IN ('failed', 'expired') ORDER BY a.token DESC LIMIT 1) t
  ), seen AS MATERIALIZED (SELECT w.worker, w.program, w.version, w.host, w.started_at, w.seen_at FROM idemq.workers w WHERE w.worker IN (SELECT f.worker FROM failed f) LIMIT 500)
  SELECT f.worker, w.program, w.version, w.host, count(*) AS jobs, max(f.ended_at) AS last
  FROM failed f LEFT JOIN LATERAL (SELECT * FROM seen s WHERE s.worker = f.worker AND s.started_at <= f.ended_at ORDER BY s.seen_at DESC LIMIT 1) w ON true
  GROUP BY f.worker, w.program, w.version, w.host ORDER BY jobs DESC, last DESC LIMIT 50`;
/** A dead job of a queue with an error, to be retried before the others. */
export const deadOfCause = `
  SELECT d.id, d.kind FROM (SELECT j.id, j.kind FROM idemq.jobs j WHERE j.queue_id = (SELECT q.queue_id FROM idemq.queues q WHERE q.name = $1) AND j.dead_at IS NOT NULL
    ORDER BY j.dead_at DESC, j.id DESC LIMIT ${FAILED}) d CROSS JOIN LATERAL (SELECT * FROM idemq.job_errors e WHERE e.job_id = d.id OFFSET 0) e WHERE e.fingerprint = $2 LIMIT 1`;
/** The job that was retried first, and whether it has failed since. */
export const firstRetried = `
  SELECT j.id, j.status, j.attempt > 0 AS failed, coalesce(j.ready_at > idemq.clock_timestamp(), false) AS later,
    (SELECT e.fingerprint FROM idemq.job_errors e WHERE e.job_id = j.id) AS fingerprint FROM idemq.jobs j WHERE j.id = $1 AND j.queue_id = $2`;

export const schedules = `
  SELECT s.name, s.queue, s.cron, s.time_zone, s.next_run, s.last_run, s.last_job, s.failed_at, s.last_error,
    s.created_by, s.paused_at, s.payload IS NOT NULL AS may_run, CASE WHEN s.payload IS NOT NULL AND s.paused_at IS NULL THEN (
      SELECT array_agg(t ORDER BY n) FROM (
        WITH RECURSIVE ticks (n, t) AS (
          SELECT 1, idemq.next_tick(s.cron, s.time_zone, idemq.clock_timestamp())
          UNION ALL SELECT n + 1, idemq.next_tick(s.cron, s.time_zone, t) FROM ticks WHERE n < 3)
        SELECT n, t::text FROM ticks) x (n, t)) END AS ticks
  FROM idemq.schedules s ORDER BY s.next_run, s.name LIMIT 500`;

/** One schedule, with its next five ticks. */
export const schedule = `
  SELECT s.name, s.queue, s.cron, s.time_zone, s.last_run, s.failed_at, s.last_error, left(s.payload::text, 2000) AS payload, left(s.headers::text, 2000) AS headers, s.group_key, s.priority,
    s.max_attempts, s.expires_in::text, s.kind, s.created_by, s.created_at, s.paused_at, s.payload IS NOT NULL AS may_change, CASE WHEN s.paused_at IS NULL THEN (
      WITH RECURSIVE ticks (n, t) AS (SELECT 1, idemq.next_tick(s.cron, s.time_zone, idemq.clock_timestamp())
        UNION ALL SELECT n + 1, idemq.next_tick(s.cron, s.time_zone, t) FROM ticks WHERE n < 5 AND t IS NOT NULL)
      SELECT array_agg(t::text ORDER BY n) FROM ticks WHERE t IS NOT NULL) END AS ticks
  FROM idemq.schedules s WHERE s.name = $1`;
export const nextTicks = `
  WITH RECURSIVE ticks (n, at) AS (SELECT 1, idemq.next_tick($1, $2, idemq.clock_timestamp())
    UNION ALL SELECT n + 1, idemq.next_tick($1, $2, at) FROM ticks WHERE n < 5 AND at IS NOT NULL)
  SELECT t.at FROM ticks t WHERE t.at IS NOT NULL ORDER BY t.n`;
/** The last ticks of an expression since a time, and the jobs of a schedule's ticks, whose keys begin with its name. */
export const pastTicks = `
  WITH RECURSIVE ticks (n, at) AS (SELECT 1, idemq.last_tick($1, $2, idemq.clock_timestamp())
    UNION ALL SELECT n + 1, idemq.last_tick($1, $2, at - interval '1 second') FROM ticks WHERE n < 20 AND at IS NOT NULL)
  SELECT t.at FROM ticks t WHERE t.at >= $3::timestamptz ORDER BY t.n`;
export const scheduleJobs = `
  SELECT j.id, j.key, j.status, j.enqueued_at, j.claimed_at, j.finished_at, left(j.last_error, 300) AS last_error, coalesce(j.ready_at > idemq.clock_timestamp(), false) AS later
  FROM idemq.jobs j WHERE j.queue_id = (SELECT q.queue_id FROM idemq.queues q WHERE q.name = $1) AND j.key >= $2 COLLATE "C" AND j.key < $3 COLLATE "C" ORDER BY j.key DESC LIMIT 50`;

export const runningJobs = `
  SELECT w.queue, w.job_id, w.worker, w.pid, w.attempt, w.claimed_at,
    extract(epoch FROM w.expires_in)::float8 AS expires_in, w.attached, w.state, to_jsonb(w) ->> 'progress' AS progress,
    to_jsonb(w) ->> 'ahead' AS ahead
  FROM idemq.running_jobs w ORDER BY w.expires_in NULLS LAST LIMIT 500`;

/** The workers that have reported in the last hour, and the handlers.  The oldest running job of each is looked up for all of them at once. */
export const workers = `
  WITH seen AS MATERIALIZED (
    SELECT row_number() OVER () AS place, s.* FROM (SELECT s.* FROM idemq.workers s ORDER BY s.state = 'gone', s.state, s.worker, s.started_at LIMIT 500) s
  ), oldest AS (
    SELECT s.place, min(w.claimed_at) AS claimed_at FROM seen s CROSS JOIN unnest(s.jobs) j (id) JOIN idemq.running_jobs w ON w.job_id = j.id GROUP BY s.place
  )
  SELECT s.worker, s.role, s.host, s.program, s.version, s.queues, s.started_at, s.seen_at, s.concurrency, s.running, s.jobs[1:5] AS jobs,
    s.done, s.per_minute, s.state, o.claimed_at AS oldest
  FROM seen s LEFT JOIN oldest o ON o.place = s.place ORDER BY s.place`;
/** The details of handlers that the table of workers does not have columns for. */
export const handlers = `
  SELECT h.queue, h.function, h.role, h.state, h.workers, h.workers_running, h.batch, extract(epoch FROM h.max_idle)::float8 AS max_idle,
    h.jobs_per_second, h.done_total, h.failed_total, left(h.last_error, 500) AS last_error, h.last_error_at, h.set_at
  FROM idemq.handlers h ORDER BY h.queue LIMIT 500`;
export const unattended = `
  SELECT m.queue, m.pending, extract(epoch FROM m.unattended_for)::float8 AS unattended_for
  FROM idemq.metrics m WHERE m.unattended_for IS NOT NULL ORDER BY m.unattended_for DESC LIMIT 50`;

/** Maximum number of jobs of a flow that the page reads. */
const FLOW = 10000;
/** Number of dependencies that are read at a time for the list of flows. */
export const EDGES = 5000;
export const flow = `
  SELECT f.jobs, f.waiting, f.blocked, f.running, f.retrying, f.completed, f.dead, f.cancelled, f.done, f.progress, f.begun_at, f.ended_at,
    extract(epoch FROM f.eta)::float8 AS eta, f.held_up_by, f.held_up_why, f.slowest, f.slowest_kind,
    extract(epoch FROM f.slowest_for)::float8 AS slowest_for, f.failed_ids, f.roots, f.cut
  FROM idemq.flow($1) f`;
/** The jobs of a flow.  Times are in seconds; a running job's run time is up to now. */
export const flowJobs = `
  SELECT f.id, f.queue, f.kind, f.status, f.parents::text[] AS parents, f.depth, extract(epoch FROM f.begun_at)::float8 AS begun,
    extract(epoch FROM CASE f.status WHEN 'running' THEN idemq.clock_timestamp() ELSE f.ended_at END)::float8 AS ended, left(f.last_error, 300) AS last_error
  FROM idemq.flow_jobs($1, ${FLOW}) f`;

/** A queue that contains unfinished jobs of a flow, and in which the role may not cancel jobs. */
export const flowOthers = `
  SELECT q.queue_id, q.name FROM (SELECT DISTINCT f.queue FROM idemq.flow_jobs($1, 100000) f
    WHERE f.status NOT IN ('completed', 'dead', 'cancelled')) f
  JOIN idemq.queues q ON q.name = f.queue LEFT JOIN idemq.queue_privileges p ON p.queue_id = q.queue_id
  WHERE ('enqueue' = ANY (p.privileges)) IS NOT TRUE ORDER BY q.name LIMIT 1`;

/** The newest dependencies before a child, from which the list of flows is made. */
export const newestEdges = `
  SELECT d.child, d.parent FROM idemq.dependencies d WHERE d.child < coalesce($1::bigint, 9223372036854775807) ORDER BY d.child DESC, d.parent DESC LIMIT ${EDGES}`;
/** The progress of a flow in the list, and its newest job. */
export const flowBrief = `
  SELECT f.jobs, f.waiting, f.blocked, f.running, f.retrying, f.completed, f.dead, f.cancelled, f.done, f.begun_at, f.ended_at,
    extract(epoch FROM f.eta)::float8 AS eta, f.roots, f.cut, (SELECT max(i) FROM idemq.flow_ids($1, ${FLOW}) i) AS newest
  FROM idemq.flow($1, ${FLOW}) f`;
/** The first root job of a flow, by which the list names it. */
export const flowRoot = `
  SELECT j.id, q.name AS queue, j.kind, j.key, j.enqueued_at FROM idemq.jobs j LEFT JOIN idemq.queues q ON q.queue_id = j.queue_id WHERE j.id = ANY ($1::bigint[]) ORDER BY j.id LIMIT 1`;

/** Those of these queues in which the role may not retry jobs. */
export const queuesRefused = `
  SELECT q.queue_id, q.name FROM idemq.queues q LEFT JOIN idemq.queue_privileges p ON p.queue_id = q.queue_id
  WHERE q.name = ANY ($1::text[]) AND ('enqueue' = ANY (p.privileges)) IS NOT TRUE ORDER BY q.name LIMIT 1`;

export const audit = `
  SELECT a.id, a.at, a.session_role, a.role, a.actor, a.action, a.queue, a.job_id, a.jobs, left(a.details::text, 500) AS details
  FROM idemq.audit a WHERE ($1::bigint IS NULL OR a.id < $1) AND ($2::text IS NULL OR a.queue = $2)
    AND ($3::timestamptz IS NULL OR a.at >= $3) AND ($4::timestamptz IS NULL OR a.at <= $4)
  ORDER BY a.id DESC LIMIT ${PAGE}`;

export const check = 'SELECT severity, invariant, detail FROM idemq.check()';
