// The end of an attempt whose handler has thrown.

import { Cancelled, Dead, RetryLater, Snooze, Waiting, detailsOf, interval, sqlstate, textOf } from './errors.js';
import { AWAIT_EVENT, FAIL, RELEASE } from './statements.js';

/**
 * Tells the server what became of an attempt: failed, to be retried later, dead, or given back.
 * @param {import('./worker.js').Context} worker @param {import('./connection.js').Link} link
 * @param {import('./job.js').Attempt} attempt @param {unknown} error what the handler threw
 */
export async function settle(worker, link, attempt, error) {
  const { id, token } = attempt.job;
  if (attempt.waiting && !attempt.why) error = attempt.waiting; // whatever the handler did then
  const own = error instanceof Snooze || error instanceof RetryLater || error instanceof Dead;
  // What was thrown because of the signal is no failure of the job's, but for its time.
  if (attempt.why && !own) error = attempt.reason;
  const text = textOf(error);
  let failed = false;
  /** @param {string} outcome @param {string} said */
  const ended = (outcome, said) => {
    if (failed) worker.failed(attempt, error, outcome);
    worker.ended(attempt, outcome, said);
  };
  try {
    /** @type {{ rows: any[], again: boolean }} */
    let answer;
    try {
      const over = attempt.client && (await keep(link, attempt));
      if (over) {
        answer = over;
      } else if (error instanceof Waiting) {
        answer = await wait(link, attempt, error);
      } else if (error instanceof Snooze || (error instanceof Cancelled && error.why !== 'timeout')) {
        const delay = error instanceof Snooze && delayOf(error) !== 0 ? interval(delayOf(error)) : null;
        answer = await link.answer(RELEASE, [id, token, delay]);
      } else {
        failed = true;
        const delay = error instanceof RetryLater ? interval(delayOf(error)) : null;
        answer = await link.answer(FAIL, [id, token, text, delay, error instanceof Dead, detailsOf(error)]);
      }
    } catch (refused) {
      // A delay that is none; a character that the server's encoding lacks.
      if (!(refused instanceof TypeError) && !sqlstate(refused).startsWith('22')) throw refused;
      failed = true;
      const both = `${text} (and: ${textOf(refused)})`.replace(/[^\n -~]/g, '?');
      answer = await link.answer(FAIL, [id, token, both, null, error instanceof Dead, null]);
    }
    ended(answer.rows[0].outcome, text);
  } catch (lost) {
    ended('lost', textOf(lost));
  }
}

/** What is no delay is a TypeError, whatever its getter throws. @param {Snooze | RetryLater} error */
function delayOf(error) {
  try {
    return error.delay;
  } catch (thrown) {
    throw new TypeError(textOf(thrown));
  }
}

/**
 * Notes a wait, which was undone with the handler's transaction. What has come meanwhile the next attempt hears.
 * @param {import('./connection.js').Link} link @param {import('./job.js').Attempt} attempt @param {Waiting} waiting
 * @returns {Promise<{ rows: any[], again: boolean }>}
 */
async function wait(link, { job: { id, token } }, { event, timeout }) {
  const answer = await ask(link, [id, token, event, interval(timeout)]);
  return ['arrived', 'timed_out'].includes(answer.rows[0].outcome) ? link.answer(RELEASE, [id, token, null]) : answer;
}

/**
 * Notes the events that the handler has heard, which was undone too: by the next attempt they may be forgotten.
 * Answers how the attempt has ended, if it has by that.
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
