// The charts, who is there, flows, keys, and the proxy's users:
//   screens.mjs BASE (with actions) BASE (read-only) BASE (of a role that sees one queue) BASE (behind 127.0.0.2) FOLDER FLOW (a job's id)
// PG* reach the server.
import { request } from 'node:http';
import pg from 'pg';
import { browser, follow, ok, open, picture as take, reads, said } from './browser.mjs';

const [base, readOnly, tenant, proxied, pictures, flow] = process.argv.slice(2);
const picture = (page, name) => take(page, pictures, name);
const page = await open({ viewport: { width: 1200, height: 800 } });

// The history is there when the page is opened, and without a script.
const plain = await open({ javaScriptEnabled: false });
await plain.goto(base);
const figures = plain.locator('figure.chart');
ok(await figures.count() === 3 && await figures.locator('svg text.x').count() >= 9 && await figures.locator('svg text.y').count() >= 9,
  'charts have scales and time axes, without JavaScript', await said(plain));
ok(await figures.first().locator('tbody tr').count() > 100, 'and a table of their values');
ok(await figures.first().locator('path.cross').count() >= 3, 'the dead are marked where they happened', `${await figures.first().locator('path.cross').count()}`);
await plain.goto(`${base}/?last=7d`);
// Not each of them: what is too near the axis of values has no name.
ok(/(Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d+/.test(await figures.first().locator('svg').last().textContent()), 'a week has days');
await plain.goto(`${base}/queue/mail?last=24h`);
ok((await said(plain)).includes('Queue mail') && await figures.count() === 6, 'a queue has its own');
await plain.context().close();

// Values under the pointer, and by keyboard.
await page.goto(base);
const done = page.locator('figure#chart-completed-and-failed');
const chart = done.locator('svg[data-left]');
const row = async (index) => (await done.locator('tbody tr').nth(index).locator('td').allInnerTexts());
// scrollIntoViewIfNeeded would wait until the chart stands still, and a refresh may replace it meanwhile.
await chart.evaluate((svg) => svg.scrollIntoView({ block: 'center' }));
const box = await chart.boundingBox();
await page.mouse.move(box.x + (box.width * (60 + 332 / 2)) / 400, box.y + box.height / 2);
const rowsOf = () => done.locator('tbody tr').evaluateAll((all) => all.map((one) => [...one.cells].map((cell) => cell.textContent)));
const rows = await rowsOf();
const values = await done.locator('.values').innerText();
ok([59, 60].some((i) => values.includes(rows[i][0]) && values.includes(rows[i][1])), 'the pointer reads the values of the middle', values);
ok(await page.locator('.cursor.on').count() === 3, 'all charts show the same moment');
await picture(page, 'ui-charts');
await page.mouse.move(1, 1);
ok(await page.locator('.cursor.on').count() === 0 && (await done.locator('.values').innerText()).includes('now'), 'and what is now, when it has gone');
await chart.focus();
await page.keyboard.press('Home');
await page.keyboard.press('ArrowRight');
// Between pointer and focus the page may have refreshed itself.
const [, second] = await rowsOf();
ok((await chart.getAttribute('aria-valuetext')).startsWith(`${second[0]}: completed ${second[1]}`) && await chart.getAttribute('role') === 'slider',
  'the keyboard goes through them, and says them', await chart.getAttribute('aria-valuetext'));
await page.keyboard.press('Escape');
await chart.blur();

// Refreshed: what is open stays open, and somebody can stop it.
await done.locator('summary').click();
await page.evaluate(() => { document.activeElement.blur(); document.querySelector('#chart-completed-and-failed').dataset.old = '1'; });
await page.waitForFunction(() => !document.querySelector('#chart-completed-and-failed').dataset.old);
ok(await done.locator('details').getAttribute('open') !== null, 'a table stays open when the page refreshes itself');
await chart.focus();
ok(await chart.getAttribute('role') === 'slider', 'and the keyboard works in what is new');
await chart.blur();
await page.keyboard.press('p');
ok(await page.getByRole('button', { name: 'Resume live' }).count() === 1 && (await page.locator('[data-age]').innerText()).startsWith('Paused at'), 'a key pauses it');
await page.getByRole('button', { name: 'Resume live' }).click();
ok((await page.locator('[data-age]').innerText()).startsWith('Live'), 'and a button resumes it');
await page.setViewportSize({ width: 1200, height: 1500 });
await page.goto(base);
await picture(page, 'ui-overview');
for (const [width, height, name] of [[800, 600, 'ui-readme'], [1440, 900, 'ui-1440'], [820, 900, 'ui-820'], [390, 844, 'ui-390']]) {
  await page.setViewportSize({ width, height });
  await page.goto(base);
  await picture(page, name);
  if (name === 'ui-readme') continue;
  await page.emulateMedia({ colorScheme: 'dark' });
  await picture(page, `${name}-dark`);
  await page.emulateMedia({ colorScheme: 'light' });
}
await page.setViewportSize({ width: 1200, height: 800 });

// What needs somebody.
const overview = await said(page);
ok(/reports\s+has no workers: 1 job pending/.test(overview) && /mail:\s+\d+ jobs are dead/.test(overview) && /\d+ more in the list of queues/.test(overview), 'what needs somebody is said first', overview);
ok(/undelivered\s+dead-letter queue/.test(overview), 'a dead-letter queue is marked', overview);

// Who is there.
// Who has not said for 90 s that he is there is silent: he says so now.
const database = new pg.Client();
await database.connect();
await database.query("SET SESSION AUTHORIZATION app; SELECT idemq.report_worker('00000000-0000-0000-0000-000000000001', 'mail-1', '{mail,orders}', 'node', '1.0.0', 'web-1.shop.example', 8, '{1000000000001}', 18733)");
await database.end();
await page.goto(`${base}/workers`);
const workers = await said(page);
for (const [what, pattern] of [['a worker, where it is and what it is', /mail-1\s+node 1\.0\.0 on web-1\.shop\.example as app/],
  ['one that is there', /mail-1[^]{0,80}\sonline\s/], ['a name that is markup is text', /<img src=x onerror=alert\(1\)>/], ['one that is silent', /silent/], ['one that is gone', /mail-3[^]{0,80}\sgone\s/],
  ['what nobody works on', /No worker for\s+reports/], ['a handler, in words and units', /up to 1 job per transaction; exits after 10 s without a job/]])
  ok(pattern.test(workers), `workers: ${what}`, workers);
await picture(page, 'ui-workers');
await page.goto(`${base}/running`);
ok((await said(page)).includes('<b>bold</b>'), 'what runs, by whom', await said(page));

// How far an import is, in one look; and its end.
await page.goto(`${base}/flow/${flow}`);
const import_ = await said(page);
ok(/Failed: row died \(10 jobs\), 1 job cancelled\. 801 of 2,001\s+jobs completed \(40 %\), 1 running, 1,187 waiting, 1 blocked/.test(import_), 'how far a flow is', import_);
ok(/Blocked by job/.test(import_) && /slowest/.test(import_) && /row 7: no price/.test(import_), 'what holds it up, its slowest, its failed', import_);
ok(await page.locator('.graph a.node').count() === 3 && await page.locator('table.rows tbody tr').count() <= 8, 'its jobs are folded, by step in the graph, and by status in the table');
ok(import_.includes('<script>alert(2)</script>'), 'a kind that is markup is text', import_);
await follow(page.getByRole('link', { name: 'Timeline' }));
await picture(page, 'ui-flow');
await page.goto(`${base}/flow/${flow}`);
const seen = await open();
await seen.goto(`${readOnly}/flow/${flow}`);
ok(await seen.getByRole('button', { name: 'Cancel flow' }).count() === 0, 'a read-only page does not cancel it');
ok((await seen.goto(`${tenant}/flow/${flow}`)).status() === 404, 'a role that does not see its queue does not see it');
ok((await seen.goto(`${tenant}/workers`)).status() === 200 && !(await said(seen)).includes('mail-1'), 'nor who works elsewhere', await said(seen));
await seen.goto(tenant);
ok(await seen.locator('figure.chart').count() === 3 && !(await said(seen)).includes('orders'), 'charts of what a role may see', await said(seen));
await follow(page.getByRole('button', { name: 'Cancel flow' }));
ok(/1,189 unfinished jobs/.test(await said(page)), 'the question says how many', await said(page));
await picture(page, 'ui-cancel-flow');
await follow(page.locator('dialog button.do'));
ok(/1,189 jobs were cancelled/.test(await said(page)) && /Failed: row died \(10 jobs\), 1,190 jobs cancelled/.test(await said(page)), 'all of it is cancelled', await said(page));

// By keyboard, on every page.
await page.goto(`${base}/errors`);
await page.keyboard.press('?');
await page.locator('dialog[open] kbd').first().waitFor();
await picture(page, 'ui-keys');
await page.keyboard.press('Escape');
await page.keyboard.press('g');
await page.keyboard.press('w');
await page.waitForURL(/workers$/);
await page.keyboard.press('/');
ok(await page.evaluate(() => document.activeElement.name === 'q'), 'a key leads to the field that finds');
await page.goto(`${base}/schedules`);
await page.goto(`${base}/errors`);
await page.keyboard.press('j');
ok(await page.evaluate(() => document.activeElement.closest('tbody tr') !== null), 'and to a row');
await page.goto(`${base}/keys`);
await page.getByRole('checkbox').uncheck();
await page.keyboard.press('g');
await page.keyboard.press('w');
await page.waitForTimeout(200);
ok(/keys$/.test(page.url()), 'they can be turned off');
await page.getByRole('checkbox').check();
const focus = await page.evaluate(() => getComputedStyle(document.querySelector(':focus-visible') ?? document.body).outlineWidth);
ok(parseFloat(focus) >= 2, 'a focus is seen', focus);

// Who comes through the proxy is whom it names; who does not come through it is nobody.
const ask = (options, body) => new Promise((resolve, reject) => {
  const sent = request(proxied, options, (answer) => {
    let text = '';
    answer.on('data', (part) => { text += part; });
    answer.on('end', () => resolve({ status: answer.statusCode, headers: answer.headers, text }));
  });
  sent.on('error', reject).end(body);
});
const proxy = '127.0.0.2';
const anna = { 'x-forwarded-user': 'anna <b>' };
ok((await ask({ localAddress: proxy, path: '/errors' })).status === 403, 'a proxy that names no user is refused');
ok((await ask({ localAddress: proxy, path: '/errors', headers: { 'x-forwarded-user': ['anna', 'boss'] } })).status === 403, 'so is one that names two');
for (const [who, from, headers] of [['the proxy’s user', proxy, anna], ['a header from elsewhere', '127.0.0.3', { 'x-forwarded-user': 'eve' }]]) {
  const question = await ask({ localAddress: from, path: '/confirm?action=pause&queue=orders', headers });
  const cookie = question.headers['set-cookie'][0].split(';')[0];
  const csrf = /name="csrf" value="([0-9a-f]{64})"/.exec(question.text)[1];
  const acted = await ask({ localAddress: from, path: '/do', method: 'POST', headers: { ...headers, cookie, 'content-type': 'application/x-www-form-urlencoded' } },
    new URLSearchParams({ csrf, action: 'pause', queue: 'orders' }).toString());
  ok(acted.status === 303, `${who}: an action`, JSON.stringify(acted));
}
const audit = await open();
await audit.goto(`${base}/audit`);
ok((await audit.locator('tbody tr').nth(1).innerText()).includes('anna <b>') && !(await said(audit)).includes('eve'), 'the audit says for whom, and believes the proxy alone', await said(audit));

// Live: what changes is shown; a connection that fails leaves the last state, and says so; nothing is asked while somebody pauses.
const live = await open({ viewport: { width: 1200, height: 900 } });
await live.goto(base);
const changing = new pg.Client();
await changing.connect();
await changing.query("SELECT idemq.create_queue('fresh', expect_workers => false), idemq.enqueue('fresh', '1')");
await live.locator('tr', { hasText: 'fresh' }).waitFor();
ok(/fresh\s+OK\s+1\s/.test(await live.locator('tr', { hasText: 'fresh' }).innerText()), 'a new queue appears by itself', await said(live));
await changing.query("SELECT idemq.pause('fresh')");
await live.locator('tr', { hasText: 'fresh' }).getByText('paused').waitFor();
ok(true, 'and so does its state');
await live.route('**/*', (route) => route.abort());
await live.locator('.live.lost').waitFor();
ok(/^No connection since \d\d:\d\d:\d\d/.test(await live.locator('[data-age]').innerText()) && (await said(live)).includes('fresh') && await live.locator('figure.chart').count() === 3,
  'without a connection the last state stays, with a message', await said(live));
await live.unroute('**/*');
await live.locator('.live:not(.lost)').waitFor();
ok((await live.locator('[data-age]').innerText()).startsWith('Live'), 'and it goes on by itself');
let requests = 0;
live.on('request', () => { requests += 1; });
await live.getByRole('button', { name: 'Pause live' }).click();
requests = 0; // those before the click are meant to be
await live.waitForTimeout(3000);
ok(requests === 0, 'a paused page asks for nothing', `${requests}`);
ok(/^\(\d+\) Overview/.test(await live.title()) && (await live.locator('link[rel="icon"]').getAttribute('href')).includes('alert'), 'title and icon show that something needs attention', await live.title());
// Times in the zone of the browser, or in UTC.
const far = await open({ timezoneId: 'Asia/Kathmandu' });
await far.goto(`${base}/audit`);
const zoned = await far.locator('time').first().getAttribute('title');
await far.keyboard.press('u');
const inUtc = await far.locator('time').first().getAttribute('title');
ok(/(GMT\+5:45|NPT)$/.test(zoned) && /UTC$/.test(inUtc) && /press u for Asia\/Kath?mandu/.test(await far.locator('[data-zone]').innerText()), 'times are in the browser’s zone, or in UTC', `${zoned} ${inUtc}`);
await far.goto(`${base}/queue/undelivered`);
ok(/Dead-letter queue of letters/.test(await said(far)) && (await said(far)).includes('no such street') && await far.getByRole('link', { name: 'original job' }).count() === 1,
  'a dead-letter queue names its queue, the error and the original job', await said(far));
// For programs.
ok((await (await fetch(`${base}/healthz`)).json()).status === 'ok', 'the page’s health');
const queuesNow = await (await fetch(`${tenant}/api/1/queues`)).json();
ok(queuesNow.length === 1 && queuesNow[0].queue === 'hostile' && typeof queuesNow[0].pending === 'number' && (await fetch(`${tenant}/api/1/jobs/${flow}`)).status === 404
  && (await (await fetch(`${base}/api/1/jobs/${flow}`)).json()).id === flow, 'JSON shows what the role may see', JSON.stringify(queuesNow));
ok((await fetch(`${base}/`, { headers: { 'accept-encoding': 'gzip' } })).headers.get('content-encoding') === 'gzip', 'pages are compressed');
await changing.query("SELECT idemq.drop_queue('fresh', force => true)");
await changing.end();

for (const [path, name] of [['/', 'charts'], ['/queue/mail?last=7d', 'charts of a queue'], ['/workers', 'workers'], ['/running', 'running'],
  [`/flow/${flow}`, 'flow'], ['/keys', 'keys'], ['/job/999999999', 'missing job']]) await reads(base + path, name, { reducedMotion: 'reduce' });
ok(page.troubles.length === 0, 'no script failed', page.troubles.join('; '));
await browser.close();
