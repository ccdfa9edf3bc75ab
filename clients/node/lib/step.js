// A step: a call to another system that the next attempt must know about.

import { checkName, checkSeconds } from './arguments.js';
import { decoded, encoded, encodedWithEachKey } from './codec.js';
import { json } from './enqueue.js';
import { Dead, Refused, Snooze, StaleToken, interval, sqlstate, textOf, typed } from './errors.js';
import { checkCallable, finishedResult } from './handlers.js';
import { STEP, checkOptions } from './options.js';
import { pg } from './packages.js';
import { BEGIN_STEP, FINISH_STEP, REFUSE_STEP } from './statements.js';

/**
 * Leaves intervals as text.  Their format depends on IntervalStyle.  pg can parse only one style, but the server
 * reads all of them.
 */
const uninterpreted = {
  getTypeParser: (/** @type {number} */ type, /** @type {any} */ format) => (type === 1186 ? (/** @type {any} */ text) => text : pg.types.getTypeParser(type, format)),
};

/**
 * Calls another system, unless the call is known to have been performed.
 * @param {import('./job.js').Job} job @param {import('./job.js').Ask} run runs a statement that is committed by itself @param {string} name
 * @param {(call: import('../index.js').StepCall) => unknown} call
 * @param {import('../index.js').StepOptions} options @param {(text: string) => void} warn
 * @param {(text: string) => string} redact @param {import('../index.js').Codec} [codec] @returns {Promise<any>}
 */
export async function step(job, run, name, call, options, warn, redact, codec) {
  checkOptions(options, STEP, 'job.step');
  const { request = null, callTimeout = 30, ask } = options;
  checkName(name, 'name');
  checkCallable(call, 'call');
  if (ask !== undefined) checkCallable(ask, 'ask');
  if (checkSeconds(callTimeout, 'callTimeout') > 1e6) throw new RangeError(`callTimeout must be at most 1000000 seconds, not ${callTimeout}`);
  const own = [job.id, job.token, name];
  const asked = Date.now();
  let calling = false;
  try {
    // If this is repeated after a lost answer, the outcome is busy, because the server cannot know that no call was made.
    const begun = await begin();
    if (begun.outcome === 'done') return await decoded(codec, begun.response);
    // The call of a lost attempt may still arrive.
    if (begun.outcome === 'busy') throw new Snooze(begun.retry_after);
    if (begun.outcome === 'unknown' && ask) {
      const found = finishedResult(await ask({ key: begun.effect_key, request: await decoded(codec, begun.former_request), begunAt: begun.begun_at, signal: job.signal }));
      if (found !== undefined) return await finish(found);
    }
    const until = asked + 1000 * callTimeout;
    // Another attempt may already have asked whether the call was made.
    if (Date.now() >= until) throw new Error(`step ${name}: the time for the call was over before the call, so it was not made`);
    calling = true;
    return await finish(await limited(until, (signal) => call({ key: begun.effect_key, request, signal, until: new Date(until) })));
  } catch (error) {
    // If ask throws Dead, that says nothing about the earlier call.
    if (error instanceof Refused || (calling && error instanceof Dead)) await run(REFUSE_STEP, [...own, redact(textOf(error))]);
    throw typed(error);
  }

  /** An earlier attempt may have encoded the same request with another key. @returns {Promise<any>} */
  async function begin() {
    const requests = codec ? await encodedWithEachKey(codec, request, 'the request') : [json(request, 'the request')];
    for (;;) {
      try {
        return (await run(BEGIN_STEP, [...own, requests.shift(), interval(callTimeout)], uninterpreted))[0];
      } catch (error) {
        if (sqlstate(error) !== 'IQ003' || requests.length === 0) throw error;
      }
    }
  }

  /** Stores the response; the first one counts. A response that cannot be stored is left out, because the call has been performed. @param {unknown} response @returns {Promise<any>} */
  async function finish(response) {
    /** @type {unknown} */
    let refusal;
    /** @type {string | null} */
    let text = null;
    try {
      text = codec ? await encoded(codec, response ?? null, 'the response') : json(response ?? null, 'the response');
    } catch (error) {
      refusal = error;
    }
    try {
      const stored = await store(text);
      if (refusal === undefined) return stored;
    } catch (error) {
      if (text === null || !/^(22|54)/.test(sqlstate(error))) throw error;
      refusal = error;
      await store(null);
    }
    warn(`step ${name} is done, but its response cannot be stored: ${redact(textOf(refusal))}`);
    return response;
  }

  /** Stores a response, even if the lease was lost during the call, because the call has been performed. @param {string | null} text @returns {Promise<any>} */
  async function store(text) {
    const [{ response, standing }] = await run(FINISH_STEP, [...own, text]);
    // While no other attempt has begun, only the lock of the job tells whether it can still be completed.
    if (standing !== 'stale' && standing !== 'not_found') return decoded(codec, response);
    throw new StaleToken(`the answer of step ${name} arrived after the lease was lost; it is stored, and the next attempt returns it`, { code: 'IQ001' });
  }

  /** Calls fn with a signal that fires when the time is over, or when the job's signal fires. @param {number} end @param {(signal: AbortSignal) => unknown} fn */
  async function limited(end, fn) {
    const controller = new AbortController();
    const stop = () => controller.abort(job.signal.reason);
    const timer = setTimeout(() => controller.abort(new Error(`step ${name}: no response within ${callTimeout} s`)), end - Date.now());
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
