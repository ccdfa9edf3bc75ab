// Schedules, in a browser:
//   schedules.mjs BASE (with --allow-settings) BASE (with --actions alone) BASE (of a role without admin, with --allow-settings)
// PG* reach the server, whose background worker runs.
import pg from 'pg';
import { browser, follow, ok, open, reads, said } from './browser.mjs';

const [base, actions, clerk] = process.argv.slice(2);
const database = new pg.Client();
await database.connect();
const one = async (sql, values) => Object.values((await database.query(sql, values)).rows[0] ?? {})[0];
await database.query("SELECT idemq.create_queue('reporting', expect_workers => false)");
await database.query("SELECT idemq.grant_queue('reporting', 'clerk', 'claim'), idemq.grant_queue('reporting', 'clerk', 'enqueue')");
const stored = (name, column) => one(`SELECT s.${column}::text FROM idemq.schedules s WHERE s.name = $1`, [name]);

// Added: the words and the next runs are shown before.
const page = await open();
await page.goto(`${base}/schedules`);
await follow(page.getByRole('link', { name: 'Add a schedule' }));
const field = (name) => page.locator('main').locator(`[name="${name}"]`);
const daily = 'daily <b>"report"</b> & more';
await field('name').fill(daily);
await field('cron').fill('30 3 * * 1-5');
await field('time_zone').fill('Europe/Berlin');
await field('queue').selectOption('reporting');
await field('payload').fill('{"report": "sales"}');
await follow(page.getByRole('button', { name: 'Review the schedule' }));
const question = await said(page);
ok(/This adds schedule/.test(question) && /Runs at 03:30 from Monday to Friday/.test(question) && await page.locator('dialog li').count() === 5 && /Europe\/Berlin/.test(question), 'before it is added: its words and its next five runs', question);
const runs = await page.locator('dialog li time.at').evaluateAll((all) => all.map((time) => time.dateTime));
const { rows: ticks } = await database.query("WITH RECURSIVE t (n, at) AS (SELECT 1, idemq.next_tick('30 3 * * 1-5', 'Europe/Berlin') UNION ALL SELECT n + 1, idemq.next_tick('30 3 * * 1-5', 'Europe/Berlin', at) FROM t WHERE n < 5) SELECT to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS\"Z\"') AS at FROM t");
ok(runs.join() === ticks.map(({ at }) => at).join(), 'which are those of the database', runs.join());
ok(await stored(daily, 'cron') === undefined, 'nothing has been added yet');
await follow(page.locator('dialog').getByRole('button', { name: 'Add schedule' }));
ok(await stored(daily, 'cron') === '30 3 * * 1-5' && (await said(page)).includes('At 03:30 from Monday to Friday, Europe/Berlin time.') && (await page.locator('h1').innerText()).includes('<b>'), 'it is added', await said(page));
ok((await database.query("SELECT count(*)::int AS n FROM idemq.audit WHERE action = 'schedule' AND details->>'schedule' = $1", [daily])).rows[0].n === 1, 'which is in the audit');

// What the database refuses stays in the form.
const plain = await open({ javaScriptEnabled: false });
for (const [values, message] of [[{ cron: '61 * * * *' }, /61 is not between/], [{ time_zone: 'Mars/Base' }, /Mars\/Base/], [{ payload: '{x' }, /22P02/], [{ priority: '17' }, /priority/], [{ expires_in: 'soon' }, /22007/], [{ cron: '' }, /Enter a value for cron/], [{ cron: '0 0 31 2 *' }, /day that does not exist/]]) {
  await plain.goto(`${base}/schedule/add?queue=reporting`);
  for (const [name, value] of Object.entries({ name: 'bad', cron: '0 * * * *', kind: 'kept', ...values })) await plain.locator(`main [name="${name}"]`).fill(value);
  const [answer] = await Promise.all([plain.waitForResponse(/confirm/), follow(plain.getByRole('button', { name: 'Review the schedule' }))]);
  const [name, value] = Object.entries(values)[0];
  ok(answer.status() === 400 && message.test(await said(plain)) && await plain.locator(`main [name="${name}"]`).inputValue() === value && await plain.locator('main [name="kind"]').inputValue() === 'kept', `${name} "${value}" is refused, and kept`, await said(plain));
}
await plain.goto(`${base}/schedule/add/confirm?${new URLSearchParams({ name: daily, cron: '0 * * * *', queue: 'reporting', payload: '1', time_zone: 'UTC', priority: '4' })}`);
ok(/already exists/.test(await said(plain)), 'a name that is taken is refused', await said(plain));

// Changed: only what the user has changed, and not what another has changed meanwhile.
const edit = `${base}/schedule/edit?${new URLSearchParams({ name: daily })}`;
await plain.goto(edit);
await plain.locator('main [name="cron"]').fill('every 2 h');
await plain.locator('main [name="time_zone"]').fill('UTC');
await database.query(`SELECT idemq.schedule($1, '30 3 * * 1-5', 'reporting', '{"report": "sales"}', time_zone => 'Europe/Berlin', priority => 2)`, [daily]);
await follow(plain.getByRole('button', { name: 'Review the change' }));
ok(/cron\s+30 3 \* \* 1-5\s+every 2 h/.test(await said(plain)) && /time_zone\s+Europe\/Berlin\s+UTC/.test(await said(plain)) && !/priority/.test(await said(plain)) && /Runs every 2 hours/.test(await said(plain)), 'old and new values', await said(plain));
await follow(plain.getByRole('button', { name: 'Change 2 settings' }));
ok(await stored(daily, 'cron') === 'every 2 h' && await stored(daily, 'priority') === '2' && await stored(daily, 'payload') === '{"report": "sales"}', 'what the user did not change stays as another has changed it');
await plain.goto(edit);
await plain.locator('main [name="cron"]').fill('every 3 h');
await database.query(`SELECT idemq.schedule($1, 'every 4 h', 'reporting', '{"report": "sales"}')`, [daily]);
await follow(plain.getByRole('button', { name: 'Review the change' }));
ok(/Another user has changed cron from every 2 h to every 4 h/.test(await said(plain)) && await stored(daily, 'cron') === 'every 4 h', 'a change of the same field is noticed', await said(plain));

// Paused and resumed on its page.
await page.goto(`${base}/schedules`);
ok(/every 4 hours\s+every 4 h\b/.test(await page.getByRole('row', { name: daily }).innerText()), 'the list has the words', await said(page));
await follow(page.getByRole('link', { name: daily }));
await follow(page.getByRole('button', { name: 'Pause', exact: true }));
await follow(page.locator('dialog button.do'));
await page.goto(`${base}/schedule?${new URLSearchParams({ name: daily })}`);
ok(/Paused since/.test(await said(page)) && await page.getByRole('heading', { name: 'Next runs' }).count() === 0, 'it is paused', await said(page));
await follow(page.getByRole('button', { name: 'Resume', exact: true }));
await follow(page.locator('dialog button.do'));
await page.goto(`${base}/schedule?${new URLSearchParams({ name: daily })}`);
ok(!/Paused since/.test(await said(page)) && await page.locator('[data-part="next"] li').count() === 5, 'and resumed, with its next runs', await said(page));

// The history of its ticks.
await database.query("SELECT idemq.schedule('often', 'every 1 s', 'reporting', '1')");
while (await one("SELECT count(*)::int FROM idemq.jobs WHERE queue_id = idemq.queue_id('reporting') AND starts_with(key, 'often@')") < 2) { /* until it has ticked twice */ }
await database.query("SELECT idemq.pause_schedule('often')");
await database.query("SELECT idemq.commit(c.id, c.token) FROM idemq.claim('reporting') c");
await database.query("SELECT idemq.fail(c.id, c.token, 'no paper') FROM idemq.claim('reporting') c");
await database.query("SELECT idemq.enqueue('reporting', '1', key => 'often@other')");
await page.goto(`${base}/schedule?name=often`);
const history = await page.locator('.scroll[aria-label="Ticks"]').innerText();
ok(/completed/.test(history) && /retrying[^]*no paper/.test(history) && !/other/.test(history) && (await said(page)).includes('Every second.'), 'its ticks: the jobs and how they ended', history);
await database.query("UPDATE idemq_internal.schedule_entries SET created_at = created_at - interval '1 min' WHERE name = 'often'");
await page.goto(`${base}/schedule?name=often`);
ok(/no job/.test(await page.locator('.scroll[aria-label="Ticks"]').innerText()) && /A tick has no job if the schedule was paused/.test(await said(page)), 'and ticks without a job', await said(page));

// Who may not.
const seen = await open();
await seen.goto(`${actions}/schedules`);
ok(await seen.getByRole('link', { name: 'Add a schedule' }).count() === 0 && (await seen.goto(`${actions}/schedule/add`)).status() === 403 && (await seen.goto(`${actions}${edit.replace(base, '')}`)).status() === 403, 'without --allow-settings there is no form');
await seen.goto(`${clerk}/schedule?name=often`);
ok(await seen.getByRole('link', { name: 'Change schedule' }).count() === 0 && (await said(seen)).includes('Every second') && !/Payload/.test(await said(seen)), 'a role that may not change it sees it, without its payload', await said(seen));
const refused = await seen.goto(`${clerk}/schedule/edit?name=often`);
ok(refused.status() === 403 && /42501/.test(await said(seen)), 'and no form: 42501', await said(seen));
const asked = await fetch(`${clerk}/schedule/add`);
const cookie = asked.headers.get('set-cookie').split(';')[0];
const csrf = /name="csrf" value="([0-9a-f]{64})"/.exec(await (await fetch(`${clerk}/queue/reporting/enqueue`, { headers: { cookie } })).text())[1];
const post = (body) => fetch(`${clerk}/schedule/edit`, { method: 'POST', redirect: 'manual', headers: { cookie }, body: new URLSearchParams(body) });
ok((await post({ csrf, name: 'often', cron: 'every 5 s', was_cron: 'every 1 s' })).status === 403 && await stored('often', 'cron') === 'every 1 s', 'nor can it send one');
ok((await post({ name: 'often', cron: 'every 5 s', was_cron: 'every 1 s' })).status === 403, 'a form without a token is refused');
ok((await fetch(`${base}/schedule?name=none`)).status === 404 && (await fetch(`${base}/schedule`)).status === 404 && (await fetch(`${base}/schedule/edit?name=none`)).status === 404, 'a schedule that is not there');

for (const [path, name] of [['/schedules', 'schedules'], ['/schedule?name=often', 'schedule'], ['/schedule/add', 'form of a schedule'], [edit.replace(base, ''), 'changed schedule']]) await reads(base + path, name, { reducedMotion: 'reduce' });
ok(page.troubles.length === 0, 'no script failed', page.troubles.join('; '));
await database.query("SELECT idemq.unschedule('often'), idemq.unschedule($1)", [daily]);
await database.query("SELECT idemq.drop_queue('reporting', force => true)");
await database.end();
await browser.close();
