// Ends an attempt whose handler has thrown.

import { isServerLost } from './connection.js';
import { Cancelled, Dead, HoldBack, RetryLater, Snooze, Waiting, detailsOf, interval, sqlstate, textOf } from './errors.js';
import { settling } from './trace.js';
import { AWAIT_EVENT, BECAME, FAIL, GIVE_BACK, GIVE_BACK_LOST, HOLD_BACK, RELEASE } from './statements.js';

/**
 * Reports the outcome of an attempt to the server: failed, retry later, dead, or released.
 * @param {import('./consumer.js').Consumer} worker @param {import('./connection.js').Link} link
 * @param {import('./job.js').Attempt} attempt @param {unknown} error what the handler threw
 */
export async function settle(worker, link, attempt, error) {
  await settling([attempt], (told) => report(worker, link, attempt, error, told));
}

/**
 * @param {import('./consumer.js').Consumer} worker @param {import('./connection.js').Link} link
 * @param {import('./job.js').Attempt} attempt @param {unknown} error @param {import('./trace.js').Told} told
 */
async function report(worker, link, attempt, error, told) {
  const { id, token } = attempt.job;
  if (attempt.waiting && !attempt.why) error = attempt.waiting; // whatever the handler did afterwards
  const own = error instanceof Snooze || error instanceof RetryLater || error instanceof HoldBack || error instanceof Dead;
  // An exception caused by the signal is not the job's failure, except at its timeout.
  if (attempt.why && !own) error = attempt.reason;
  const text = worker.redact(textOf(error));
  const details = () => detailsOf(error, worker.redact, attempt.lines?.details(worker.redact, worker.control.session?.utf8));
  let failed = false;
  try {
    /** @type {{ rows: any[], again: boolean }} */
    let answer;
    try {
      const over = attempt.client && (await keep(link, attempt));
      if (over) {
        answer = over;
      } else if (error instanceof Waiting) {
        answer = await wait(link, attempt, error);
      } else if (error instanceof HoldBack) {
        answer = await holdBack(link, attempt, error, text);
        failed = ['retrying', 'dead'].includes(answer.rows[0].outcome);
      } else if (error instanceof Snooze || (error instanceof Cancelled && error.why !== 'timeout')) {
        const delay = error instanceof Snooze && delayOf(error) !== 0 ? interval(delayOf(error)) : null;
        answer = await link.answer(RELEASE, [id, token, delay]);
      } else if (attempt.strict && !own && isServerLost(error, worker.server, attempt.ends - attempt.timeout)) {
        answer = await link.answer(GIVE_BACK_LOST, [id, token, text, details()]);
        failed = answer.rows[0].outcome !== 'released';
      } else {
        failed = true;
        const delay = error instanceof RetryLater ? interval(delayOf(error)) : worker.way.kind(attempt.job.kind)?.delayAfter(attempt.job.attempt) ?? null;
        answer = await link.answer(FAIL, [id, token, text, delay, error instanceof Dead || (!own && worker.way.isFinal(error)), details()]);
      }
    } catch (refused) {
      // The delay is invalid, or the server's encoding lacks a character.
      if (!(refused instanceof TypeError) && !sqlstate(refused).startsWith('22')) throw refused;
      failed = true;
      const both = `${text} (and: ${worker.redact(textOf(refused))})`.replace(/[^\n -~]/g, '?');
      answer = await link.answer(FAIL, [id, token, both, null, error instanceof Dead || (!own && worker.way.isFinal(error)), null]);
    }
    const [{ outcome }] = answer.rows;
    told.outcome(outcome);
    // Cancelled: an open transaction is cancelling the job. If it is rolled back, the attempt ends as released.
    if (outcome === 'stale' || outcome === 'not_found' || outcome === 'cancelled') return await endStale(worker, link, attempt, outcome === 'cancelled' ? 'stale' : outcome, failed ? error : undefined, text);
    if (failed) worker.failed(attempt, error, outcome, outcome !== 'dead');
    worker.ended(attempt, outcome, text);
  } catch (lost) {
    told.failed(lost);
    if (failed) worker.failed(attempt, error, 'lost', true);
    worker.ended(attempt, 'lost', textOf(lost));
  }
}

/**
 * Ends an attempt that the server calls stale or does not know. It asks for the state of the job, so that the true outcome is counted, logged
 * and reported. The lease may have been lost to another attempt; the job may be dead or cancelled, without another attempt; or it may
 * have been completed by a COMMIT whose answer was lost.
 * @param {import('./consumer.js').Consumer} worker @param {import('./connection.js').Link} link @param {import('./job.js').Attempt} attempt
 * @param {string} outcome @param {unknown} [error] of an attempt that has failed @param {string} [text] its text
 */
export async function endStale(worker, link, attempt, outcome, error, text) {
  const { id, token } = attempt.job;
  /** @type {{ status: string, last: boolean, error: string | null, own: string | null } | undefined} */
  let job;
  try {
    [job] = (await link.answer(BECAME, [id, token])).rows;
  } catch (unknown) {
    worker.ended(attempt, outcome, text);
    if (error !== undefined) worker.failed(attempt, error, outcome, true);
    return;
  }
  if (job?.last && job.status === 'completed' && attempt.commitSent) return worker.ended(attempt, 'committed');
  const finished = job === undefined || ['completed', 'dead', 'cancelled'].includes(job.status);
  if (job?.last && job.status === 'dead') {
    worker.failed(attempt, error ?? attempt.reason ?? new Cancelled('lease', job.error ?? 'the lease was lost'), 'dead', false);
    return worker.ended(attempt, 'dead', job.error ?? text);
  }
  if (job?.own && worker.outside) {
    const ended = { failed: 'retrying', committed: 'committed' }[job.own] ?? job.own;
    if (error !== undefined) worker.failed(attempt, error, 'retrying', !finished);
    return worker.ended(attempt, ended, `the handler has ended the attempt itself${text ? `; then: ${text}` : ''}`);
  }
  if (error !== undefined) worker.failed(attempt, error, outcome, !finished);
  const became = {
    cancelled: 'the job was cancelled', completed: 'another attempt has completed the job', dead: 'another attempt has failed, and the job is dead',
  }[job?.status ?? ''] ?? (job === undefined ? 'the job no longer exists' : job.last ? `the job was reclaimed${job.error ? ` (${job.error})` : ''}, and will be tried again` : 'another attempt is running');
  worker.ended(attempt, outcome, text ? `${became}; this attempt: ${text}` : became);
}

/** The delay of an exception. Converts any exception of its getter to a TypeError. @param {Snooze | RetryLater | HoldBack} error */
function delayOf(error) {
  try {
    return error.delay;
  } catch (thrown) {
    throw new TypeError(textOf(thrown));
  }
}

/**
 * Holds back the group or the queue, and gives the job back. If the server refuses the hold, the job is given back without one, and
 * the attempt counts after as many times.
 * @param {import('./connection.js').Link} link @param {import('./job.js').Attempt} attempt @param {HoldBack} error @param {string} text
 * @returns {Promise<{ rows: any[], again: boolean }>}
 */
async function holdBack(link, { job: { id, token } }, error, text) {
  const values = [id, token, interval(delayOf(error)), text.replace(/[^\n -~]/g, '?')];
  try {
    return await link.answer(HOLD_BACK, [...values, error.scope ?? null]);
  } catch (refused) {
    if (['IQ001', 'IQ002', 'IQ006'].includes(sqlstate(refused))) return { rows: [{ outcome: 'stale' }], again: false };
    if (!sqlstate(refused).startsWith('22')) throw refused;
    return link.answer(GIVE_BACK, values);
  }
}

/**
 * Records a wait again, because it was undone with the handler's transaction. An event that has arrived meanwhile goes to the next attempt.
 * @param {import('./connection.js').Link} link @param {import('./job.js').Attempt} attempt @param {Waiting} waiting
 * @returns {Promise<{ rows: any[], again: boolean }>}
 */
async function wait(link, { job: { id, token } }, { event, timeout }) {
  const answer = await ask(link, [id, token, event, interval(timeout)]);
  return ['arrived', 'timed_out'].includes(answer.rows[0].outcome) ? link.answer(RELEASE, [id, token, null]) : answer;
}

/**
 * Records again the events that the handler has received, which was also undone. Otherwise they may have been deleted before the next
 * attempt. Returns the outcome of the attempt if this has ended it.
 * @param {import('./connection.js').Link} link @param {import('./job.js').Attempt} attempt
 * @returns {Promise<{ rows: any[], again: boolean } | undefined>}
 */
async function keep(link, { job: { id, token }, arrived }) {
  for (const { name, timeout } of arrived) {
    const answer = await ask(link, [id, token, name, interval(timeout)]);
    if (answer.rows[0].outcome !== 'arrived') return answer;
  }
  return undefined;
}

/**
 * @param {import('./connection.js').Link} link @param {unknown[]} values of AWAIT_EVENT
 * @returns {Promise<{ rows: any[], again: boolean }>}
 */
async function ask(link, values) {
  try {
    return await link.answer(AWAIT_EVENT, values);
  } catch (error) {
    if (!['IQ001', 'IQ002', 'IQ006'].includes(sqlstate(error))) throw error;
    return { rows: [{ outcome: 'stale' }], again: false };
  }
}
