// Finds the jobs of a queue, one page at a time, at low cost even with a million other jobs.  Each tab walks its
// own index, or all ids backwards from the newest, in slices.  It stops when it has found enough jobs or its time
// is up, and the next page continues from there.  The text of the statements is constant: values are parameters.
import { keyOf } from './document.mjs';

/** Maximum time of a walk in milliseconds, and number of jobs on a page. */
export const BUDGET = 900;
export const PAGE = 50;
/** Bytes, as stored, above which a payload is not read for a list or a search. */
export const LISTED = 65536;
/** Maximum number up to which waiting and scheduled jobs, which are both pending, are counted separately. */
const COUNTED = 2000;

const priorities = Array.from({ length: 10 }, (_, i) => i);

// A walk consists of the statement for its rows, including whether each row matches (hit), and their order.  The context
// of a page contains queue, now, filter and cursor (two keys of the last row); p turns a value into a parameter.
const ready = (p, c) => `FROM idemq.jobs j WHERE j.queue_id = ${p(c.queue, 'int')} AND j.ready_at IS NOT NULL`;
const after = (p, c, columns, compare = '>') => (c.cursor ? ` AND (${columns}) ${compare} (${p(c.cursor[0], 'timestamptz')}, ${p(c.cursor[1], 'bigint')})` : '');
const atPriority = (p, c, priority, condition, compare) => `SELECT ${c.hit(p)} AS hit, j.id, j.ready_at AS k1, j.id AS k2 ${ready(p, c)} AND j.priority = ${priority}
  AND j.ready_at ${condition} ${p(c.now, 'timestamptz')}${after(p, c, 'j.ready_at, j.id', compare)}`;
// Ten parts of the index jobs_ready, one per priority, each with the limit of the whole.  Otherwise, the planner
// would sort them.
const byTime = (condition, order, compare) => ({
  rows: (p, c) => priorities.map((priority) => `(${atPriority(p, c, priority, condition, compare)} ORDER BY ${order} LIMIT ${p(c.most, 'bigint')})`).join('\n UNION ALL '),
  order,
});
const later = byTime('>', 'k1, k2');
// Backwards, because jobs that failed have become due recently, after all jobs that have been waiting longer.
const dueBackwards = byTime('<=', 'k1 DESC, k2 DESC', '<');
const due = (priority) => ({ rows: (p, c) => atPriority(p, c, priority, '<='), order: 'k1, k2' });
const running = {
  rows: (p, c) => `SELECT ${c.hit(p)} AS hit, j.id, w.claimed_at AS k1, j.id AS k2
    FROM idemq.running_jobs w CROSS JOIN LATERAL (SELECT * FROM idemq.jobs j WHERE j.id = w.job_id OFFSET 0) j
    WHERE j.queue_id = ${p(c.queue, 'int')}${after(p, c, 'w.claimed_at, j.id')}`,
  order: 'k1, k2',
};
const dead = {
  rows: (p, c) => `SELECT ${c.hit(p)} AS hit, j.id, j.dead_at AS k1, j.id AS k2 FROM idemq.jobs j
    WHERE j.queue_id = ${p(c.queue, 'int')} AND j.dead_at IS NOT NULL${c.filter.from ? ` AND j.dead_at BETWEEN ${p(c.filter.from, 'timestamptz')} AND ${p(c.filter.to, 'timestamptz')}` : ''}${after(p, c, 'j.dead_at, j.id', '<')}`,
  order: 'k1 DESC, k2 DESC',
};
// The index is on job_id + 0.  As in the other walks, a subquery looks up each job.  With statistics from a time when the tables
// were empty, a join might read all jobs for each row.
const children = {
  rows: (p, c) => `SELECT ${c.hit(p)} AS hit, j.id, c.job_id + 0 AS k1, j.id AS k2
    FROM idemq.children c CROSS JOIN LATERAL (SELECT * FROM idemq.jobs j WHERE j.id = c.job_id OFFSET 0) j
    WHERE c.queue_id = ${p(c.queue, 'int')}${c.cursor ? ` AND c.job_id + 0 > ${p(c.cursor[1], 'bigint')}` : ''}`,
  order: 'k1',
};
// In the index jobs_group, blocked jobs do not have a ready_at, and come after the head of their group.
const unfinishedOf = (p, c) => `FROM idemq.jobs j WHERE j.queue_id = ${p(c.queue, 'int')} AND j.finished_at IS NULL`;
const groups = {
  rows: (p, c) => `SELECT ${c.hit(p)} AS hit, j.id, j.group_key AS k1, j.ready_at, j.id AS k2 ${unfinishedOf(p, c)} AND j.ready_at IS NULL
    AND j.group_key ${c.cursor ? `> ${p(c.cursor[0], 'text')} COLLATE "C"` : 'IS NOT NULL'}`,
  order: 'k1, ready_at, k2',
  // The rest of the group at which the cursor is comes before the next group.
  rest: {
    rows: (p, c) => `SELECT ${c.hit(p)} AS hit, j.id, j.group_key AS k1, j.ready_at, j.id AS k2 ${unfinishedOf(p, c)} AND j.ready_at IS NULL
      AND j.group_key = ${p(c.cursor[0], 'text')} COLLATE "C" AND j.id > ${p(c.cursor[1], 'bigint')}`,
    order: 'ready_at, k2',
  },
};
const ofGroup = (p, c) => `SELECT ${c.hit(p)} AS hit, j.id, j.ready_at AS k1, j.id AS k2 ${unfinishedOf(p, c)} AND j.group_key = ${p(c.filter.group, 'text')} COLLATE "C"`;
const readyOfGroup = { rows: (p, c) => `${ofGroup(p, c)} AND j.ready_at IS NOT NULL${after(p, c, 'j.ready_at, j.id')}`, order: 'k1, k2' };
const blockedOfGroup = {
  rows: (p, c) => `${ofGroup(p, c)} AND j.ready_at IS NULL${c.cursor ? ` AND j.id > ${p(c.cursor[1], 'bigint')}` : ''}`,
  order: 'k1, k2',
};
// No key contains a character after U+10FFFF.
const byKey = {
  rows: (p, c) => `SELECT ${c.hit(p)} AS hit, j.id, j.key AS k1, j.id AS k2 FROM idemq.jobs j WHERE j.queue_id = ${p(c.queue, 'int')} AND j.key IS NOT NULL
    AND j.key ${c.cursor ? '>' : '>='} ${p(c.cursor ? c.cursor[0] : c.filter.key, 'text')} COLLATE "C" AND j.key < ${p(`${c.filter.key}\u{10FFFF}`, 'text')} COLLATE "C"`,
  order: 'k1',
};
/** The tabs of a queue: their order in words, the SQL condition of their jobs, and the walks that find all of these jobs.  Without walks, they are found by id. */
export const tabs = {
  waiting: { word: 'in the order in which they will be claimed', is: (p, c) => `j.status = 'pending' AND j.ready_at <= ${p(c.now, 'timestamptz')}`, walks: priorities.map(due) },
  running: { word: 'longest-running jobs first', is: () => 'true', walks: [running] },
  retrying: { word: 'next retries first, then jobs that are due', is: () => "j.status = 'retrying'", walks: [later, dueBackwards] },
  blocked: { word: 'jobs that wait for parents first, then by group', is: () => "j.status = 'blocked'", walks: [children, groups] },
  scheduled: { word: 'next jobs first', is: (p, c) => `j.status = 'pending' AND j.ready_at > ${p(c.now, 'timestamptz')}`, walks: [later] },
  completed: { word: 'newest jobs first', is: () => "j.status = 'completed'" },
  dead: { word: 'most recent deaths first', is: () => "j.status = 'dead'", walks: [dead] },
  cancelled: { word: 'newest jobs first', is: () => "j.status = 'cancelled'" },
  all: { word: 'newest first', is: () => 'true' },
};
const unfinished = ['waiting', 'retrying', 'blocked', 'scheduled'];
export const filters = ['kind', 'key', 'group', 'error', 'cause', 'since', 'until', 'payload'];

/** The time that decides whether a job of a tab belongs to a time span: the column of the list, and the words for it. */
export const momentOf = {
  waiting: ['ready_at', 'that became due'], running: ['claimed_at', 'claimed'], retrying: ['claimed_at', 'whose last attempt began'], blocked: ['enqueued_at', 'enqueued'],
  scheduled: ['enqueued_at', 'enqueued'], completed: ['finished_at', 'completed'], dead: ['dead_at', 'that died'], cancelled: ['finished_at', 'cancelled'],
};
/** Whether a job belongs to a time span.  In the list of all jobs, it was enqueued, claimed or finished in the span. */
const within = (p, tab, c) => `(${(momentOf[tab] ? [momentOf[tab][0]] : ['enqueued_at', 'claimed_at', 'finished_at'])
  .map((column) => `(j.${column} >= ${p(c.filter.from, 'timestamptz')} AND j.${column} <= ${p(c.filter.to, 'timestamptz')}) IS TRUE`).join(' OR ')})`;
/** A condition on payloads that are small enough to be read. */
const small = (condition) => `CASE WHEN pg_column_size(j.payload) <= ${LISTED} THEN ${condition} END`;

/** The conditions of a filter, by name. */
const conditions = {
  kind: (p, value) => `j.kind = ${p(value, 'text')}`,
  key: (p, value) => `starts_with(j.key, ${p(value, 'text')})`,
  group: (p, value) => `j.group_key = ${p(value, 'text')}`,
  error: (p, value) => `strpos(lower(j.last_error), lower(${p(value, 'text')})) > 0`,
  cause: (p, value) => `CASE WHEN j.last_error IS NOT NULL THEN (SELECT e.fingerprint FROM idemq.job_errors e WHERE e.job_id = j.id) = ${p(value, 'text')} END`,
  since: (p, value) => `j.enqueued_at >= ${p(value, 'timestamptz')}`,
  until: (p, value) => `j.enqueued_at <= ${p(value, 'timestamptz')}`,
  // For actions on a whole list: no jobs that were enqueued later, and no jobs that already have the priority.
  upto: (p, value) => `j.id <= ${p(value, 'bigint')}`,
  besides: (p, value) => `j.priority <> ${p(value, 'int')}`,
  payload: (p, value) => small(`j.payload @> ${p(value, 'jsonb')}`),
  // For the search (search/find.mjs): some of the queues, a part of the payload's text, fields of the payload, and plain words.
  queues: (p, value) => `j.queue_id = ANY (${p(value, 'int[]')})`,
  payloadText: (p, value) => small(`strpos(lower(j.payload::text), lower(${p(value, 'text')})) > 0`),
  fields: (p, value) => value.map(({ any }) => small(any.map((document) => `j.payload @> ${p(document, 'jsonb')}`).join(' OR '))).join(' AND '),
  words: (p, value) => value.map((word) => `strpos(lower(concat_ws(' ', j.id, j.key, j.kind, j.group_key, j.last_error)), lower(${p(word, 'text')})) > 0`).join(' AND '),
};
/** Whether a filter reads payloads, which is the expensive part of a search. */
const readsPayloads = (filter) => ['payload', 'payloadText', 'fields'].some((name) => filter[name] !== undefined);

/** The walks for a tab and a filter.  A key or a group is looked up if an index contains it. */
function walksOf(tab, filter) {
  if (filter.key) return [byKey];
  if (filter.group && unfinished.includes(tab)) return [tab === 'blocked' ? blockedOfGroup : readyOfGroup];
  return tabs[tab].walks ?? null;
}

export const parameters = (values) => (value, type) => `$${values.push(value)}::${type}`;
export const meant = (p, tab, c) => `coalesce(${[c.queue === null ? 'true' : `j.queue_id = ${p(c.queue, 'int')}`, tabs[tab].is(p, c), ...(c.filter.from ? [within(p, tab, c)] : []),
  ...Object.keys(conditions).filter((name) => c.filter[name] !== undefined).map((name) => conditions[name](p, c.filter[name]))].join(' AND ')}, false)`;

/** One slice: at most `want` matching rows among at most `most` rows of a walk, and the last row that was read. */
async function slice(query, walked, tab, c, want, most) {
  const values = [];
  const p = parameters(values);
  const found = await query(`
  WITH entries AS MATERIALIZED (
    ${walked.rows(p, { ...c, most, hit: () => meant(p, tab, c) })} ORDER BY ${walked.order} LIMIT ${p(most, 'bigint')}
  ), looked AS MATERIALIZED (SELECT row_number() OVER () AS n, e.* FROM entries e)
  (SELECT n, id, k1::text, k2::text, true AS hit FROM looked WHERE hit ORDER BY n LIMIT ${p(want, 'bigint')})
  UNION ALL (SELECT n, id, k1::text, k2::text, false FROM looked ORDER BY n DESC LIMIT 1)`, values);
  const last = found.find((row) => !row.hit);
  return { hits: found.filter((row) => row.hit), looked: last ? Number(last.n) : 0, last };
}

/** One slice by id, across all queues: ids below `upper`, down to `lower`. */
async function sliceById(query, tab, c, want) {
  const values = [];
  const p = parameters(values);
  const [{ jobs, ids }] = await query(`
  SELECT count(*) AS jobs, (array_agg(j.id ORDER BY j.id DESC) FILTER (WHERE ${meant(p, tab, c)}))[1:${p(want, 'int')}]::text[] AS ids
  FROM idemq.jobs j WHERE j.id < ${p(c.upper, 'bigint')} AND j.id >= ${p(c.lower, 'bigint')}`, values);
  return { hits: (ids ?? []).map((id) => ({ id, n: jobs })), looked: Number(jobs) };
}

/** The result of a slice, or null if it was too large for statement_timeout and can be made smaller. */
async function inTime(asked, canBeSmaller) {
  try {
    return await asked;
  } catch (error) {
    if (error.code !== '57014' || !canBeSmaller) throw error;
    return null;
  }
}

/** A cursor as part of an address: the place where a page ended. */
export const cursorText = (cursor) => (cursor ? Buffer.from(JSON.stringify(cursor)).toString('base64url') : null);
export function cursorOf(text) {
  if (!text) return null;
  try {
    const cursor = JSON.parse(Buffer.from(text, 'base64url').toString());
    if (Array.isArray(cursor) && cursor.length === 3 && Number.isInteger(cursor[0]) && cursor[0] >= 0 && cursor[0] < 20
      && cursor.slice(1).every((key) => key === null || typeof key === 'string')) return cursor;
  } catch { /* not a cursor */ }
  throw Object.assign(new Error('The address of this page of the list is invalid. Start from the first page.'), { statusCode: 400 });
}

/**
 * Walks a tab of a queue (null: of all queues, by id) from a cursor until `want` jobs are found or the time is up.  known: the maximum number of jobs,
 * if it is known.  Returns the ids, the number of jobs read, and the cursor from which to continue, or null at the end.
 */
export async function walk(query, { queue, tab, filter = {}, cursor = null, want = PAGE, budget = BUDGET, known = null }) {
  const began = performance.now();
  const [{ now }] = await query('SELECT idemq.clock_timestamp() AS now');
  const walks = queue === null ? null : walksOf(tab, filter);
  const plain = Object.values(filter).every((value) => value === undefined);
  const ids = [];
  let looked = 0;
  // Reading payloads is the expensive part, so the slices are small at first, and grow.
  let most = plain && walks ? want + 1 : readsPayloads(filter) ? 250 : 1000;
  let [part, ...keys] = cursor ?? [0, null, null];
  const done = (next) => ({ ids, looked, next, seconds: (performance.now() - began) / 1000 });
  const over = () => performance.now() - began > budget;
  const all = plain && cursor === null && known !== null ? known : Infinity;
  /** Adds a slice to the result.  Returns whether enough jobs have been found. */
  const take = ({ hits, looked: here }) => {
    ids.push(...hits.map((row) => row.id));
    looked += ids.length >= want ? Number(hits.at(-1).n) : here;
    return ids.length >= want;
  };
  if (all === 0) return done(null);

  if (!walks) {
    let width = readsPayloads(filter) ? 1024n : 8192n;
    for (let upper = keys[0] === null ? null : BigInt(keys[0]); ;) {
      // The next lower id.  After a server start, ids continue far above the previous ones.
      const [top] = await query('SELECT j.id FROM idemq.jobs j WHERE $1::bigint IS NULL OR j.id < $1 ORDER BY j.id DESC LIMIT 1', [upper]);
      if (!top) return done(null);
      upper = BigInt(top.id) + 1n;
      const lower = upper > width ? upper - width : 0n;
      const started = performance.now();
      const result = await inTime(sliceById(query, tab, { queue, now, filter, upper, lower }, want - ids.length), width > 64n);
      if (!result) {
        width /= 8n;
        continue;
      }
      if (take(result)) return done([0, result.hits.at(-1).id, null]);
      if (ids.length >= all || lower === 0n || (filter.since && await past(query, top.id, filter.since))) return done(null);
      upper = lower;
      if (over()) return done([0, String(upper), null]);
      const took = performance.now() - started;
      if (took < 100 && width < 1048576n) width *= 2n;
      if (took > 250 && width > 256n) width /= 2n;
    }
  }

  for (; part < walks.length; part += 1, keys = [null, null]) {
    for (;;) {
      const started = performance.now();
      const c = { queue, now, filter, cursor: keys[1] === null ? null : keys };
      const of = (walked) => inTime(slice(query, walked, tab, c, want - ids.length, most), most > 50);
      let result = c.cursor && walks[part].rest ? await of(walks[part].rest) : { looked: 0 };
      const isRest = result?.looked !== 0;
      if (!isRest) result = await of(walks[part]);
      if (!result) {
        most = Math.ceil(most / 8);
        continue;
      }
      if (take(result)) return done([part, result.hits.at(-1).k1, result.hits.at(-1).k2]);
      if (ids.length >= all) return done(null);
      if (!isRest && result.looked < most) break;
      keys = [result.last.k1, result.last.k2];
      if (over()) return done([part, ...keys]);
      const took = performance.now() - started;
      if (took < 40 && most < 50000) most = Math.max(most, 500) * 2;
      if (took > 120 && most > 200) most = Math.floor(most / 2);
    }
    if (over() && part + 1 < walks.length) return done([part + 1, null, null]);
  }
  return done(null);
}

/** Whether a job was enqueued more than an hour before a time.  Jobs with lower ids were then enqueued before that time, too. */
async function past(query, id, since) {
  const [row] = await query("SELECT j.enqueued_at < $2::timestamptz - interval '1 hour' AS past FROM idemq.jobs j WHERE j.id = $1", [id, since]);
  return row?.past === true;
}

const COUNTS = `
  SELECT extract(epoch FROM m.unattended_for)::float8 AS unattended, m.is_dead_letter_queue, m.paused_groups, m.pending, m.blocked, m.running, m.retrying, m.completed, m.dead, m.cancelled,
    d.pending AS waiting, d.looked AS waiting_looked, s.pending AS scheduled, s.looked AS scheduled_looked
  FROM idemq.metrics m, LATERAL (${side('<=')}) d, LATERAL (${side('>')}) s WHERE m.queue_id = $1`;

function side(condition) {
  return `SELECT count(*) FILTER (WHERE x.status = 'pending') AS pending, count(*) AS looked FROM (
    SELECT j.status FROM generate_series(0, 9) p, LATERAL (SELECT i.status FROM idemq.jobs i WHERE i.queue_id = $1 AND i.priority = p
      AND i.ready_at IS NOT NULL AND i.ready_at ${condition} idemq.now() ORDER BY i.ready_at LIMIT ${COUNTED}) j LIMIT ${COUNTED}) x`;
}

/** The number of jobs in each tab, from the gauges.  Waiting and scheduled jobs share a gauge, so each is counted in the index, up to COUNTED. */
export async function counts(query, queue) {
  const [row] = await query(COUNTS, [queue]);
  if (!row) return null;
  const { unattended, is_dead_letter_queue: isDeadLetterQueue, paused_groups: pausedGroups, ...gauges } = row;
  const n = Object.fromEntries(Object.entries(gauges).map(([name, value]) => [name, Number(value)]));
  const whole = { waiting: n.waiting_looked < COUNTED, scheduled: n.scheduled_looked < COUNTED };
  const result = {
    waiting: whole.waiting || !whole.scheduled ? n.waiting : Math.max(n.pending - n.scheduled, 0),
    running: n.running, retrying: n.retrying, blocked: n.blocked,
    scheduled: whole.scheduled || !whole.waiting ? n.scheduled : Math.max(n.pending - n.waiting, 0),
    completed: n.completed, dead: n.dead, cancelled: n.cancelled,
  };
  result.all = n.pending + n.running + n.retrying + n.blocked + n.completed + n.dead + n.cancelled;
  // If neither count is complete, both are minimum values.
  const atLeast = whole.waiting || whole.scheduled ? [] : ['waiting', 'scheduled'];
  return { counts: result, atLeast, unattended, isDeadLetterQueue, pausedGroups: Number(pausedGroups) };
}

/** The number of jobs in all queues that the role may see, which a walk by id reads. */
export async function everything(query) {
  const [{ jobs }] = await query(`SELECT coalesce(sum(m.pending + m.blocked + m.running + m.retrying + m.completed + m.dead + m.cancelled), 0)::bigint AS jobs
    FROM idemq.metrics m JOIN idemq.queue_privileges p USING (queue_id) WHERE 'claim' = ANY (p.privileges)`);
  return Number(jobs);
}

/** The columns of a list for these jobs, in the order of the ids; whole: with the whole payload, unless it is too large to be read. */
export async function rowsOf(query, ids, whole = false) {
  if (ids.length === 0) return [];
  return query(`
  SELECT j.id, (SELECT q.name FROM idemq.queues q WHERE q.queue_id = j.queue_id) AS queue, j.status, j.priority, j.attempt, j.max_attempts, j.kind, j.key, j.group_key, j.worker, j.enqueued_at, j.ready_at, j.claimed_at,
    j.finished_at, j.dead_at, left(j.last_error, 2000) AS last_error, pg_column_size(j.payload) AS payload_bytes,
    CASE WHEN pg_column_size(j.payload) <= ${LISTED} THEN left(j.payload::text, ${whole ? LISTED * 16 : 81}) END AS payload, coalesce(j.ready_at > idemq.clock_timestamp(), false) AS later,
    CASE WHEN pg_column_size(j.payload) <= ${LISTED} THEN ${keyOf('j.payload')} END AS encrypted,
    CASE WHEN starts_with(j.key, '@dead:') AND pg_column_size(j.payload) <= ${LISTED} THEN j.payload ->> 'id' END AS original,
    CASE WHEN starts_with(j.key, '@dead:') AND pg_column_size(j.payload) <= ${LISTED} THEN left(j.payload ->> 'last_error', 2000) END AS original_error,
    CASE WHEN pg_column_size(j.checkpoint) <= ${LISTED} THEN idemq.progress(j.checkpoint) END AS progress
  FROM unnest($1::bigint[]) WITH ORDINALITY i (id, n) CROSS JOIN LATERAL (SELECT * FROM idemq.jobs j WHERE j.id = i.id OFFSET 0) j
  ORDER BY i.n`, [ids]);
}
