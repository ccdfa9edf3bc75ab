// The handler slots of one worker, shared by all shards that it serves.
//
// A shard acquires a slot before it claims, and releases it after the attempt.  The shard that asked first gets the
// next slot, and a home shard counts as having asked homeHeadStart earlier.  So home shards come first, the others
// get the remaining slots, and the others are not starved if the home shards are always busy.
//
// A slot continues with the next job of its shard, which is claimed while the last one is completed, until
// another shard needs the slot.  It is then released after `timeSlice`, so that not every job needs a separate claim, or
// at once if a home shard is waiting for a slot of another shard.

const homeHeadStart = 5000;
const timeSlice = 100;
const lendAfter = 1000;

/** @typedef {{ asked: number, home: boolean, given: () => void }} Asking */

/** The slots that shards share. */
export class SlotPool {
  /** Waiting shards, sorted by `asked`. @type {Asking[]} */
  #queue = [];

  /** @param {number} free */
  constructor(free) {
    this.free = free;
  }

  /**
   * Acquires at least one slot, waiting for the first. Returns 0 if the signal fires first.
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

  /** Whether a shard is waiting that would come before one that asks now. @param {boolean} home @param {number} since when the slot has been in use */
  shouldYield(home, since) {
    const now = Date.now();
    const [first] = this.#queue;
    return !!first && (now - since >= timeSlice || (first.home && !home)) && first.asked <= now - (home ? homeHeadStart : 0);
  }
}

/** The slots as seen by one shard. */
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
   * Awaits work that only waits for the server. If that takes long, another shard can use the slot meanwhile.
   * Afterwards this shard continues, so for a while there can be more handlers than slots.
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
