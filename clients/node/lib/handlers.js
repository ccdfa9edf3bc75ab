// Checks of handlers, and handlers by the kind of the job.
//
// If a worker has no handler for a kind, it releases the job for a while without counting an attempt: a newer
// worker may have one, for example while a deployment is rolled out.

import { types } from 'node:util';
import { Snooze } from './errors.js';

const maxKindsNamed = 1000;

/** Throws for a value that is not a function, and for a generator, because calling it runs nothing. @param {unknown} handler @param {string} what */
export function checkCallable(handler, what) {
  if (typeof handler !== 'function') throw new TypeError(`${what} must be a function, not ${handler === null || typeof handler !== 'object' ? `${String(handler)}` : 'an object'}`);
  if (types.isGeneratorFunction(handler)) throw new TypeError(`${what} ${handler.name} is a generator function, so calling it does not run its body`);
}

/** Like checkCallable, for one handler or several by kind. @param {any} handlers */
export function checkHandlers(handlers) {
  const all = typeof handlers === 'function' ? [handlers] : Object.values(handlers ?? {});
  if (all.length === 0 || all.some((handler) => typeof handler !== 'function')) {
    throw new TypeError('handler must be a function, or an object that maps kinds to functions');
  }
  for (const handler of all) checkCallable(handler, 'the handler');
}

/** The result of a call. Throws if it is something that has not run yet, or a list of such. @template T @param {T} answer @returns {T} */
export function finishedResult(answer) {
  if (Array.isArray(answer) && answer.some(types.isPromise)) throw new TypeError('the handler returned an array of promises without awaiting them; return Promise.all(…)');
  if (types.isGeneratorObject(answer)) throw new TypeError('the handler returned a generator, which has not run');
  return answer;
}

/**
 * One handler for all jobs: the given one, or one that calls the handler for the job's kind.
 * @param {any} handlers a function, or functions by kind @param {import('../index.js').Interval} delay
 * @param {import('../index.js').Logger} logger @returns {(job: import('./job.js').Job, ...more: any[]) => unknown}
 */
export function singleHandler(handlers, delay, logger) {
  checkHandlers(handlers);
  if (typeof handlers === 'function') return handlers;
  const byKind = new Map(Object.entries(handlers));
  /** @type {Set<string>} */
  const unknown = new Set();
  return (job, ...more) => {
    const kind = job.kind ?? '';
    const handler = byKind.get(kind);
    if (handler) return handler(job, ...more);
    const said = kind === '' ? 'jobs without a kind' : `kind ${kind}`;
    if (!unknown.has(kind) && unknown.size < maxKindsNamed) {
      unknown.add(kind);
      logger.warn(`idemq: ${job.queue} ${job.id}: no handler for ${said}, so the worker releases such jobs`);
    }
    throw new Snooze(delay, `no handler for ${said}`);
  };
}
