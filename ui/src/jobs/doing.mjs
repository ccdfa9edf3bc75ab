// Actions on several jobs of a queue.  If the jobs were selected individually, the action runs in one transaction.
// If it is for all jobs of a tab and filter, each batch is a separate transaction, and a page shows the progress.
// The SQL functions themselves write the entries in idemq.audit.
import { randomBytes } from 'node:crypto';
import { addressTime, timesOf } from '../span.mjs';
import { filters, tabs, walk } from './walk.mjs';

/** Number of jobs per transaction. */
const SLICE = 500;
/** Maximum number of jobs that can be selected individually. */
export const MOST = 200;
/** Maximum number of actions in progress at the same time, and the time for which ended actions are kept. */
const AT_ONCE = 3;
const REMEMBERED = 60 * 60 * 1000;
/** The SQLSTATEs after which a batch is tried again: a row was locked for longer than lock_timeout, a deadlock, a serialization failure. */
const HELD = ['55P03', '40P01', '40001'];

const sum = (rows) => Object.fromEntries(rows.map(({ outcome, jobs }) => [outcome, Number(jobs)]));
const outcomes = (call) => async (query, { ids }) => sum(await query(`SELECT x.outcome::text, count(*) AS jobs FROM (${call}) x GROUP BY 1`, [ids]));

/** The actions by name.  needs: the required privilege; tabs: where the action is offered; success: the outcome that counts as success; done, does: texts for the user. */
export const doings = {
  retry: {
    title: 'Retry', needs: 'enqueue', tabs: ['retrying', 'dead', 'cancelled', 'all'], success: 'retrying', done: 'made ready',
    does: 'they become ready immediately, and dead or cancelled jobs get a fresh set of attempts. Running, blocked and completed jobs do not change.',
    run: outcomes('SELECT r.outcome FROM idemq.retry_many($1) r'),
  },
  run_now: {
    title: 'Run now', needs: 'enqueue', tabs: ['scheduled'], success: 'retrying', done: 'made ready',
    does: 'they become ready immediately, regardless of their scheduled time.',
    run: outcomes('SELECT r.outcome FROM idemq.retry_many($1) r'),
  },
  cancel: {
    title: 'Cancel', undo: false, needs: 'enqueue', tabs: ['waiting', 'running', 'retrying', 'blocked', 'scheduled', 'all'], success: 'cancelled', done: 'cancelled',
    does: 'they will not run. For running jobs, the workers’ commits are refused, but effects outside the database remain.',
    run: outcomes('SELECT c.outcome FROM idemq.cancel_many($1) c'),
  },
  priority: {
    title: 'Set priority', needs: 'enqueue', tabs: ['waiting', 'retrying', 'blocked', 'scheduled', 'all'], success: 'accepted', done: 'given the new priority', value: true,
    does: 'they get this priority (0 is claimed first, 9 last). Running and finished jobs do not change.',
    async run(query, { ids, value }) {
      return sum(await query(`SELECT x.outcome::text, count(*) AS jobs FROM (SELECT idemq.reschedule(i, priority => $2) AS outcome
        FROM (SELECT i FROM unnest($1::bigint[]) i ORDER BY i OFFSET 0) i) x GROUP BY 1`, [ids, value]));
    },
  },
  delete: {
    title: 'Delete', undo: false, needs: 'admin', tabs: ['waiting', 'retrying', 'blocked', 'scheduled', 'completed', 'dead', 'cancelled', 'all'], success: 'deleted', done: 'deleted',
    does: 'they are deleted with their attempts and steps, and their keys become free. Running jobs and jobs that another job waits for are kept. You cannot undo this.',
    async run(query, { queue, ids }) {
      const [{ jobs }] = await query('SELECT idemq.purge($1, ids => $2) AS jobs', [queue.name, ids]);
      return { deleted: Number(jobs), ...(ids.length > jobs ? { kept: ids.length - Number(jobs) } : {}) };
    },
  },
};

const wrong = (statusCode, message) => Object.assign(new Error(message), { statusCode });

/** The privileges of the role on a queue. */
export async function rights(query, queueId) {
  const [may] = await query(`SELECT coalesce(bool_or('enqueue' = ANY (p.privileges)), false) AS enqueue, coalesce(bool_or('admin' = ANY (p.privileges)), false) AS admin,
    coalesce(bool_or('claim' = ANY (p.privileges)), false) AS see FROM idemq.queue_privileges p WHERE p.queue_id = $1`, [queueId]);
  return may;
}

/** Throws an error with status 403 if the role lacks the privilege. */
export async function insist(query, needs, queue) {
  if (!(await rights(query, queue.queue_id))[needs])
    throw wrong(403, `The role that started this page lacks the privilege ${needs} on queue "${queue.name}" (42501). Ask an administrator of the queue to run SELECT idemq.grant_queue('${queue.name}', role, '${needs}').`);
}

/** The filter in an address: the known conditions, as text, and the time span of the page. */
export const filterOf = (given) => ({ ...spanFilter(given), ...Object.fromEntries(filters.filter((name) => typeof given[name] === 'string' && given[name].trim() !== '')
  .map((name) => [name, ['since', 'until'].includes(name) ? `${given[name].trim()}${/[zZ]|[+-]\d\d(:?\d\d)?$/.test(given[name].trim()) ? '' : ' UTC'}` : given[name].trim()])) });

function spanFilter(given) {
  const { span, trouble } = timesOf(given);
  if (trouble) throw wrong(400, trouble);
  return span ? { from: addressTime(span.from), to: addressTime(span.to) } : {};
}

/** The request of a form or a link: the action, its tab and filter, and either ids or all. */
export function wanted(given) {
  const name = Object.hasOwn(doings, given.doing ?? '') ? given.doing : null;
  if (!name) throw wrong(404, 'There is no such action.');
  const doing = doings[name];
  const tab = Object.hasOwn(tabs, given.tab ?? '') ? given.tab : 'all';
  const ids = [given.ids ?? []].flat().flatMap((text) => String(text).split(',')).filter((text) => text !== '');
  if (ids.some((text) => !/^[0-9]{1,18}$/.test(text))) throw wrong(400, 'There is no job with that number.');
  const all = given.all === '1';
  if (!all && ids.length === 0) throw wrong(400, 'No job is selected. Go back, and select some jobs or all jobs.');
  if (ids.length > MOST) throw wrong(400, `You can select at most ${MOST} jobs individually. Select all jobs in the list instead.`);
  if (all && !doing.tabs.includes(tab)) throw wrong(400, `${doing.title} is not possible for jobs that are ${tab}.`);
  if (doing.value && !/^[0-9]$/.test(given.value ?? '')) throw wrong(400, 'Enter a priority from 0 (claimed first) to 9.');
  if (all && given.upto !== undefined && !/^[0-9]{1,18}$/.test(given.upto)) throw wrong(400, 'There is no job with that number.');
  return { name, doing, tab, all, ids: [...new Set(ids)], value: doing.value ? given.value : null, filter: filterOf(given), upto: given.upto };
}

/** The filter for an action's walk, without jobs that were enqueued later or that already have the new priority. */
const meantOf = (want) => ({ ...want.filter, upto: want.upto, ...(want.value !== null ? { besides: want.value } : {}) });

/** The number of matching jobs that are found within a second, with their kinds and states. */
export async function preview(query, queue, want, known) {
  let { ids } = want;
  let [jobs, atLeast, upto] = [ids.length, false, null];
  if (want.all) {
    [{ upto }] = await query('SELECT coalesce(max(j.id), 0) AS upto FROM idemq.jobs j');
    const found = await walk(query, { queue: queue.queue_id, tab: want.tab, filter: meantOf({ ...want, upto }), want: 20000 });
    ids = found.ids;
    [jobs, atLeast] = [ids.length, found.next !== null];
    const plain = Object.keys(want.filter).length === 0 && want.value === null;
    if (atLeast && plain && known !== null && known > jobs) [jobs, atLeast] = [known, false];
  }
  const of = await query(`SELECT j.status, j.kind, count(*) AS jobs FROM unnest($2::bigint[]) i JOIN idemq.jobs j ON j.id = i
    WHERE j.queue_id = $1 GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2`, [queue.queue_id, ids]);
  if (!want.all) jobs = of.reduce((all, row) => all + Number(row.jobs), 0);
  return { jobs, atLeast, upto, of, looked: ids.length };
}

/** Runs an action in one transaction, on behalf of the user whom the proxy has named.  Returns the number of jobs per outcome. */
export async function runNow(database, queue, want, actor) {
  return database.write(async (query) => {
    await insist(query, want.doing.needs, queue);
    const own = await query('SELECT j.id FROM unnest($2::bigint[]) i JOIN idemq.jobs j ON j.id = i WHERE j.queue_id = $1 ORDER BY 1', [queue.queue_id, want.ids]);
    return want.doing.run(query, { queue, ids: own.map(({ id }) => id), value: want.value });
  }, actor);
}

/** The actions that are in progress in this process. */
export class Doings {
  constructor(database) {
    this.database = database;
    this.all = new Map();
  }

  get(id) {
    return this.all.get(id);
  }

  /** The actions in progress on a queue. */
  of(queueId) {
    return [...this.all.values()].filter((doing) => doing.queue.queue_id === queueId && doing.ended === null);
  }

  /** Starts an action.  expected: the number of jobs, and whether this is only a minimum. */
  begin(queue, want, expected, actor) {
    for (const [id, { ended }] of this.all) if (ended !== null && Date.now() - ended > REMEMBERED) this.all.delete(id);
    if ([...this.all.values()].filter(({ ended }) => ended === null).length >= AT_ONCE)
      throw wrong(429, `${AT_ONCE} actions are in progress. Wait until one ends, or stop one.`);
    const doing = { id: randomBytes(8).toString('hex'), queue, want, expected, actor, outcomes: {}, jobs: 0, looked: 0, began: Date.now(), ended: null, stopped: false, waits: false, trouble: null };
    this.all.set(doing.id, doing);
    doing.work = this.run(doing);
    return doing;
  }

  async run(doing) {
    const { queue, want } = doing;
    const query = (...statement) => this.database.query(...statement);
    try {
      for (let cursor = null; !doing.stopped;) {
        const found = await walk(query, { queue: queue.queue_id, tab: want.tab, filter: meantOf(want), cursor, want: SLICE });
        const came = found.ids.length > 0 ? await this.slice(doing, found.ids) : {};
        if (came === null) break;
        for (const [outcome, jobs] of Object.entries(came)) doing.outcomes[outcome] = (doing.outcomes[outcome] ?? 0) + jobs;
        doing.jobs += found.ids.length;
        doing.looked += found.looked;
        if (found.next === null) break;
        cursor = found.next;
      }
    } catch (error) {
      doing.trouble = `${error.message}${error.code ? ` (${error.code})` : ''}`;
    }
    doing.ended = Date.now();
  }

  /** Runs one batch, and repeats it while another transaction blocks it.  Returns null if a user has stopped the action. */
  async slice(doing, ids) {
    while (!doing.stopped) {
      try {
        const came = await runNow(this.database, doing.queue, { ...doing.want, ids }, doing.actor);
        doing.waits = false;
        return came;
      } catch (error) {
        if (!HELD.includes(error.code)) throw error;
        doing.waits = true;
      }
    }
    return null;
  }

  /** Prevents all actions from starting another batch, and waits for the batches that are running. */
  async close() {
    for (const doing of this.all.values()) doing.stopped = true;
    await Promise.all([...this.all.values()].map(({ work }) => work));
  }
}
