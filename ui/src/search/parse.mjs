// The text of a search: typed terms such as queue:mail state:dead payload.customer.id:77 since:1h, and plain words.
import { tabs } from '../jobs/walk.mjs';

/** The terms with their help, in the order in which they are suggested.  The last one stands for all names that begin with payload. */
export const terms = {
  queue: 'name of a queue, or its beginning followed by *',
  state: 'waiting, scheduled, running, retrying, blocked, completed, dead or cancelled',
  kind: 'kind of the job',
  key: 'key of the job, or its beginning',
  group: 'group of the job',
  error: 'part of the last error',
  cause: 'fingerprint of the error, as on the errors page',
  since: 'enqueued since then: 15m, 1h, 7d, 2026-11-30 or "2026-11-30 08:00" (UTC)',
  until: 'enqueued until then, in the same form as since',
  payload: 'part of the payload as text; payload.customer.id:77 searches one field',
};
export const states = Object.keys(tabs).filter((tab) => tab !== 'all');

const units = { s: 'seconds', m: 'minutes', h: 'hours', d: 'days', w: 'weeks' };

/** Throws an error that the page shows above the text of the search. */
function refuse(message) {
  throw Object.assign(new Error(message), { statusCode: 400, search: true });
}

/** The number of changed, added or removed letters between two names. */
function difference(a, b) {
  let row = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i += 1)
    row = b.split('').reduce((next, letter, j) => [...next, Math.min(next[j] + 1, row[j + 1] + 1, row[j] + (a[i - 1] === letter ? 0 : 1))], [i]);
  return row.at(-1);
}
const nearest = (name, names) => names.find((other) => other.startsWith(name)) ?? names.filter((other) => difference(name, other) <= 2)[0];

/** The parts of a text: {name, value, text}.  Values in double quotes can contain spaces; name is null for a plain word. */
export function split(text) {
  const found = [];
  const pattern = /\s*(?:(?<name>[A-Za-z_][\w.-]*):(?!\/\/))?(?:"(?<quoted>(?:[^"\\]|\\.)*)"(?=\s|$)|(?<plain>"?\S*))/gy;
  for (let match = pattern.exec(text); match !== null && match[0] !== ''; match = pattern.exec(text)) {
    const { name = null, quoted, plain } = match.groups;
    if (name === null && quoted === undefined && plain === '') continue;
    if (quoted === undefined && plain.startsWith('"')) refuse(`The quote in ${match[0].trim()} is not closed. Add a " at the end of the value.`);
    found.push({ name, value: quoted === undefined ? plain : quoted.replace(/\\(.)/g, '$1'), quoted: quoted !== undefined });
  }
  return found;
}

/** A time for PostgreSQL: {ago} as an interval, or {at}. */
function timeOf(name, value) {
  const ago = /^(\d{1,6})([smhdw])$/.exec(value);
  if (ago) return { ago: `${ago[1]} ${units[ago[2]]}` };
  const at = /^(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d)?)(Z)?)?$/.exec(value);
  if (!at || Number.isNaN(Date.parse(`${at[1]}T${at[2] ?? '00:00'}Z`))) refuse(`${name}:${value} is not a time. Use ${name}:15m, ${name}:1h, ${name}:7d, ${name}:2026-11-30 or ${name}:"2026-11-30 08:00" (UTC).`);
  return { at: `${at[1]} ${at[2] ?? '00:00'} UTC` };
}

/** The values that a field in a payload may have: the text itself, and the number, boolean or null that it looks like. */
function valuesOf(text) {
  const values = [text];
  if (/^(true|false|null|-?(0|[1-9]\d{0,30})(\.\d{1,30})?)$/.test(text)) values.push({ raw: text });
  return values.map((value) => (value.raw ? value.raw : JSON.stringify(value)));
}

/** The document that contains only one field: customer.id and 77 as {"customer": {"id": 77}}. */
const nested = (path, json) => path.reduceRight((inner, name) => `{${JSON.stringify(name)}: ${inner}}`, json);

/**
 * The meaning of a search: {queue, state, filter, fields, words}.  filter: as for walk() in jobs/walk.mjs; fields: {path, value, any}
 * of each payload term, in which any contains the documents of which the payload must contain one.  Throws an error if a term is wrong.
 */
export function parse(text) {
  const search = { queue: null, state: null, filter: {}, fields: [], words: [] };
  const seen = new Set();
  if (text.length > 1000) refuse('A search can have up to 1,000 characters.');
  if (text.includes('\0')) refuse('A search cannot contain the character NUL.');
  for (const { name, value, quoted } of split(text)) {
    if (name === null) {
      search.words.push(value);
      continue;
    }
    const [base, ...path] = name.split('.');
    if (path.length > 0 && base === 'payload') {
      if (path.includes('')) refuse(`${name}: is not a path. Use names that are separated by dots, for example payload.customer.id:77.`);
      if (value === '' && !quoted) refuse(`Add a value after ${name}: for example ${name}:77, or ${name}:"" for an empty text.`);
      search.fields.push({ path, value, any: valuesOf(value).map((json) => nested(path, json)) });
      continue;
    }
    if (!Object.hasOwn(terms, name)) {
      const near = nearest(name.toLowerCase(), Object.keys(terms));
      refuse(`There is no term ${name}:. ${near ? `Did you mean ${near}:${value}? ` : ''}The terms are ${Object.keys(terms).map((term) => `${term}:`).join(', ')}. To search for this text, put it in double quotes: "${name}:${value}".`);
    }
    if (value === '') refuse(`Add a value after ${name}: (${terms[name]}).`);
    if (seen.has(name)) refuse(`The term ${name}: can occur only once. Remove one of them.`);
    seen.add(name);
    if (name === 'queue') search.queue = value;
    else if (name === 'state') {
      const state = value.toLowerCase();
      if (!states.includes(state)) {
        const near = state === 'pending' ? null : nearest(state, states);
        refuse(`There is no state "${value}". ${state === 'pending' ? 'Pending jobs are waiting or scheduled. ' : near ? `Did you mean state:${near}? ` : ''}The states are ${states.join(', ')}.`);
      }
      search.state = state;
    } else if (name === 'since' || name === 'until') search.filter[name] = timeOf(name, value);
    else if (name === 'cause' && !/^[0-9a-f]{16}$/.test(value)) refuse(`cause:${value} is not the fingerprint of an error, which has 16 hexadecimal digits. To search for a text, use error:.`);
    else if (name === 'payload') search.filter.payloadText = value;
    else search.filter[name] = value;
  }
  if (search.words.length > 10 || search.fields.length > 10) refuse('A search can have up to 10 words and up to 10 fields of the payload.');
  return search;
}

/** A value as it is written after a term, in quotes if it needs them. */
export const quote = (value) => (/^[^\s"]+$/.test(value) ? value : `"${value.replace(/["\\]/g, '\\$&')}"`);
