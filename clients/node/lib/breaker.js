// Notices that the attempts of a queue keep failing with the same error, for example after a bad deployment.  While it is open, the worker runs
// one job at a time and pauses after each failure, so that the backlog does not use up its attempts.

import { fingerprint } from './errors.js';

const opensAfter = 10;
/** Milliseconds of pause after a failure; it doubles each time. */
const firstPause = 1000;
const longestPause = 10_000;
/** Successes of other kinds after which the worker runs several jobs at a time again, because the failing kind may have no more jobs. */
const otherSuccesses = 10;
/** Kinds whose failures are remembered: those that failed last. */
const mostKinds = 1000;

export class Breaker {
  /** Failures in a row, by kind. The kind that failed last comes last. @type {Map<string | null, { like: string, count: number }>} */
  #streaks = new Map();
  /** Kinds that keep failing. @type {Set<string | null>} */
  #open = new Set();
  /** Successes of other kinds since the last failure of a kind in #open. */
  #otherSuccesses = 0;
  #pause = firstPause;

  /** Whether to run one job at a time. */
  get open() {
    return this.#open.size > 0;
  }

  /** Called for a failed attempt. @param {string | null} kind @param {unknown} error @returns {boolean} whether this opens it for the kind */
  failed(kind, error) {
    const like = fingerprint(error);
    const before = this.#streaks.get(kind);
    const count = before?.like === like ? before.count + 1 : 1;
    this.#streaks.delete(kind);
    this.#streaks.set(kind, { like, count });
    if (this.#streaks.size > mostKinds) this.#forget(this.#streaks.keys().next().value ?? null);
    const opens = count >= opensAfter && !this.#open.has(kind);
    if (opens) this.#open.add(kind);
    if (this.#open.has(kind)) this.#otherSuccesses = 0;
    return opens;
  }

  /** Called for a successful attempt. @param {string | null} kind @returns {boolean} whether this closes it */
  succeeded(kind) {
    const was = this.open;
    this.#pause = firstPause;
    this.#forget(kind);
    // The next such failure opens it again at once.
    if (this.open && ++this.#otherSuccesses >= otherSuccesses) this.#open.clear();
    return was && !this.open;
  }

  /** @param {string | null} kind */
  #forget(kind) {
    this.#streaks.delete(kind);
    this.#open.delete(kind);
  }

  /** Milliseconds until the next claim, after a failed attempt. */
  pause() {
    if (!this.open) return 0;
    const pause = this.#pause;
    this.#pause = Math.min(2 * pause, longestPause);
    return pause;
  }
}
