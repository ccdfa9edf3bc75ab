// What can be done from the pages.  Each asks first: it says what will happen and to how many
// jobs; then it runs in one transaction.  The functions write idemq.audit themselves, with
// session_user, in that transaction.
import { html } from './html.mjs';
import { count, time } from './format.mjs';
import { insist } from './jobs/doing.mjs';
import { flowOthers } from './queries.mjs';

const id = (input) => {
  if (!/^[0-9]{1,18}$/.test(input.id ?? '')) throw Object.assign(new Error('There is no job of that number.'), { statusCode: 400 });
  return input.id;
};

// No LIKE pattern: the question counts the jobs of a fingerprint, and idemq.redrive takes either.
const fingerprint = (input) => {
  if (input.error !== undefined && !/^[0-9a-f]{16}$/.test(input.error))
    throw Object.assign(new Error('An error is named by its fingerprint here: begin at the page Errors.'), { statusCode: 400 });
  return input.error;
};

const jobAction = (title, needs, does, call, answers, inputs = []) => ({
  title,
  inputs: ['id', ...inputs],
  async preview(query, input) {
    const [job] = await query('SELECT j.status, j.kind, q.name, q.queue_id FROM idemq.jobs j JOIN idemq.queues q USING (queue_id) WHERE j.id = $1', [id(input)]);
    if (!job) throw Object.assign(new Error(`There is no job ${input.id} that you may see.`), { statusCode: 404 });
    await insist(query, needs, job);
    return { jobs: 1, text: html`Job ${input.id}${job.kind !== null && html`, <b>${job.kind}</b>,`} of queue <b>${job.name}</b>, which is ${job.status} now: ${typeof does === 'string' ? does : does(input)}` };
  },
  async run(query, input) {
    const [job] = await query('SELECT q.name, q.queue_id FROM idemq.jobs j JOIN idemq.queues q USING (queue_id) WHERE j.id = $1', [id(input)]);
    if (job) await insist(query, needs, job);
    const [{ outcome }] = await query(call, [input.id, ...inputs.map((name) => input[name] ?? null)]);
    return { text: answers[outcome] ?? `Job ${input.id}: ${outcome}.`, done: outcome in answers };
  },
  back: (input) => `/job/${input.id}`,
});

/** A time of a form, which is in UTC, and a priority. */
function rescheduled(input) {
  const runAt = input.run_at && Date.parse(`${input.run_at}Z`);
  if (Number.isNaN(runAt) || (input.priority !== undefined && !/^[0-9]$/.test(input.priority)) || (!input.run_at && input.priority === undefined))
    throw Object.assign(new Error('Name a time, such as 2026-12-24T08:30, a priority from 0 to 9, or both.'), { statusCode: 400 });
  return html`${input.run_at && html`it will not be claimed before <b>${time(`${input.run_at}Z`)}</b>`}${input.run_at && input.priority !== undefined && ', and '}${input.priority !== undefined && html`its priority is <b>${input.priority}</b>`}. Its attempts stay as they are.`;
}

const queueAction = (title, does, call, said) => ({
  title,
  inputs: ['queue'],
  async preview(query, input) {
    const [queue] = await query('SELECT m.queue_id, m.queue AS name, m.pending + m.retrying AS jobs FROM idemq.metrics m WHERE m.queue = $1', [input.queue]);
    if (!queue) throw Object.assign(new Error(`There is no queue "${input.queue ?? ''}" that you may see.`), { statusCode: 404 });
    await insist(query, 'admin', queue);
    return { jobs: queue.jobs, text: html`Queue <b>${input.queue}</b>, in which ${count(queue.jobs)} jobs wait: ${does}` };
  },
  async run(query, input) {
    await query(call, [input.queue]);
    return { text: `Queue ${input.queue} ${said}.`, done: true };
  },
  back: (input) => `/queue/${encodeURIComponent(input.queue)}`,
});

export const actions = {
  retry: jobAction('Retry', 'enqueue', 'it becomes ready at once, with a fresh set of attempts if it was dead or cancelled.',
    'SELECT idemq.retry($1) AS outcome', { retrying: 'The job is ready, and will be claimed next.' }),
  run_now: jobAction('Run now', 'enqueue', 'it becomes ready at once, and does not wait for its time.',
    'SELECT idemq.retry($1) AS outcome', { retrying: 'The job is ready, and will be claimed next.' }),
  reschedule: jobAction('Reschedule', 'enqueue', rescheduled,
    "SELECT idemq.reschedule($1, run_at => $2::timestamp AT TIME ZONE 'UTC', priority => $3::int) AS outcome", { accepted: 'The job has its new time and priority.' }, ['run_at', 'priority']),
  cancel: jobAction('Cancel', 'enqueue', 'it will not run. If it is running, its worker’s commit is refused, and what it did outside the database stays done.',
    'SELECT idemq.cancel($1) AS outcome', { cancelled: 'The job is cancelled.' }),
  revoke_lease: jobAction('Revoke lease', 'admin', 'its lease ends now, and another worker may take it; the attempt is not counted. Its present worker’s commit is refused.',
    'SELECT idemq.revoke_lease($1) AS outcome', { released: 'The job was taken from its worker, and is ready.' }),
  pause: queueAction('Pause', 'it goes on to accept jobs, and hands out none until it is resumed. Jobs that run go on.',
    'SELECT idemq.pause($1)', 'is paused'),
  resume: queueAction('Resume', 'its jobs are handed out again, at once.', 'SELECT idemq.resume($1)', 'hands out jobs again'),
  redrive: {
    title: 'Redrive',
    inputs: ['queue', 'error'],
    async preview(query, input) {
      const error = fingerprint(input);
      const [queue] = await query('SELECT q.queue_id, q.name FROM idemq.queues q WHERE q.name = $1', [input.queue]);
      if (!queue) throw Object.assign(new Error(`There is no queue "${input.queue ?? ''}" that you may see.`), { statusCode: 404 });
      await insist(query, 'admin', queue);
      const [found] = error
        ? await query('SELECT sum(e.dead)::bigint AS jobs, min(left(e.error, 300)) AS error FROM idemq.errors e WHERE e.queue = $1 AND e.fingerprint = $2', [input.queue, error])
        : await query("SELECT count(*) AS jobs FROM idemq.jobs j WHERE j.queue_id = $1 AND j.dead_at IS NOT NULL AND j.status = 'dead'", [queue.queue_id]);
      const jobs = found?.jobs ?? '0';
      return {
        jobs,
        text: html`${count(jobs)} dead jobs of queue <b>${input.queue}</b>${input.error ? html` that died of <q>${found?.error ?? ''}</q>` : ', whatever they died of,'}
          become ready at once, each with a fresh set of attempts. Mend the cause first, or they die again.`,
      };
    },
    async run(query, input) {
      const error = fingerprint(input);
      const [{ jobs }] = error
        ? await query('SELECT idemq.redrive($1, error => $2) AS jobs', [input.queue, error])
        : await query('SELECT idemq.redrive($1) AS jobs', [input.queue]);
      return { text: `${count(jobs)} jobs of queue ${input.queue} are ready again.`, done: true };
    },
    back: (input) => `/errors?queue=${encodeURIComponent(input.queue)}`,
  },
  cancel_flow: {
    title: 'Cancel all of it',
    inputs: ['id'],
    async preview(query, input) {
      const [flow] = await query('SELECT f.jobs - f.done AS jobs, f.done, f.running FROM idemq.flow($1) f', [id(input)]);
      if (!flow) throw Object.assign(new Error(`There is no job ${input.id} that you may see.`), { statusCode: 404 });
      const [other] = await query(flowOthers, [input.id]);
      if (other) await insist(query, 'enqueue', other);
      return { jobs: flow.jobs, text: html`Of the flow of job ${input.id}, ${count(flow.jobs)} jobs are not finished: they are cancelled, and will not run.
        ${Number(flow.running) > 0 && html`${count(flow.running)} of them run now: their workers’ commits are refused, and what they did outside the database stays done.`}
        The ${count(flow.done)} that are finished stay as they are.` };
    },
    async run(query, input) {
      const [{ jobs }] = await query(`SELECT count(*) FILTER (WHERE c.outcome = 'cancelled') AS jobs FROM idemq.cancel_many(ARRAY(
        SELECT f.id FROM idemq.flow_jobs($1, 100000) f WHERE f.status NOT IN ('completed', 'dead', 'cancelled'))) c`, [id(input)]);
      return { text: `${count(jobs)} jobs are cancelled.`, done: true };
    },
    back: (input) => `/flow/${input.id}`,
  },
  run_schedule: {
    title: 'Run now',
    inputs: ['schedule'],
    async preview(query, input) {
      const [schedule] = await query('SELECT s.queue, s.payload IS NOT NULL AS may_run FROM idemq.schedules s WHERE s.name = $1', [input.schedule]);
      if (!schedule) throw Object.assign(new Error(`There is no schedule "${input.schedule ?? ''}" that you may see.`), { statusCode: 404 });
      if (!schedule.may_run) throw Object.assign(new Error(`Schedule "${input.schedule}" may be run by the role that made it, and by administrators of queue "${schedule.queue}" (42501).`), { statusCode: 403 });
      return { jobs: 1, text: html`Schedule <b>${input.schedule}</b>: one job more is enqueued to <b>${schedule.queue}</b> at once; its next tick stays as it is.` };
    },
    async run(query, input) {
      const [{ job }] = await query('SELECT idemq.run_schedule_now($1) AS job', [input.schedule]);
      return { text: `Job ${job} was enqueued.`, done: true };
    },
    back: () => '/schedules',
  },
};

/** The inputs of an action out of a form or a link: those that it names, as text, and no more. */
export function inputsOf(action, given) {
  return Object.fromEntries(action.inputs.filter((name) => typeof given[name] === 'string' && given[name] !== '')
    .map((name) => [name, given[name]]));
}
