// Statements that any driver, ORM or query builder can execute.
//
// Every value is text or null, and the SQL casts it, because drivers disagree about all other types: one encodes a text for a jsonb
// parameter as JSON once more, another sends every text but 't' as false. The SQL contains no "::", because query builders read ":" as the
// start of a parameter's name.

import { types } from 'node:util';
import { reject } from './arguments.js';

/** For each style, how a parameter is written. @type {Record<string, (number: number, name: string) => string>} */
const STYLES = { $1: (number) => `$${number}`, '?': () => '?', ':name': (_, name) => `:${name}`, template: (number) => `$${number}` };
const PARAMETER = /(\w+) => \$(\d+)::(\w+(?:\[\])?)/g;

/** @param {unknown} style @returns {string} */
export function checkStyle(style) {
  if (typeof style !== 'string' || !Object.hasOwn(STYLES, style)) reject('style', `one of ${Object.keys(STYLES).join(', ')}`, style);
  return /** @type {string} */ (style);
}

/**
 * The value of a parameter as text that PostgreSQL reads as the same value with any settings.
 * @param {unknown} value @param {string} name @returns {string | null}
 */
function textValue(value, name) {
  if (value === null || value === undefined) return null;
  // A year after 9999 begins with + and zeros, which PostgreSQL does not read.
  if (types.isDate(value)) return value.toISOString().replace(/^\+0*/, '');
  if (Array.isArray(value)) return `{${value.join(',')}}`;
  const text = `${value}`;
  // Some drivers would end the text there, or write something else in its place.
  if (text.includes('\0')) throw new TypeError(`${name.replace(/_(\w)/g, (_, letter) => letter.toUpperCase())} contains a NUL character, which PostgreSQL cannot store`);
  return text;
}

/** The SQL in a style, on one line. @param {string} sql @param {string} style */
function sqlIn(sql, style) {
  return sql.replace(PARAMETER, (_, name, number, type) => {
    const text = `CAST(${STYLES[style](Number(number), name)} AS text)`;
    return `${name} => ${type === 'text' ? text : `CAST(${text} AS ${type})`}`;
  }).replace(/\b(\w+)::text\b/g, 'CAST($1 AS text) AS $1').replace(/\s+/g, ' ');
}

/** The strings of a template with this SQL, as a tag gets them. @param {string} text @returns {TemplateStringsArray} */
function templateOf(text) {
  const strings = text.split(/\$\d+/);
  return Object.freeze(Object.assign(strings, { raw: Object.freeze([...strings]) }));
}

/**
 * A function that returns a statement and its values, as the library with a style expects them.
 * @param {string} sql each parameter is written NAME => $NUMBER::TYPE, and each column that is to be text NAME::text
 * @returns {(values: unknown[], style: string) => any}
 */
export function portable(sql) {
  const names = [...sql.matchAll(PARAMETER)].map(([, name]) => name);
  const texts = Object.fromEntries(Object.keys(STYLES).map((style) => [style, sqlIn(sql, style)]));
  const template = templateOf(texts.template);
  return (values, style) => {
    const all = values.map((value, n) => textValue(value, names[n]));
    if (style === 'template') return [template, ...all];
    return { text: texts[style], values: style === ':name' ? Object.fromEntries(names.map((name, n) => [name, all[n]])) : all };
  };
}
