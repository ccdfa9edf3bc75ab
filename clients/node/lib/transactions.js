// Worker.run: a handler's effects and the completion of its job share a transaction.
//
// It begins when the handler first uses its client (handler-client.js).  Its first statement, assert_current, locks the job, so that the
// job cannot be taken back.  commit_and_claim and COMMIT are one message.  On a session that belongs to the worker, the message also contains
// BEGIN and the lock of the job just claimed, if the last handler used its client at once.  An error after COMMIT fails no job; the
// statements are sent again.  If a handler has not used its client, its job is completed as in runOutside.
//
// If the answer to COMMIT is lost, the transaction runs again, and IQ006 from assert_current shows that it was
// committed.  If a transaction of several jobs fails, it rolls back, and each of its jobs runs alone.  A call of job.step in one does the same.

import { Link, broken, sleep } from './connection.js';
import { encoded } from './codec.js';
import { json } from './enqueue.js';
import { sqlstate, typed } from './errors.js';
import { GroupCommit } from './group-commit.js';
import { BatchEnded, HandlerTransaction, handlerClient } from './handler-client.js';
import { recordsOf } from './logs.js';
import { endStale, settle } from './settle.js';
import { endBackend } from './silence.js';
import { processing, settling } from './trace.js';
import { ASSERT_CURRENT, BEGIN, COMMIT_MANY, COMMIT_MANY_AND_CLAIM, COMMIT_ONE, COMMIT_ONE_AND_CLAIM, COMMIT_TRANSACTION, HOLD_CLAIMED, NO_IDLE_TIMEOUT, jobFromRow } from './statements.js';

const maxReruns = 3;
/** If a handler uses its client within this many milliseconds, the next job's transaction begins with its claim. */
const quickFirstUse = 2;
/** Milliseconds that unfinished statements of a handler that threw may take to end. */
const leftoverTimeout = 1000;
/** Milliseconds that jobs wait for the connection of their slot. */
const connectTimeout = 3000;

/** An answer about the job itself, after which its transaction must roll back. */
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
/** @typedef {{ cancelling?: Promise<void>, client?: import('../index.js').HandlerClient }} Left state that the last handler has left: a cancel that is under way, and its client */

/** A slot that runs one transaction at a time. */
class TransactionSlot {
  /** Whether the last handler used its client at once. */
  quick = false;
  /** The session that is in a transaction and has locked the last claimed job. @type {Session | undefined} */
  locked;
  /** A direct session that was given up during a transaction. @type {Session | undefined} */
  givenUp;

  /** @param {Link} link */
  constructor(link) {
    this.link = link;
  }
}

/** The slots of all queues of a worker. Each has a connection, which is opened when it is first needed. */
export class TransactionSlots {
  /** @type {TransactionSlot[]} */
  #idle = [];
  /** @type {TransactionSlot[]} */
  #all = [];

  /** @param {import('./connection.js').Server} server */
  constructor(server) {
    this.server = server;
  }

  acquire() {
    return this.#idle.pop() ?? this.#all[this.#all.push(new TransactionSlot(new Link(this.server))) - 1];
  }

  /** @param {TransactionSlot} slot */
  release(slot) {
    this.#idle.push(slot);
  }

  async end() {
    await Promise.all(this.#all.map(({ link }) => link.end()));
  }
}

export class Transactions {
  /** @param {import('./consumer.js').Consumer} worker @param {import('../index.js').Handler} handler @param {TransactionSlots} slots */
  constructor(worker, handler, slots) {
    this.worker = worker;
    this.handler = handler;
    this.slots = slots;
    this.groupCommit = new GroupCommit(worker, async ({ attempt }, error, link) => {
      await settle(worker, link, attempt, error);
      return undefined;
    });
  }

  /** The link for outside effects. There is none here. */
  link() {
    return undefined;
  }

  /** A slot for consecutive attempts. */
  acquire() {
    return this.slots.acquire();
  }

  /** @param {TransactionSlot} slot */
  release(slot) {
    this.slots.release(slot);
  }

  /**
   * Whether attempts can run in a slot. If its connection cannot be opened although the worker has one, for example because the server accepts no more of
   * them, other workers get the jobs. The slot then takes no job until it is connected.
   * @param {Attempt[]} attempts @param {TransactionSlot} slot
   */
  async #connected(attempts, { link }) {
    const { control, server, stopping } = this.worker;
    if (link.session || !server.life.retryConnect) return true;
    const opened = link.withSession(async () => {}, stopping).then(() => true, () => true);
    while (!(await Promise.race([opened, sleep(connectTimeout, server.life.over)]))) {
      if (server.life.over.aborted) return true;
      if (!control.session) continue;
      await this.worker.giveBack(attempts, 'there is no connection for its handler');
      await opened;
      return false;
    }
    return true;
  }

  /** Runs attempts to their end. @param {Attempt[]} attempts @param {TransactionSlot} slot @returns {Promise<Attempt[]>} the attempts that were claimed with the last commit */
  async attempt(attempts, slot) {
    if (!(await this.#connected(attempts, slot))) return [];
    // A job that was lost before may be the cause of a crash, so it runs alone.
    const first = attempts.filter((attempt) => attempt.job.attempt === 1);
    let groups = [...attempts.filter((attempt) => attempt.job.attempt > 1).map((attempt) => [attempt]), ...(first.length > 0 ? [first] : [])];
    while (groups.length > 0) {
      const [group] = groups.splice(0, 1);
      const next = await this.#run(slot, group, groups.length === 0 && !this.worker.ahead);
      if (groups.length === 0 && next) return next;
      if (!next) groups.unshift(...group.map((attempt) => [attempt]));
      const left = await this.worker.unheld(groups.flat()); // this one may have been the tenth failure
      groups = groups.map((each) => each.filter((attempt) => left.includes(attempt))).filter((each) => each.length > 0);
    }
    return [];
  }

  /**
   * Runs attempts in one transaction. Returns the attempts that it claimed, or null if each must run again alone.
   * @param {TransactionSlot} slot @param {Attempt[]} group @param {boolean} claim @returns {Promise<Attempt[] | null>}
   */
  async #run(slot, group, claim) {
    const [attempt] = group;
    const { link } = slot;
    // Whether COMMIT was sent but not answered. Then only assert_current can tell the outcome.
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
        if (group.length > 1) {
          if (error instanceof BatchEnded) this.worker.logger.info(`idemq: ${this.worker.queue}: running the ${group.length} jobs of a transaction one at a time: ${error.message}`);
          return null;
        }
        if (attempt.released) {
          this.worker.ended(attempt, 'waiting', attempt.waiting?.message);
          return [];
        }
        if (error instanceof Settled) {
          // In a queue that keeps no finished jobs, a completed job does not exist any more.
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
          // The transaction was sent to the wrong place, so this does not count as a try.
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
   * Calls the handlers, and commits their changes with their jobs. next: the attempts claimed with the commit. done: the jobs whose handlers
   * have no changes to commit.
   * @param {Session} session @param {TransactionSlot} slot @param {Attempt[]} group @param {boolean} claim
   * @param {boolean} lock whether to begin at once @returns {Promise<{ next?: Attempt[], done?: Done[] }>}
   */
  async #transaction(session, slot, group, claim, lock) {
    // In the order of ids, like the server's own batches, so that two batches never deadlock.
    const jobs = [...group].sort((a, b) => (BigInt(a.job.id) < BigInt(b.job.id) ? -1 : 1));
    const handlerTransaction = new HandlerTransaction(session, jobs, {
      begin: () => this.#begin(session, jobs), begun: slot.locked === session, control: this.worker.control,
    });
    /** @type {Left} */
    const left = {};

    slot.locked = undefined;
    session.controlled = false;
    try {
      // The lease may have expired; only the server knows.
      if (lock || jobs.some((attempt) => attempt.lost || attempt.leaseSession?.gone)) await handlerTransaction.begin();
      const began = performance.now();
      /** @type {Done[]} */
      const done = [];
      const handle = async () => {
        for (const attempt of jobs) done.push({ attempt, result: await this.#call(handlerTransaction, attempt, left) });
      };
      for (const attempt of jobs) attempt.sharesSpan = jobs.length > 1;
      await (jobs.length > 1 ? processing(jobs, handle) : handle());
      await left.cancelling;
      slot.quick = handlerTransaction.apartCalls === 0 && handlerTransaction.usedAt !== undefined && handlerTransaction.usedAt - began < quickFirstUse;
      if (!handlerTransaction.touched) {
        for (const attempt of jobs) if (Date.now() > attempt.leaseEnds) this.worker.pauseClaims(attempt);
        return { done };
      }
      return { next: await this.#commit(session, slot, done, claim) };
    } catch (error) {
      // A cancel request that is under way could hit the next statement, and an abandoned handler could send a statement.
      if (handlerTransaction.touched || left.cancelling || jobs.some((attempt) => attempt.abandoned)) {
        if (!left.cancelling) await session.drained(leftoverTimeout);
        if (left.cancelling || session.busy || jobs.some((attempt) => attempt.abandoned)) {
          // After a statement that was cancelled in time, the server notices the end by itself. It does not notice a silent connection.
          if (session.direct && jobs.some(({ abandoned, why }) => abandoned || why === 'drain')) slot.givenUp = session;
          session.destroy();
        } else if (!broken(error, session)) {
          handlerTransaction.ending = true;
          await (left.client ?? session).query('ROLLBACK').catch(() => session.destroy());
        }
      }
      throw settled(handlerTransaction.failed) ?? handlerTransaction.failed ?? handlerTransaction.misuse ?? error;
    } finally {
      handlerTransaction.over = true;
    }
  }

  /** Begins the transaction and locks its jobs. @param {Session} session @param {Attempt[]} jobs */
  async #begin(session, jobs) {
    const locks = jobs.map(({ job }) => ({ ...ASSERT_CURRENT, values: [job.id, job.token] }));
    for (const attempt of jobs) attempt.unlocked = false;
    const { error } = await session.send([BEGIN, ...(session.direct ? [] : [NO_IDLE_TIMEOUT]), ...locks]);
    if (error) throw typed(error);
  }

  /**
   * Calls a handler and returns its result as JSON.
   * @param {HandlerTransaction} handlerTransaction @param {Attempt} attempt @param {Left} left
   * @returns {Promise<string | null>}
   */
  async #call(handlerTransaction, attempt, left) {
    const { session } = handlerTransaction;
    let ended = false;
    const client = handlerClient(handlerTransaction, () => {
      if (!ended && !attempt.abandoned) {
        // Another attempt has the job, so the handler is cancelled.
        if (settled(handlerTransaction.failed)) attempt.cancel('lease');
        return attempt.refusal;
      }
      this.worker.logger.warn(`idemq: ${attempt.name}: a statement was refused because its handler had already ended`);
      return new Error('the handler has ended, and so has its transaction');
    });
    left.client = client;
    attempt.restart(handlerTransaction, client);
    try {
      const result = await attempt.call(
        async () => {
          const answer = await attempt.handle(() => this.handler(attempt.job, client));
          // Wait for statements that it has not awaited; only then it is known whether it waits for an event.
          await handlerTransaction.drained();
          return answer;
        },
        // An idle session has no running statement, and a cancel request could hit another's.
        () => (handlerTransaction.touched || handlerTransaction.asking > 0) && !handlerTransaction.failed && (left.cancelling = session.cancel()),
      );
      if (handlerTransaction.failed ?? handlerTransaction.misuse) throw handlerTransaction.failed ?? handlerTransaction.misuse;
      if (handlerTransaction.touched && (session.status === 'I' || session.controlled)) {
        throw new Error('the handler has ended the transaction in which its job is committed; remove that statement, or use runOutside');
      }
      if (attempt.waiting) throw attempt.waiting;
      if (result === undefined) return null;
      return attempt.codec ? await encoded(attempt.codec, result, 'the result') : json(result, 'the result');
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
    const before = [commit, ...recordsOf([attempt], this.worker, session.utf8)];
    const { rows, tags, error } = await settling([attempt], async ({ failed, outcome }) => {
      const answer = await session.send([...before, COMMIT_TRANSACTION, ...(hold ? [BEGIN, HOLD_CLAIMED] : [])]);
      if (answer.tags[before.length] === 'COMMIT') outcome('committed');
      else failed(answer.error ?? new Error('the transaction was rolled back'));
      return answer;
    });
    if (tags[before.length] !== 'COMMIT') {
      // While the job was locked, only its handler can have ended it.
      if (sqlstate(error) === 'IQ006') throw new Error('the handler has ended its own job; let the worker end it, or use runOutside', { cause: error });
      throw settled(error) ?? error ?? new Error('the transaction was rolled back');
    }
    // The job is committed, whatever the other answers are.
    const next = more ? this.worker.begun(rows[0].map((fields) => jobFromRow(session, fields, 0)), asked, session) : [];
    if (!hold) return next;
    const answer = error ? 'busy' : rows[before.length + 2][0][0];
    if (broken(error, session)) session.destroy();
    else if (answer === 'held' && next.length === 1) slot.locked = session;
    else session.query('ROLLBACK').catch(() => session.destroy());
    if (answer === 'gone') next.forEach((each) => (each.lost = true));
    return next;
  }

  /** @param {Session} session @param {Done[]} done @param {boolean} more @param {unknown[]} given @param {number} asked @returns {Promise<Attempt[]>} */
  async #commitMany(session, done, more, given, asked) {
    return settling(done.map(({ attempt }) => attempt), async ({ outcome }) => {
      const next = await this.#commitTogether(session, done, more, given, asked);
      outcome('committed');
      return next;
    });
  }

  /** @param {Session} session @param {Done[]} done @param {boolean} more @param {unknown[]} given @param {number} asked @returns {Promise<Attempt[]>} */
  async #commitTogether(session, done, more, given, asked) {
    const pairs = [done.map(({ attempt }) => attempt.job.id), done.map(({ attempt }) => attempt.job.token), done.map(({ result }) => result)];
    const { rows, error } = await session.send([
      { ...(more ? COMMIT_MANY_AND_CLAIM : COMMIT_MANY), values: [...pairs, ...given] },
      ...recordsOf(done.map(({ attempt }) => attempt), this.worker, session.utf8),
    ]);
    if (error) throw error;
    const refused = rows[0].find(([outcome]) => outcome !== 'claimed' && outcome !== 'committed');
    if (refused) throw new Settled({ already_committed: 'IQ006', not_found: 'IQ002' }[/** @type {string} */ (refused[0])] ?? 'IQ001');
    done.forEach(({ attempt }) => (attempt.commitSent = true));
    const answer = await session.send([COMMIT_TRANSACTION]);
    if (answer.tags[0] !== 'COMMIT') throw answer.error ?? new Error('the transaction was rolled back');
    const claimed = rows[0].filter(([outcome]) => outcome === 'claimed').map((fields) => jobFromRow(session, fields, 1));
    return this.worker.begun(claimed, asked, session);
  }
}

/** The meaning for the job of an error of the worker's own statement, if it concerns the job. @param {unknown} error @returns {Settled | undefined} */
function settled(error) {
  if (error instanceof Settled) return error;
  return ['IQ001', 'IQ002', 'IQ006'].includes(sqlstate(error)) ? new Settled(sqlstate(error)) : undefined;
}
