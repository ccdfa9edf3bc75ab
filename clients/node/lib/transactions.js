// Worker.run: a handler's effects and its job's commit share a transaction.
//
// It begins when the handler uses its client (client.js), with the lock of assert_current, which keeps the job from being
// taken back.  The commit, the claim of the next job and COMMIT are one message; on a session of our own BEGIN and the lock of the job
// just claimed go along, when the last handler has begun with a statement.  What stands behind COMMIT fails no job: it is asked
// again.  A handler that has not used its client has nothing to commit with its job, which is committed as in runOutside.
//
// When the answer to COMMIT is lost, the transaction is run again, and locks first: IQ006 from assert_current says that it was
// committed.  Each transaction of several jobs that fails is undone, and its jobs run again, each alone.

import { Commits } from './commits.js';
import { Line, broken, sleep } from './connection.js';
import { json } from './enqueue.js';
import { sqlstate, typed } from './errors.js';
import { Work, handlerClient } from './client.js';
import { settle } from './settle.js';
import { ASSERT_CURRENT, BEGIN, COMMIT, COMMIT_AND_CLAIM, COMMIT_ONE, COMMIT_ONE_AND_CLAIM, END, HOLD_CLAIMED, PATIENT, jobOf } from './statements.js';

const tries = 3;
/** A handler that uses its client within so many milliseconds: the next one's transaction begins with its claim. */
const soon = 2;
/** Milliseconds that statements may take to end which a handler has left behind when it threw. */
const leftBehind = 1000;

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
/** @typedef {import('./commits.js').Done} Done */
/** @typedef {{ cancelling?: Promise<void>, client?: import('../index.js').HandlerClient }} Left what the last handler has left: a cancel that is under way, its client */

/** Where one transaction at a time runs. */
class Lane {
  /** Whether the last handler has used its client at once. */
  quick = false;
  /** The session that is in a transaction and has locked the job claimed last. @type {Session | undefined} */
  holding;

  /** @param {Line} line */
  constructor(line) {
    this.line = line;
  }
}

export class Transactions {
  /** @type {Lane[]} */
  #idle = [];
  /** @type {Lane[]} */
  #lanes = [];

  /** @param {import('./worker.js').Context} worker @param {import('../index.js').Handler} handler */
  constructor(worker, handler) {
    this.worker = worker;
    this.handler = handler;
    this.commits = new Commits(worker, async ({ attempt }, error, line) => {
      await settle(worker, line, attempt, error);
      return undefined;
    });
  }

  /** The line for outside effects: none. */
  line() {
    return undefined;
  }

  /** A lane for attempts that follow each other. */
  enter() {
    return this.#idle.pop() ?? this.#lanes[this.#lanes.push(new Lane(new Line(this.worker.server))) - 1];
  }

  /** @param {Lane} lane */
  leave(lane) {
    this.#idle.push(lane);
  }

  /** Runs attempts to their end. @param {Attempt[]} attempts @param {Lane} lane @returns {Promise<Attempt[]>} those that were claimed with the last commit */
  async attempt(attempts, lane) {
    // One that was lost before may be what ends its worker: it takes no others along.
    const first = attempts.filter((attempt) => attempt.job.attempt === 1);
    const groups = [...attempts.filter((attempt) => attempt.job.attempt > 1).map((attempt) => [attempt]), ...(first.length > 0 ? [first] : [])];
    for (let group; (group = groups.shift());) {
      const next = await this.#run(lane, group, groups.length === 0);
      if (groups.length === 0 && next) return next;
      if (!next) groups.unshift(...group.map((attempt) => [attempt]));
    }
    return [];
  }

  /**
   * Runs attempts in one transaction. Answers what it claimed; null: they are to run again, each alone.
   * @param {Lane} lane @param {Attempt[]} group @param {boolean} claim @returns {Promise<Attempt[] | null>}
   */
  async #run(lane, group, claim) {
    const [attempt] = group;
    const { line } = lane;
    // Whether COMMIT was sent and not answered: then only assert_current knows.
    let unsure = group.some(({ sent }) => sent);
    for (let count = 1; ; count++) {
      /** @type {Session | undefined} */
      let on;
      try {
        const { next, done } = await line.hold((session) => this.#transaction((on = session), lane, group, claim, count > 1 || unsure));
        if (done) return await this.worker.lent(this.commits.commit(done, claim ? this.worker.batch : 0, line));
        group.forEach((each) => this.worker.ended(each, 'committed'));
        return /** @type {Attempt[]} */ (next);
      } catch (error) {
        if (group.length > 1) return null;
        if (error instanceof Settled) {
          // Of a queue that keeps no finished jobs, a job that was committed is not there.
          const committed = error.outcome === 'IQ006' || (error.outcome === 'IQ002' && unsure);
          this.worker.ended(attempt, committed ? 'committed' : 'stale');
          return [];
        }
        const cut = on && broken(error, on);
        if (cut) unsure ||= attempt.sent;
        else if (sqlstate(error)) attempt.sent = unsure;
        const again = cut || ['40001', '40P01'].includes(sqlstate(error));
        if (again && (!attempt.why || attempt.sent) && count <= tries && !this.worker.server.life.over.aborted) {
          // The transaction was at the wrong place: that is no try.
          if (on?.moved) count--;
          await sleep(20 * count, this.worker.server.life.over);
          if (cut) await this.worker.lent(line.hold(async () => {}).catch(() => {}));
          continue;
        }
        if (!on && !this.worker.server.life.patient) throw error;
        await this.worker.lent(settle(this.worker, line, attempt, error));
        return [];
      }
    }
  }

  /**
   * Calls the handlers, and commits with what they have done. Answers what was claimed with the commit; done: nothing of theirs is to be
   * committed with their jobs.
   * @param {Session} session @param {Lane} lane @param {Attempt[]} group @param {boolean} claim
   * @param {boolean} lock begins at once @returns {Promise<{ next?: Attempt[], done?: Done[] }>}
   */
  async #transaction(session, lane, group, claim, lock) {
    // In the order of ids, as the server's own batches: two of them never wait for each other.
    const jobs = [...group].sort((a, b) => (BigInt(a.job.id) < BigInt(b.job.id) ? -1 : 1));
    const work = new Work(session, () => this.#begin(session, jobs), lane.holding === session);
    /** @type {Left} */
    const left = {};

    lane.holding = undefined;
    session.controlled = false;
    try {
      // A lease that may be over: the server knows.
      if (lock || jobs.some((attempt) => attempt.lost || attempt.on?.gone)) await work.begin();
      const began = performance.now();
      /** @type {Done[]} */
      const done = [];
      for (const attempt of jobs) done.push({ attempt, result: await this.#call(work, attempt, left) });
      await left.cancelling;
      lane.quick = work.usedAt !== undefined && work.usedAt - began < soon;
      if (!work.touched) {
        for (const attempt of jobs) if (Date.now() > attempt.leaseEnds) this.worker.heldUp(attempt);
        return { done };
      }
      return { next: await this.#commit(session, lane, done, claim) };
    } catch (error) {
      // A cancel that is under way would meet the next statement; a handler that was left may send one.
      if (work.touched) {
        if (!left.cancelling) await session.drained(leftBehind);
        if (left.cancelling || session.busy || jobs.some((attempt) => attempt.abandoned)) session.destroy();
        else if (!broken(error, session)) {
          work.ending = true;
          await (left.client ?? session).query('ROLLBACK').catch(() => session.destroy());
        }
      }
      throw settled(work.failed) ?? work.failed ?? error;
    }
  }

  /** Begins the transaction, and locks its jobs. @param {Session} session @param {Attempt[]} jobs */
  async #begin(session, jobs) {
    const locks = jobs.map(({ job }) => ({ ...ASSERT_CURRENT, values: [job.id, job.token] }));
    for (const attempt of jobs) attempt.bare = false;
    const { error } = await session.send([BEGIN, ...(session.direct ? [] : [PATIENT]), ...locks]);
    if (error) throw typed(error);
  }

  /**
   * Calls a handler; its result as JSON.
   * @param {Work} work @param {Attempt} attempt @param {Left} left
   * @returns {Promise<string | null>}
   */
  async #call(work, attempt, left) {
    const { session } = work;
    let ended = false;
    const client = handlerClient(work, () => {
      if (!ended && !attempt.abandoned) {
        // Another has the job: its handler is told.
        if (settled(work.failed)) attempt.cancel('lease');
        return attempt.over;
      }
      this.worker.logger.warn(`idemq: ${attempt.name}: a statement after the end of its handler was refused`);
      return new Error('the handler has ended, and its transaction with it');
    });
    left.client = attempt.client = client;
    attempt.waiting = undefined;
    attempt.arrived = [];
    attempt.bare = !work.touched;
    try {
      const result = await attempt.call(
        async () => {
          const answer = await this.handler(attempt.job, client);
          // What it has not awaited; what waits for an event is known after that.
          await work.drained();
          return answer;
        },
        // Nothing of an untouched one runs: the cancel would meet another's statement.
        () => work.touched && !work.failed && (left.cancelling = session.cancel()),
      );
      if (work.failed) throw work.failed;
      if (work.touched && (session.status === 'I' || session.controlled)) {
        throw new Error('the handler has ended the transaction, which its job is to be committed in: let it be, or use runOutside');
      }
      if (attempt.waiting) throw attempt.waiting;
      return result === undefined ? null : json(result, 'the result');
    } finally {
      ended = true;
      attempt.bare = false;
    }
  }

  /** @param {Session} session @param {Lane} lane @param {Done[]} done @param {boolean} claim @returns {Promise<Attempt[]>} */
  async #commit(session, lane, done, claim) {
    const more = claim && this.worker.claims;
    const given = more ? this.worker.claimArguments(session) : [];
    const asked = Date.now();
    if (done.length > 1) return this.#commitMany(session, done, more, given, asked);

    const [{ attempt, result }] = done;
    const hold = more && lane.quick && session.direct && session.holds && this.worker.batch === 1;
    const commit = { ...(more ? COMMIT_ONE_AND_CLAIM : COMMIT_ONE), values: [attempt.job.id, attempt.job.token, result, ...given] };
    attempt.sent = true;
    const { rows, tags, error } = await session.send([commit, END, ...(hold ? [BEGIN, HOLD_CLAIMED] : [])]);
    if (tags[1] !== 'COMMIT') {
      // While the job was locked nobody but its handler can have ended it.
      if (sqlstate(error) === 'IQ006') throw new Error('the handler has ended its job itself: let the worker do that, or use runOutside', { cause: error });
      throw settled(error) ?? error ?? new Error('the transaction was rolled back');
    }
    // It is committed, whatever else has been answered.
    const next = more ? this.worker.begun(rows[0].map((fields) => jobOf(session, fields, 0)), asked, session) : [];
    if (!hold) return next;
    const answer = error ? 'busy' : rows[3][0][0];
    if (broken(error, session)) session.destroy();
    else if (answer === 'held' && next.length === 1) lane.holding = session;
    else session.query('ROLLBACK').catch(() => session.destroy());
    if (answer === 'gone') next.forEach((each) => (each.lost = true));
    return next;
  }

  /** @param {Session} session @param {Done[]} done @param {boolean} more @param {unknown[]} given @param {number} asked @returns {Promise<Attempt[]>} */
  async #commitMany(session, done, more, given, asked) {
    const pairs = [done.map(({ attempt }) => attempt.job.id), done.map(({ attempt }) => attempt.job.token), done.map(({ result }) => result)];
    const { rows, error } = await session.send([{ ...(more ? COMMIT_AND_CLAIM : COMMIT), values: [...pairs, ...given] }]);
    if (error) throw error;
    const refused = rows[0].find(([outcome]) => outcome !== 'claimed' && outcome !== 'committed');
    if (refused) throw new Settled({ already_committed: 'IQ006', not_found: 'IQ002' }[/** @type {string} */ (refused[0])] ?? 'IQ001');
    done.forEach(({ attempt }) => (attempt.sent = true));
    const answer = await session.send([END]);
    if (answer.tags[0] !== 'COMMIT') throw answer.error ?? new Error('the transaction was rolled back');
    const claimed = rows[0].filter(([outcome]) => outcome === 'claimed').map((fields) => jobOf(session, fields, 1));
    return this.worker.begun(claimed, asked, session);
  }

  async end() {
    await Promise.all(this.#lanes.map(({ line }) => line.end()));
  }
}

/** What an error of our own statement means for the job, if it is about that. @param {unknown} error @returns {Settled | undefined} */
function settled(error) {
  if (error instanceof Settled) return error;
  return ['IQ001', 'IQ002', 'IQ006'].includes(sqlstate(error)) ? new Settled(sqlstate(error)) : undefined;
}
