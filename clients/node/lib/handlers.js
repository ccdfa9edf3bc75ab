// What a worker does with the jobs of a queue: Inside, Outside and Kind, checks of handlers, and handlers by the kind of the job.
//
// If a worker has no handler for a kind, it releases the job for a while without counting an attempt: a newer
// worker may have one, for example while a deployment is rolled out.

import { inspect, types } from 'node:util';
import { checkCount, checkSeconds, optionalBoolean, optionalInterval, reject } from './arguments.js';
import { checkCodec } from './codec.js';
import { Cancelled, Snooze } from './errors.js';
import { optionalMode } from './logs.js';
import { INSIDE, KIND, OUTSIDE, checkOptions } from './options.js';
import { checkSchema } from './schema.js';

const maxKindsNamed = 1000;

/** How a worker runs the jobs of one queue. */
class Way {
  /** @param {any} handler @param {import('../index.js').InsideOptions} options @param {Record<string, boolean>} names of the options */
  constructor(handler, options, names) {
    checkOptions(options, names, new.target.name);
    checkHandlers(handler);
    const { concurrency = 1, batch = 1, timeout = 3600, unknownKind = 60, ahead = 0, aheadWait = 1 } = options;
    checkCount(concurrency, 'concurrency');
    checkCount(batch, 'batch');
    checkSeconds(timeout, 'timeout');
    if (ahead !== 0) checkCount(ahead, 'ahead');
    checkSeconds(aheadWait, 'aheadWait');
    optionalInterval(unknownKind, 'unknownKind');
    const { neverRetry = [] } = options;
    if (!Array.isArray(neverRetry)) reject('neverRetry', 'an array of exception classes', neverRetry);
    const odd = neverRetry.find((each) => typeof each !== 'function' || !(each === Error || each.prototype instanceof Error));
    if (odd !== undefined) throw new TypeError(`neverRetry must contain exception classes, not ${typeof odd === 'function' ? odd.name || 'a function' : inspect(odd)}`);
    this.handler = handler;
    this.concurrency = concurrency;
    this.batch = batch;
    this.timeout = timeout;
    this.ahead = ahead;
    this.aheadWait = aheadWait;
    this.unknownKind = unknownKind;
    this.attach = optionalBoolean(options.attach, 'attach') ?? undefined;
    this.lease = optionalInterval(options.lease, 'lease');
    this.neverRetry = neverRetry;
    checkSchema(options.schema);
    this.schema = options.schema;
    /** Undefined means the worker's. */
    this.captureLogs = optionalMode(options.captureLogs, 'captureLogs');
    this.codec = checkCodec(options.codec);
  }

  /** What is set for a kind. @param {string | null} kind @returns {Kind | undefined} */
  kind(kind) {
    const found = typeof this.handler === 'object' && Object.hasOwn(this.handler, kind ?? '') ? this.handler[kind ?? ''] : undefined;
    return found instanceof Kind ? found : undefined;
  }

  /** Whether no attempt can succeed after an error. A timeout is not an error of the handler. @param {unknown} error */
  isFinal(error) {
    return this.neverRetry.some((each) => error instanceof each && !(error instanceof Cancelled && each !== Cancelled));
  }
}

/** A handler of one kind, with settings. */
export class Kind {
  /** @param {any} handler @param {import('../index.js').KindOptions} [options] */
  constructor(handler, options = {}) {
    checkOptions(options, KIND, 'Kind');
    checkCallable(handler, 'handler');
    const { timeout, backoff } = options;
    if (timeout !== undefined) checkSeconds(timeout, 'timeout');
    if (Array.isArray(backoff) && backoff.length === 0) throw new RangeError('backoff must not be empty');
    this.handler = handler;
    this.timeout = timeout;
    this.backoff = (Array.isArray(backoff) ? backoff : [backoff ?? null]).map((delay) => optionalInterval(delay, 'backoff'));
  }

  /** The delay after an attempt, or null for the queue's. @param {number} attempt its number */
  delayAfter(attempt) {
    return this.backoff[Math.min(attempt, this.backoff.length) - 1];
  }
}

/** The handler's changes and the completion of its job share a transaction. */
export class Inside extends Way {
  /** @param {any} handler @param {import('../index.js').InsideOptions} [options] */
  constructor(handler, options = {}) {
    super(handler, options, INSIDE);
    this.inside = handler;
  }
}

/** The job is completed after its handler has returned. */
export class Outside extends Way {
  /** @param {any} handler @param {import('../index.js').OutsideOptions} [options] */
  constructor(handler, options = {}) {
    super(handler, options, OUTSIDE);
    this.outside = handler;
  }
}

/** The queues of a worker, in order, with how their jobs are run. @param {unknown} queues @returns {Map<string, Inside | Outside>} */
export function checkQueues(queues) {
  if (typeof queues !== 'object' || queues === null || Array.isArray(queues)) throw new TypeError(`queue must be a string, or an object that maps queues to handlers, not ${Array.isArray(queues) ? 'an array' : String(queues)}`);
  const entries = Object.entries(queues);
  if (entries.length === 0) throw new RangeError('queues must not be empty');
  return new Map(entries.map(([queue, way]) => [queue, way instanceof Inside || way instanceof Outside ? way : new Inside(way)]));
}

/** Throws for a value that is not a function, and for a generator, because calling it runs nothing. @param {unknown} handler @param {string} what */
export function checkCallable(handler, what) {
  if (typeof handler !== 'function') throw new TypeError(`${what} must be a function, not ${handler === null || typeof handler !== 'object' ? `${String(handler)}` : 'an object'}`);
  if (types.isGeneratorFunction(handler)) throw new TypeError(`${what} ${handler.name} is a generator function, so calling it does not run its body`);
}

/** Like checkCallable, for one handler or several by kind. @param {any} handlers */
export function checkHandlers(handlers) {
  const all = typeof handlers === 'function' ? [handlers] : Object.values(handlers ?? {}).map(functionOf);
  if (all.length === 0 || all.some((handler) => typeof handler !== 'function')) {
    throw new TypeError('handler must be a function, or an object that maps kinds to functions');
  }
  for (const handler of all) checkCallable(handler, 'the handler');
}

/** @param {any} handler of a kind */
const functionOf = (handler) => (handler instanceof Kind ? handler.handler : handler);

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
  if (typeof handlers === 'function') return handlers;
  const byKind = new Map(Object.entries(handlers).map(([kind, handler]) => [kind, functionOf(handler)]));
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
