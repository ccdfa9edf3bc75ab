// Completes jobs whose handlers have no transaction, several in one statement, which also claims the next jobs.  When it is
// repeated after a lost answer, the outcome is already_committed.

import { sqlstate, textOf } from './errors.js';
import { recordsOf } from './logs.js';
import { endStale } from './settle.js';
import { settling } from './trace.js';
import { COMMIT_MANY, COMMIT_MANY_AND_CLAIM, jobFromRow } from './statements.js';

const maxRetries = 3;
/** If at least this many jobs end at once, they are completed in two statements. While the server executes one, the handlers of the other run. */
const splitFrom = 32;

/** @typedef {import('./job.js').Attempt} Attempt */
/** @typedef {import('./connection.js').Link} Link */
/** @typedef {{ attempt: Attempt, result: string | null }} Done */
/** @typedef {{ done: Done[], wants: number, link?: Link, then: (next: Attempt[]) => void }} Ended jobs that end together; wants: number of jobs to claim next */

export class GroupCommit {
  /** @type {Ended[]} */
  #ended = [];
  #committing = 0;

  /**
   * @param {import('./consumer.js').Consumer} worker
   * @param {(done: Done, error: unknown, link: Link) => Promise<string | null | undefined>} refused called if the server refuses a result: returns
   *   another result, or undefined if it has ended the attempt
   * @param {Link[]} [links] two links used only for completing jobs; without them, the links of the attempts are used
   */
  constructor(worker, refused, links = []) {
    this.worker = worker;
    this.refused = refused;
    this.links = links;
  }

  /**
   * Completes these jobs.
   * @param {Done[]} done @param {number} wants @param {Link} [link] a link that is idle
   * @returns {Promise<Attempt[]>} the jobs that the same statement has claimed
   */
  commit(done, wants, link) {
    return new Promise((then) => {
      this.#ended.push({ done, wants, link, then });
      if (this.#committing === 0) void this.#commitAll();
    });
  }

  async #commitAll() {
    this.#committing++;
    const own = this.links.pop();
    // Jobs that end in this turn of the event loop are included.
    for (await turn(); this.#ended.length > 0; await turn()) {
      const share = this.#committing === 1 && this.#ended.length >= splitFrom ? 2 : 1;
      const ended = this.#ended.splice(0, Math.ceil(this.#ended.length / share));
      if (share > 1) void this.#commitAll();
      const { ahead } = this.worker;
      const done = ended.flatMap((each) => each.done);
      const wants = ended.reduce((sum, each) => sum + each.wants, 0);
      const link = /** @type {Link} */ (own ?? ended[0].link);
      const next = ahead && wants > 0 ? await this.worker.claiming(done.length, (most) => this.#commit(done, most, link)) : await this.#commit(done, wants, link);
      // Claimed jobs begin in their order, in slots that are free or become free.
      if (ahead) ahead.accept(next.splice(0));
      for (const { wants, then } of ended) then(next.splice(0, wants));
    }
    if (own) this.links.push(own);
    this.#committing--;
  }

  /** @param {Done[]} done @param {number} wants @param {Link} link @returns {Promise<Attempt[]>} */
  async #commit(done, wants, link) {
    const pairs = [done.map(({ attempt }) => attempt.job.id), done.map(({ attempt }) => attempt.job.token), done.map(({ result }) => result)];
    done.forEach(({ attempt }) => (attempt.commitSent = true));
    for (let count = 1; ; count++) {
      try {
        return await this.#send(done, pairs, wants, link);
      } catch (error) {
        if (['40001', '40P01'].includes(sqlstate(error)) && count <= maxRetries) continue;
        if (!/^(22|54)/.test(sqlstate(error))) {
          done.forEach(({ attempt }) => this.worker.ended(attempt, 'lost', textOf(error)));
          return [];
        }
        // Perhaps the server cannot send the next job, and has not refused a result.
        if (wants > 0) return await this.#commit(done, 0, link);
        if (done.length > 1) {
          for (const one of done) await this.#commit([one], 0, link);
          return [];
        }
        const [{ attempt, result }] = done;
        attempt.commitSent = false;
        const instead = result === null ? undefined : await this.refused(done[0], error, link);
        if (instead !== undefined) return this.#commit([{ attempt, result: instead }], 0, link);
        if (result === null) this.worker.ended(attempt, 'lost', textOf(error));
        return [];
      }
    }
  }

  /** @param {Done[]} done @param {unknown[]} pairs @param {number} wants @param {Link} link @returns {Promise<Attempt[]>} */
  async #send(done, pairs, wants, link) {
    const { answer, again } = await link.repeat(async (session) => {
      const asked = Date.now();
      const claim = wants > 0 && this.worker.mayClaim;
      const given = this.worker.claimArguments(session, wants);
      const attempts = done.map(({ attempt }) => attempt);
      const rows = await settling(attempts, async () => {
        const answer = await session.send([
          claim ? { ...COMMIT_MANY_AND_CLAIM, values: [...pairs, ...given] } : { ...COMMIT_MANY, values: pairs },
          ...recordsOf(attempts, this.worker, session.utf8),
        ]);
        if (answer.error) throw answer.error;
        return answer.rows;
      });
      return { rows: rows[0], asked, session };
    });
    const { rows, asked, session } = answer;
    const outcomes = new Map(rows.filter(([outcome]) => outcome !== 'claimed').map(([outcome, id, token]) => [`${id} ${token}`, outcome]));
    const claimed = rows.filter(([outcome]) => outcome === 'claimed').map((fields) => jobFromRow(session, fields, 1));
    const next = this.worker.begun(claimed, asked, session);
    for (const { attempt } of done) {
      const outcome = outcomes.get(`${attempt.job.id} ${attempt.job.token}`);
      // In a queue that keeps no finished jobs, a completed job does not exist any more.
      const committed = outcome === 'committed' || outcome === 'already_committed' || (outcome === 'not_found' && again);
      if (committed) this.worker.ended(attempt, 'committed');
      else await endStale(this.worker, link, attempt, 'stale');
    }
    return next;
  }
}

/** The next turn of the event loop. @returns {Promise<unknown>} */
function turn() {
  return new Promise((resolve) => setImmediate(resolve));
}
