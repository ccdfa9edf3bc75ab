// The action that runs the failed part of a flow again.
import { count } from '../format.mjs';
import { html } from '../html.mjs';
import { insist } from '../jobs/doing.mjs';
import { queuesRefused } from '../queries.mjs';
import { lostJobs } from './model.mjs';

const id = (input) => {
  if (!/^[0-9]{1,18}$/.test(input.id ?? '')) throw Object.assign(new Error('There is no job with that number.'), { statusCode: 400 });
  return input.id;
};
const jobs = (n, word) => `${count(n)} ${word} ${n === 1 ? 'job' : 'jobs'}`;
/** 1 dead and 5 cancelled jobs. */
export const lostWords = ({ dead, cancelled }) => (cancelled.length === 0 ? jobs(dead.length, 'dead') : dead.length === 0 ? jobs(cancelled.length, 'cancelled')
  : `${count(dead.length)} dead and ${jobs(cancelled.length, 'cancelled')}`);

/** The jobs of a flow that a retry makes ready again.  Throws if there are none, or if the role may not retry all of them. */
async function lostOf(query, input) {
  const members = await query(`SELECT f.id, f.queue, f.status, f.parents::text[] AS parents, f.depth FROM idemq.flow_jobs($1, 100000) f`, [id(input)]);
  if (members.length === 0) throw Object.assign(new Error(`No job with the number ${input.id} is visible to you.`), { statusCode: 404 });
  const lost = lostJobs(members);
  if (lost.dead.length + lost.cancelled.length === 0) throw Object.assign(new Error('No job of this flow is dead or cancelled.'), { statusCode: 409 });
  const [refused] = await query(queuesRefused, [[...new Set([...lost.dead, ...lost.cancelled].map(({ queue }) => queue))]]);
  if (refused) await insist(query, 'enqueue', refused);
  return lost;
}

export const flowActions = {
  retry_flow: {
    title: 'Retry from the failed step',
    button: (_, input, { lost }) => `Retry ${lostWords(lost)}`,
    inputs: ['id'],
    async preview(query, input) {
      const lost = await lostOf(query, input);
      return {
        lost,
        jobs: lost.dead.length + lost.cancelled.length,
        text: html`${lost.dead.length > 0 ? html`${jobs(lost.dead.length, 'dead')} of this flow will become ready immediately${lost.cancelled.length > 0 ? `, and ${jobs(lost.cancelled.length, 'cancelled')} that depend on them will wait for their parents again` : ''}`
          : html`${jobs(lost.cancelled.length, 'cancelled')} of this flow will become ready, or wait for their parents again`}. Each gets a fresh set of attempts. Completed jobs do not run again. Fix the cause first, or the jobs will fail again.`,
      };
    },
    async run(query, input) {
      const lost = await lostOf(query, input);
      const rows = await query('SELECT r.outcome::text, count(*) AS jobs FROM idemq.retry_many($1::bigint[]) r GROUP BY 1', [[...lost.dead, ...lost.cancelled].map((job) => job.id)]);
      const done = Number(rows.find(({ outcome }) => outcome === 'retrying')?.jobs ?? 0);
      const others = rows.filter(({ outcome }) => outcome !== 'retrying').map((row) => `${count(row.jobs)} ${row.outcome}`);
      return { text: `${count(done)} ${done === 1 ? 'job' : 'jobs'} will run again.${others.length > 0 ? ` Not changed: ${others.join(', ')}.` : ''}`, done: done > 0 };
    },
    back: (input) => `/flow/${input.id}`,
  },
};
