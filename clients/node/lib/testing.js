// Functions for the tests of an application.

import { AssertionError } from 'node:assert';
import { checkName, optionalInteger, optionalInterval, optionalKey, optionalName } from './arguments.js';
import { checkCodec, decoded } from './codec.js';
import { json, rows } from './enqueue.js';
import { EXPECTED_JOB, checkOptions } from './options.js';

// Jobs that wait for an event, a limit or a hold are not waiting for a time of their own.
const MAKE_DUE = `SELECT count(*) FILTER (WHERE outcome = 'retrying')::int AS jobs
  FROM (SELECT idemq.retry(j.id)::text AS outcome FROM idemq.jobs AS j JOIN idemq.queues AS q USING (queue_id)
    WHERE q.name = coalesce($1::text, q.name) AND j.status IN ('pending', 'retrying') AND j.flags & 64 = 0
      AND coalesce(j.ready_at, j.run_at) > idemq.clock_timestamp()
      AND NOT EXISTS (SELECT FROM idemq.steps AS s WHERE s.job_id = j.id AND s.token = j.token AND s.state = 'waiting')
    ORDER BY j.id) AS made`;
const enqueued = (/** @type {string} */ jobs) => `SELECT count(*) OVER ()::int AS jobs, sum(m.matches::int) OVER ()::int AS found, j.id::text, j.status::text, j.key, j.kind, j.payload::text
  FROM ${jobs} AS j, LATERAL (SELECT j.payload @> coalesce($2::jsonb, j.payload) AND ($3::text IS NULL OR j.key IS NOT DISTINCT FROM $3::text)
    AND ($4::text IS NULL OR j.kind IS NOT DISTINCT FROM $4::text) AS matches) AS m
  WHERE j.queue_id = idemq.queue_id($1::text) ORDER BY j.id DESC LIMIT $5::int`;
const ENQUEUED = enqueued('idemq.jobs');
const PAYLOADS = 'SELECT id::text, payload FROM idemq.jobs WHERE queue_id = idemq.queue_id($1::text)';
const ENQUEUED_DECODED = enqueued(`(SELECT j.id, j.queue_id, j.status, j.key, j.kind, d.payload FROM idemq.jobs AS j
    JOIN ROWS FROM (pg_catalog.unnest($6::bigint[]), pg_catalog.unnest($7::jsonb[])) AS d (id, payload) USING (id))`);
const ADVANCE_CLOCK = 'CALL idemq.advance_clock($1::interval)';
const mostListed = 20;

/** @type {typeof import('../index.js').makeDue} */
export async function makeDue(client, queue) {
  const [{ jobs }] = await rows(client, MAKE_DUE, [optionalName(queue, 'queue')]);
  return jobs;
}

/** @type {typeof import('../index.js').assertEnqueued} */
export async function assertEnqueued(client, queue, expected = {}) {
  checkOptions(expected, EXPECTED_JOB, 'assertEnqueued');
  const times = optionalInteger(expected.times, 'times') ?? 1;
  const payload = expected.payload === undefined ? null : json(expected.payload, 'payload');
  const [key, kind] = [optionalKey(expected.key, 'key'), optionalName(expected.kind, 'kind')];
  const values = [checkName(queue, 'queue'), payload, key, kind, mostListed];
  const codec = checkCodec(expected.codec);
  const listed = codec ? await listDecoded(codec, client, values) : await rows(client, ENQUEUED, values);
  const { jobs = 0, found = 0 } = listed[0] ?? {};
  if (found === times) return;
  const wanted = [payload === null ? [] : `payload ${payload}`, key === null ? [] : `key ${key}`, kind === null ? [] : `kind ${kind}`].flat();
  const lines = listed.map((each) => [each.id, each.status, ...(each.key === null ? [] : ['key', each.key]), ...(each.kind === null ? [] : ['kind', each.kind]), each.payload].join(' '));
  if (jobs > listed.length) lines.push(`... and ${jobs - listed.length} more`);
  throw new AssertionError({
    message: `expected ${times} ${times === 1 ? 'job' : 'jobs'} in ${queue}${wanted.length > 0 ? ` with ${wanted.join(' and ')}` : ''}, but found ${found}. ` +
      (lines.length > 0 ? `Jobs in ${queue}:\n${lines.join('\n')}` : `There is no job in ${queue}.`),
    expected: times, actual: found, stackStartFn: assertEnqueued,
  });
}

/**
 * The server compares the decoded payloads, which are sent to it for that.
 * @param {import('../index.js').Codec} codec @param {import('../index.js').Queryable} client @param {unknown[]} values
 */
async function listDecoded(codec, client, values) {
  const found = await rows(client, PAYLOADS, [values[0]]);
  const payloads = await Promise.all(found.map(async ({ payload }) => json(await decoded(codec, payload), 'payload')));
  return rows(client, ENQUEUED_DECODED, [...values, found.map(({ id }) => id), payloads]);
}

/** @type {typeof import('../index.js').advanceClock} */
export async function advanceClock(client, by) {
  await rows(client, ADVANCE_CLOCK, [optionalInterval(by, 'by')]);
}
