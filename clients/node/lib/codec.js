// Documents that the application encodes, for example encrypts, before they are stored.
//
// An encoded document is stored as {"idemq_codec": NAME, "key": KEY, "data": BASE64}, which the Python client reads, too.  A codec must encode
// equal documents to equal bytes with the same key, because the server compares documents: the payload of a duplicate and the request of a step.
//
// After a rotation, an equal payload is stored with an older key.  So if a codec has several keys, a duplicate is added with onDuplicate
// 'ignore', which never throws, and then compared with the key of its stored payload.  A role that may not see the job tries each key.

import { KeyReused, textOf } from './errors.js';
import { json, rows } from './rows.js';

/** @typedef {import('../index.js').Codec} Codec */
/** @typedef {import('../index.js').Queryable} Queryable */

const MEMBERS = ['data', 'idemq_codec', 'key'];
const KEYS_OF = "SELECT id::text, payload->>'key' AS key FROM idemq.jobs WHERE id = ANY ($1::bigint[]) AND payload ? 'idemq_codec' AND payload->>'key' IS NOT NULL";
/** Two statements of a transaction get the same answer. */
const TRANSACTION = "SELECT pg_catalog.pg_backend_pid() || ' ' || extract(epoch FROM pg_catalog.now()) AS name";
let savepoints = 0;

/** Throws for an object that is not a codec. @param {any} codec @returns {Codec | undefined} */
export function checkCodec(codec) {
  if (codec === undefined || codec === null) return undefined;
  if (typeof codec.name !== 'string' || typeof codec.encode !== 'function' || typeof codec.decode !== 'function') {
    throw new TypeError('codec must have a name, keys, encode and decode');
  }
  keysOf(codec);
  return codec;
}

/** @param {Codec} codec @returns {readonly string[]} */
function keysOf({ keys }) {
  if (!Array.isArray(keys) || keys.length === 0 || !keys.every((key) => typeof key === 'string')) {
    throw new TypeError('keys of a codec must be the names of its keys, the current one first');
  }
  return keys;
}

/** Compares strings by code points, as Python does. @param {string} a @param {string} b */
const byCodePoint = (a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b));

/** A number without a negative exponent, because the languages use one from different numbers on. @param {number} value */
function numberText(value) {
  const text = JSON.stringify(value);
  const [, sign, first, rest = '', exponent] = /^(-?)(\d)(?:\.(\d+))?e-(\d+)$/.exec(text) ?? [];
  if (first === undefined) return text;
  return `${sign}0.${'0'.repeat(Number(exponent) - 1)}${first}${rest}`;
}

/** The JSON text of a parsed document, with sorted members and without spaces, as the Python client writes it. @param {any} value @returns {string} */
function canonical(value) {
  if (typeof value === 'number') return numberText(value);
  if (value === null || typeof value !== 'object') return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map(canonical)}]`;
  return `{${Object.keys(value).sort(byCodePoint).map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`)}}`;
}

/** A document as bytes, which are equal for equal documents. @param {unknown} value @param {string} what */
export function plain(value, what) {
  return Buffer.from(canonical(JSON.parse(json(value, what))));
}

/** The JSON text of an encoded document. @param {Codec} codec @param {Uint8Array} data @param {string} key @returns {Promise<string>} */
async function encodedText(codec, data, key) {
  const encoded = await codec.encode(data, key);
  if (!(encoded instanceof Uint8Array)) throw new TypeError('encode of a codec must return a Uint8Array');
  return json({ idemq_codec: codec.name, key, data: Buffer.from(encoded).toString('base64') }, 'the encoded document');
}

/** A document as JSON text, encoded with the current key. @param {Codec} codec @param {unknown} value @param {string} what */
export async function encoded(codec, value, what) {
  return encodedText(codec, plain(value, what), keysOf(codec)[0]);
}

/** A document as JSON text, encoded with the current key and with each of the others. @param {Codec} codec @param {unknown} value @param {string} what */
export async function encodedWithEachKey(codec, value, what) {
  const data = plain(value, what);
  return Promise.all(keysOf(codec).map((key) => encodedText(codec, data, key)));
}

/**
 * A stored document. One that is not encoded is returned as it is, except that encoded ones inside it are decoded, because a dead-letter record
 * contains the documents of its job.
 * @param {Codec | undefined} codec @param {any} value @returns {Promise<any>}
 */
export async function decoded(codec, value) {
  if (codec === undefined || value === null || typeof value !== 'object') return value;
  if (Array.isArray(value)) return Promise.all(value.map((each) => decoded(codec, each)));
  const names = Object.keys(value).sort();
  if (names.length === 3 && MEMBERS.every((name, n) => name === names[n] && typeof value[name] === 'string')) return decodedText(codec, value);
  return Object.fromEntries(await Promise.all(Object.entries(value).map(async ([name, each]) => [name, await decoded(codec, each)])));
}

/** @param {Codec} codec @param {{ idemq_codec: string, key: string, data: string }} stored */
async function decodedText(codec, { idemq_codec: name, key, data }) {
  const keys = keysOf(codec);
  if (name !== codec.name || !keys.includes(key)) {
    throw new Error(`a document is encoded with key ${key} of codec ${name}, but this program has only ${keys.join(', ')} of codec ${codec.name}`);
  }
  let text;
  try {
    text = Buffer.from(await codec.decode(Buffer.from(data, 'base64'), key)).toString();
  } catch (error) {
    throw new Error(`a document that is encoded with key ${key} cannot be decoded: ${textOf(error)}`, { cause: error });
  }
  try {
    return JSON.parse(text);
  } catch {
    // Without the error, whose message contains a part of the document.
    throw new Error(`a document that is encoded with key ${key} cannot be decoded: the codec's decode returned data that cannot be read as JSON`);
  }
}

/** Decodes the results of jobs. @template {{ result: any }} T @param {Codec | undefined} codec @param {T[]} found @returns {Promise<T[]>} */
export async function decodedResults(codec, found) {
  return codec === undefined ? found : Promise.all(found.map(async (each) => ({ ...each, result: await decoded(codec, each.result) })));
}

// Duplicates.

/**
 * How to add documents, and to compare those that are duplicates. compared: for each, whether the server compares the payload of a duplicate, because the job
 * has a key, and onDuplicate is 'keep'; add: adds all, and ignores the payloads of duplicates or compares them; compare: compares those with these numbers,
 * encoded anew.
 * @typedef {{
 *   documents: Uint8Array[], compared: boolean[], add: (client: Queryable, texts: string[], ignore: boolean) => Promise<any[]>,
 *   compare: (client: Queryable, numbers: number[], texts: string[]) => Promise<any[]>,
 * }} Duplicates
 */

/** Adds jobs, all or none. Returns the results. @param {Codec} codec @param {Queryable} client @param {Duplicates} jobs @returns {Promise<any[]>} */
export async function addDocuments(codec, client, jobs) {
  const keys = keysOf(codec);
  const texts = await Promise.all(jobs.documents.map((data) => encodedText(codec, data, keys[0])));
  if (keys.length === 1 || !jobs.compared.some(Boolean)) return jobs.add(client, texts, false);
  if (texts.length === 1 || (await isInTransaction(client))) return addAndCompare(codec, keys, client, texts, jobs);
  /** @type {unknown} */
  let refused;
  for (const key of keys) {
    try {
      return await jobs.add(client, await Promise.all(jobs.documents.map((data) => encodedText(codec, data, key))), false);
    } catch (error) {
      if (!(error instanceof KeyReused)) throw error;
      refused ??= error;
    }
    // Some are encoded with this key, and others with another one.
    if (isPool(client)) return inOwnTransaction(client, (own) => addAndCompare(codec, keys, own, texts, jobs));
  }
  throw refused;
}

/** @param {any} client @returns {client is import('pg').Pool} */
const isPool = (client) => typeof client.connect === 'function' && typeof client.totalCount === 'number';

/** @param {Codec} codec @param {readonly string[]} keys @param {Queryable} client @param {string[]} texts @param {Duplicates} jobs */
async function addAndCompare(codec, keys, client, texts, jobs) {
  const results = [...(await jobs.add(client, texts, true))];
  const numbers = results.map((_, n) => n).filter((n) => results[n].outcome === 'duplicate' && jobs.compared[n]);
  if (numbers.length === 0) return results;
  const stored = new Map((await rows(client, KEYS_OF, [numbers.map((n) => results[n].id)])).map(({ id, key }) => [id, key]));
  for (const [id, key] of stored) {
    if (!keys.includes(key)) throw new Error(`the payload of job ${id}, which has the same idempotency key, is encoded with key ${key}, but this program has only ${keys.join(', ')}`);
  }
  /** @type {[number, string | undefined][]} */
  const known = numbers.map((n) => [n, stored.get(results[n].id)]);
  (await compare(codec, keys, client, known, jobs)).forEach((result, at) => (results[numbers[at]] = result));
  return results;
}

/**
 * Compares duplicates. known: their numbers, and the keys of their stored payloads, or undefined where they may not be seen.
 * @param {Codec} codec @param {readonly string[]} keys @param {Queryable} client @param {[number, string | undefined][]} known @param {Duplicates} jobs
 * @returns {Promise<any[]>}
 */
async function compare(codec, keys, client, known, jobs) {
  const numbers = known.map(([n]) => n);
  const texts = (/** @type {string} */ key) => Promise.all(known.map(([n, own]) => encodedText(codec, jobs.documents[n], own ?? key)));
  if (known.every(([, own]) => own !== undefined)) return jobs.compare(client, numbers, await texts(keys[0]));
  const open = await isInTransaction(client);
  for (const key of keys.slice(0, known.length > 1 ? 1 : -1)) {
    try {
      const own = await texts(key);
      const ask = () => jobs.compare(client, numbers, own);
      return await (open ? inSavepoint(client, ask) : ask());
    } catch (error) {
      if (!(error instanceof KeyReused)) throw error;
    }
  }
  if (known.length === 1) return jobs.compare(client, numbers, await texts(keys[keys.length - 1]));
  const results = [];
  for (const one of known) results.push(...(await compare(codec, keys, client, [one], jobs)));
  return results;
}

/** @param {Queryable} client @returns {Promise<boolean>} */
async function isInTransaction(client) {
  const [{ name }] = await rows(client, TRANSACTION, []);
  return name === (await rows(client, TRANSACTION, []))[0].name;
}

/**
 * Runs a statement in a savepoint. The statement is sent directly behind SAVEPOINT, so no other statement can be undone with it. One that the application
 * sends at the same time fails if this one fails.
 * @template T @param {Queryable} client @param {() => Promise<T>} ask @returns {Promise<T>}
 */
async function inSavepoint(client, ask) {
  const name = `idemq_codec_${++savepoints}`;
  const marked = rows(client, `SAVEPOINT ${name}`, []);
  marked.catch(() => {});
  const answer = ask();
  try {
    const result = await answer;
    await marked;
    await rows(client, `RELEASE SAVEPOINT ${name}`, []);
    return result;
  } catch (error) {
    await marked;
    await rows(client, `ROLLBACK TO SAVEPOINT ${name}`, []);
    throw error;
  }
}

/**
 * Runs statements in a transaction of their own. A Client is not used for that, because the application may be using it for something else.
 * @template T @param {import('pg').Pool} pool @param {(own: Queryable) => Promise<T>} fn @returns {Promise<T>}
 */
async function inOwnTransaction(pool, fn) {
  const own = await pool.connect();
  /** @type {Error | undefined} */
  let broken;
  try {
    await rows(own, 'BEGIN', []);
    const result = await fn(own);
    await rows(own, 'COMMIT', []);
    return result;
  } catch (error) {
    await rows(own, 'ROLLBACK', []).catch((lost) => (broken = lost));
    throw error;
  } finally {
    own.release(broken);
  }
}
