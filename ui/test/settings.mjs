// What the page reads from the server, as each of the roles that are named: their settings differ, and the answers may not.  The jobs are
// those of ui.pl; the PG* settings name the server.
import { Database } from '../src/database.mjs';
import * as jobQueries from '../src/jobs/queries.mjs';
import * as queries from '../src/queries.mjs';

// Of these the value depends on the moment, or on the role.
const moving = new Set(['role', 'expires_in', 'oldest_ready', 'unattended_for', 'longest', 'may_administer', 'pid', 'until', 'point', 'stuck_for', 'slowest_for', 'eta', 'ended']);
// Versions of pg differ in whether an interval has the fields that are 0.
const parts = (value) => (value?.toPostgres ? Object.fromEntries(Object.entries(value).filter(([, part]) => part !== 0)) : value);
// The server derives the end of a lease from a clock that has no date, so two answers may differ by a microsecond.
const withoutEnd = (value) => (typeof value === 'string' ? value.replace(/(lease expires at \d{4}-\d\d-\d\d) [\d:.]+/, '$1') : value);
const stable = (name, value) => (moving.has(name) ? typeof value : withoutEnd(parts(value)));

/** @param {Database} database */
async function read(database) {
  const jobs = (await database.query('SELECT id FROM idemq.jobs ORDER BY id')).map(({ id }) => id);
  const answers = {};
  const ask = async (name, text, values) => (answers[name] = await database.query(text, values));
  for (const name of ['overview', 'server', 'health', 'schedules', 'runningJobs', 'handlers', 'unattended']) await ask(name, queries[name]);
  await ask('queue', queries.queue, ['strange']);
  await ask('errors', queries.errors, [null]);
  await ask('audit', queries.audit, [null, null, null, null]);
  for (const id of jobs) {
    for (const name of ['job', 'shown', 'attempts', 'steps']) await ask(`${name} ${id}`, jobQueries[name], [id]);
    await ask(`flow ${id}`, queries.flow, [id]);
    await ask(`flowBrief ${id}`, queries.flowBrief, [id]);
    await ask(`flowJobs ${id}`, queries.flowJobs, [id]);
    await ask(`graph ${id}`, jobQueries.flow, [id]);
  }
  // What somebody writes into a form.
  await ask('form', "SELECT $1::interval AS delay, $2::timestamptz AS run_at, '{\"a\\\\b\": 1}'::jsonb AS document", ['-1 day 02:00', '2050-02-01 03:04:05']);
  return JSON.stringify(answers, stable);
}

let wanted;
for (const role of process.argv.slice(2)) {
  const database = new Database({ user: role });
  const said = await read(database).catch((error) => `${error.message}: ${error.statement}`);
  await database.close();
  wanted ??= said;
  const at = [...wanted].findIndex((char, n) => char !== said[n]);
  process.stdout.write(`${said === wanted && said.startsWith('{') ? 'ok' : 'not ok'} - ${role}${said === wanted ? '' : `: ${said.slice(Math.max(0, at - 60), at + 60)}`}\n`);
}
// The first is as it should be.
for (const [name, pattern] of [
  ['a lease', /"lease":\{"minutes":1,"seconds":15,"milliseconds":1\}/],
  ['a setting that was changed since it was declared', /"changed_since":\{"max_unfinished":"1000"\}/],
  ['a setting that is on', /"notify_finished":true/],
  ['its seconds', /"lease_seconds":75\.001/],
  ['a time', /"finished_at":"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?\+00"/],
  ['text', /"payload":"\\"1 € für\\""/],
  ['how long an attempt took', /"took":0\.\d{4,}/],
  ['what is written into a form', /"delay":\{"days":-1,"hours":2\},"run_at":"2050-02-01 03:04:05\+00","document":\{"a\\\\b":1\}/],
]) process.stdout.write(`${pattern.test(wanted) ? 'ok' : 'not ok'} - ${name}\n`);
