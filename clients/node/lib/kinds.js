// Handlers by the kind of a job.
//
// A worker that has none for a kind gives the job back for a while: a newer one may know it, as while a
// deployment is rolled out.  That counts no attempt.

import { Snooze } from './errors.js';

const mostNamed = 1000;

/**
 * One handler for all: the one that is given, or one that calls that of the job's kind.
 * @param {any} handlers a function, or functions by kind @param {import('../index.js').Interval} delay
 * @param {import('../index.js').Logger} logger @returns {(job: import('./job.js').Job, ...more: any[]) => unknown}
 */
export function handlerOf(handlers, delay, logger) {
  if (typeof handlers === 'function') return handlers;
  const byKind = new Map(Object.entries(handlers ?? {}));
  if (byKind.size === 0 || [...byKind.values()].some((handler) => typeof handler !== 'function')) {
    throw new TypeError('a handler is a function, and several are an object of functions by kind');
  }
  /** @type {Set<string>} */
  const unknown = new Set();
  return (job, ...more) => {
    const kind = job.kind ?? '';
    const handler = byKind.get(kind);
    if (handler) return handler(job, ...more);
    const said = kind === '' ? 'jobs without a kind' : `kind ${kind}`;
    if (!unknown.has(kind) && unknown.size < mostNamed) {
      unknown.add(kind);
      logger.warn(`idemq: ${job.queue} ${job.id}: no handler here for ${said}; such jobs are given back`);
    }
    throw new Snooze(delay, `no handler here for ${said}`);
  };
}
