// Slots for handlers: those of one worker, over all the shards that it works for.
//
// A shard takes a slot before it claims, and leaves it after the attempt; a slot goes to who has asked
// first, where a home shard counts as asking homeHeadStart earlier.  So home shards come first, the others get
// what they leave over, and are not forgotten when home is always busy.
//
// A slot goes on with the next job of its own shard, which is claimed with the commit of the last, until
// somebody else wants it: after `timeSlice`, so that not each job costs a claim of its own; at once, when a
// home shard waits for one that is not home.

const homeHeadStart = 5000;
const timeSlice = 100;
const lendAfter = 1000;

/** @typedef {{ asked: number, home: boolean, given: () => void }} Asking */

/** The slots that shards share. */
export class SlotPool {
  /** In the order of asked. @type {Asking[]} */
  #queue = [];

  /** @param {number} free */
  constructor(free) {
    this.free = free;
  }

  /**
   * One slot or more; waits for the first. 0: the signal came before.
   * @param {number} most @param {boolean} home @param {AbortSignal} until @returns {Promise<number>}
   */
  async acquire(most, home, until) {
    if (this.free > 0) this.free--;
    else if (!(await this.#waitForSlot(home, until))) return 0;
    const more = Math.max(Math.min(most - 1, this.free), 0);
    this.free -= more;
    return 1 + more;
  }

  /** @param {boolean} home @param {AbortSignal} until @returns {Promise<boolean>} */
  #waitForSlot(home, until) {
    return new Promise((resolve) => {
      const end = (/** @type {boolean} */ given) => {
        until.removeEventListener('abort', stop);
        resolve(given);
      };
      const one = { asked: Date.now() - (home ? homeHeadStart : 0), home, given: () => end(true) };
      const stop = () => {
        this.#queue = this.#queue.filter((other) => other !== one);
        end(false);
      };
      if (until.aborted) return resolve(false);
      until.addEventListener('abort', stop);
      const after = this.#queue.findIndex(({ asked }) => asked > one.asked);
      this.#queue.splice(after < 0 ? this.#queue.length : after, 0, one);
    });
  }

  /** @param {number} count */
  release(count) {
    this.free += count;
    while (this.free > 0 && this.#queue.length > 0) {
      this.free--;
      /** @type {Asking} */ (this.#queue.shift()).given();
    }
  }

  /** By somebody who would come before a shard that asks now. @param {boolean} home @param {number} since it has gone on since then */
  shouldYield(home, since) {
    const now = Date.now();
    const [first] = this.#queue;
    return !!first && (now - since >= timeSlice || (first.home && !home)) && first.asked <= now - (home ? homeHeadStart : 0);
  }
}

/** What one shard sees of them. */
export class ShardSlots {
  #since = 0;

  /** @param {SlotPool} pool @param {boolean} home */
  constructor(pool, home) {
    this.pool = pool;
    this.home = home;
  }

  /** @param {number} most @param {AbortSignal} until */
  async acquire(most, until) {
    const taken = await this.pool.acquire(most, this.home, until);
    this.#since = Date.now();
    return taken;
  }

  /** @param {number} count */
  release(count) {
    this.pool.release(count);
  }

  get shouldYield() {
    return this.pool.shouldYield(this.home, this.#since);
  }

  /**
   * What work answers, which only asks the server: if that takes long, the slot is another's meanwhile.
   * After that it goes on, and for a while there may be more handlers than slots.
   * @template T @param {Promise<T>} work @returns {Promise<T>}
   */
  async lendWhile(work) {
    let away = false;
    const timer = setTimeout(() => {
      away = true;
      this.release(1);
    }, lendAfter);
    try {
      return await work;
    } finally {
      clearTimeout(timer);
      if (away) this.pool.free--;
    }
  }
}
