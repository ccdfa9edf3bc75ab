// What the search box suggests for the last part of its text: terms, and values of a term.
import { kindsNamed, keysFrom, queuesNamed } from '../queries.mjs';
import { quote, states, terms } from './parse.mjs';
import * as queries from './queries.mjs';

const MOST = 10;
/** Maximum depth of the fields of a payload. */
const DEPTH = 5;

/** The paths of the scalar fields of a document, without those inside arrays. */
function* pathsOf(value, path = []) {
  if (value === null || typeof value !== 'object') {
    if (path.length > 0) yield [path.join('.'), value];
  } else if (!Array.isArray(value) && path.length < DEPTH) {
    for (const [name, inner] of Object.entries(value)) if (/^[\w-]+$/.test(name)) yield* pathsOf(inner, [...path, name]);
  }
}

/** The fields of the newest payloads, with their values, the most frequent first. */
async function fieldsOf(query, queue) {
  const fields = new Map();
  for (const { payload } of await query(queries.newestPayloads, [queue])) {
    for (const [path, value] of pathsOf(payload)) {
      const field = fields.get(path) ?? { path, jobs: 0, values: new Set() };
      field.jobs += 1;
      if (field.values.size < 50 && String(value).length <= 60) field.values.add(String(value));
      fields.set(path, field);
    }
  }
  return [...fields.values()].sort((a, b) => b.jobs - a.jobs);
}

const times = { '15m': 'the last 15 minutes', '1h': 'the last hour', '24h': 'the last 24 hours', '7d': 'the last 7 days' };

/** The values of a term that begin with, or contain, what was entered: [value, help]. */
async function valuesOf(query, name, value, queue) {
  const has = (text) => text.toLowerCase().includes(value.toLowerCase());
  if (name === 'queue') return (await query(queuesNamed, [value])).map((row) => [row.name]);
  if (name === 'state') return states.filter(has).map((state) => [state]);
  if (name === 'since' || name === 'until') return Object.entries(times).filter(([time]) => time.startsWith(value));
  if (name === 'kind') return [...new Map((await query(kindsNamed, [value])).map((row) => [row.kind, `queue ${row.queue}`]))];
  if (name === 'key' && value !== '') return (await query(keysFrom, [value, `${value}\u{10FFFF}`])).map((row) => [row.key, `${row.status} in queue ${row.queue}`]);
  if (name === 'error') return (await query(queries.newestErrors, [value])).map((row) => [row.error, `${row.jobs} of the newest jobs`]);
  if (name.startsWith('payload.')) return [...(await fieldsOf(query, queue)).find(({ path }) => path === name.slice(8))?.values ?? []].filter(has).map((text) => [text]);
  return [];
}

/** The suggestions for a text: from is the position of the part that they replace; text is the new part, help explains it. */
export async function suggest(query, text) {
  const part = /(?:[\w.-]+:)?"[^"]*$|\S*$/.exec(text)[0];
  const queue = /(?:^|\s)queue:([^\s"*]+)\s/.exec(text)?.[1] ?? null;
  const answer = (items) => ({ from: text.length - part.length, items: items.slice(0, MOST) });
  const [, name, value] = /^([A-Za-z][\w.-]*):"?(.*)$/s.exec(part) ?? [];
  const word = part.replace(/^"/, '');
  if (name !== undefined) return answer((await valuesOf(query, name, value, queue)).map(([one, help = '']) => ({ text: `${name}:${quote(one)} `, help })));
  if (word.startsWith('payload')) {
    const paths = (await fieldsOf(query, queue)).filter(({ path }) => `payload.${path}`.startsWith(word));
    return answer([...paths.map(({ path, values }) => ({ text: `payload.${path}:`, help: [...values].slice(0, 3).join(', ') })), ...(word === 'payload' ? [{ text: 'payload:', help: terms.payload }] : [])]);
  }
  const named = Object.entries(terms).filter(([term]) => term.startsWith(word.toLowerCase())).map(([term, help]) => ({ text: term === 'payload' ? 'payload.' : `${term}:`, help }));
  if (word.length < 2) return answer(named);
  const queues = (await query(queuesNamed, [word])).slice(0, 4).map((row) => ({ text: `queue:${quote(row.name)} `, help: 'queue' }));
  const kinds = [...new Set((await query(kindsNamed, [word])).map((row) => row.kind))].slice(0, 3).map((kind) => ({ text: `kind:${quote(kind)} `, help: 'kind' }));
  return answer([...named, ...queues, ...kinds]);
}
