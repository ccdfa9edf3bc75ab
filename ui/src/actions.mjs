// The actions of the pages.  Before an action runs, a confirmation shows what it will do and how many jobs
// it will affect.  It then runs in one transaction.  The SQL functions themselves write the entry in
// idemq.audit, with session_user, in the same transaction.
import { html } from './html.mjs';
import { count, plural, time } from './format.mjs';
import { flowActions } from './flows/actions.mjs';
import { insist } from './jobs/doing.mjs';
import { retryFirst } from './causes.mjs';
import { flowOthers } from './queries.mjs';

const id = (input) => {
  if (!/^[0-9]{1,18}$/.test(input.id ?? '')) throw Object.assign(new Error('There is no job with that number.'), { statusCode: 400 });
  return input.id;
};

// A LIKE pattern is refused: idemq.redrive accepts patterns, but the confirmation counts the jobs of a fingerprint.
const fingerprint = (input) => {
  if (input.error !== undefined && !/^[0-9a-f]{16}$/.test(input.error))
    throw Object.assign(new Error('Use the fingerprint of an error. Start from the Errors page.'), { statusCode: 400 });
  return input.error;
};

/** says: whether the message also shows the job's new status. */
const jobAction = (title, needs, does, call, answers, { inputs = [], says = false, undo = true } = {}) => ({
  title,
  button: () => title,
  undo,
  inputs: ['id', ...inputs],
  async preview(query, input) {
    const [job] = await query('SELECT j.status, j.kind, q.name, q.queue_id FROM idemq.jobs j JOIN idemq.queues q USING (queue_id) WHERE j.id = $1', [id(input)]);
    if (!job) throw Object.assign(new Error(`No job with the number ${input.id} is visible to you.`), { statusCode: 404 });
    await insist(query, needs, job);
    return { jobs: 1, text: html`Job ${input.id}${job.kind !== null && html` (<b>${job.kind}</b>)`} in queue <b>${job.name}</b> is now ${job.status}. ${typeof does === 'string' ? does : does(input)}` };
  },
  async run(query, input) {
    const [job] = await query('SELECT q.name, q.queue_id FROM idemq.jobs j JOIN idemq.queues q USING (queue_id) WHERE j.id = $1', [id(input)]);
    if (job) await insist(query, needs, job);
    const [{ outcome }] = await query(call, [input.id, ...inputs.map((name) => input[name] ?? null)]);
    return { text: answers[outcome] ?? `Job ${input.id}: ${outcome}.`, done: outcome in answers, job: outcome in answers && says ? input.id : null };
  },
  back: (input) => `/job/${input.id}`,
});

/** A time from a form, which is in UTC, and a priority. */
function rescheduled(input) {
  const runAt = input.run_at && Date.parse(`${input.run_at}Z`);
  if (Number.isNaN(runAt) || (input.priority !== undefined && !/^[0-9]$/.test(input.priority)) || (!input.run_at && input.priority === undefined))
    throw Object.assign(new Error('Enter a time, for example 2026-12-24T08:30, a priority from 0 to 9, or both.'), { statusCode: 400 });
  return html`${input.run_at && html`The job will not be claimed before <b>${time(`${input.run_at}Z`)}</b>`}${input.run_at && input.priority !== undefined && ', and '}${input.priority !== undefined && html`${input.run_at ? 'its' : 'Its'} priority will be <b>${input.priority}</b>`}. Its attempts do not change.`;
}

const scheduleAction = (title, done, does, call, said) => ({
  title,
  inputs: ['schedule'],
  async preview(query, input) {
    const [schedule] = await query('SELECT s.queue, s.payload IS NOT NULL AS may_change FROM idemq.schedules s WHERE s.name = $1', [input.schedule]);
    if (!schedule) throw Object.assign(new Error(`No schedule named "${input.schedule ?? ''}" is visible to you.`), { statusCode: 404 });
    if (!schedule.may_change) throw Object.assign(new Error(`Schedule "${input.schedule}" can be ${done} only by the role that created it and by administrators of queue "${schedule.queue}" (42501).`), { statusCode: 403 });
    return { jobs: 1, text: html`Schedule <b>${input.schedule}</b> ${does(schedule)}` };
  },
  async run(query, input) {
    const [{ answer }] = await query(call, [input.schedule]);
    return { text: said(answer, input), done: true };
  },
  back: () => '/schedules',
});

const queueAction = (title, does, call, said) => ({
  title,
  button: (_, input) => `${title} queue ${input.queue}`,
  inputs: ['queue'],
  async preview(query, input) {
    const [queue] = await query('SELECT m.queue_id, m.queue AS name, m.pending + m.retrying AS jobs FROM idemq.metrics m WHERE m.queue = $1', [input.queue]);
    if (!queue) throw Object.assign(new Error(`No queue named "${input.queue ?? ''}" is visible to you.`), { statusCode: 404 });
    await insist(query, 'admin', queue);
    return { jobs: queue.jobs, text: html`Queue <b>${input.queue}</b> has ${count(queue.jobs)} waiting jobs. ${does}` };
  },
  async run(query, input) {
    await query(call, [input.queue]);
    return { text: `Queue ${input.queue} ${said}.`, done: true };
  },
  back: (input) => `/queue/${encodeURIComponent(input.queue)}`,
});

export const actions = {
  retry: jobAction('Retry', 'enqueue', 'It becomes ready immediately, with a fresh set of attempts if it was dead or cancelled.',
    'SELECT idemq.retry($1) AS outcome', { retrying: 'The job can be claimed again.' }, { says: true }),
  run_now: jobAction('Run now', 'enqueue', 'It becomes ready immediately, regardless of its scheduled time.',
    'SELECT idemq.retry($1) AS outcome', { retrying: 'The job can be claimed now.' }, { says: true }),
  reschedule: jobAction('Reschedule', 'enqueue', rescheduled,
    "SELECT idemq.reschedule($1, run_at => $2::timestamp AT TIME ZONE 'UTC', priority => $3::int) AS outcome", { accepted: 'The job has its new time and priority.' }, { inputs: ['run_at', 'priority'], says: true }),
  cancel: jobAction('Cancel', 'enqueue', 'It will not run. If it is running, its worker’s commit is refused, but effects outside the database remain.',
    'SELECT idemq.cancel($1) AS outcome', { cancelled: 'The job was cancelled.' }, { undo: false }),
  revoke_lease: jobAction('Revoke lease', 'admin', 'Its lease ends now, and another worker can claim it. The attempt does not count, and the current worker’s commit is refused.',
    'SELECT idemq.revoke_lease($1) AS outcome', { released: 'The lease was revoked, and the job is ready.' }),
  pause: queueAction('Pause', 'Workers stop getting jobs; producers can still enqueue. Running jobs continue.',
    'SELECT idemq.pause($1)', 'was paused'),
  resume: queueAction('Resume', 'Its jobs can be claimed again immediately.', 'SELECT idemq.resume($1)', 'was resumed'),
  redrive: {
    title: 'Retry dead jobs',
    button: (jobs) => `Retry ${count(jobs)} dead ${String(jobs) === '1' ? 'job' : 'jobs'}`,
    inputs: ['queue', 'error'],
    async preview(query, input) {
      const error = fingerprint(input);
      const [queue] = await query('SELECT q.queue_id, q.name FROM idemq.queues q WHERE q.name = $1', [input.queue]);
      if (!queue) throw Object.assign(new Error(`No queue named "${input.queue ?? ''}" is visible to you.`), { statusCode: 404 });
      await insist(query, 'admin', queue);
      const [found] = error
        ? await query('SELECT sum(e.dead)::bigint AS jobs, min(left(e.error, 300)) AS error FROM idemq.errors e WHERE e.queue = $1 AND e.fingerprint = $2', [input.queue, error])
        : await query("SELECT count(*) AS jobs FROM idemq.jobs j WHERE j.queue_id = $1 AND j.dead_at IS NOT NULL AND j.status = 'dead'", [queue.queue_id]);
      const jobs = found?.jobs ?? '0';
      return {
        jobs,
        text: html`${plural(jobs, 'dead job')} of queue <b>${input.queue}</b>${input.error ? html` that failed with <q>${found?.error ?? ''}</q>` : ', regardless of their error,'}
          ${String(jobs) === '1' ? 'becomes' : 'become'} ready immediately, with a fresh set of attempts. Fix the cause first, or the same error will occur again.`,
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
  retry_first: retryFirst,
  cancel_flow: {
    title: 'Cancel flow',
    button: (jobs) => `Cancel ${count(jobs)} ${String(jobs) === '1' ? 'job' : 'jobs'}`,
    undo: false,
    inputs: ['id'],
    async preview(query, input) {
      const [flow] = await query('SELECT f.jobs - f.done AS jobs, f.done, f.running FROM idemq.flow($1) f', [id(input)]);
      if (!flow) throw Object.assign(new Error(`No job with the number ${input.id} is visible to you.`), { statusCode: 404 });
      const [other] = await query(flowOthers, [input.id]);
      if (other) await insist(query, 'enqueue', other);
      return { jobs: flow.jobs, text: html`The flow of job ${input.id} has ${count(flow.jobs)} unfinished jobs. They will be cancelled and will not run.
        ${Number(flow.running) > 0 && html`${count(flow.running)} of them are running now. Their workers’ commits are refused, but effects outside the database remain.`}
        The ${count(flow.done)} finished jobs do not change.` };
    },
    async run(query, input) {
      const [{ jobs }] = await query(`SELECT count(*) FILTER (WHERE c.outcome = 'cancelled') AS jobs FROM idemq.cancel_many(ARRAY(
        SELECT f.id FROM idemq.flow_jobs($1, 100000) f WHERE f.status NOT IN ('completed', 'dead', 'cancelled'))) c`, [id(input)]);
      return { text: `${count(jobs)} jobs were cancelled.`, done: true };
    },
    back: (input) => `/flow/${input.id}`,
  },
  ...flowActions,
  run_schedule: scheduleAction('Run now', 'run', (schedule) => html`enqueues one extra job to <b>${schedule.queue}</b> immediately. Its next tick does not change.`,
    'SELECT idemq.run_schedule_now($1) AS answer', (job) => `Job ${job} was enqueued.`),
  pause_schedule: scheduleAction('Pause', 'paused', (schedule) => html`will not enqueue jobs to <b>${schedule.queue}</b> until you resume it. Jobs that it has enqueued do not change.`,
    'SELECT idemq.pause_schedule($1)::text AS answer', (_, input) => `Schedule ${input.schedule} was paused.`),
  resume_schedule: scheduleAction('Resume', 'resumed', () => 'continues with its next tick. Ticks since it was paused are skipped.',
    'SELECT idemq.resume_schedule($1) AS answer', (next, input) => `Schedule ${input.schedule} was resumed. Its next tick is at ${time(next)}.`),
};

/** The inputs of an action from a form or a link: only those that the action names, as text. */
export function inputsOf(action, given) {
  return Object.fromEntries(action.inputs.filter((name) => typeof given[name] === 'string' && given[name] !== '')
    .map((name) => [name, given[name]]));
}
