// Lists of jobs, the page of a job, what is done to several; the jobs are those of jobs.sql:
//   jobs.mjs BASE (with actions) BASE (read-only) BASE (of a role that may look) BASE (of one that may enqueue) BASE (behind 127.0.0.2) FOLDER
// PG* reach the server.
import { readFileSync } from 'node:fs';
import pg from 'pg';
import { surePage } from '../src/pages/chosen.mjs';
import { doings } from '../src/jobs/doing.mjs';
import { browser, close, follow, ok, open, picture as take, reads, said } from './browser.mjs';

const [base, readOnly, looker, clerk, proxied, pictures] = process.argv.slice(2);
const picture = (page, name) => take(page, pictures, name);
const database = new pg.Client();
await database.connect();
const value = async (statement, values = []) => Object.values((await database.query(statement, values)).rows[0] ?? {})[0];
const jobOf = (queue, key) => value('SELECT id FROM idemq.job_list WHERE queue = $1 AND key = $2', [queue, key]);
const list = (queue, parameters = {}) => `/queue/${queue}?${new URLSearchParams(parameters)}`;
const page = await open({ viewport: { width: 1200, height: 800 } });
const heads = async () => (await page.locator('.scroll[aria-label="Jobs"] thead th').allInnerTexts()).map((head) => head.trim());
const rowsOf = () => page.locator('.scroll[aria-label="Jobs"] tbody tr');
const tabsOf = async () => Object.fromEntries((await page.locator('#jobs .tabs a').allTextContents()).map((tab) => tab.trim().split(/\s+/)));
// A page looks for jobs for a second, which a busy machine may take away: then it is asked again.
const whole = async (rows) => {
  let again = 0;
  for (; again < 20 && await rowsOf().count() < rows && await page.getByRole('link', { name: 'Continue search' }).count() > 0; again += 1) await page.reload();
  return again > 0;
};
const counted = async (button) => {
  for (let i = 0; i < 20 && /at least|No matching job was found within/.test(await said(page)); i += 1) {
    await close(page);
    await follow(button);
  }
};
const show = async (queue, parameters, rows) => {
  await page.goto(base + list(queue, parameters));
  await whole(rows);
};

// Columns and tabs.
await show('post', {}, 50);
ok((await heads()).join() === 'Job,Kind,Due,Payload,Number', 'a column that is empty in all rows is not there', (await heads()).join());
ok(await rowsOf().count() === 50 && (await rowsOf().first().innerText()).includes('{"to": "somebody1@example.org", "order": 18001, "language": "de", "template": "o…'),
  'a row has the first 80 characters of the payload', await rowsOf().first().innerText());
ok(JSON.stringify(await tabsOf()) === '{"waiting":"121","running":"0","retrying":"0","blocked":"68","scheduled":"2","completed":"0","dead":"0","cancelled":"0","all":"191"}',
  'tabs have counts', JSON.stringify(await tabsOf()));
await picture(page, 'ui-queue');
await page.goto(base + list('shop', { tab: 'running' }));
ok((await heads()).join() === 'Job,Kind,Progress,Attempt,Running since,Worker,Payload,Number' && (await said(page)).includes('62 %') && (await said(page)).includes('importer@host3'), 'what runs has progress and worker', await said(page));
await show('shop', { tab: 'retrying' }, 2);
ok((await heads()).includes('Error') && (await said(page)).includes('ZeroDivisionError: division by zero') && !(await said(page)).includes('Traceback'), 'a list shows the cause of an error', await said(page));
for (const [tab, count] of [['blocked', 68], ['scheduled', 2]]) {
  const seen = new Set();
  await page.goto(base + list('post', { tab }));
  for (;;) {
    for (const id of await page.locator('.scroll[aria-label="Jobs"] td:first-child a').allInnerTexts()) seen.add(id);
    if (await page.locator('a.more').count() === 0) break;
    await follow(page.locator('a.more'));
  }
  ok(seen.size === count, `the pages of ${tab} hold each job once`, `${seen.size}`);
}
await show('orders', { tab: 'completed' }, 50);
ok(await rowsOf().count() === 50 && (await tabsOf()).completed === '98,000' && (await tabsOf()).waiting === '1,000', 'a queue of 99,000 has its counts and its first page', JSON.stringify(await tabsOf()));

// Filters.
const find = async (queue, tab, given, rows = 0) => {
  await page.goto(base + list(queue, { tab }));
  await page.locator('.filter summary').click();
  for (const [name, text] of Object.entries(given)) await page.locator(`.filter [name="${name}"]`).fill(text);
  await follow(page.locator('.filter').getByRole('button', { name: 'Filter' }));
  await whole(rows);
  return rowsOf().count();
};
ok(await find('post', 'waiting', { kind: 'reminder' }, 50) === 50 && (await page.locator('.scroll[aria-label="Jobs"] tbody').innerText()).includes('reminder') && !(await page.locator('.scroll[aria-label="Jobs"] tbody').innerText()).includes('\tletter\t'), 'a kind is found');
ok(await find('post', 'waiting', { key: 'letter-2026-11-24-order-1800' }) === 9 && (await said(page)).includes('9 found'), 'and the beginning of a key', await said(page));
ok(await find('post', 'blocked', { group: 'tenant 1' }) === 34, 'and a group', await said(page));
ok(await find('shop', 'all', { error: 'TABLE rates' }) === 0 && await find('shop', 'all', { error: 'customer 77' }) === 1, 'and a text of an error', await said(page));
ok(await find('post', 'all', { payload: '{"order": 18042}' }, 1) === 1 && /1 found; searched [\d,]+ of [\d,]+ jobs/.test(await said(page)) && (await said(page)).includes('larger than 64 kB are not searched'),
  'and what a payload contains, with what was looked at', await said(page));
// Slices of newest ids, in a second each, among 100,000: all of them come by going on.
let looked = await find('orders', 'all', { payload: '{"order": 5}' });
for (let i = 0; i < 20 && looked === 0 && await page.locator('a.more').count() > 0; i += 1) {
  await follow(page.locator('a.more'));
  looked = await rowsOf().count();
}
ok(looked === 1, 'one of 100,000 is found by its payload', await said(page));
ok(await find('post', 'all', { key: 'big' }) === 1 && /\d+ kB, not read/.test(await said(page)), 'a payload that is too large is not read', await said(page));
ok(await find('post', 'waiting', { since: '2020-01-01T00:00' }, 50) === 50 && await find('post', 'waiting', { until: '2020-01-01T00:00' }) === 0
  && await find('post', 'all', { since: '2090-01-01T00:00', kind: 'letter' }) === 0, 'and a time', await said(page));
ok(await find('post', 'waiting', { kind: 'letter', key: 'letter-2026-11-24-order-1800', payload: '{"language": "de"}' }) === 4 && (await page.locator('#jobs .tabs a').first().getAttribute('href')).includes('kind=letter'),
  'several together, and the tabs keep them', await said(page));

// Several are chosen, and asked about; a role sees what it did in the audit.
const mark = async (...places) => { for (const i of places) await rowsOf().nth(i).locator('input').check(); };
const doIt = async (name, question, answer) => {
  const button = page.locator('.bulk').getByRole('button', { name, exact: true });
  await follow(button);
  await counted(button);
  ok(question.test(await said(page)), `${name} says what it will do, and to how many`, await said(page));
  await follow(page.locator('dialog button.do'));
  ok(answer.test(await said(page)), `${name} says what it has done`, await said(page));
};
await show('post', {}, 50);
await mark(0, 2);
ok((await page.locator('[data-chosen]').innerText()) === '2 selected:', 'the bar says how many are chosen');
await doIt('Cancel', /2 jobs of queue post: they will not run[^]*pending\s+reminder\s+2/, /2 jobs cancelled\./);
await show('post', {}, 50);
await mark(0, 1);
await page.locator('.bulk select').selectOption('1');
await doIt('Set priority', /2 jobs of queue post, to priority 1: they get this priority/, /2 jobs given the new priority\./);
await whole(50);
ok((await heads()).includes('Priority') && /^\s*\S+\s+letter\s+1\s/.test(await rowsOf().first().innerText()), 'and they are first now', await rowsOf().first().innerText());
await mark(0, 1, 2);
await follow(page.locator('.bulk').getByRole('button', { name: 'Delete' }));
await picture(page, 'ui-sure');
await close(page);
await doIt('Delete', /3 jobs of queue post: they are deleted with their attempts and steps/, /3 jobs deleted\./);
ok((await tabsOf()).waiting === '116' && (await tabsOf()).cancelled === '2', 'the counts follow', JSON.stringify(await tabsOf()));
await page.goto(base + list('post', { tab: 'cancelled' }));
await mark(0, 1);
await doIt('Retry', /2 jobs of queue post: they become ready immediately[^]*cancelled/, /2 jobs made ready\./);
await page.goto(base + list('shop', { tab: 'scheduled', kind: 'report' }));
await mark(0);
await doIt('Run now', /1 job of queue shop: they become ready immediately/, /1 job made ready\./);
ok(await value("SELECT string_agg(format('%s %s %s', action, jobs, details ->> 'ids'), ', ' ORDER BY id) FROM idemq.audit WHERE queue = 'post' AND action IN ('cancel_many', 'purge', 'retry_many')") === 'cancel_many 2 , purge 3 3, retry_many 2 '
  && await value("SELECT count(*) FROM idemq.audit WHERE queue = 'post' AND action = 'reschedule'") === '2', 'each has its entry in the audit',
await value("SELECT string_agg(format('%s %s %s', action, jobs, details ->> 'ids'), ', ' ORDER BY id) FROM idemq.audit WHERE queue = 'post'"));
await show('post', {}, 50);
await page.locator('.every').check();
ok((await page.locator('[data-chosen]').innerText()) === '50 selected:', 'all of a page are chosen at once');
await rowsOf().nth(1).locator('input').click();
await rowsOf().nth(5).locator('input').click({ modifiers: ['Shift'] });
ok((await page.locator('[data-chosen]').innerText()) === '45 selected:', 'and a row of them with the shift key', await page.locator('[data-chosen]').innerText());
// By keyboard alone, without a script.
const plain = await open({ javaScriptEnabled: false });
await plain.goto(base + list('post', { key: 'letter-2026-11-24-order-18119' }));
const press = async (until, key) => {
  for (let i = 0; i < 60 && !await plain.evaluate((test) => document.activeElement.matches(test), until); i += 1) await plain.keyboard.press('Tab');
  await plain.keyboard.press(key);
};
await press('form.list tbody input[name="ids"]', 'Space');
await press('button[value="cancel"]', 'Enter');
await plain.waitForURL(/\/sure/);
await press('button.do', 'Enter');
await plain.waitForURL(/notice/);
ok((await said(plain)).includes('1 job cancelled.'), 'by keyboard, and without a script', await said(plain));

// All that a list has: how far it is.
await show('bulk', { kind: 'a' }, 50);
await page.locator('.bulk .all input').check();
await doIt('Cancel', /1,000 jobs of queue bulk, all that are waiting\s+of kind a: they will not run/, /of queue|so far|Done/);
await page.waitForFunction(() => document.querySelector('main').textContent.includes('Done.'));
ok((await said(page)).includes('1,000 jobs cancelled.') && await value("SELECT count(*) FROM idemq.job_list WHERE queue = 'bulk' AND status = 'cancelled' AND kind = 'a'") === '1000'
  && await value("SELECT pending FROM idemq.metrics WHERE queue = 'bulk'") === '1000', 'all that a filter finds, and no other', await said(page));
ok(await value("SELECT sum(jobs) || ' in ' || count(*) FROM idemq.audit WHERE queue = 'bulk' AND action = 'cancel_many'") === '1000 in 2', 'in slices, with an entry each');
// The second in which they are counted is over before one is met: it is asked all the same, and goes on.
const questionOf = (seen) => String(surePage({ queue: { name: 'bulk' }, want: { name: 'cancel', doing: doings.cancel, tab: 'waiting', all: true, value: null, filter: {} },
  seen: { upto: '7', of: [], looked: 0, ...seen }, given: { kind: 'b' }, token: 't' }));
for (const [seen, button] of [[{ jobs: 0, atLeast: true }, 'jobs not counted yet'], [{ jobs: 98000, atLeast: false }, '98,000 jobs']]) {
  const question = questionOf(seen);
  ok(question.includes('No matching job was found within one second') && question.includes(`<button class="do final">Cancel ${button}</button>`) && !/any longer|covers the first|Selected jobs/.test(question),
    `who is slow to meet them asks all the same: ${button}`, question);
}
ok(questionOf({ jobs: 0, atLeast: false }).includes('None of these jobs exists any longer'), 'where there is none it says so');

// The second slice meets a job that somebody holds: it waits for it, and is stopped.
const holder = new pg.Client();
await holder.connect();
await holder.query("BEGIN; SELECT FROM idemq.jobs WHERE queue_id = idemq.queue_id('held') AND key = 'held 700' FOR UPDATE");
await show('held', {}, 50);
await page.locator('.bulk .all input').check();
await page.locator('.bulk select').selectOption('7');
const priority = page.locator('.bulk').getByRole('button', { name: 'Set priority' });
await follow(priority);
await counted(priority);
ok(/1,500 jobs of queue held, all that are waiting, to priority 7/.test(await said(page)), 'a priority for all', await said(page));
await follow(page.locator('dialog button.do'));
await page.waitForFunction(() => /^500 .*jobs so far/.test(document.querySelector('main .why').textContent.trim()) && document.querySelector('main').textContent.includes('Another transaction holds one of these jobs'));
ok(/[\d,]+ s|ms/.test(await said(page)) && await page.locator('progress').count() === 1, 'how far it is is shown, and what it waits for', await said(page));
await picture(page, 'ui-doing');
const doing = page.url();
await follow(page.getByRole('link', { name: 'Queue held' }));
ok((await said(page)).includes('Set priority is in progress: view progress'), 'the queue says that it is under way', await said(page));
await page.goto(doing);
const stopping = follow(page.getByRole('button', { name: 'Stop' }));
// Or it has ended: each wait for the job that is held is three seconds.
while (!/It stops after the current batch|Stopped\./.test(await (await fetch(doing)).text())) await new Promise((resolve) => { setTimeout(resolve, 100); });
await holder.query('ROLLBACK');
await stopping;
ok((await said(page)).includes('Stopped.') && Number(await value("SELECT count(*) FROM idemq.job_list WHERE queue = 'held' AND priority = 7")) < 1500, 'and it is stopped', await said(page));
await holder.end();

// A job by hand.
await page.goto(`${base}/queue/desk`);
await follow(page.getByRole('link', { name: 'Enqueue a job' }));
const enter = async (given) => {
  for (const [name, text] of Object.entries(given)) await page.locator(`[name="${name}"]`).last().fill(text);
  await follow(page.locator('button.do'));
};
await enter({ payload: '{"by": "hand"', kind: 'note' });
ok((await said(page)).includes('The payload is not valid JSON') && await page.locator('[name="kind"]').inputValue() === 'note' && await page.locator('[name="payload"][aria-invalid]').count() === 1, 'what is no JSON is said, and what was written stays', await said(page));
await enter({ payload: '{"by": "hand"}', delay: 'soon' });
ok((await page.locator('[name="delay"][aria-invalid]').count()) === 1 && (await said(page)).includes('interval'), 'so is what is no time', await said(page));
await enter({ delay: '2 h', key: 'by hand', priority: '3', headers: '{"who": "me"}' });
const byHand = await said(page);
ok(/Job \d+ was enqueued\./.test(byHand) && byHand.includes('by: "hand"') && byHand.includes('who: "me"') && /priority\s+3/.test(byHand), 'a job is enqueued by hand', byHand);
await page.goto(`${base}/queue/desk/enqueue`);
await enter({ payload: '{"by": "hand"}', key: 'by hand', kind: 'note' });
ok((await said(page)).includes('Nothing was enqueued, because this job already has the key (duplicate).'), 'a key that is taken leads to its job', await said(page));
await value("SELECT idemq.alter_queue('desk', max_unfinished => 1)");
await page.goto(`${base}/queue/desk/enqueue`);
await enter({ payload: '{"by": "hand"}', kind: 'note' });
ok((await said(page)).includes('queue "desk" is full (IQ007)') && await page.locator('[name="kind"]').inputValue() === 'note', 'the form shows that the queue is full, and keeps the input', await said(page));
await value("SELECT idemq.alter_queue('desk', max_unfinished => 0)");

// A job: its actions, with their questions.
const alone = await jobOf('desk', 'by hand');
const act = async (name, question, answer) => {
  await follow(page.getByRole('button', { name, exact: true }));
  ok(question.test(await said(page)), `${name} asks first`, await said(page));
  await follow(page.locator('dialog button.do'));
  ok(answer.test(await said(page)), `${name} says what was done`, await said(page));
};
await page.goto(`${base}/job/${alone}`);
await page.locator('.reschedule summary').click();
await page.locator('[name="run_at"]').fill('2090-01-02T03:04');
await page.locator('[name="priority"]').selectOption('8');
await act('Reschedule …', /will not be claimed before 2090-01-02 03:04:00 UTC, and its priority will be 8/, /The job has its new time and priority\.[^]*2090-01-02 03:04:00 UTC/);
await act('Run now', /becomes ready immediately, regardless/, /The job can be claimed now\. It is now pending/);
await act('Cancel', /is now pending\. It will not run/, /The job was cancelled\./);
await act('Retry', /is now cancelled\. It becomes ready immediately/, /The job can be claimed again/);
ok(await value("SELECT string_agg(action, ' ' ORDER BY id) FROM idemq.audit WHERE job_id = $1", [alone]) === 'reschedule retry cancel retry', 'each stands in the audit');
await page.goto(`${base}/job/${await jobOf('shop', 'import-7')}`);
await act('Revoke lease', /Its lease ends now/, /The lease was revoked/);

// A traceback: its cause first, its lines, the client's own folded.
await page.context().grantPermissions(['clipboard-read', 'clipboard-write'], { origin: base });
await page.goto(`${base}/job/${await jobOf('shop', 'order-1842')}`);
await picture(page, 'ui-trace');
const python = await said(page);
const order = ['Enqueued', 'Attempt 1 by shop-1@host7: failed', 'ConnectionError: no answer', 'Attempt 2 by shop-2@host7: failed', 'shop.bank.BankError: customer 77 has no account', "because of KeyError: 'iban'",
  'File "/srv/shop/bank.py", line 12, in account', '    return row["iban"]', '2 client and runtime frames', 'File "/srv/shop/tasks.py", line 40', 'raise BankError'].map((text) => python.replaceAll(/[ \n]+/g, ' ').indexOf(text.replaceAll(/ +/g, ' ').trim()));
ok(order.every((at, i) => at >= 0 && (i === 0 || at > order[i - 1])), 'one column of time; the cause of a death first, its frames in lines', `${order} ${python}`);
ok(!python.includes('_attempts.py') && await page.locator('.own details').evaluate((own) => own.textContent.includes('_attempts.py", line 512') && own.textContent.includes('_job.py')), 'the frames of the client are folded, and there');
await page.getByText('2 client and runtime frames').click();
ok((await said(page)).includes('_attempts.py'), 'and unfolded');
const copyOf = async (name) => {
  // The button says so for two seconds: who is late is told as well.
  await page.evaluate((id) => {
    const button = document.querySelector(`[data-copy="${id}"]`);
    window.copied = false;
    new MutationObserver(() => { window.copied ||= button.textContent === 'Copied'; }).observe(button, { childList: true });
  }, name);
  await page.locator(`[data-copy="${name}"]`).click();
  await page.waitForFunction(() => window.copied);
  return page.evaluate(() => navigator.clipboard.readText());
};
const copied = await copyOf('payload');
ok(JSON.parse(copied).customer.name === 'Jörg Müller' && copied.includes('12345678901234567890.10') && python.includes('price: 12345678901234567890.10'), 'a payload is a tree that can be copied, with each of its digits', copied);
ok((await copyOf(await page.locator('.trace [data-copy]').last().getAttribute('data-copy'))).trim().endsWith('shop.bank.BankError: customer 77 has no account'), 'so can an error be, whole');
await page.goto(`${base}/job/${await jobOf('shop', 'order-1843')}`);
const node = await said(page);
ok(/because of Error: no row of table rates for "XX"/.test(node) && node.includes('at total (file:///srv/shop/invoice.js:14:22)') && node.includes('2 client and runtime frames') && !node.includes('processTicksAndRejections')
  && (await page.locator('.cause').innerText()).startsWith('TypeError: Cannot read'), 'Node’s, too', node);
await page.goto(`${base}/job/${await jobOf('shop', 'order-1844')}`);
const literal = await said(page);
ok((await page.locator('.cause').innerText()) === 'ZeroDivisionError: division by zero' && /line 7, in <module>\n\s*main\(\)/.test(literal) && !literal.includes('\\n'), 'and one whose line ends were written as \\n', literal);

// Steps, a checkpoint, an event; a graph in full, and one that is folded.
await page.goto(`${base}/job/${await jobOf('shop', 'order-1845')}`);
await page.getByText('request', { exact: true }).click();
await page.getByText('response', { exact: true }).click();
const steps = await said(page);
ok(/Step charge card: done after/.test(steps) && steps.includes('amount: 1200') && steps.includes('charge: "ch_1845"') && steps.includes('37 %') && /Event paid 1845: waiting, times out in 2 d/.test(steps), 'steps with request and response, checkpoint, event', steps);
await page.goto(`${base}/job/${await jobOf('desk', 'graph')}`);
ok(await page.locator('.graph a').count() === 4 && await page.locator('.graph .edge').count() === 4 && (await page.locator('.graph').textContent()).includes('blocked'), 'a small graph is drawn in full, with its states', await page.locator('.graph').textContent());
await page.locator('.graph a').nth(3).focus();
const graph = page.url();
await Promise.all([page.waitForURL((url) => url.href !== graph && url.pathname.startsWith('/job/')), page.keyboard.press('Enter')]);
await page.goto(`${base}/job/${await value("SELECT max(id) FROM idemq.job_list WHERE queue = 'import'")}`);
const folded = await page.locator('.graph').textContent();
ok(await page.locator('.graph a').count() <= 8 && /1,999 × row\s*10 dead/.test(folded) && /1,999 jobs row of queue import: 10 dead, 1 cancelled, 1 running, 1,187 waiting, 800 completed/.test(folded) && folded.includes('blocked, this') && (await said(page)).includes('jobs, by step (queue and kind)'), 'one of 2,001 jobs by step', folded);

// Markup in each field is text.
const markup = await value("SELECT min(id) FROM idemq.job_list WHERE queue = 'markup'");
const child = await value("SELECT max(id) FROM idemq.job_list WHERE queue = 'markup'");
const tricks = await open();
for (const address of [list('markup', { tab: 'all' }), list('markup', { tab: 'running' }), list('markup', { tab: 'all', kind: '<script>alert(30)</script>', key: '"><script>alert(31)</script>', payload: '{"</script>": "<script>alert(32)</script>"}' }),
  `/job/${markup}`, `/job/${child}`, `/queue/markup/sure?doing=cancel&ids=${markup}&tab=all&kind=${encodeURIComponent('"><script>alert(33)</script>')}`, '/queue/markup/enqueue']) {
  await tricks.goto(base + address);
  await tricks.evaluate(() => { for (const details of document.querySelectorAll('details')) details.open = true; });
}
await tricks.goto(`${base}/job/${markup}`);
await tricks.evaluate(() => { for (const details of document.querySelectorAll('details')) details.open = true; });
const shown = await said(tricks);
ok([1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16].every((i) => shown.includes(`alert(${i})`)) && tricks.troubles.length === 0, 'markup in payload, key, kind, headers, error, trace, worker, step and checkpoint is text',
  `${[1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16].filter((i) => !shown.includes(`alert(${i})`))} ${tricks.troubles.join('; ')}`);
await tricks.goto(base + list('markup', { tab: 'all' }));
ok((await said(tricks)).includes('<script>alert(4)</script>') && await tricks.locator('main img, main script:not([src])').count() === 0, 'and in a list', await said(tricks));
const bad = await tricks.request.post(`${base}/queue/markup/enqueue`, { form: { payload: '<script>alert(34)</script>' } });
ok(bad.status() === 403, 'a form without a token enqueues nothing');

// Who may only look; who may not administer.
await page.goto(looker + list('shop', { tab: 'dead' }));
ok(await page.locator('main input[type="checkbox"], main button:not(.filter button, .span button)').count() === 0 && await page.getByRole('link', { name: 'Enqueue' }).count() === 0 && await rowsOf().count() === 1, 'who may look has no actions', await said(page));
const dead = await jobOf('shop', 'order-1842');
await page.goto(`${looker}/job/${dead}`);
ok(await page.getByRole('button', { name: 'Retry' }).count() === 0 && (await said(page)).includes('customer 77'), 'nor on a job');
await page.goto(looker);
ok(await page.locator('main').getByRole('button', { name: /Pause|Resume/ }).count() === 0 && (await said(page)).includes('shop'), 'nor on the overview', await said(page));
const pending = await jobOf('post', 'letter-2026-11-24-order-18050');
ok((await page.goto(`${looker}/flow/${pending}`)).status() === 200 && await page.getByRole('button', { name: 'Cancel' }).count() === 0, 'nor on a flow', await said(page));
for (const [address, lacks] of [['action=pause&queue=shop', 'admin'], ['action=resume&queue=shop', 'admin'], ['action=redrive&queue=shop', 'admin'], [`action=cancel_flow&id=${pending}`, 'enqueue']]) {
  const answer = await page.goto(`${looker}/confirm?${address}`);
  ok(answer.status() === 403 && (await said(page)).includes(`lacks the privilege ${lacks} on queue`), `${address.split('&')[0]} is refused in words`, await said(page));
}
for (const address of [`/queue/shop/sure?doing=retry&ids=${dead}`, '/queue/shop/enqueue', `/confirm?action=retry&id=${dead}`, `/confirm?action=reschedule&id=${dead}&priority=1`]) {
  const answer = await page.goto(looker + address);
  ok(answer.status() === 403 && (await said(page)).includes('lacks the privilege enqueue on queue "shop"') && (await said(page)).includes('idemq.grant_queue'), `${address.split('?')[0]} is refused in words`, await said(page));
}
ok((await page.goto(looker + list('post'))).status() === 200 && (await page.goto(looker + list('orders'))).status() === 404 && (await page.goto(`${looker}/job/${await value("SELECT min(id) FROM idemq.job_list WHERE queue = 'orders'")}`)).status() === 404,
  'row-level security decides what is there');
await page.goto(clerk + list('shop', { tab: 'dead' }));
ok((await page.locator('.bulk button').allInnerTexts()).join() === 'Retry', 'who may enqueue may retry, and not delete', (await page.locator('.bulk').innerText()));
await value("SELECT idemq.schedule('yearly', '0 0 1 1 *', 'shop', '{}')");
ok((await page.goto(`${clerk}/schedules`)).status() === 200 && (await said(page)).includes('yearly') && await page.getByRole('button', { name: 'Run' }).count() === 0
  && (await page.goto(`${clerk}/confirm?action=run_schedule&schedule=yearly`)).status() === 403 && (await said(page)).includes('by the role that created it'), 'a schedule of others is not his to run', await said(page));
ok((await page.goto(`${clerk}/confirm?action=pause_schedule&schedule=yearly`)).status() === 403 && (await said(page)).includes('can be paused only by the role that created it'), 'and not his to pause', await said(page));
await page.goto(`${base}/schedules`);
await act('Pause schedule yearly', /Schedule yearly will not enqueue jobs to shop until you resume it/, /Schedule yearly was paused\./);
ok((await page.locator('.status.warn').innerText()) === 'paused' && await page.getByRole('button', { name: 'Pause schedule yearly' }).count() === 0
  && await value("SELECT paused_at IS NOT NULL AND next_run IS NULL FROM idemq.schedules WHERE name = 'yearly'") === true, 'a schedule is paused', await said(page));
await act('Resume schedule yearly', /Schedule yearly continues with its next tick/, /Schedule yearly was resumed\. Its next tick is at \d{4}-01-01 00:00:00 UTC\./);
ok(await page.locator('.status.warn').count() === 0 && await value("SELECT paused_at IS NULL FROM idemq.schedules WHERE name = 'yearly'") === true, 'the schedule is resumed', await said(page));
ok(await value("SELECT string_agg(action, ' ' ORDER BY id) FROM idemq.audit WHERE details->>'schedule' = 'yearly'") === 'schedule pause_schedule resume_schedule', 'both calls are in the audit');
await value("SELECT idemq.unschedule('yearly')");
ok((await page.goto(`${clerk}/queue/shop/sure?doing=delete&ids=${dead}`)).status() === 403 && (await said(page)).includes('lacks the privilege admin'), 'deleting wants an administrator', await said(page));
await page.goto(readOnly + list('shop', { tab: 'dead' }));
ok(await page.locator('main input[type="checkbox"]').count() === 0 && (await page.goto(`${readOnly}/queue/shop/sure?doing=retry&ids=${dead}`)).status() === 403 && (await page.goto(`${readOnly}/queue/shop/enqueue`)).status() === 403, 'a read-only page has none');

// Forms of others, and nonsense.
const send = (where, address, body, headers = {}) => fetch(where + address, { method: 'POST', redirect: 'manual', body: new URLSearchParams(body), headers });
const asked = async (where, address) => {
  const answer = await fetch(where + address);
  return { cookie: answer.headers.get('set-cookie').split(';')[0], csrf: /name="csrf" value="([0-9a-f]{64})"/.exec(await answer.text())?.[1] };
};
const mine = await asked(base, `/queue/shop/sure?doing=retry&ids=${dead}&tab=dead`);
const retry = { doing: 'retry', ids: dead, tab: 'dead' };
ok((await send(base, '/queue/shop/do', retry)).status === 403 && (await send(base, '/queue/shop/do', { ...retry, csrf: mine.csrf })).status === 403
  && (await send(base, '/queue/shop/do', { ...retry, csrf: mine.csrf }, { cookie: mine.cookie, origin: 'http://evil.example' })).status === 403
  && (await send(base, `${new URL(doing).pathname}/stop`, {})).status === 403 && await value('SELECT status FROM idemq.job($1)', [dead]) === 'dead', 'forms of others do nothing');
// What the question said is looked at again: rights, and whose jobs they are.
const sees = await asked(clerk, `/queue/shop/sure?doing=retry&ids=${dead}&tab=dead`);
ok((await send(clerk, '/queue/shop/do', { doing: 'delete', ids: dead, csrf: sees.csrf }, { cookie: sees.cookie })).status === 403, 'a form that asks for more is refused');
const other = await value("SELECT id FROM idemq.job_list WHERE queue = 'orders' AND status = 'pending' LIMIT 1");
await send(base, '/queue/shop/do', { doing: 'cancel', ids: other, csrf: mine.csrf }, { cookie: mine.cookie });
ok(await value('SELECT status FROM idemq.job($1)', [other]) === 'pending', 'a job of another queue is not touched');
ok((await send(base, '/queue/shop/do', { ...retry, csrf: mine.csrf }, { cookie: mine.cookie })).status === 303 && await value('SELECT status FROM idemq.job($1)', [dead]) === 'pending', 'its own form does');
const hers = { 'x-forwarded-user': 'ann@example.org' };
const named = await page.request.get(proxied + `/queue/desk/enqueue`, { headers: hers }).catch(() => null);
ok(named !== null && named.status() === 200, 'behind a proxy as well');
for (const nonsense of [list('shop', { after: 'x' }), list('shop', { after: 'WzAsInh4Iiwie30iXQ' }), list('shop', { payload: '{' }), list('shop', { since: 'soon' }), '/queue/shop/sure?doing=retry&ids=x', '/queue/shop/sure?doing=retry', '/queue/shop/sure?doing=priority&ids=1&value=77',
  '/queue/shop/sure?doing=run_now&all=1&tab=dead', `/queue/shop/sure?doing=retry&ids=${Array.from({ length: 201 }, (_, i) => i + 1).join()}`, `/confirm?action=reschedule&id=${dead}`, `/confirm?action=reschedule&id=${dead}&run_at=soon`])
  ok((await fetch(base + nonsense)).status === 400, `${nonsense.slice(0, 60)} is refused, and no failure`, `${(await fetch(base + nonsense)).status}`);
for (const nonsense of ['/queue/shop/sure?doing=constructor&ids=1', '/doing/0123', '/queue/none/sure?doing=retry&ids=1', '/queue/none/enqueue'])
  ok((await fetch(base + nonsense)).status === 404, `${nonsense} is not there`);
for (const fine of [list('shop', { tab: 'constructor' }), list('shop', { tab: '__proto__' })]) ok((await fetch(base + fine)).status === 200, `${fine} is a page`);

// Readable for all.
for (const [address, name] of [[list('post'), 'a list'], [list('markup', { tab: 'all', kind: 'x', payload: '{}' }), 'a filter'], [list('markup', { tab: 'all' }), 'hostile jobs'], [list('shop', { tab: 'retrying' }), 'errors in a list'], [list('shop', { tab: 'blocked' }), 'an empty list'],
  [`/queue/post/sure?doing=delete&all=1&tab=waiting`, 'a question'], [new URL(doing).pathname, 'what was done'], ['/queue/post/enqueue', 'a job by hand'], [`/job/${dead}`, 'a traceback'], [`/job/${markup}`, 'a hostile job'], [`/job/${child}`, 'a hostile graph'],
  [`/job/${await jobOf('shop', 'order-1845')}`, 'steps'], [`/job/${await jobOf('desk', 'graph')}`, 'a graph']]) await reads(base + address, name);
ok(page.troubles.filter((trouble) => !/40[034]/.test(trouble)).length === 0, 'no script failed', page.troubles.join('; '));
await database.end();
await browser.close();
