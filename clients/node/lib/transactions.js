// Worker.run: a handler's effects and its job's commit share a transaction.
//
// BEGIN; assert_current, which keeps the job from being taken back; the handler; commit, and the claim
// of the next job; COMMIT.  When the answer to COMMIT is lost, the same transaction is run again: IQ006
// from assert_current says that it was committed.  Each transaction of several jobs that fails is undone, and its
// jobs run again, each alone.

import { Line, broken, sleep } from './connection.js';
import { sqlstate } from './errors.js';
import { json } from './enqueue.js';
import { settle } from './settle.js';
import { ASSERT_CURRENT, COMMIT, COMMIT_AND_CLAIM } from './statements.js';

const tries = 3;

/** The server's answer about the job itself: its transaction must roll back. */
class Settled extends Error {
  /** @param {string} outcome */
  constructor(outcome) {
    super(outcome);
    this.outcome = outcome;
  }
}

/** @typedef {import('./job.js').Attempt} Attempt */
/** @typedef {import('./connection.js').Session} Session */

export class Transactions {
  /** @type {Line[]} */
  #idle = [];
  /** @type {Line[]} */
  #lines = [];

  /** @param {import('./worker.js').Context} worker @param {import('../index.js').Handler} handler */
  constructor(worker, handler) {
    this.worker = worker;
    this.handler = handler;
  }

  /** The line for outside effects: none. */
  line() {
    return undefined;
  }

  /** Runs attempts to their end. @param {Attempt[]} attempts @returns {Promise<Attempt[]>} those that were claimed with the last commit */
  async attempt(attempts) {
    const line = this.#idle.pop() ?? this.#lines[this.#lines.push(new Line(this.worker.server)) - 1];
    try {
      // One that was lost before may be what ends its worker: it takes no others along.
      const first = attempts.filter((attempt) => attempt.job.attempt === 1);
      const groups = [...attempts.filter((attempt) => attempt.job.attempt > 1).map((attempt) => [attempt]), ...(first.length > 0 ? [first] : [])];
      for (let group; (group = groups.shift());) {
        const next = await this.#run(line, group, groups.length === 0);
        if (groups.length === 0 && next) return next;
        if (!next) groups.unshift(...group.map((attempt) => [attempt]));
      }
      return [];
    } finally {
      this.#idle.push(line);
    }
  }

  /**
   * Runs attempts in one transaction. Answers what it claimed; null: they are to run again, each alone.
   * @param {Line} line @param {Attempt[]} group @param {boolean} claim @returns {Promise<Attempt[] | null>}
   */
  async #run(line, group, claim) {
    const [attempt] = group;
    for (let count = 1; ; count++) {
      /** @type {Session | undefined} */
      let on;
      try {
        const next = await line.hold((session) => this.#transaction((on = session), group, claim));
        group.forEach((each) => this.worker.ended(each, 'committed'));
        return next;
      } catch (error) {
        if (group.length > 1) return null;
        if (error instanceof Settled) {
          // Of a queue that keeps no finished jobs, a job that was committed is not there.
          const committed = error.outcome === 'IQ006' || (error.outcome === 'IQ002' && attempt.sent);
          this.worker.ended(attempt, committed ? 'committed' : 'stale');
          return [];
        }
        const again = (on && broken(error, on)) || ['40001', '40P01'].includes(sqlstate(error));
        // Once COMMIT was sent, only assert_current knows.
        if (again && (!attempt.why || attempt.sent) && count <= tries && !this.worker.server.life.over.aborted) {
          // The transaction was at the wrong place: that is no try.
          if (on?.moved) count--;
          await sleep(20 * count, this.worker.server.life.over);
          if (on && broken(error, on)) await this.worker.lent(line.hold(async () => {}).catch(() => {}));
          continue;
        }
        if (!on && !this.worker.server.life.patient) throw error;
        await this.worker.lent(settle(this.worker, line, attempt, error));
        return [];
      }
    }
  }

  /** @param {Session} session @param {Attempt[]} group @param {boolean} claim @returns {Promise<Attempt[]>} */
  async #transaction(session, group, claim) {
    // In the order of ids, as the server's own batches: two of them never wait for each other.
    const jobs = [...group].sort((a, b) => (BigInt(a.job.id) < BigInt(b.job.id) ? -1 : 1));
    const ids = jobs.map(({ job }) => job.id);
    const tokens = jobs.map(({ job }) => job.token);
    /** @type {Promise<void> | undefined} */
    let cancelling;

    await session.query('BEGIN');
    try {
      for (const { job } of jobs) await settled(session.query(ASSERT_CURRENT, [job.id, job.token]));
      /** @type {(string | null)[]} */
      const results = [];
      for (const attempt of jobs) {
        attempt.client = session.client;
        attempt.waiting = undefined;
        attempt.arrived = [];
        const result = await attempt.call(
          () => this.handler(attempt.job, session.client),
          () => (cancelling = session.cancel()),
        );
        if (session.status === 'I') throw new Error('the handler has ended the transaction, which its job is to be committed in: let it be, or use runOutside');
        if (attempt.waiting) throw attempt.waiting;
        results.push(result === undefined ? null : json(result, 'the result'));
      }
      await cancelling;
      const asked = Date.now();
      const more = claim && this.worker.claims;
      const { rows } = await session.query(more ? COMMIT_AND_CLAIM : COMMIT, [ids, tokens, results, ...(more ? this.worker.claimArguments(session) : [])]);
      // An awaitEvent that the handler has not awaited was answered before.
      const waits = jobs.find(({ waiting }) => waiting);
      if (waits) throw waits.waiting;
      const refused = rows.find(({ outcome }) => outcome !== 'claimed' && outcome !== 'committed');
      if (refused) throw new Settled({ already_committed: 'IQ006', not_found: 'IQ002' }[/** @type {string} */ (refused.outcome)] ?? 'IQ001');
      jobs.forEach((attempt) => (attempt.sent = true));
      await session.query('COMMIT');
      return this.worker.begun(rows.filter(({ outcome }) => outcome === 'claimed'), asked);
    } catch (error) {
      // A cancel that is under way would meet the next statement; a handler that was left may send one.
      if (cancelling || jobs.some((attempt) => attempt.abandoned)) session.destroy();
      else if (!broken(error, session)) await session.query('ROLLBACK').catch(() => session.destroy());
      throw error;
    }
  }

  async end() {
    await Promise.all(this.#lines.map((line) => line.end()));
  }
}

/** Says of an error of our own statement what it means for the job. @template T @param {Promise<T>} query @returns {Promise<T>} */
async function settled(query) {
  try {
    return await query;
  } catch (error) {
    if (['IQ001', 'IQ002', 'IQ006'].includes(sqlstate(error))) throw new Settled(sqlstate(error));
    throw error;
  }
}
