// The settings of queues, in a browser:
//   limits.mjs BASE (with --allow-settings) BASE (with --actions alone) BASE (of a role without admin, with --allow-settings)
// PG* reach the server.
import pg from 'pg';
import { browser, close, follow, ok, open, reads, said } from './browser.mjs';

const [base, actions, clerk] = process.argv.slice(2);
const database = new pg.Client();
await database.connect();
const one = async (sql, values) => Object.values((await database.query(sql, values)).rows[0] ?? {})[0];
await database.query("SELECT idemq.create_queue('limited', lease => '90 s', max_running => 5, rate_period => '1 min', expect_workers => false), idemq.create_queue('limited-dead', expect_workers => false)");
await database.query("SELECT idemq.grant_queue('limited', 'clerk', 'claim'), idemq.grant_queue('limited', 'clerk', 'enqueue')");
const setting = (name) => one(`SELECT ${name}::text FROM idemq.queues WHERE name = 'limited'`);
const audits = () => one("SELECT count(*)::int FROM idemq.audit WHERE action = 'alter_queue' AND queue_id = idemq.queue_id('limited')");

// The form, the confirmation with the old and the new value, the change and its audit.
const page = await open();
await page.goto(`${base}/queue/limited`);
await follow(page.getByRole('link', { name: 'Change settings' }));
const field = (name) => page.locator('main').locator(`[name="${name}"]`);
ok(await field('max_running').inputValue() === '5' && await field('rate_limit').inputValue() === '' && await field('lease').inputValue() === '00:01:30' && await field('notify_finished').inputValue() === 'false', 'the form has the settings');
await field('max_running').fill('12');
await field('rate_limit').fill('100');
await field('lease').fill('2 min');
await field('notify_finished').selectOption('true');
await field('dead_letter_queue').fill('limited-dead');
await follow(page.getByRole('button', { name: 'Review the change' }));
const question = await said(page);
ok(/lease\s+00:01:30\s+00:02:00/.test(question) && /max_running\s+5\s+12/.test(question) && /rate_limit\s+none\s+100/.test(question) && /dead_letter_queue\s+none\s+limited-dead/.test(question) && /notify_finished\s+false\s+true/.test(question)
  && !/retention/.test(question) && /Running jobs keep their leases/.test(question), 'the confirmation has old and new values, and no others', question);
ok(await setting('max_running') === '5' && await audits() === 0, 'which changes nothing');
await close(page);
ok(await field('max_running').inputValue() === '12', 'the form keeps what was entered');
await follow(page.getByRole('button', { name: 'Review the change' }));
await follow(page.locator('dialog').getByRole('button', { name: 'Change 5 settings' }));
ok(/max_running was changed from 5 to 12/.test(await said(page)) && await setting('max_running') === '12' && await setting('lease') === '00:02:00' && await setting('dead_letter_queue') === 'limited-dead', 'the change', await said(page));
ok(await audits() === 1 && await one("SELECT details -> 'max_running' = '{\"from\": 5, \"to\": 12}' FROM idemq.audit WHERE action = 'alter_queue' AND queue_id = idemq.queue_id('limited')") === true, 'is in the audit, with old and new value');

// Without a script; limits are removed; nothing to change.
const plain = await open({ javaScriptEnabled: false });
await plain.goto(`${base}/queue/limited/settings`);
const set = async (values) => { for (const [name, value] of Object.entries(values)) await plain.locator(`main [name="${name}"]`).fill(value); };
await set({ max_running: '', dead_letter_queue: '' });
await follow(plain.getByRole('button', { name: 'Review the change' }));
ok(/max_running\s+12\s+none/.test(await said(plain)) && /dead_letter_queue\s+limited-dead\s+none/.test(await said(plain)), 'an empty field removes a limit, without a script', await said(plain));
await follow(plain.getByRole('button', { name: 'Change 2 settings' }));
ok(await setting('max_running') === null && await setting('dead_letter_queue') === null, 'which it does');
await plain.goto(`${base}/queue/limited/settings`);
await follow(plain.getByRole('button', { name: 'Review the change' }));
ok(/already have these values/.test(await said(plain)), 'a form without a change', await said(plain));

// What the database refuses stays in the form.
for (const [values, message] of [[{ max_running: '-1' }, /max_running[^]*22023/], [{ max_running: '12x' }, /22P02/], [{ lease: 'soon' }, /22007/], [{ lease: '2 days' }, /max_lease/], [{ dead_letter_queue: 'nowhere' }, /nowhere/], [{ rate_limit: '99999999999' }, /22003/],
  [{ retention: '' }, /Enter a value for retention/], [{ dead_letter_queue: '<b>x</b>' }, /<b>x<\/b>/]]) {
  await plain.goto(`${base}/queue/limited/settings`);
  await set({ ...values, group_rate_limit: '7' });
  const [answer] = await Promise.all([plain.waitForResponse(/confirm/), follow(plain.getByRole('button', { name: 'Review the change' }))]);
  const [name, value] = Object.entries(values)[0];
  ok(answer.status() === 400 && message.test(await said(plain)) && await plain.locator(`main [name="${name}"]`).inputValue() === value && await plain.locator('main [name="group_rate_limit"]').inputValue() === '7',
    `${name} "${value}" is refused, and kept`, await said(plain));
}
await plain.goto(`${base}/queue/limited/settings`);
await set({ lease: '2 days' });
await follow(plain.getByRole('button', { name: 'Review the change' }));
ok(await plain.locator('main [name="lease"]').getAttribute('aria-invalid') === 'true', 'the field is marked');

// Another user has changed a value: noticed by the confirmation, and by the change.
await page.goto(`${base}/queue/limited/settings`);
await field('max_unfinished').fill('50');
await follow(page.getByRole('button', { name: 'Review the change' }));
await database.query("SELECT idemq.alter_queue('limited', max_unfinished => 70)");
await follow(page.locator('dialog').getByRole('button', { name: 'Change 1 setting' }));
ok(/Another user has changed max_unfinished from none to 70/.test(await said(page)) && await setting('max_unfinished') === '70' && await field('max_unfinished').inputValue() === '50', 'a change in between is noticed, and nothing is changed', await said(page));
await follow(page.getByRole('button', { name: 'Review the change' }));
ok(/max_unfinished\s+70\s+50/.test(await said(page)), 'the form then knows the new value', await said(page));
await database.query("SELECT idemq.alter_queue('limited', rate_limit => 3)");
await follow(page.locator('dialog').getByRole('button', { name: 'Change 1 setting' }));
ok(await setting('max_unfinished') === '50' && await setting('rate_limit') === '3', 'a change of another setting is no conflict', await said(page));
await plain.goto(`${base}/queue/limited/settings`);
await set({ max_unfinished: '60' });
await database.query("SELECT idemq.alter_queue('limited', max_unfinished => 80)");
const [conflict] = await Promise.all([plain.waitForResponse(/confirm/), follow(plain.getByRole('button', { name: 'Review the change' }))]);
ok(conflict.status() === 409 && /from 50 to 80/.test(await said(plain)), 'and the confirmation notices it, too', await said(plain));

// Two who change the row at the same moment: the second waits, and is then told.
await page.goto(`${base}/queue/limited/settings`);
await field('max_unfinished').fill('90');
await follow(page.getByRole('button', { name: 'Review the change' }));
await database.query("BEGIN; SELECT idemq.alter_queue('limited', max_unfinished => 85)");
const waits = page.locator('dialog').getByRole('button', { name: 'Change 1 setting' }).click();
const watcher = new pg.Client();
await watcher.connect();
while (!(await watcher.query("SELECT FROM pg_stat_activity WHERE application_name = 'idemq-ui' AND wait_event_type = 'Lock'")).rowCount) { /* until it waits */ }
await database.query('COMMIT');
await watcher.end();
await waits;
await page.getByText('Another user has changed').waitFor();
ok(await setting('max_unfinished') === '85' && /from 80 to 85/.test(await said(page)), 'so is one at the same moment', await said(page));

// Who may not.
const seen = await open();
await seen.goto(`${actions}/queue/limited`);
ok(await seen.getByRole('link', { name: 'Change settings' }).count() === 0, 'without --allow-settings, there is no form');
for (const path of ['settings', 'settings/confirm?max_running=3&was_max_running=']) {
  const answer = await seen.goto(`${actions}/queue/limited/${path}`);
  ok(answer.status() === 403 && (await said(seen)).includes('--allow-settings'), `${path} is refused there`, await said(seen));
}
await seen.goto(`${clerk}/queue/limited`);
ok(await seen.getByRole('link', { name: 'Change settings' }).count() === 0 && (await said(seen)).includes('Enqueue a job'), 'a role without admin sees no form', await said(seen));
for (const path of ['settings', 'settings/confirm?max_running=3&was_max_running=']) {
  const answer = await seen.goto(`${clerk}/queue/limited/${path}`);
  ok(answer.status() === 403 && /42501/.test(await said(seen)), `${path}: 42501, said plainly`, await said(seen));
}
const asked = await fetch(`${clerk}/queue/limited/enqueue`);
const cookie = asked.headers.get('set-cookie').split(';')[0];
const csrf = /name="csrf" value="([0-9a-f]{64})"/.exec(await asked.text())[1];
const post = (address, body, headers = { cookie }) => fetch(address, { method: 'POST', redirect: 'manual', headers, body: new URLSearchParams(body) });
const forced = await post(`${clerk}/queue/limited/settings`, { csrf, max_running: '3', was_max_running: '' });
ok(forced.status === 403 && /42501/.test(await forced.text()) && await setting('max_running') === null, 'nor can it send one');
const own = await fetch(`${base}/queue/limited/settings`);
ok((await post(`${base}/queue/limited/settings`, { max_running: '3', was_max_running: '' }, { cookie: own.headers.get('set-cookie').split(';')[0] })).status === 403 && await setting('max_running') === null, 'a form without a token is refused');
ok((await fetch(`${base}/queue/none/settings`)).status === 404, 'a queue that is not there');

for (const [path, name] of [['/queue/limited/settings', 'settings'], ['/queue/limited/settings/confirm?max_running=3&was_max_running=', 'confirmation of settings'], ['/queue/limited/settings/confirm?lease=x&was_lease=00:02:00', 'settings that are refused']])
  await reads(base + path, name, { reducedMotion: 'reduce' });
const troubles = page.troubles.filter((trouble) => !/40[039]/.test(trouble));
ok(troubles.length === 0, 'no script failed', troubles.join('; '));
await database.query("SELECT idemq.drop_queue('limited', force => true), idemq.drop_queue('limited-dead', force => true)");
await database.end();
await browser.close();
