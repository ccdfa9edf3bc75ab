// Validators of payloads, by the convention Standard Schema (zod, valibot, arktype and others).

import { reject } from './arguments.js';

/** @param {any} value @returns {value is import('../index.js').Schema} */
const isSchema = (value) => typeof value?.['~standard']?.validate === 'function';

/** Throws unless the value is a validator, or an object of validators by kind, or undefined. @param {any} schema */
export function checkSchema(schema) {
  if (schema === undefined || isSchema(schema)) return;
  if (typeof schema !== 'object' || schema === null || !Object.values(schema).every(isSchema)) reject('schema', 'a Standard Schema, or an object of them by kind', schema);
}

/**
 * The payload as its validator returns it. Throws a TypeError that names each field that does not fit.
 * @param {import('../index.js').Schemas | undefined} schema @param {string | null | undefined} kind @param {unknown} payload
 */
export async function validated(schema, kind, payload) {
  const own = schema === undefined || isSchema(schema) ? schema : Object.hasOwn(schema, kind ?? '') ? schema[kind ?? ''] : undefined;
  if (own === undefined) return payload;
  const answer = await own['~standard'].validate(payload);
  if (!answer.issues) return answer.value;
  const issues = answer.issues.map(({ message, path = [] }) => `${['payload', ...path.map((part) => String(typeof part === 'object' ? part.key : part))].join('.')}: ${message}`);
  throw new TypeError(`the payload does not fit its schema: ${issues.join('; ')}`);
}
