// A step: a call of another system that an attempt may make, and is to be known of by the next.

import { checkName } from './arguments.js';
import { json } from './enqueue.js';
import { Dead, Refused, Snooze, interval, sqlstate, textOf, typed } from './errors.js';
import { checkCallable, finishedResult } from './handlers.js';
import { STEP, checkOptions } from './options.js';
import { pg } from './packages.js';
import { BEGIN_STEP, FINISH_STEP, REFUSE_STEP } from './statements.js';

/**
 * Reads intervals as the text that they are.  What it looks like is up to IntervalStyle, of which pg's parser knows one; the server
 * reads all of them.
 */
const uninterpreted = {
  getTypeParser: (/** @type {number} */ type, /** @type {any} */ format) => (type === 1186 ? (/** @type {any} */ text) => text : pg.types.getTypeParser(type, format)),
};

/**
 * Has another system do something, unless it is known to be done.
 * @param {import('./job.js').Job} job @param {import('./connection.js').Link} link @param {string} name
 * @param {(call: import('../index.js').StepCall) => unknown} call
 * @param {import('../index.js').StepOptions} options @param {(text: string) => void} warn @returns {Promise<any>}
 */
export async function step(job, link, name, call, options, warn) {
  checkOptions(options, STEP, 'job.step');
  const { request = null, callTimeout = 30, ask } = options;
  checkName(name, 'name');
  checkCallable(call, 'call');
  if (ask !== undefined) checkCallable(ask, 'ask');
  if (!(callTimeout > 0 && callTimeout <= 1e6)) throw new RangeError(`callTimeout must be a number of seconds above 0, not ${callTimeout}`);
  const own = [job.id, job.token, name];
  const asked = Date.now();
  let calling = false;
  try {
    // Asked again after a lost answer, it says busy: nobody knows here that the call was not made.
    const { rows: [begun] } = await link.answer(BEGIN_STEP, [...own, json(request, 'the request'), interval(callTimeout)], uninterpreted);
    if (begun.outcome === 'done') return begun.response;
    // An attempt that was lost has called, and its call may still arrive.
    if (begun.outcome === 'busy') throw new Snooze(begun.retry_after);
    if (begun.outcome === 'unknown' && ask) {
      const found = finishedResult(await ask({ key: begun.effect_key, request: begun.former_request, begunAt: begun.begun_at, signal: job.signal }));
      if (found !== undefined) return await finish(found);
    }
    const until = asked + 1000 * callTimeout;
    calling = true;
    return await finish(await limited(until, (signal) => call({ key: begun.effect_key, request, signal, until: new Date(until) })));
  } catch (error) {
    // Dead when it is asked says nothing of the call that was made.
    if (error instanceof Refused || (calling && error instanceof Dead)) await link.answer(REFUSE_STEP, [...own, textOf(error)]);
    throw typed(error);
  }

  /** The first answer counts. What was done is done, whatever its response is: one that cannot be stored is left out. @param {unknown} response @returns {Promise<any>} */
  async function finish(response) {
    /** @type {unknown} */
    let refusal;
    /** @type {string | null} */
    let text = null;
    try {
      text = json(response ?? null, 'the response');
    } catch (error) {
      refusal = error;
    }
    try {
      const { rows } = await link.answer(FINISH_STEP, [...own, text]);
      if (refusal === undefined) return rows[0].response;
    } catch (error) {
      if (text === null || !/^(22|54)/.test(sqlstate(error))) throw error;
      refusal = error;
      await link.answer(FINISH_STEP, [...own, null]);
    }
    warn(`step ${name} is done, with a response that cannot be stored: ${textOf(refusal)}`);
    return response;
  }

  /** Calls with a signal that fires when the time is over, or the handler's. @param {number} end @param {(signal: AbortSignal) => unknown} fn */
  async function limited(end, fn) {
    const controller = new AbortController();
    const stop = () => controller.abort(job.signal.reason);
    const timer = setTimeout(() => controller.abort(new Error(`step ${name}: no response in ${callTimeout} s`)), end - Date.now());
    job.signal.addEventListener('abort', stop);
    if (job.signal.aborted) stop();
    try {
      return finishedResult(await fn(controller.signal));
    } finally {
      clearTimeout(timer);
      job.signal.removeEventListener('abort', stop);
    }
  }
}
