// Finds the jobs of a search in all queues that the role may see.  A search consists of legs, of which each is a walk in slices
// (jobs/walk.mjs): if the search names a state that has an index, one leg for each queue that has such jobs; if it names a key, one leg
// for each queue that has such keys; otherwise one leg by id, from the newest job.  If there is an index on a field of the payload,
// it is used.  A search stops when it has found enough jobs or its time is up, and its cursor says where to continue.
import { BUDGET, PAGE, meant, parameters, tabs, walk } from '../jobs/walk.mjs';
import { quote } from './parse.mjs';
import * as queries from './queries.mjs';

const refuse = (message, statusCode = 400) => { throw Object.assign(new Error(message), { statusCode, search: true }); };

/** The cursor as part of an address: leg, its position, the number of jobs searched, the seconds, and the number found. */
export const cursorText = (cursor) => (cursor ? Buffer.from(JSON.stringify(cursor)).toString('base64url') : null);
export function cursorOf(text) {
  if (!text) return null;
  try {
    const cursor = JSON.parse(Buffer.from(text, 'base64url').toString());
    const { leg, at, looked, seconds, found } = cursor;
    const place = at === null || (Array.isArray(at) && at.length === 3 && Number.isInteger(at[0]) && at[0] >= 0 && at[0] < 20 && at.slice(1).every((key) => key === null || typeof key === 'string'));
    if (place && [leg, looked, found].every((number) => Number.isSafeInteger(number) && number >= 0) && Number.isFinite(seconds) && seconds >= 0) return { leg, at, looked, seconds, found };
  } catch { /* not a cursor */ }
  return refuse('The address of this part of the search is invalid. Start the search again.');
}

/** The queues that a search means, or null for all of them. */
function queuesOf(queues, name) {
  if (name === null) return null;
  const pattern = new RegExp(`^${name.split('*').map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')).join('.*')}$`, 's');
  const found = queues.filter((queue) => (name.includes('*') ? pattern.test(queue.name) : queue.name === name));
  if (found.length > 0) return found;
  const near = queues.filter((queue) => queue.name.toLowerCase().includes(name.replaceAll('*', '').toLowerCase())).slice(0, 3);
  return refuse(`No queue that is visible to you is named "${name}". ${near.length > 0 ? `There is ${near.map((queue) => `queue:${quote(queue.name)}`).join(', ')}.` : 'To search all queues, remove the term queue:.'}`);
}

const gauges = { waiting: 'pending', scheduled: 'pending' };

/** The legs of a search: {id, queue, tab, filter, jobs}.  Legs are in the order of their id, so that a cursor stays valid. */
async function legsOf(query, search, filter, queues) {
  const among = queuesOf(queues, search.queue);
  const tab = search.state ?? 'all';
  const some = among ?? queues;
  if (filter.key !== undefined) {
    const ids = await query(queries.queuesWithKey, [filter.key, `${filter.key}\u{10FFFF}`, some.map(({ id }) => id)]);
    return ids.map(({ id }) => ({ id, queue: id, tab, filter, jobs: null }));
  }
  if (tabs[tab].walks) {
    const jobs = (queue) => Number(queue[gauges[tab] ?? tab]);
    return some.filter((queue) => jobs(queue) > 0).map((queue) => ({ id: queue.id, queue: queue.id, tab, filter, jobs: jobs(queue) }));
  }
  return [{ id: 0, queue: null, tab, filter: among === null ? filter : { ...filter, queues: among.map(({ id }) => id) }, jobs: queues.reduce((sum, { jobs }) => sum + Number(jobs), 0) }];
}

/** The statement that looks up a field of the payload in an index.  "+ 0" prevents a search through all ids. */
function lookup(search, leg, field, before, want, now) {
  const values = [];
  const p = parameters(values);
  const text = `SELECT j.id FROM idemq.jobs j WHERE j.payload #>> ${p(field.path, 'text[]')} = ${p(field.value, 'text')}
    AND ${meant(p, leg.tab, { queue: leg.queue, now, filter: leg.filter })} AND (${p(before, 'bigint')} IS NULL OR j.id < ${p(before, 'bigint')}) ORDER BY j.id + 0 DESC LIMIT ${p(want, 'bigint')}`;
  return [text, values];
}

/** The field of the payload for which there is an index that PostgreSQL uses, with the index; or null. */
export async function indexedField(query, search, leg, now) {
  const fields = search.fields.filter(({ value }) => value !== 'null');
  if (fields.length === 0) return null;
  const names = (await query(queries.payloadIndexes)).map(({ name }) => name);
  if (names.length === 0) return null;
  for (const field of fields) {
    const [text, values] = lookup(search, leg, field, null, PAGE, now);
    const [plan] = await query(`EXPLAIN (FORMAT JSON) ${text}`, values);
    const json = JSON.stringify(plan['QUERY PLAN']);
    const index = names.find((name) => json.includes(`"Index Name":${JSON.stringify(name)}`));
    if (index !== undefined) return { field, index };
  }
  return null;
}

/**
 * Searches from a cursor until `want` jobs are found or the time is up.  Returns the ids, the total number of jobs searched and of jobs
 * to search (null if not known), the seconds, the number found before, the index that was used, and the next cursor or null at the end.
 */
export async function find(query, search, { cursor = null, want = PAGE, budget = BUDGET } = {}) {
  const began = performance.now();
  const [{ now }] = await query('SELECT idemq.clock_timestamp() AS now');
  const filter = { ...search.filter };
  for (const name of ['since', 'until']) {
    if (filter[name]?.ago !== undefined) filter[name] = (await query('SELECT ($1::timestamptz - $2::interval)::text AS at', [now, filter[name].ago]))[0].at;
    else if (filter[name] !== undefined) filter[name] = filter[name].at;
  }
  if (search.fields.length > 0) filter.fields = search.fields;
  if (search.words.length > 0) filter.words = search.words;
  const legs = await legsOf(query, search, filter, await query(queries.searchedQueues));
  const result = { ids: [], looked: cursor?.looked ?? 0, seconds: cursor?.seconds ?? 0, found: cursor?.found ?? 0, next: null, index: null,
    of: legs.some(({ jobs }) => jobs === null) ? null : legs.reduce((sum, { jobs }) => sum + jobs, 0) };
  const spent = () => performance.now() - began;
  const done = (leg, at) => ({ ...result, seconds: result.seconds + spent() / 1000,
    next: leg === null ? null : { leg, at, looked: result.looked, seconds: result.seconds + spent() / 1000, found: result.found + result.ids.length } });

  // An index on a field of the payload: the whole search is one statement for each page.  If it takes too long, the search is done in slices.
  const whole = search.fields.length > 0 && (cursor === null || cursor.leg === 0) && search.queue === null && filter.key === undefined
    ? { id: 0, queue: null, tab: search.state ?? 'all', filter } : legs.length === 1 && legs[0].queue === null ? legs[0] : null;
  const indexed = whole && await indexedField(query, search, whole, now);
  if (indexed) {
    try {
      const before = cursor?.at?.[1] ?? null;
      const ids = (await query(...lookup(search, whole, indexed.field, before, want + 1, now))).map(({ id }) => id);
      result.ids.push(...ids.slice(0, want));
      result.looked += result.ids.length;
      Object.assign(result, { of: null, index: indexed.index });
      return done(ids.length > want ? 0 : null, [0, result.ids.at(-1) ?? null, null]);
    } catch (error) {
      if (error.code !== '57014') throw error;
    }
  }

  let walked = false; // each call does at least one slice
  for (const leg of legs) {
    if (cursor !== null && leg.id < cursor.leg) continue;
    const from = cursor !== null && leg.id === cursor.leg ? cursor.at : null;
    if (walked && spent() > budget) return done(leg.id, from);
    walked = true;
    const part = await walk(query, { queue: leg.queue, tab: leg.tab, filter: leg.filter, cursor: from, want: want - result.ids.length, budget: Math.max(0, budget - spent()) });
    result.ids.push(...part.ids);
    result.looked += part.looked;
    if (part.next !== null) return done(leg.id, part.next);
    if (result.ids.length >= want) {
      const next = legs.find(({ id }) => id > leg.id);
      return done(next?.id ?? null, null);
    }
  }
  return done(null);
}
