// Worker.run: a handler's effects and its job's commit share a transaction.
//
// It begins when the handler uses its client (handler-client.js), with the lock of assert_current, which keeps the job from being
// taken back.  The commit, the claim of the next job and COMMIT are one message; on a session of our own BEGIN and the lock of the job
// just claimed go along, when the last handler has begun with a statement.  What stands behind COMMIT fails no job: it is asked
// again.  A handler that has not used its client has nothing to commit with its job, which is committed as in runOutside.
//
// When the answer to COMMIT is lost, the transaction is run again, and locks first: IQ006 from assert_current says that it was
// committed.  Each transaction of several jobs that fails is undone, and its jobs run again, each alone.

import { Link, broken, sleep } from './connection.js';
import { json } from './enqueue.js';
import { sqlstate, typed } from './errors.js';
import { GroupCommit } from './group-commit.js';
import { HandlerTransaction, handlerClient } from './handler-client.js';
import { endStale, settle } from './settle.js';
import { endBackend } from './silence.js';
import { ASSERT_CURRENT, BEGIN, COMMIT_MANY, COMMIT_MANY_AND_CLAIM, COMMIT_ONE, COMMIT_ONE_AND_CLAIM, COMMIT_TRANSACTION, HOLD_CLAIMED, NO_IDLE_TIMEOUT, jobFromRow } from './statements.js';

const maxReruns = 3;
/** A handler that uses its client within so many milliseconds: the next one's transaction begins with its claim. */
const quickFirstUse = 2;
/** Milliseconds that statements may take to end which a handler has left behind when it threw. */
const leftoverTimeout = 1000;

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
/** @typedef {import('./group-commit.js').Done} Done */
/** @typedef {{ cancelling?: Promise<void>, client?: import('../index.js').HandlerClient }} Left what the last handler has left: a cancel that is under way, its client */

/** Where one transaction at a time runs. */
class TransactionSlot {
  /** Whether the last handler has used its client at once. */
  quick = false;
  /** The session that is in a transaction and has locked the job claimed last. @type {Session | undefined} */
  locked;
  /** A direct session that was given up in a transaction. @type {Session | undefined} */
  givenUp;

  /** @param {Link} link */
  constructor(link) {
    this.link = link;
  }
}

export class Transactions {
  /** @type {TransactionSlot[]} */
  #idle = [];
  /** @type {TransactionSlot[]} */
  #slots = [];

  /** @param {import('./worker.js').Context} worker @param {import('../index.js').Handler} handler */
  constructor(worker, handler) {
    this.worker = worker;
    this.handler = handler;
    this.groupCommit = new GroupCommit(worker, async ({ attempt }, error, link) => {
      await settle(worker, link, attempt, error);
      return undefined;
    });
  }

  /** The link for outside effects: none. */
  link() {
    return undefined;
  }

  /** A slot for attempts that follow each other. */
  acquire() {
    return this.#idle.pop() ?? this.#slots[this.#slots.push(new TransactionSlot(new Link(this.worker.server))) - 1];
  }

  /** @param {TransactionSlot} slot */
  release(slot) {
    this.#idle.push(slot);
  }

  /** Runs attempts to their end. @param {Attempt[]} attempts @param {TransactionSlot} slot @returns {Promise<Attempt[]>} those that were claimed with the last commit */
  async attempt(attempts, slot) {
    // One that was lost before may be what ends its worker: it takes no others along.
    const first = attempts.filter((attempt) => attempt.job.attempt === 1);
    const groups = [...attempts.filter((attempt) => attempt.job.attempt > 1).map((attempt) => [attempt]), ...(first.length > 0 ? [first] : [])];
    for (let group; (group = groups.shift());) {
      const next = await this.#run(slot, group, groups.length === 0);
      if (groups.length === 0 && next) return next;
      if (!next) groups.unshift(...group.map((attempt) => [attempt]));
    }
    return [];
  }

  /**
   * Runs attempts in one transaction. Answers what it claimed; null: they are to run again, each alone.
   * @param {TransactionSlot} slot @param {Attempt[]} group @param {boolean} claim @returns {Promise<Attempt[] | null>}
   */
  async #run(slot, group, claim) {
    const [attempt] = group;
    const { link } = slot;
    // Whether COMMIT was sent and not answered: then only assert_current knows.
    let unsure = group.some(({ commitSent }) => commitSent);
    for (let count = 1; ; count++) {
      /** @type {Session | undefined} */
      let on;
      try {
        const { next, done } = await link.withSession((session) => this.#transaction((on = session), slot, group, claim, count > 1 || unsure));
        if (done) return await this.worker.lendWhile(this.groupCommit.commit(done, claim ? this.worker.batch : 0, link));
        group.forEach((each) => this.worker.ended(each, 'committed'));
        return /** @type {Attempt[]} */ (next);
      } catch (error) {
        if (group.length > 1) return null;
        if (error instanceof Settled) {
          // Of a queue that keeps no finished jobs, a job that was committed is not there.
          const committed = error.outcome === 'IQ006' || (error.outcome === 'IQ002' && unsure);
          if (committed) this.worker.ended(attempt, 'committed');
          else await this.worker.lendWhile(endStale(this.worker, link, attempt, 'stale'));
          return [];
        }
        const cut = on && broken(error, on);
        if (cut) unsure ||= attempt.commitSent;
        else if (sqlstate(error)) attempt.commitSent = unsure;
        const again = cut || ['40001', '40P01'].includes(sqlstate(error));
        if (again && (!attempt.why || attempt.commitSent) && count <= maxReruns && !this.worker.server.life.over.aborted) {
          // The transaction was at the wrong place: that is no try.
          if (on?.moved) count--;
          await sleep(20 * count, this.worker.server.life.over);
          if (cut) await this.worker.lendWhile(link.withSession(async () => {}).catch(() => {}));
          continue;
        }
        if (!on && !this.worker.server.life.retryConnect) throw error;
        await this.worker.lendWhile(this.#settle(slot, attempt, error));
        return [];
      }
    }
  }

  /** @param {TransactionSlot} slot @param {Attempt} attempt @param {unknown} error */
  async #settle(slot, attempt, error) {
    const { givenUp } = slot;
    slot.givenUp = undefined;
    if (givenUp) await endBackend(slot.link, givenUp);
    await settle(this.worker, slot.link, attempt, error);
  }

  /**
   * Calls the handlers, and commits with what they have done. Answers what was claimed with the commit; done: nothing of theirs is to be
   * committed with their jobs.
   * @param {Session} session @param {TransactionSlot} slot @param {Attempt[]} group @param {boolean} claim
   * @param {boolean} lock begins at once @returns {Promise<{ next?: Attempt[], done?: Done[] }>}
   */
  async #transaction(session, slot, group, claim, lock) {
    // In the order of ids, as the server's own batches: two of them never wait for each other.
    const jobs = [...group].sort((a, b) => (BigInt(a.job.id) < BigInt(b.job.id) ? -1 : 1));
    const handlerTransaction = new HandlerTransaction(session, () => this.#begin(session, jobs), slot.locked === session);
    /** @type {Left} */
    const left = {};

    slot.locked = undefined;
    session.controlled = false;
    try {
      // A lease that may be over: the server knows.
      if (lock || jobs.some((attempt) => attempt.lost || attempt.leaseSession?.gone)) await handlerTransaction.begin();
      const began = performance.now();
      /** @type {Done[]} */
      const done = [];
      for (const attempt of jobs) done.push({ attempt, result: await this.#call(handlerTransaction, attempt, left) });
      await left.cancelling;
      slot.quick = handlerTransaction.usedAt !== undefined && handlerTransaction.usedAt - began < quickFirstUse;
      if (!handlerTransaction.touched) {
        for (const attempt of jobs) if (Date.now() > attempt.leaseEnds) this.worker.pauseClaims(attempt);
        return { done };
      }
      return { next: await this.#commit(session, slot, done, claim) };
    } catch (error) {
      // A cancel that is under way would meet the next statement; a handler that was left may send one.
      if (handlerTransaction.touched) {
        if (!left.cancelling) await session.drained(leftoverTimeout);
        if (left.cancelling || session.busy || jobs.some((attempt) => attempt.abandoned)) {
          // As after a statement that was cancelled in time, the server notices by itself; a silent connection it does not.
          if (session.direct && jobs.some(({ abandoned, why }) => abandoned || why === 'drain')) slot.givenUp = session;
          session.destroy();
        } else if (!broken(error, session)) {
          handlerTransaction.ending = true;
          await (left.client ?? session).query('ROLLBACK').catch(() => session.destroy());
        }
      }
      throw settled(handlerTransaction.failed) ?? handlerTransaction.failed ?? error;
    }
  }

  /** Begins the transaction, and locks its jobs. @param {Session} session @param {Attempt[]} jobs */
  async #begin(session, jobs) {
    const locks = jobs.map(({ job }) => ({ ...ASSERT_CURRENT, values: [job.id, job.token] }));
    for (const attempt of jobs) attempt.unlocked = false;
    const { error } = await session.send([BEGIN, ...(session.direct ? [] : [NO_IDLE_TIMEOUT]), ...locks]);
    if (error) throw typed(error);
  }

  /**
   * Calls a handler; its result as JSON.
   * @param {HandlerTransaction} handlerTransaction @param {Attempt} attempt @param {Left} left
   * @returns {Promise<string | null>}
   */
  async #call(handlerTransaction, attempt, left) {
    const { session } = handlerTransaction;
    let ended = false;
    const client = handlerClient(handlerTransaction, () => {
      if (!ended && !attempt.abandoned) {
        // Another has the job: its handler is told.
        if (settled(handlerTransaction.failed)) attempt.cancel('lease');
        return attempt.refusal;
      }
      this.worker.logger.warn(`idemq: ${attempt.name}: a statement was refused because its handler had already ended`);
      return new Error('the handler has ended, and so has its transaction');
    });
    left.client = attempt.client = client;
    attempt.waiting = undefined;
    attempt.arrived = [];
    attempt.unlocked = !handlerTransaction.touched;
    try {
      const result = await attempt.call(
        async () => {
          const answer = await this.handler(attempt.job, client);
          // What it has not awaited; what waits for an event is known after that.
          await handlerTransaction.drained();
          return answer;
        },
        // Nothing of an untouched one runs: the cancel would meet another's statement.
        () => handlerTransaction.touched && !handlerTransaction.failed && (left.cancelling = session.cancel()),
      );
      if (handlerTransaction.failed) throw handlerTransaction.failed;
      if (handlerTransaction.touched && (session.status === 'I' || session.controlled)) {
        throw new Error('the handler has ended the transaction in which its job is committed: omit that statement, or use runOutside');
      }
      if (attempt.waiting) throw attempt.waiting;
      return result === undefined ? null : json(result, 'the result');
    } finally {
      ended = true;
      attempt.unlocked = false;
    }
  }

  /** @param {Session} session @param {TransactionSlot} slot @param {Done[]} done @param {boolean} claim @returns {Promise<Attempt[]>} */
  async #commit(session, slot, done, claim) {
    const more = claim && this.worker.mayClaim;
    const given = more ? this.worker.claimArguments(session) : [];
    const asked = Date.now();
    if (done.length > 1) return this.#commitMany(session, done, more, given, asked);

    const [{ attempt, result }] = done;
    const hold = more && slot.quick && session.direct && session.hasHoldClaimed && this.worker.batch === 1;
    const commit = { ...(more ? COMMIT_ONE_AND_CLAIM : COMMIT_ONE), values: [attempt.job.id, attempt.job.token, result, ...given] };
    attempt.commitSent = true;
    const { rows, tags, error } = await session.send([commit, COMMIT_TRANSACTION, ...(hold ? [BEGIN, HOLD_CLAIMED] : [])]);
    if (tags[1] !== 'COMMIT') {
      // While the job was locked nobody but its handler can have ended it.
      if (sqlstate(error) === 'IQ006') throw new Error('the handler has ended its own job: let the worker do that, or use runOutside', { cause: error });
      throw settled(error) ?? error ?? new Error('the transaction was rolled back');
    }
    // It is committed, whatever else has been answered.
    const next = more ? this.worker.begun(rows[0].map((fields) => jobFromRow(session, fields, 0)), asked, session) : [];
    if (!hold) return next;
    const answer = error ? 'busy' : rows[3][0][0];
    if (broken(error, session)) session.destroy();
    else if (answer === 'held' && next.length === 1) slot.locked = session;
    else session.query('ROLLBACK').catch(() => session.destroy());
    if (answer === 'gone') next.forEach((each) => (each.lost = true));
    return next;
  }

  /** @param {Session} session @param {Done[]} done @param {boolean} more @param {unknown[]} given @param {number} asked @returns {Promise<Attempt[]>} */
  async #commitMany(session, done, more, given, asked) {
    const pairs = [done.map(({ attempt }) => attempt.job.id), done.map(({ attempt }) => attempt.job.token), done.map(({ result }) => result)];
    const { rows, error } = await session.send([{ ...(more ? COMMIT_MANY_AND_CLAIM : COMMIT_MANY), values: [...pairs, ...given] }]);
    if (error) throw error;
    const refused = rows[0].find(([outcome]) => outcome !== 'claimed' && outcome !== 'committed');
    if (refused) throw new Settled({ already_committed: 'IQ006', not_found: 'IQ002' }[/** @type {string} */ (refused[0])] ?? 'IQ001');
    done.forEach(({ attempt }) => (attempt.commitSent = true));
    const answer = await session.send([COMMIT_TRANSACTION]);
    if (answer.tags[0] !== 'COMMIT') throw answer.error ?? new Error('the transaction was rolled back');
    const claimed = rows[0].filter(([outcome]) => outcome === 'claimed').map((fields) => jobFromRow(session, fields, 1));
    return this.worker.begun(claimed, asked, session);
  }

  async end() {
    await Promise.all(this.#slots.map(({ link }) => link.end()));
  }
}

/** What an error of our own statement means for the job, if it is about that. @param {unknown} error @returns {Settled | undefined} */
function settled(error) {
  if (error instanceof Settled) return error;
  return ['IQ001', 'IQ002', 'IQ006'].includes(sqlstate(error)) ? new Settled(sqlstate(error)) : undefined;
}
