// Places for handlers: those of one worker, over all the shards that it works for.
//
// A shard takes a place before it claims, and leaves it after the attempt; a place goes to who has asked
// first, where a home shard counts as asking homeFirst earlier.  So home shards come first, the others get
// what they leave over, and are not forgotten when home is always busy.
//
// A place goes on with the next job of its own shard, which is claimed with the commit of the last, until
// somebody else wants it: after `turn`, so that not each job costs a claim of its own; at once, when a
// home shard waits for one that is not home.

const homeFirst = 5000;
const turn = 100;
const long = 1000;

/** @typedef {{ asked: number, home: boolean, given: () => void }} Asking */

/** The places that shards share. */
export class Pool {
  /** In the order of asked. @type {Asking[]} */
  #queue = [];

  /** @param {number} free */
  constructor(free) {
    this.free = free;
  }

  /**
   * One place or more; waits for the first. 0: the signal came before.
   * @param {number} most @param {boolean} home @param {AbortSignal} until @returns {Promise<number>}
   */
  async take(most, home, until) {
    if (this.free > 0) this.free--;
    else if (!(await this.#turn(home, until))) return 0;
    const more = Math.max(Math.min(most - 1, this.free), 0);
    this.free -= more;
    return 1 + more;
  }

  /** @param {boolean} home @param {AbortSignal} until @returns {Promise<boolean>} */
  #turn(home, until) {
    return new Promise((resolve) => {
      const end = (/** @type {boolean} */ given) => {
        until.removeEventListener('abort', stop);
        resolve(given);
      };
      const one = { asked: Date.now() - (home ? homeFirst : 0), home, given: () => end(true) };
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
  leave(count) {
    this.free += count;
    while (this.free > 0 && this.#queue.length > 0) {
      this.free--;
      /** @type {Asking} */ (this.#queue.shift()).given();
    }
  }

  /** By somebody who would come before a shard that asks now. @param {boolean} home @param {number} since it has gone on since then */
  wanted(home, since) {
    const now = Date.now();
    const [first] = this.#queue;
    return !!first && (now - since >= turn || (first.home && !home)) && first.asked <= now - (home ? homeFirst : 0);
  }
}

/** What one shard sees of them. */
export class Places {
  #since = 0;

  /** @param {Pool} pool @param {boolean} home */
  constructor(pool, home) {
    this.pool = pool;
    this.home = home;
  }

  /** @param {number} most @param {AbortSignal} until */
  async take(most, until) {
    const taken = await this.pool.take(most, this.home, until);
    this.#since = Date.now();
    return taken;
  }

  /** @param {number} count */
  leave(count) {
    this.pool.leave(count);
  }

  get wanted() {
    return this.pool.wanted(this.home, this.#since);
  }

  /**
   * What work answers, which only asks the server: if that takes long, the place is another's meanwhile.
   * After that it goes on, and for a while there may be more handlers than places.
   * @template T @param {Promise<T>} work @returns {Promise<T>}
   */
  async lent(work) {
    let away = false;
    const timer = setTimeout(() => {
      away = true;
      this.leave(1);
    }, long);
    try {
      return await work;
    } finally {
      clearTimeout(timer);
      if (away) this.pool.free--;
    }
  }
}
