// The page of a schedule: its expression in words, its next runs and the history of its ticks; and the form that adds or changes a schedule.
import { html } from './html.mjs';
import { inWords } from './cron.mjs';
import * as queries from './queries.mjs';
import { ConflictError, changed, correctable, entered, refuseConflicts, shown, wrong } from './settings.mjs';
import { confirmPage } from './pages/settings.mjs';
import { runsList, scheduleForm, schedulePage } from './pages/schedules.mjs';

/** Fields of the form: [name, type, help, whether it can be empty]. */
export const fields = [
  ['cron', 'text', 'five fields, for example 30 3 * * 1-5, or an interval such as every 10 s'], ['time_zone', 'text', 'for example Europe/Berlin; UTC for an interval'], ['queue', 'text', 'queue to which the jobs are added'],
  ['kind', 'text', 'label that tells the worker which handler to use', true], ['payload', 'jsonb', 'JSON'], ['group_key', 'text', 'group of the jobs', true], ['priority', 'int', '0 is claimed first, 9 last'],
  ['max_attempts', 'int', 'the setting of the queue if empty', true], ['expires_in', 'interval', 'a job that has not been claimed by then is cancelled', true], ['headers', 'jsonb', 'a JSON object', true],
];
const names = fields.map(([name]) => name);
const initial = { cron: '', time_zone: 'UTC', queue: '', kind: '', payload: '{}', group_key: '', priority: '4', max_attempts: '', expires_in: '', headers: '' };
const addressOf = (name) => `/schedule?${new URLSearchParams({ name })}`;
const READ = `SELECT s.name, s.cron, s.time_zone, s.queue, s.kind, s.payload::text, s.group_key, s.priority::text, s.max_attempts::text, s.expires_in::text, s.headers::text, s.created_by::text
  FROM idemq.schedules s WHERE s.name = $1`;

const touched = (given) => names.filter((name) => entered(given, name) !== undefined && entered(given, name) !== (given[`was_${name}`] ?? '').trim());

/** Applies the values of a form.  Returns what has changed, and the next runs. */
async function apply(query, given, adds) {
  const name = entered(given, 'name') ?? '';
  const [before] = await query(READ, [name]);
  if (adds && before) throw wrong(422, `A schedule with the name "${name}" already exists.`);
  if (!adds && !before) throw wrong(404, `No schedule named "${name}" is visible to you.`);
  if (!adds && before.payload === null) throw Object.assign(new Error(`permission denied for schedule "${name}"`), { code: '42501' });
  const mine = adds ? names : touched(given);
  if (!adds) refuseConflicts(mine, given, before);
  const value = (field) => (mine.includes(field) ? entered(given, field) || null : before[field]);
  const missing = fields.find(([field, , , optional]) => !optional && value(field) === null);
  if (missing || (adds && name === '')) throw wrong(422, `Enter a value for ${adds && name === '' ? 'name' : missing[0]}.`);
  if (!adds && mine.length === 0) return { changes: [], name, ticks: [] };
  await query(`SELECT idemq.schedule($1, $2, $3, $4::jsonb, time_zone => $5, priority => $6::int, group_key => $7, max_attempts => $8::int, headers => $9::jsonb, expires_in => $10::interval, kind => $11)`,
    [name, value('cron'), value('queue'), value('payload'), value('time_zone'), value('priority'), value('group_key'), value('max_attempts'), value('headers'), value('expires_in'), value('kind')]);
  const [after] = await query(READ, [name]);
  const changes = [...names, 'created_by'].filter((field) => shown(before?.[field]) !== shown(after[field])).map((field) => ({ name: field, from: shown(before?.[field]), to: shown(after[field]) }));
  return { changes, name, words: inWords(after.cron), ticks: (await query(queries.nextTicks, [after.cron, after.time_zone])).map(({ at }) => at), taken: before && before.created_by !== after.created_by ? after.created_by : null };
}

/** Adds the pages of schedules to the page's server.  allowed: whether --allow-settings was given. */
export function scheduleRoutes(app, { database, allowed, security, contextOf, send, back }) {
  const query = (...statement) => database.query(...statement);
  const refuse = () => { if (!allowed) throw wrong(403, 'This page does not change schedules. To allow it, start the page with --allow-settings.'); };

  app.get('/schedule', async (request, reply) => {
    const name = entered(request.query, 'name') ?? '';
    const [schedule] = await query(queries.schedule, [name]);
    if (!schedule) throw wrong(404, `No schedule named "${name}" is visible to you.`);
    const [jobs, past] = [await query(queries.scheduleJobs, [schedule.queue, `${name}@`, `${name}@\u{10FFFF}`]), await query(queries.pastTicks, [schedule.cron, schedule.time_zone, schedule.created_at])];
    const context = { ...await contextOf(request, '/schedules'), every: 10 };
    return send(reply, `Schedule ${name}`, schedulePage({ schedule, words: inWords(schedule.cron), jobs, past, edit: allowed && schedule.may_change ? `/schedule/edit?${new URLSearchParams({ name })}` : null }, context), context);
  });

  const form = async (request, reply, given, adds, trouble, was) => send(reply, adds ? 'Add a schedule' : `Change schedule ${given.name}`,
    scheduleForm({ fields, adds, name: given.name ?? '', values: given, was, trouble, queues: (await query("SELECT p.queue FROM idemq.queue_privileges p WHERE 'enqueue' = ANY (p.privileges) ORDER BY p.queue LIMIT 1000")).map(({ queue }) => queue) }), await contextOf(request, '/schedules'));
  /** The form with the values that were entered, after an error that the user can correct. */
  const again = async (request, reply, given, adds, error) => {
    const conflict = error instanceof ConflictError;
    const message = conflict ? error.message : correctable(error);
    if (message === null) throw error;
    const was = Object.fromEntries(names.map((name) => [name, conflict ? shown(error.current[name]) : given[`was_${name}`] ?? '']));
    const mine = touched(given);
    const values = { name: given.name, ...Object.fromEntries(names.map((name) => [name, adds || mine.includes(name) ? given[name] ?? '' : was[name]])) };
    const wrongFields = conflict ? error.conflicts.map(({ name }) => name) : names.filter((name) => new RegExp(`\\b${name}\\b`).test(error.message));
    return form(request, reply.code(conflict ? 409 : 400), values, adds, { message, fields: wrongFields }, was);
  };
  for (const [path, adds] of [['/schedule/add', true], ['/schedule/edit', false]]) {
    app.get(path, async (request, reply) => {
      refuse();
      if (adds) return form(request, reply, { ...initial, ...(request.query.queue ? { queue: String(request.query.queue) } : {}) }, true, null, {});
      const [current] = await query(READ, [entered(request.query, 'name') ?? '']);
      if (!current) throw wrong(404, 'No such schedule is visible to you.');
      if (current.payload === null) throw Object.assign(new Error(`permission denied for schedule "${current.name}"`), { code: '42501' });
      const values = Object.fromEntries(names.map((name) => [name, shown(current[name])]));
      return form(request, reply, { name: current.name, ...values }, false, null, values);
    });
    app.get(`${path}/confirm`, async (request, reply) => {
      refuse();
      const given = request.query;
      try {
        const { changes, name, words, ticks, taken } = await changed(database, null, true, (run) => apply(run, given, adds));
        const sent = { name, ...Object.fromEntries((adds ? names : touched(given)).flatMap((field) => [[field, entered(given, field) ?? ''], [`was_${field}`, given[`was_${field}`] ?? '']])) };
        const notes = [taken && `The schedule will enqueue its jobs with the privileges of role ${taken}.`].filter(Boolean);
        return await send(reply, changes.length === 0 ? 'No change' : adds ? 'Add this schedule?' : 'Change this schedule?', confirmPage({ subject: html`schedule <b class="whole">${name}</b>`, changes, notes, token: security.token(request.session), does: adds ? 'adds' : 'changes',
          action: path, cancel: adds ? '/schedules' : addressOf(name), given: sent, verb: adds ? 'Add schedule' : 'Change', heads: ['Field', adds ? '' : 'Now', adds ? 'Value' : 'New'], more: runsList(words, ticks) }), await contextOf(request, null));
      } catch (error) {
        return again(request, reply, given, adds, error);
      }
    });
    app.post(path, async (request, reply) => {
      refuse();
      try {
        const { changes, name } = await changed(database, request.actor, false, (run) => apply(run, request.body, adds));
        return await back(reply, addressOf(name), adds ? `Schedule ${name} was added.` : changes.length === 0 ? `Schedule ${name} already had these values.` : `Schedule ${name}: ${changes.map(({ name: field }) => field).join(', ')} changed.`, changes.length === 0);
      } catch (error) {
        return again(request, reply, request.body, adds, error);
      }
    });
  }
}
