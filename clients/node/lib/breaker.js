// Notices that the attempts of a queue keep failing with the same error, for example after a bad deployment.  While it is open, the worker runs
// one job at a time and pauses after each failure, so that the backlog does not use up its attempts.

import { fingerprint } from './errors.js';

const opensAfter = 10;
/** Milliseconds of pause after a failure; it doubles each time. */
const firstPause = 1000;
const longestPause = 10_000;
/** Kinds of which failures are remembered. */
const mostKinds = 1000;

export class Breaker {
  /** Failures in a row, by kind. @type {Map<string | null, { like: string, count: number }>} */
  #streaks = new Map();
  /** Kinds that keep failing. @type {Set<string | null>} */
  #open = new Set();
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
    if (!before && this.#streaks.size === mostKinds) this.#streaks.clear();
    this.#streaks.set(kind, { like, count });
    if (count < opensAfter || this.#open.has(kind)) return false;
    this.#open.add(kind);
    return true;
  }

  /** Called for a successful attempt. @param {string | null} kind @returns {boolean} whether this closes it */
  succeeded(kind) {
    this.#pause = firstPause;
    this.#streaks.delete(kind);
    return this.#open.delete(kind) && !this.open;
  }

  /** Milliseconds until the next claim, after a failed attempt. */
  pause() {
    if (!this.open) return 0;
    const pause = this.#pause;
    this.#pause = Math.min(2 * pause, longestPause);
    return pause;
  }
}
