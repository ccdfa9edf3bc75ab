// Changes of settings: the limits of a queue, and schedules (schedules.mjs).  A form keeps the values that it showed.  The confirmation tries
// the change in a transaction that it rolls back, so that the database checks the values, and shows what would change.  The change itself is
// refused if a value that the user has changed is no longer the value that the form showed.
import { html } from './html.mjs';
import { insist } from './jobs/doing.mjs';
import { confirmPage, settingsForm } from './pages/settings.mjs';
import { queue as queueByName } from './queries.mjs';

export const wrong = (statusCode, message) => Object.assign(new Error(message), { statusCode });

/** The settings of a queue by group: [name, type, help, whether it can be empty]. */
export const groups = {
  Limits: [
    ['max_running', 'int', 'maximum number of jobs running at once', true], ['max_unfinished', 'int', 'maximum number of unfinished jobs', true],
    ['rate_limit', 'int', 'maximum number of claims per rate_period', true], ['rate_period', 'interval', 'period of rate_limit'], ['rate_burst', 'int', 'size of the bucket of rate_limit', true],
    ['group_max_running', 'int', 'maximum number of jobs of a group running at once'], ['group_max_unfinished', 'int', 'maximum number of unfinished jobs of a group', true],
    ['group_rate_limit', 'int', 'maximum number of attempts of a group per group_rate_period', true], ['group_rate_period', 'interval', 'period of group_rate_limit'], ['group_rate_burst', 'int', 'size of the bucket of group_rate_limit', true],
  ],
  Attempts: [
    ['max_attempts', 'int', 'maximum number of attempts of jobs enqueued later'], ['retry_base', 'interval', 'wait after the first failed attempt'], ['retry_factor', 'float8', 'factor for each further wait'],
    ['retry_max', 'interval', 'maximum wait between attempts'], ['retry_jitter', 'float8', 'random fraction of the wait, from 0 to 1'], ['lease', 'interval', 'default duration of a lease'],
    ['max_lease', 'interval', 'maximum duration of a lease'], ['job_timeout', 'interval', 'maximum duration of an attempt', true], ['max_hold_back', 'interval', 'maximum duration of a hold'],
  ],
  'Finished jobs': [
    ['retention', 'interval', 'how long completed and cancelled jobs are kept'], ['dead_retention', 'interval', 'how long dead jobs are kept'], ['idempotency_window', 'interval', 'how long the keys of finished jobs stay reserved'],
    ['dead_letter_queue', 'text', 'queue that gets a record of each dead job', true], ['dead_letter_cancelled', 'boolean', 'whether it also gets records of cancelled jobs'],
    ['notify_finished', 'boolean', 'whether finished jobs are announced with NOTIFY'], ['expect_workers', 'boolean', 'whether the queue should always have a worker'],
  ],
};
const fields = new Map(Object.values(groups).flat().map((field) => [field[0], field]));

const UNDO = Symbol('the transaction was only a trial');

/**
 * Runs a change in a transaction that sees one state of the database, and repeats it if another session has changed the same row.
 * trial: whether it is rolled back.
 */
export async function changed(database, actor, trial, run) {
  for (let left = 5; ; left -= 1) {
    let result = null;
    try {
      await database.transaction('BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE', async (query) => {
        if (actor !== null) await query("SELECT set_config('idemq.actor', $1, true)", [actor]);
        result = await run(query);
        if (trial) throw UNDO;
      });
      return result;
    } catch (error) {
      if (error === UNDO) return result;
      if (error.code !== '40001' || left === 0) throw error;
    }
  }
}

/** The message for an error that the user can correct in the form, or null. */
export const correctable = (error) => (error.code?.length === 5 && !/^(08|57P|42501|42883|42P01|3F)/.test(error.code)
  ? [`${error.message} (${error.code}).`, error.detail && `${error.detail.replace(/\.$/, '')}.`, error.hint].filter(Boolean).join(' ') : error.statusCode === 422 ? error.message : null);

/** A value as the form shows it: text, and empty for none. */
export const shown = (value) => (value === null || value === undefined ? '' : typeof value === 'object' ? JSON.stringify(value) : String(value));
export const entered = (given, name) => (typeof given[name] === 'string' ? given[name].trim() : undefined);

/** Throws a ConflictError if values that the user has changed are no longer those that the form showed. */
export class ConflictError extends Error {
  constructor(conflicts, current) {
    super(`Another user has changed ${conflicts.map(({ name, was, is }) => `${name} from ${was || 'none'} to ${is || 'none'}`).join(', and ')} since you opened the form. Nothing was changed. The form shows your values; submit it again to replace the new ones.`);
    Object.assign(this, { conflicts, current });
  }
}
export function refuseConflicts(names, given, current) {
  const conflicts = names.map((name) => ({ name, was: given[`was_${name}`] ?? '', is: shown(current[name]) })).filter(({ was, is }) => was !== is);
  if (conflicts.length > 0) throw new ConflictError(conflicts, current);
}

const read = async (query, name) => (await query('SELECT to_jsonb(q) AS settings FROM idemq.queues q WHERE q.name = $1', [name]))[0]?.settings;

/** Applies the values of a form.  Returns the settings that have changed, with their old and new values. */
async function apply(query, name, given) {
  const before = await read(query, name);
  if (!before) throw wrong(404, `No queue named "${name}" is visible to you.`);
  const names = [...fields.keys()].filter((field) => entered(given, field) !== undefined && entered(given, field) !== (given[`was_${field}`] ?? ''));
  refuseConflicts(names, given, before);
  const missing = names.find((field) => entered(given, field) === '' && !fields.get(field)[3]);
  if (missing) throw wrong(422, `Enter a value for ${missing}.`);
  if (names.length === 0) return [];
  // 0 and an empty name remove a limit.
  const values = names.map((field) => entered(given, field) || (fields.get(field)[1] === 'text' ? '' : '0'));
  await query(`SELECT idemq.alter_queue($1, ${names.map((field, i) => `${field} => $${i + 2}::${fields.get(field)[1]}`).join(', ')})`, [name, ...values]);
  const after = await read(query, name);
  return [...fields.keys()].filter((field) => shown(before[field]) !== shown(after[field])).map((field) => ({ name: field, from: shown(before[field]), to: shown(after[field]) }));
}

/** Adds the form of a queue's settings to the page's server.  allowed: whether --allow-settings was given. */
export function settingsRoutes(app, { database, allowed, security, contextOf, send, back, forget }) {
  const query = (...statement) => database.query(...statement);
  const queueOf = async (name) => {
    if (!allowed) throw wrong(403, 'This page does not change settings. To allow it, start the page with --allow-settings.');
    const [queue] = await query(queueByName, [name]);
    if (!queue) throw wrong(404, `No queue named "${name}" is visible to you.`);
    return queue;
  };
  /** The form with the values that were entered, after an error that the user can correct. */
  const again = async (request, reply, queue, given, error) => {
    const conflict = error instanceof ConflictError;
    const message = conflict ? error.message : correctable(error);
    if (message === null) throw error;
    const current = conflict ? error.current : await read(query, queue.name);
    const was = Object.fromEntries([...fields.keys()].map((name) => [name, conflict ? shown(current[name]) : given[`was_${name}`] ?? shown(current[name])]));
    const values = Object.fromEntries([...fields.keys()].map((name) => {
      const touched = entered(given, name) !== undefined && entered(given, name) !== (given[`was_${name}`] ?? '');
      return [name, touched ? given[name] : was[name]];
    }));
    const field = [...fields.keys()].filter((name) => new RegExp(`\\b${name}\\b`).test(error.message)).sort((a, b) => b.length - a.length);
    return send(reply.code(conflict ? 409 : 400), `Settings of queue ${queue.name}`, settingsForm(queue, groups, values, was, { message, fields: conflict ? error.conflicts.map(({ name }) => name) : field }), await contextOf(request, null));
  };

  app.get('/queue/:name/settings', async (request, reply) => {
    const queue = await queueOf(request.params.name);
    await insist(query, 'admin', queue);
    const current = await read(query, queue.name);
    const values = Object.fromEntries([...fields.keys()].map((name) => [name, shown(current[name])]));
    return send(reply, `Settings of queue ${queue.name}`, settingsForm(queue, groups, values, values, null), await contextOf(request, null));
  });
  app.get('/queue/:name/settings/confirm', async (request, reply) => {
    const queue = await queueOf(request.params.name);
    try {
      const changes = await changed(database, null, true, (run) => apply(run, queue.name, request.query));
      const names = [...fields.keys()].filter((name) => entered(request.query, name) !== undefined && entered(request.query, name) !== (request.query[`was_${name}`] ?? ''));
      const notes = [changes.some(({ name }) => name === 'max_attempts') && 'Jobs that are already enqueued keep their maximum number of attempts.',
        changes.some(({ name }) => name === 'lease') && 'Running jobs keep their leases.', queue.declared && 'A program has declared this queue with idemq.ensure_queue. Your values stay until the program declares other values.'].filter(Boolean);
      return await send(reply, changes.length === 0 ? 'No change' : 'Change settings?', confirmPage({ subject: html`queue <b>${queue.name}</b>`, changes, notes, token: security.token(request.session),
        action: `/queue/${encodeURIComponent(queue.name)}/settings`, cancel: `/queue/${encodeURIComponent(queue.name)}/settings`,
        given: Object.fromEntries(names.flatMap((name) => [[name, entered(request.query, name)], [`was_${name}`, request.query[`was_${name}`] ?? '']])) }), await contextOf(request, null));
    } catch (error) {
      return again(request, reply, queue, request.query, error);
    }
  });
  app.post('/queue/:name/settings', async (request, reply) => {
    const queue = await queueOf(request.params.name);
    try {
      const changes = await changed(database, request.actor, false, (run) => apply(run, queue.name, request.body));
      forget();
      const text = changes.length === 0 ? `The settings of queue ${queue.name} already had these values.`
        : `Queue ${queue.name}: ${changes.map(({ name, from, to }) => `${name} was changed from ${from || 'none'} to ${to || 'none'}`).join(', ')}.`;
      return await back(reply, `/queue/${encodeURIComponent(queue.name)}`, text, changes.length === 0);
    } catch (error) {
      return again(request, reply, queue, request.body, error);
    }
  });
}
