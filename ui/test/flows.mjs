// Flows: the graph, which zooms, moves and follows the running jobs; when jobs ran; retry and cancel; the list:
//   flows.mjs BASE (with actions) BASE (read-only) BASE (of a role that may look at shop and post, with actions) FOLDER
// PG* reach the server.
import pg from 'pg';
import { place, HEIGHT, WIDTH } from '../src/flows/place.mjs';
import { graphOf } from '../src/flows/model.mjs';
import { browser, close, follow, ok, open, picture as take, reads, said } from './browser.mjs';

const [base, readOnly, looker, pictures] = process.argv.slice(2);
const picture = (page, name) => take(page, pictures, name);
const database = new pg.Client();
await database.connect();
const run = (statement, values = []) => database.query(statement, values);
const value = async (statement, values = []) => Object.values((await run(statement, values)).rows[0] ?? {})[0];
const until = async (statement, wanted, values = []) => {
  for (let i = 0; i < 600; i += 1) {
    if (String(await value(statement, values)) === wanted) return true;
    await new Promise((resolve) => { setTimeout(resolve, 100); });
  }
  return false;
};
/** Runs the job of a kind: it completes, or dies with an error. */
const finish = async (kind, error = null) => {
  await until('SELECT status FROM idemq.job_list WHERE kind = $1 ORDER BY id DESC LIMIT 1', 'pending', [kind]);
  const id = await value('SELECT id FROM idemq.job_list WHERE kind = $1 ORDER BY id DESC LIMIT 1', [kind]);
  await run("SELECT CASE WHEN $2::text IS NULL THEN idemq.commit(id, token)::text ELSE idemq.fail(id, token, $2, permanent => true)::text END FROM idemq.claim_job($1, worker => 'shop-1')", [id, error]);
  return id;
};

// An order, whose payment dies: five jobs are cancelled.
await run("SELECT count(idemq.create_queue(q)) FROM unnest('{orders7,payments7,parcels7}'::text[]) q");
await run(`SELECT count(*) FROM idemq.enqueue_graph('[{"name": "order", "queue": "orders7", "payload": {}, "kind": "order.place", "key": "order-7"},
  {"name": "reserve", "queue": "parcels7", "payload": {}, "kind": "stock.reserve", "depends_on": ["order"]},
  {"name": "charge", "queue": "payments7", "payload": {}, "kind": "payment.charge", "depends_on": ["order"]},
  {"name": "fraud", "queue": "payments7", "payload": {}, "kind": "fraud.check", "depends_on": ["order"]},
  {"name": "pack", "queue": "parcels7", "payload": {}, "kind": "parcel.pack", "depends_on": ["reserve", "charge", "fraud", "order"]},
  {"name": "label", "queue": "parcels7", "payload": {}, "kind": "parcel.label", "depends_on": ["pack"]},
  {"name": "invoice", "queue": "orders7", "payload": {}, "kind": "invoice.send", "depends_on": ["charge"]},
  {"name": "ship", "queue": "parcels7", "payload": {}, "kind": "parcel.ship", "depends_on": ["label"]},
  {"name": "mail", "queue": "orders7", "payload": {}, "kind": "mail.shipped", "depends_on": ["ship", "invoice"]}]')`);
const order = await finish('order.place');
await finish('stock.reserve');
await finish('fraud.check');
const charge = await finish('payment.charge', 'CardError: declined');
ok(await until("SELECT cancelled FROM idemq.flow($1)", '5', [order]), 'what depends on a dead job is cancelled');
// The jobs ran for some minutes.
for (const [kind, begun, ended] of [['order.place', 300, 290], ['stock.reserve', 288, 240], ['fraud.check', 285, 130], ['payment.charge', 262, 250]])
  await run("UPDATE idemq.jobs SET claimed_at = now() - make_interval(secs => $2), finished_at = now() - make_interval(secs => $3) WHERE kind = $1", [kind, begun, ended]);

// Without a script, the graph and the table are complete.
const plain = await open({ javaScriptEnabled: false, viewport: { width: 1440, height: 900 } });
await plain.goto(`${base}/flow/${charge}`);
const graph = plain.locator('.canvas .graph');
ok(await graph.locator('a.node').count() === 9 && await graph.locator('path.edge').count() === 11 && await graph.locator('path.edge.critical').count() === 5,
  'each job is a box; a dependency that follows from others has no line; the critical path is marked', `${await graph.locator('path.edge').count()}`);
ok(await plain.locator('[aria-label="Jobs of the flow"] tbody tr').count() === 9 && /payment\.charge[^]*order\.place[^]*CardError: declined/.test(await said(plain)), 'and a row of the table', await said(plain));
ok(/Failed: payment\.charge died, 5 jobs cancelled\. 3 of 9\s+jobs completed \(33 %\)/.test(await said(plain)) && !/100 %/.test(await said(plain)), 'the headline says what died', await said(plain));
ok(/Critical path: 6 jobs, 2 min 45 s of run time\. order\.place 10 s → fraud\.check 2 min 35 s → parcel\.pack/.test(await said(plain)), 'the critical path in words', await said(plain));
ok(await plain.locator('.zoom').isHidden(), 'no button that needs a script');
await follow(plain.getByRole('link', { name: 'Timeline' }));
ok(plain.url().endsWith('?view=time') && await plain.locator('svg.gantt rect.one').count() === 4 && (await said(plain)).includes('has not run'), 'when jobs ran is a page of its own', await said(plain));
const widths = await plain.locator('svg.gantt rect.one').evaluateAll((bars) => bars.map((bar) => Math.round(bar.getBoundingClientRect().width)));
ok(widths[0] > 0 && Math.abs(widths[1] / widths[0] - 4.8) < 0.3 && widths.length === 4, 'bars are to scale', widths.join());
await plain.context().close();

// Zoom and move, by mouse and by keyboard.
const page = await open({ viewport: { width: 1000, height: 800 } });
await page.goto(`${base}/flow/${order}`);
const frame = page.locator('.canvas .graph');
const width = () => frame.locator('svg').evaluate((svg) => svg.getBoundingClientRect().width);
await page.getByRole('button', { name: 'Fit' }).click();
const fit = await width();
ok(fit <= await frame.evaluate((element) => element.clientWidth) && await page.locator('.zoom').isVisible(), 'it fits into its frame', `${fit}`);
await page.getByRole('button', { name: 'Zoom in' }).click();
const larger = await width();
ok(larger > fit * 1.2, 'a button makes it larger', `${fit} ${larger}`);
await page.getByRole('button', { name: 'Zoom out' }).click();
ok(Math.abs(await width() - fit) < 3, 'and smaller', `${fit} ${await width()}`);
await frame.focus();
for (const key of ['+', '+', '+']) await page.keyboard.press(key);
ok(await width() > fit * 1.8, 'so do keys', `${await width()}`);
const before = await frame.evaluate((element) => element.scrollLeft);
await page.keyboard.press('ArrowRight');
await page.waitForFunction((at) => document.querySelector('.canvas .graph').scrollLeft > at, before);
ok(true, 'arrow keys move it');
const box = await frame.boundingBox();
const place1 = await frame.evaluate((element) => element.scrollLeft);
await page.mouse.move(box.x + 300, box.y + 20);
await page.mouse.down();
await page.mouse.move(box.x + 200, box.y + 20, { steps: 4 });
await page.mouse.up();
ok(await frame.evaluate((element) => element.scrollLeft) >= place1 + 90 && page.url().endsWith(order), 'the mouse drags it', `${place1} ${await frame.evaluate((element) => element.scrollLeft)}`);
await page.keyboard.press('0');
ok(Math.abs(await width() - fit) < 3, 'and a key fits it again', `${await width()}`);
await page.evaluate(() => document.activeElement.blur());
await picture(page, 'ui-graph');

// The life of a job, as a picture: it waited for 38 s and ran for 12 s.
await run("UPDATE idemq.jobs SET enqueued_at = claimed_at - interval '38 s' WHERE id = $1", [charge]);
await run('UPDATE idemq.attempts a SET claimed_at = j.claimed_at, ended_at = j.finished_at FROM idemq.jobs j WHERE j.id = $1 AND a.job_id = j.id', [charge]);
const life = await open({ javaScriptEnabled: false });
await life.goto(`${base}/job/${charge}`);
const widthOf = async (selector) => (await life.locator(`.life ${selector}`).boundingBox()).width;
const share = await widthOf('.attempt > rect') / await widthOf('> svg');
ok(Math.abs(share - 0.24) < 0.01 && await life.locator('.life .end.dead').count() === 1 && await life.locator('.life .wait').count() === 1, 'the attempt and the wait of a job are to scale, and its death has a mark', `${share}`);
ok(await life.locator('.life figcaption').innerText() === 'Waited 38 s, ran 12 s in 1 attempt.' && await life.locator('.life table tbody tr').count() === 2, 'in words, and as a table', await life.locator('.life').innerText());
await life.context().close();

// Retry from the failed step: who may, what the question says, what has happened.
const reader = await open();
await reader.goto(`${readOnly}/flow/${order}`);
ok(await reader.getByRole('button', { name: /Retry|Cancel/ }).count() === 0 && (await reader.goto(`${readOnly}/confirm?action=retry_flow&id=${order}`)).status() === 403, 'a read-only page does not retry it');
await run(`SELECT count(*) FROM idemq.enqueue_graph('[{"name": "a", "queue": "shop", "payload": {}, "kind": "seen.first"}, {"name": "b", "queue": "shop", "payload": {}, "kind": "seen.second", "depends_on": ["a"]}]')`);
const seen = await finish('seen.first', 'no');
await reader.goto(`${looker}/flow/${seen}`);
ok(/Failed: seen\.first died/.test(await said(reader)) && await reader.getByRole('button', { name: /Retry/ }).count() === 0, 'a role that may only look has no button', await said(reader));
const refused = await reader.goto(`${looker}/confirm?action=retry_flow&id=${seen}`);
ok(refused.status() === 403 && /lacks the privilege enqueue on queue "shop"/.test(await said(reader)), 'and is refused', await said(reader));
await follow(page.getByRole('button', { name: 'Retry 1 dead and 5 cancelled jobs' }));
ok(/1 dead job of this flow will become ready immediately, and 5 cancelled jobs that depend on them/.test(await said(page)), 'the question says what will run again', await said(page));
await close(page);
ok(await value("SELECT count(*) FROM idemq.job_list WHERE queue IN ('orders7', 'payments7', 'parcels7') AND status IN ('dead', 'cancelled')") === '6', '“Keep as is” changes nothing');
await follow(page.getByRole('button', { name: 'Retry 1 dead and 5 cancelled jobs' }));
await follow(page.locator('dialog').getByRole('button', { name: 'Retry 1 dead and 5 cancelled jobs' }));
ok(/6 jobs will run again\./.test(await said(page)) && /Waiting\. 3 of 9\s+jobs completed \(33 %\), 1 waiting, 5 blocked/.test(await said(page)), 'they run again, and completed jobs stay completed', await said(page));
const recorded = await value("SELECT sum(jobs) FROM idemq.audit WHERE action = 'retry_many' AND queue IN ('orders7', 'payments7', 'parcels7')");
const again = await reader.goto(`${base}/confirm?action=retry_flow&id=${order}`);
ok(recorded === '6' && again.status() === 409, 'the audit has an entry for each queue, and there is nothing more to retry', `${recorded} ${again.status()} ${await said(reader)}`);

// Live, and following the jobs that run.
await page.setViewportSize({ width: 500, height: 800 });
await page.goto(`${base}/flow/${order}`);
await page.getByRole('button', { name: 'Follow running jobs' }).click();
ok(new URL(page.url()).searchParams.get('follow') === '1' && await page.getByRole('button', { name: 'Follow running jobs' }).getAttribute('aria-pressed') === 'true', 'that it follows is in the address', page.url());
for (let i = 0; i < 4; i += 1) await page.getByRole('button', { name: 'Zoom in' }).click();
for (const kind of ['payment.charge', 'parcel.pack', 'parcel.label']) await finish(kind);
await until("SELECT status FROM idemq.job_list WHERE kind = 'parcel.ship' ORDER BY id DESC LIMIT 1", 'pending');
const ship = await value("SELECT id FROM idemq.job_list WHERE kind = 'parcel.ship' ORDER BY id DESC LIMIT 1");
const token = await value("SELECT token FROM idemq.claim_job($1, lease => '1 h', worker => 'store-1')", [ship]);
await page.locator('.node.running').waitFor();
ok(/parcel\.ship\s*running/.test(await page.locator('.node.running').textContent()), 'a job that has begun is shown as running', await page.locator('.node.running').textContent());
const visible = await page.evaluate(() => {
  const [node, at] = [document.querySelector('.node.running').getBoundingClientRect(), document.querySelector('.canvas .graph').getBoundingClientRect()];
  return { in: node.left >= at.left && node.right <= at.right, wider: document.querySelector('.canvas .graph').scrollWidth > at.width * 2 };
});
ok(visible.in && visible.wider, 'and is in view, although the graph is wider', JSON.stringify(visible));
ok(/Running\. 6 of 9\s+jobs completed \(66 %\), 1 running/.test(await said(page)), 'the headline follows', await said(page));
await run('SELECT idemq.commit($1, $2)', [ship, token]);
for (const kind of ['invoice.send', 'mail.shipped']) await finish(kind);
await page.getByText('9 of 9').waitFor();
ok(/Completed\. 9 of 9\s+jobs completed \(100 %\)/.test(await said(page)) && await page.getByRole('button', { name: /Retry|Cancel/ }).count() === 0, 'only a flow whose jobs have all completed is at 100 %', await said(page));

// 3,000 jobs.
await run("SELECT idemq.create_queue('rows3000', max_attempts => 1)");
const file = await value(`WITH file AS (SELECT id FROM idemq.enqueue('rows3000', '1', kind => 'file')), members AS (SELECT array_agg(r.id) AS ids FROM file,
  LATERAL idemq.enqueue_many('rows3000', (SELECT array_agg(to_jsonb(g)) FROM generate_series(1, 2998) g), kinds => array_fill('row'::text, ARRAY[2998]), depends_on => ARRAY[file.id]) r)
  SELECT e.id FROM members, LATERAL idemq.enqueue('rows3000', '2', kind => 'report', depends_on => members.ids) e`);
await page.setViewportSize({ width: 1200, height: 800 });
await page.goto(`${base}/flow/${file}`);
ok(await page.locator('.graph a.node').count() === 3 && /2,998 × row\s*2,998 blocked/.test(await page.locator('.graph').textContent()) && /3,000 jobs are folded by step/.test(await said(page)), '3,000 jobs are three boxes', await page.locator('.graph').textContent());
await follow(page.getByRole('button', { name: 'Cancel flow' }));
await follow(page.locator('dialog').getByRole('button', { name: 'Cancel 3,000 jobs' }));
ok(/Cancelled: 3,000 jobs cancelled\. 0 of 3,000/.test(await said(page)) && await page.getByRole('button', { name: 'Retry 3,000 cancelled jobs' }).count() === 1, 'a cancelled flow says so, and can be retried', await said(page));

// The layout: no box lies on another, and all are in the picture.
const wide = graphOf(Array.from({ length: 100 }, (_, i) => ({ id: `${i}`, queue: 'q', kind: 'k', status: 'completed', depth: i === 0 ? 0 : i === 99 ? 2 : 1, begun: null, ended: null,
  parents: i === 0 ? [] : i === 99 ? Array.from({ length: 98 }, (__, parent) => `${parent + 1}`) : ['0'] })));
for (const direction of ['LR', 'TB']) {
  const placed = place(wide, direction);
  const boxes = [...placed.boxes.values()];
  const apart = boxes.every((a, i) => a.x >= 0 && a.y >= 0 && a.x + WIDTH <= placed.width && a.y + HEIGHT <= placed.height
    && boxes.every((b, j) => i === j || Math.abs(a.x - b.x) >= WIDTH || Math.abs(a.y - b.y) >= HEIGHT));
  ok(boxes.length === 100 && placed.lines.length === 196 && apart && place(wide, direction) === placed, `100 boxes have their places (${direction}), which are calculated once`);
}

// The list.
await page.goto(`${base}/flows`);
const listed = [];
for (;;) {
  listed.push(...await page.locator('[aria-label="Flows"] tbody tr').allInnerTexts());
  if (listed.some((row) => row.includes('order-7')) || await page.locator('a.more').count() === 0) break;
  await follow(page.locator('a.more'));
}
ok(/^file\s+rows3000\s+Cancelled\s+0 %\s+3,000\s+3,000 cancelled/.test(listed[0]) && listed.some((row) => /^order-7\s+orders7\s+Completed\s+100 %\s+9\s+–/.test(row)), 'flows have their progress, newest first', listed.join('\n'));
await follow(page.locator('[aria-label="Flows"]').getByRole('link', { name: 'order-7', exact: true }));
ok(page.url().endsWith(`/flow/${order}`), 'and lead to their pages', page.url());
await reader.goto(`${looker}/flows`);
const few = await said(reader);
ok(few.includes('seen.first') && !few.includes('order-7'), 'a role sees the flows of its queues', few);

for (const [path, name] of [[`/flow/${order}`, 'a flow of 9 jobs'], [`/flow/${order}?view=time`, 'its times'], [`/flow/${file}?view=time`, 'the times of a cancelled flow'], ['/flows', 'flows']]) await reads(base + path, name, { reducedMotion: 'reduce' });
ok(page.troubles.length === 0, 'no script failed', page.troubles.join('; '));
await database.end();
await browser.close();
