// The time span of the page, and the page of a cause, in a browser:
//   incident.mjs BASE (with actions) BASE (read-only) BASE (of a role that sees one queue)
// with the jobs of incident.sql.  PG* reach the server.
import pg from 'pg';
import { browser, follow, ok, open, reads, said } from './browser.mjs';

const [base, readOnly, tenant] = process.argv.slice(2);
const database = new pg.Client();
await database.connect();
const one = async (sql, values) => Object.values((await database.query(sql, values)).rows[0])[0];
const at = async (condition) => (await one(`SELECT extract(epoch FROM min(j.dead_at))::float8 FROM idemq.jobs j WHERE j.queue_id = idemq.queue_id('bills') AND ${condition}`)) * 1000;
const [long, now] = [await at("j.worker = 'bill-1@a'"), await at("j.worker = 'bill-2@b'")];
const iso = (time) => new Date(time).toISOString();
const spanOf = (page) => ['from', 'to'].map((name) => new URL(page.url()).searchParams.get(name));
const before = `from=${iso(long - 300_000)}&to=${iso(long + 300_000)}`;

// Without a script: two fields; every link and form keeps the span; a way back.
const plain = await open({ javaScriptEnabled: false });
await plain.goto(base);
await plain.locator('#span summary').click();
await plain.locator('#span input[name="from"]').fill(iso(long - 300_000).slice(0, 19).replace('T', ' '));
await plain.locator('#span input[name="to"]').fill(iso(long + 300_000).slice(0, 19).replace('T', ' '));
await follow(plain.locator('#span').getByRole('button', { name: 'Show' }));
const wanted = [Math.floor((long - 300_000) / 1000), Math.floor((long + 300_000) / 1000)].map((seconds) => iso(seconds * 1000).replace('.000Z', 'Z'));
ok(/Charts, errors and jobs from\s+\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\s+to\s+\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\s+\(10 min\)/.test(await said(plain)), 'a span from two fields, without a script', await said(plain));
const until = await plain.locator('figure.chart').first().locator('tbody td:first-child').allTextContents();
ok(until.length >= 20 && until[0] > wanted[0].slice(11, 16) && until.at(-1).slice(0, 8) >= wanted[1].slice(11, 19), 'the charts show the span', `${until[0]} ${until.at(-1)} ${wanted}`);
const lost = await plain.locator('a[href^="/"]:not([data-now])').evaluateAll((links) => links.map((link) => link.getAttribute('href')).filter((address) => !/[?&]from=[^&]+&to=/.test(address)));
ok(lost.length === 0 && await plain.locator('a[data-now]').count() > 0, 'each link keeps it', lost.join(' '));
ok(await plain.locator('form[action^="/"]:not([data-now])').evaluateAll((forms) => forms.every((form) => form.elements.from?.value && form.elements.to?.value)), 'and each form');
await follow(plain.getByRole('navigation', { name: 'Pages' }).getByRole('link', { name: 'Errors' }));
ok(/no tariff "\?"\s+30\s+30\s/.test(await said(plain)) && !/no printer/.test(await said(plain)), 'errors are those of the span', await said(plain));
await plain.goto(`${base}/queue/bills?tab=dead&${before}`);
ok(/30 found; searched [^.]*\. The list contains the jobs that died in the time span/.test(await said(plain)) && /Errors by cause in this time span\s+no tariff/.test(await said(plain)), 'and so are jobs', await said(plain));
await plain.goto(`${base}/queue/bills?tab=all&${before}`);
ok(/30 found/.test(await said(plain)), 'and all jobs', await said(plain));
await follow(plain.getByRole('link', { name: 'Back to now' }));
ok(spanOf(plain).every((value) => value === null) && /40 dead/.test((await plain.locator('#jobs').innerText()).replace(/dead\s+40/, '40 dead')) && plain.url().includes('tab=all'), 'back to now, on the same page', plain.url());
for (const [span, message] of [['from=2026-02-31&to=2026-03-02', '"2026-02-31" is not a time'], ['from=2026-11-30T10:00Z&to=2026-11-30T09:00Z', 'must end after it begins'], ['to=2026-11-30', 'Enter the beginning'],
  ['from=%3Cb%3E&to=1', '"<b>" is not a time']])
  for (const path of ['/', '/queue/bills', '/errors']) {
    const answer = await plain.goto(`${base}${path}?${span}`);
    ok(answer.status() === 200 && (await said(plain)).includes(message), `${path}?${span}: a sentence`, await said(plain));
  }
const question = await plain.goto(`${base}/queue/bills/sure?doing=retry&tab=dead&all=1&from=x&to=y`);
ok(question.status() === 400, 'an action does not ignore a span that it cannot read');
await plain.goto(`${base}/?from=2001-01-01&to=2001-01-02`);
ok(/oldest waiting job\s+–/.test(await said(plain)), 'a span before the history has no figures', await said(plain));
const open_ = await plain.goto(`${base}/errors?from=${iso(now - 1000)}`);
ok(open_.ok() && spanOf(plain)[1] !== null, 'a span without an end ends now, in the address', plain.url());

// With a mouse.
const page = await open({ viewport: { width: 1200, height: 900 } });
await page.goto(base);
const chart = page.locator('figure#chart-pending-jobs svg[data-begin]');
// scrollIntoViewIfNeeded would wait until the chart stands still, and a refresh may replace it meanwhile.
await chart.evaluate((svg) => svg.scrollIntoView({ block: 'center' }));
const drag = async (from, to) => {
  const box = await chart.boundingBox();
  const x = (share) => box.x + (box.width * (60 + 332 * share)) / 400;
  await page.mouse.move(x(from), box.y + box.height / 2);
  await page.mouse.down();
  await page.mouse.move(x((from + to) / 2), box.y + box.height / 2);
  await page.mouse.move(x(to), box.y + box.height / 2);
};
const [begin, point, last] = [Number(await chart.getAttribute('data-begin')), Number(await chart.getAttribute('data-point')), await page.locator('#chart-pending-jobs tbody tr').count() - 1];
await drag(0.25, 0.75);
ok(await page.locator('rect.selected').count() === 3, 'all charts show what is selected');
await Promise.all([page.waitForURL(/from=/), page.mouse.up()]);
const [from, to] = spanOf(page).map(Date.parse);
ok(Math.abs(from - begin - 0.25 * last * point) <= 2 * point && Math.abs(to - begin - 0.75 * last * point) <= 2 * point, 'a drag over a chart is a span', `${iso(from)} ${iso(to)} of ${iso(begin)}`);
const rows = await page.locator('#chart-completed-and-failed tbody tr').count();
ok(rows >= 20 && await page.locator('figure.chart').count() === 3, 'all charts show it', `${rows}`);
const chosen = page.url();
await drag(0.2, 0.201);
await page.mouse.up();
ok(page.url() === chosen, 'a click is no span');

// By keyboard.
await page.goto(base);
await page.locator('#chart-pending-jobs svg[data-begin]').focus();
await page.keyboard.press('Home');
await page.keyboard.press('ArrowRight');
for (let i = 0; i < 3; i += 1) await page.keyboard.press('Shift+PageUp');
ok(/^Selected: .* to .*Press Enter/.test(await chart.getAttribute('aria-valuetext')), 'the keyboard selects, and says what', await chart.getAttribute('aria-valuetext'));
const start = Number(await chart.getAttribute('data-begin'));
await Promise.all([page.waitForURL(/from=/), page.keyboard.press('Enter')]);
const keyed = spanOf(page).map(Date.parse);
ok(keyed[0] === start + point && keyed[1] === start + 32 * point, 'Enter shows it', `${spanOf(page)} ${iso(start)}`);

// What a page that is refreshed shows, and what an action leads back to.
const asked = page.waitForRequest((request) => request.headers()['x-idemq-have'] !== undefined);
const answer = await (await (await asked).response()).json();
ok(answer.all === undefined && Object.keys(answer.parts).every((name) => !name.startsWith('chart') && name !== 'span-facts'), 'charts of a span that has ended are not sent again', JSON.stringify(Object.keys(answer.parts ?? answer)));
await database.query("SELECT idemq.resume('orders')"); // another test has paused it
await page.goto(`${base}/queue/orders?${before}`);
await follow(page.getByRole('button', { name: 'Pause', exact: true }));
await follow(page.locator('dialog').getByRole('button', { name: 'Pause queue orders' }));
ok(spanOf(page).every(Boolean), 'an action leads back to the span', page.url());
await page.goto(`${base}/audit?${before}`);
const quiet = await said(page);
await page.goto(`${base}/audit`);
ok(/No entries of this time span/.test(quiet) && (await said(page)).includes('pause'), 'the audit shows the span', quiet);
await database.query("SELECT idemq.resume('orders')");

// In another time zone.
const far = await open({ timezoneId: 'Asia/Kathmandu', viewport: { width: 1200, height: 900 } });
await far.goto(`${base}/?from=2026-11-30T10:00:00Z&to=2026-11-30T12:00:00Z`);
await far.locator('#span summary').click();
const field = far.locator('#span input[name="from"]');
ok(await field.inputValue() === '2026-11-30 15:45:00' && /GMT\+5:45|NPT/.test(await far.locator('#span [data-zone-name]').innerText()), 'the fields are in the browser’s zone', await field.inputValue());
await far.keyboard.press('u');
ok(await field.inputValue() === '2026-11-30 15:45:00' || await field.inputValue() === '2026-11-30 10:00:00', 'or in UTC', await field.inputValue());
await far.evaluate(() => document.activeElement.blur());
if (await field.inputValue() !== '2026-11-30 15:45:00') await far.keyboard.press('u');
await field.fill('2026-11-30 16:45');
await Promise.all([far.waitForURL((url) => url.searchParams.get('from') === '2026-11-30T11:00:00Z'), far.locator('#span').getByRole('button', { name: 'Show' }).click()]);
ok(spanOf(far)[1] === '2026-11-30T12:00:00Z', 'what is entered is in that zone, and what is not touched stays', far.url());
await far.goto(base);
const [label, when] = await far.locator('#chart-pending-jobs text.x').last().evaluate((text) => [text.textContent, Number(text.dataset.at)]);
ok(label === new Date(when + 345 * 60_000).toISOString().slice(11, 16) && /Until, (GMT\+5:45|NPT)/.test(await far.locator('#chart-pending-jobs thead').innerText().catch(() => '') || await far.locator('#chart-pending-jobs thead').textContent()), 'so are the axes', `${label} ${iso(when)}`);

// Two jobs that died now, of one cause: it opens; one is retried first, then the rest.
await page.goto(`${base}/errors?queue=bills`);
await follow(page.getByRole('link', { name: 'no tariff' }));
const cause = await said(page);
const fingerprint = new URL(page.url()).pathname.split('/').at(-1);
ok(/jobs\s+38\s+dead\s+38\s+unfinished\s+0\s+resolved by a retry\s+0\s+first\s+4\d min[^\n]*ago job\s+last/.test(cause), 'a cause: its jobs, the first and the last', cause);
ok(/bill\s+31\s+31\s+0\s+refund\s+7\s+7\s+0/.test(cause), 'its kinds', cause);
ok(/bill-1@a\s+not known\s+30\s/.test(cause) && /bill-2@b\s+python 1\.4\.3 on b\.example\s+8\s/.test(cause), 'its workers, with the versions that failed', cause);
const trend = await page.locator('#chart-jobs-by-their-last-failure tbody tr').evaluateAll((all) => all.map((row) => Number(row.cells[1].textContent)));
ok(trend.reduce((sum, value) => sum + value, 0) === 38 && Math.max(...trend) >= 30 && trend[0] + trend[1] >= 30, 'its trend', trend.join());
ok(await page.locator('table.rows[role="table"]').count() >= 3 && await page.locator('.scroll[aria-label="Jobs"] tbody tr').count() === 20, 'and its newest jobs');
await page.goto(`${base}/queue/bills/error/${fingerprint}?${before}`);
ok(/jobs\s+30\s+dead\s+30/.test(await said(page)), 'in a time span, its jobs of the span', await said(page));
await page.goto(`${base}/queue/bills/error/${fingerprint}`);
const deads = () => one("SELECT count(*)::int FROM idemq.jobs WHERE queue_id = idemq.queue_id('bills') AND status = 'dead'");
await follow(page.getByRole('button', { name: 'Retry 1 job first' }));
ok(/Job \d+ \(bill\) of queue bills becomes ready immediately[^]*The other dead jobs do not change/.test(await said(page)) || /Job \d+ \(refund\)/.test(await said(page)), 'the question about one job', await said(page));
await follow(page.locator('dialog').getByRole('button', { name: 'Retry 1 job' }));
const first = new URL(page.url()).searchParams.get('first');
ok(await deads() === 39 && await one('SELECT status::text FROM idemq.jobs WHERE id = $1', [first]) === 'pending' && /which was retried first, is waiting\./.test(await said(page)), 'just one is retried', await said(page));
const claim = async (end) => database.query(`SELECT ${end} FROM idemq.claim_job($1) c`, [first]);
await claim("idemq.fail(c.id, c.token, 'no tariff \"5\"')");
await page.goto(page.url());
ok(/has failed again with the same error\. Fix the cause/.test(await said(page)), 'that fails again is said', await said(page));
await database.query('SELECT idemq.retry($1)', [first]);
await claim('idemq.commit(c.id, c.token)');
await page.goto(page.url());
ok(/has completed\. The others can be retried now/.test(await said(page)) && /resolved by a retry\s+1\s/.test(await said(page)), 'that completes, too', await said(page));
await follow(page.getByRole('button', { name: 'Retry 37 dead jobs' }));
await follow(page.locator('dialog').getByRole('button', { name: 'Retry 37 dead jobs' }));
ok(/37 jobs of queue bills are ready again/.test(await said(page)) && await deads() === 2, 'then the rest, and no other', await said(page));

// What a retry has healed; markup; who may not.
await page.goto(`${base}/errors?queue=scans`);
ok(/lens \? is dirty\s+0\s+0\s+5\s/.test(await said(page)), 'healed errors are listed', await said(page));
await follow(page.getByRole('link', { name: 'lens' }));
ok(/jobs\s+5\s+dead\s+0\s+unfinished\s+0\s+resolved by a retry\s+5/.test(await said(page)) && /scan-1/.test(await said(page)) && await page.locator('main').getByRole('button', { name: 'Retry' }).count() === 0, 'and open as others do', await said(page));
await page.goto(`${base}/errors?queue=bills`);
await follow(page.getByRole('link', { name: 'no printer' }));
ok((await said(page)).includes('<b>bill</b>') && (await said(page)).includes('<b>here</b>'), 'markup is text', await said(page));
const printer = page.url().replace(base, '');
const seen = await open();
await seen.goto(`${readOnly}${printer}`);
ok(/no printer/.test(await said(seen)) && await seen.locator('main').getByRole('button', { name: 'Retry' }).count() === 0, 'a read-only page retries nothing', await said(seen));
ok((await seen.goto(`${tenant}${printer}`)).status() === 404, 'a role that does not see the queue does not see the error');
for (const [path, code] of [['/queue/bills/error/0000000000000000', 404], ['/queue/bills/error/%25', 404], ['/queue/none/error/0000000000000000', 404], [`${printer}?first=x`, 200]])
  ok((await fetch(base + path)).status === code, `${path}: ${code}`);
ok((await fetch(`${base}/confirm?action=retry_first&queue=bills&error=%25`)).status === 404 && (await fetch(`${base}/confirm?action=retry_first&queue=scans&error=0000000000000000`)).status === 409, 'a retry of what is not there is refused');

for (const [path, name] of [[`/?${before}`, 'overview of a span'], [`/queue/bills?tab=dead&${before}`, 'queue in a span'], [`/queue/bills/error/${fingerprint}`, 'cause']]) await reads(base + path, name, { reducedMotion: 'reduce' });
const troubles = [...page.troubles, ...far.troubles];
ok(troubles.length === 0, 'no script failed', troubles.join('; '));
await database.end();
await browser.close();
