// What the pages ask.  Each statement is cheap beside a million jobs: by an index, or by a
// window of ids; what it leaves out, the next page shows.

const PAGE = 50;
/** Ids that one page of all jobs looks at, whatever it finds. */
const WINDOW = 20000;
/** Characters of a document that a page shows; the rest is for the download. */
export const SHOWN = 16384;
/** Bytes of a document that the server is asked to write out at all. */
export const LARGEST = 64 * 1024 * 1024;

export const overview = `
  SELECT m.queue, m.queue_id, m.paused, m.pending, m.blocked, m.processing, m.failed, m.completed, m.dead, m.cancelled,
    extract(epoch FROM m.oldest_ready)::float8 AS oldest_ready, m.enqueued_total, m.committed_total, m.failed_total,
    extract(epoch FROM m.unattended_for)::float8 AS unattended_for, m.is_dead_queue
  FROM idemq.metrics m ORDER BY m.queue`;

const latest = (value) => `(array_agg(${value} ORDER BY h.at DESC))[1]`;
const percentile = (name, percent) => `
    extract(epoch FROM idemq.percentile(idemq.sum_counts(h.${name}_counts), 0.${percent}))::float8 AS ${name}_p${percent}`;
const sums = `extract(epoch FROM max(h.at))::float8 AS until, extract(epoch FROM max(h.oldest_due))::float8 AS oldest_due,
    sum(h.enqueued) AS enqueued, sum(h.completed) AS completed, sum(h.failures) AS failures, sum(h.died) AS died`;
const gauges = `${latest('h.pending')} AS pending, ${latest('h.processing')} AS processing, ${latest('extract(epoch FROM h.oldest_due)::float8')} AS due_last`;
const times = [percentile('wait', 50), percentile('wait', 95), percentile('run', 50), percentile('run', 95)].join(',');
const stepsOf = (which) => `FROM (SELECT h.*, ceil(extract(epoch FROM h.at)::float8 / $2::int)::int AS point FROM idemq.history h
    WHERE h.step = $1::int AND h.place = ANY ($4::int[]) AND h.at > $3::timestamptz AND h.at <= clock_timestamp() AND ${which}) h`;
/** What happened in each point of a span, of one queue, and of all together; a point is $2 seconds. */
export const historyOfQueue = `
  SELECT h.point, ${sums}, ${gauges}, ${times} ${stepsOf('h.queue = $5::text')} GROUP BY h.point`;
export const historyOfAll = `
  SELECT h.point, ${sums}, ${gauges}, ${times} ${stepsOf('h.queue IS NULL')} GROUP BY h.point`;
/** When the history of all began; the gauges of a queue ($3; NULL: of all) before a time. */
export const historyBegun = `
  SELECT extract(epoch FROM min(h.at))::float8 AS begun FROM idemq.history h WHERE h.step = $1::int AND h.queue IS NULL`;
export const historyOfSomeBegun = `
  SELECT extract(epoch FROM min(h.at))::float8 AS begun FROM idemq.history h WHERE h.step = $1::int`;
export const historyBefore = `
  SELECT ${gauges} FROM (SELECT h.* FROM idemq.history h
    WHERE h.step = $1::int AND h.at <= $2::timestamptz AND h.queue IS NOT DISTINCT FROM $3::text ORDER BY h.at DESC LIMIT 1) h`;
/** All together, for a role that sees some queues: without gauges, which come from each. */
export const historyOfSome = `
  SELECT h.point, ${sums}, ${times} ${stepsOf('h.queue IS NOT NULL')} GROUP BY h.point`;
/** Of each queue, for the table of queues. */
export const historyOfEach = `
  SELECT h.queue, h.point, ${sums}, ${gauges}, ${percentile('wait', 95)}, ${percentile('run', 95)}
  ${stepsOf('h.queue IS NOT NULL')} GROUP BY h.queue, h.point`;

export const server = `
  SELECT current_database() AS database, session_user AS role, pg_is_in_recovery() AS standby,
    current_setting('server_version') AS postgresql, current_setting('idemq.version', true) AS idemq,
    current_setting('server_version_num')::int AS number`;

export const health = `
  SELECT w.pid, extract(epoch FROM w.stuck_for)::float8 AS stuck_for FROM idemq.background_worker w`;

export const queue = `
  SELECT q.*, extract(epoch FROM q.lease)::float8 AS lease_seconds FROM idemq.queues q WHERE q.name = $1`;

const listed = `j.id, j.status, j.priority, j.attempt, j.max_attempts, j.key, j.group_key, j.created_at, j.ready_at,
    j.claimed_at, j.finished_at, j.dead_at, left(j.last_error, 200) AS last_error`;

/** The lists of a queue's jobs, by name: title, statement, its page's key and how it goes on. */
export const lists = {
  waiting: {
    title: 'Waiting, in the order in which they will be claimed',
    text: `SELECT ${listed} FROM idemq.jobs j
      WHERE j.queue_id = $1 AND j.ready_at IS NOT NULL AND j.status <> 'processing'
        AND ($2::text IS NULL OR (j.priority, j.ready_at, j.id) > ($2::int, $3::timestamptz, $4::bigint))
      ORDER BY j.priority, j.ready_at, j.id LIMIT ${PAGE}`,
    keys: ['priority', 'ready_at', 'id'],
  },
  running: {
    title: 'Running, those first that began first',
    text: `SELECT ${listed} FROM idemq.workers w JOIN idemq.jobs j ON j.id = w.job_id
      WHERE j.queue_id = $1 AND ($2::text IS NULL OR (w.claimed_at, j.id) > ($2::timestamptz, $3::bigint))
      ORDER BY w.claimed_at, j.id LIMIT ${PAGE}`,
    keys: ['claimed_at', 'id'],
  },
  dead: {
    title: 'Dead or failed for good, the newest first',
    text: `SELECT ${listed} FROM idemq.jobs j
      WHERE j.queue_id = $1 AND j.dead_at IS NOT NULL
        AND ($2::text IS NULL OR (j.dead_at, j.id) < ($2::timestamptz, $3::bigint))
      ORDER BY j.dead_at DESC, j.id DESC LIMIT ${PAGE}`,
    keys: ['dead_at', 'id'],
  },
};

/** All jobs of a queue by id, the newest first; from: the least id that was looked at. */
export const all = `
  WITH looked AS MATERIALIZED (
    SELECT j.id, j.queue_id, j.status FROM idemq.jobs j
    WHERE $2::bigint IS NULL OR j.id < $2 ORDER BY j.id DESC LIMIT ${WINDOW}
  ), found AS (
    SELECT l.id FROM looked l WHERE l.queue_id = $1 AND ($3::text IS NULL OR l.status::text = $3)
    ORDER BY l.id DESC LIMIT ${PAGE}
  )
  SELECT ${listed}, (SELECT count(*) FROM looked) AS looked, (SELECT min(id) FROM looked) AS looked_to
  FROM found f JOIN idemq.jobs j ON j.id = f.id
  UNION ALL
  SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    (SELECT count(*) FROM looked), (SELECT min(id) FROM looked)
  WHERE NOT EXISTS (SELECT FROM found)
  ORDER BY 1 DESC`;
export const page = { size: PAGE, window: WINDOW };

export const job = `
  SELECT j.id, j.queue_id, q.name AS queue, j.status, j.priority, j.attempt, j.max_attempts, j.key, j.group_key,
    j.kind, j.created_at, j.run_at, j.ready_at, j.claimed_at, j.deadline, j.finished_at, j.dead_at, j.expires_at, j.worker,
    j.token, left(j.last_error, ${SHOWN}) AS last_error, idemq.why(j.id) AS why,
    idemq.may_administer(j.queue_id) AS may_administer
  FROM idemq.jobs j LEFT JOIN idemq.queues q ON q.queue_id = j.queue_id WHERE j.id = $1`;

/** A document, as far as it is shown, and how long it is; the columns are these and no others. */
export const documents = ['payload', 'headers', 'checkpoint', 'result'];
export const shown = `
  SELECT ${documents.map((name) => `
    CASE WHEN pg_column_size(j.${name}) < ${LARGEST / 64} THEN left(jsonb_pretty(j.${name}), ${SHOWN})
      ELSE left(j.${name}::text, ${SHOWN}) END AS ${name},
    octet_length(j.${name}::text) AS ${name}_bytes`).join(',')}
  FROM idemq.jobs j WHERE j.id = $1
    AND greatest(${documents.map((name) => `pg_column_size(j.${name})`).join(', ')}) < ${LARGEST}`;
export const download = (name) => `
  SELECT j.${name}::text AS document FROM idemq.jobs j WHERE j.id = $1 AND pg_column_size(j.${name}) < ${LARGEST}`;

export const attempts = `
  SELECT a.attempt, a.token, a.worker, a.claimed_at, a.ended_at, a.outcome, left(a.error, ${SHOWN}) AS error,
    left(a.details::text, 2000) AS details
  FROM idemq.attempts a WHERE a.job_id = $1 ORDER BY a.token DESC LIMIT 100`;

/** What stands before a job in its group, and behind it. */
export const group = `
  SELECT j.id, j.status, j.created_at FROM idemq.jobs j
  WHERE j.queue_id = $1 AND j.group_key = $2 AND j.finished_at IS NULL ORDER BY j.ready_at, j.id LIMIT 20`;

export const hasSteps = "SELECT to_regclass('idemq.steps') IS NOT NULL AS there";
export const steps = `
  SELECT s.name, s.state, left(s.request::text, 2000) AS request, left(s.response::text, 2000) AS response,
    s.begun_at, s.call_until FROM idemq.steps s WHERE s.job_id = $1 ORDER BY s.begun_at`;

/** Jobs that this one was enqueued to wait for, and those that wait for it: some of each. */
export const parents = `
  SELECT p.parent AS id, p.queue, p.status FROM idemq.parents($1) p ORDER BY p.parent LIMIT 20`;
export const children = `
  SELECT j.id, q.name AS queue, j.status FROM idemq.dependencies d JOIN idemq.jobs j ON j.id = d.child
  LEFT JOIN idemq.queues q ON q.queue_id = j.queue_id WHERE d.parent = $1 ORDER BY d.child LIMIT 20`;

export const errors = `
  SELECT e.queue, e.sqlstate, left(e.error, 2000) AS error, e.fingerprint, e.jobs, e.dead, e.first_seen, e.last_seen,
    e.example_id, idemq.may_administer(q.queue_id) AS may_administer
  FROM idemq.errors e JOIN idemq.queues q ON q.name = e.queue
  WHERE $1::text IS NULL OR e.queue = $1 ORDER BY e.jobs DESC, e.last_seen DESC LIMIT 200`;

export const schedules = `
  SELECT s.name, s.queue, s.cron, s.time_zone, s.next_run, s.last_run, s.last_job, s.failed_at, s.last_error,
    s.created_by, CASE WHEN s.payload IS NOT NULL THEN (
      SELECT array_agg(t ORDER BY n) FROM (
        WITH RECURSIVE ticks (n, t) AS (
          SELECT 1, idemq.next_tick(s.cron, s.time_zone, clock_timestamp())
          UNION ALL SELECT n + 1, idemq.next_tick(s.cron, s.time_zone, t) FROM ticks WHERE n < 3)
        SELECT n, t::text FROM ticks) x (n, t)) END AS ticks
  FROM idemq.schedules s ORDER BY s.next_run, s.name LIMIT 500`;

export const workers = `
  SELECT w.queue, w.job_id, w.worker, w.pid, w.attempt, w.claimed_at,
    extract(epoch FROM w.expires_in)::float8 AS expires_in, w.attached, w.state, to_jsonb(w) ->> 'progress' AS progress
  FROM idemq.workers w ORDER BY w.expires_in NULLS LAST LIMIT 500`;

/** Who said in the last hour that it is there, and the handlers; how long the oldest of its jobs runs. */
export const seen = `
  SELECT s.worker, s.role, s.host, s.program, s.version, s.queues, s.started_at, s.seen_at, s.concurrency, s.running, s.jobs[1:5] AS jobs,
    s.done, s.per_minute, s.state, (SELECT min(w.claimed_at) FROM idemq.workers w WHERE w.job_id = ANY (s.jobs)) AS oldest
  FROM idemq.worker_seen s ORDER BY s.state = 'gone', s.state, s.worker, s.started_at LIMIT 500`;
/** Handlers: what the table of workers has no column for. */
export const handlers = `
  SELECT h.queue, h.function, h.role, h.state, h.workers, h.workers_running, h.batch, extract(epoch FROM h.max_idle)::float8 AS max_idle,
    h.jobs_per_second, h.done_total, h.failed_total, left(h.last_error, 500) AS last_error, h.last_error_at, h.set_at
  FROM idemq.handlers h ORDER BY h.queue LIMIT 500`;
export const unattended = `
  SELECT m.queue, m.pending, extract(epoch FROM m.unattended_for)::float8 AS unattended_for
  FROM idemq.metrics m WHERE m.unattended_for IS NOT NULL ORDER BY m.unattended_for DESC LIMIT 50`;

/** Jobs of a flow that a page reads; what a row of the answer has to say of them, it says in one look. */
const FLOW = 10000;
export const flow = `
  SELECT f.jobs, f.waiting, f.blocked, f.running, f.retrying, f.completed, f.dead, f.cancelled, f.done, f.progress, f.begun_at, f.ended_at,
    extract(epoch FROM f.eta)::float8 AS eta, f.held_up_by, f.held_up_why, f.slowest, f.slowest_kind,
    extract(epoch FROM f.slowest_for)::float8 AS slowest_for, f.failed_ids, f.roots, f.cut
  FROM idemq.flow($1) f`;
/** Its jobs, folded by how far from the beginning, queue, kind and status. */
export const flowJobs = `
  SELECT f.depth, f.queue, f.kind, f.status, count(*) AS jobs, min(f.id) AS example, min(f.begun_at) AS begun_at, max(f.ended_at) AS ended_at,
    max(extract(epoch FROM CASE f.status WHEN 'processing' THEN clock_timestamp() ELSE f.ended_at END - f.begun_at))::float8 AS longest, min(left(f.error, 300)) AS error
  FROM idemq.flow_jobs($1, ${FLOW}) f GROUP BY f.depth, f.queue, f.kind, f.status ORDER BY f.depth, f.queue, f.kind, f.status LIMIT 200`;

export const audit = `
  SELECT a.id, a.at, a.session_role, a.role, a.actor, a.action, a.queue, a.job_id, a.jobs, left(a.details::text, 500) AS details
  FROM idemq.audit a WHERE ($1::bigint IS NULL OR a.id < $1) AND ($2::text IS NULL OR a.queue = $2)
  ORDER BY a.id DESC LIMIT ${PAGE}`;

export const check = 'SELECT severity, invariant, detail FROM idemq.check()';
