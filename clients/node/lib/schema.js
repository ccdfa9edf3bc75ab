// Validators of payloads, by the convention Standard Schema (zod, valibot, arktype and others).

import { reject } from './arguments.js';

/** @param {any} value @returns {value is import('../index.js').Schema} */
const isSchema = (value) => typeof value?.['~standard']?.validate === 'function';

/** Throws unless the value is a validator, or an object of validators by kind, or undefined. @param {any} schema */
export function checkSchema(schema) {
  if (schema === undefined || isSchema(schema)) return;
  if (typeof schema !== 'object' || schema === null || !Object.values(schema).every(isSchema)) reject('schema', 'a Standard Schema, or an object of them by kind', schema);
}

/** @param {import('../index.js').Schemas | undefined} schema @param {string | null | undefined} kind @param {unknown} payload */
function answerOf(schema, kind, payload) {
  const own = schema === undefined || isSchema(schema) ? schema : Object.hasOwn(schema, kind ?? '') ? schema[kind ?? ''] : undefined;
  return own === undefined ? { value: payload } : own['~standard'].validate(payload);
}

/** The value of an answer, or an error that names each field that does not fit. @param {Awaited<ReturnType<typeof answerOf>>} answer */
function valueOf(answer) {
  if (!answer.issues) return answer.value;
  const issues = answer.issues.map(({ message, path = [] }) => `${['payload', ...path.map((part) => String(typeof part === 'object' ? part.key : part))].join('.')}: ${message}`);
  throw new TypeError(`the payload does not fit its schema: ${issues.join('; ')}`);
}

/**
 * The payload as its validator returns it. Throws a TypeError that names each field that does not fit.
 * @param {import('../index.js').Schemas | undefined} schema @param {string | null | undefined} kind @param {unknown} payload
 */
export async function validated(schema, kind, payload) {
  return valueOf(await answerOf(schema, kind, payload));
}

/**
 * The same for a call that cannot wait.
 * @param {import('../index.js').Schemas | undefined} schema @param {string | null | undefined} kind @param {unknown} payload
 */
export function validatedNow(schema, kind, payload) {
  const answer = answerOf(schema, kind, payload);
  if ('then' in answer) throw new TypeError('enqueueStatement cannot wait for a schema that validates asynchronously; validate the payload first');
  return valueOf(answer);
}
