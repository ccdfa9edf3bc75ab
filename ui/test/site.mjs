// What is around the pages: a path prefix behind a proxy, several databases, the look, and the first page of an empty database:
//   site.mjs BASE (of a page with --path-prefix=/idemq, and the databases shop, which is that of ui_slow.pl, and empty)
// PG* reach the server.
import pg from 'pg';
import { browser, follow, ok, open, reads, said } from './browser.mjs';

const [given] = process.argv.slice(2);
const origin = new URL(given).origin;
const base = `${origin}/idemq/db/shop`;
ok(given === `${origin}/idemq`, 'the program prints the address with the prefix', given);
const page = await open({ viewport: { width: 1300, height: 800 } });
const asked = [];
page.on('response', (response) => asked.push([response.status(), new URL(response.url()).pathname]));

// Every address of every page has the prefix.
await page.goto(given);
ok(page.url() === `${base}/`, 'the prefix leads to the first database', page.url());
const database = new pg.Client();
await database.connect();
const { rows: [{ id }] } = await database.query("SELECT id FROM idemq.job_list WHERE queue = 'shop' AND key = 'order-1842'");
for (const path of ['/', '/queue/mail?tab=dead', '/queue/mail/enqueue', `/job/${id}`, `/flow/${id}`, '/errors', '/running', '/workers', '/schedules', '/audit', '/check', '/keys', '/search?q=state:dead', '/search?q=stat:dead', '/nothing', '/confirm?action=pause&queue=mail']) {
  await page.goto(base + path);
  const wrong = await page.evaluate(() => [...document.querySelectorAll('[href], [src], [action]')].flatMap((element) => ['href', 'src', 'action'].map((name) => element.getAttribute(name)))
    .filter((address) => address !== null && !address.startsWith('#') && !new URL(address, window.location.href).pathname.startsWith('/idemq/db/')));
  ok(wrong.length === 0, `${path}: every link, form and script has the prefix`, wrong.join());
}
const outside = asked.filter(([status, path]) => !path.startsWith('/idemq') || (status >= 400 && !/nothing|search/.test(path)));
ok(outside.length === 0, 'and everything that a browser asks for is there', JSON.stringify(outside));

// An action, its dialog, its cookie, the way back, the link to the audit; live pages; keys.
await page.goto(`${base}/queue/desk`);
await follow(page.getByRole('button', { name: 'Pause', exact: true }));
await follow(page.locator('dialog button.do'));
ok(page.url().startsWith(`${base}/queue/desk`) && /Queue desk was paused/.test(await said(page)), 'an action leads back', page.url());
await follow(page.locator('.toast').getByRole('link', { name: 'Audit' }));
ok(page.url() === `${base}/audit`, 'its message leads to the audit', page.url());
await page.goto(`${base}/`);
await database.query("SELECT idemq.resume('desk'), idemq.create_queue('prefixed', expect_workers => false)");
await page.locator('tr', { hasText: 'prefixed' }).waitFor();
ok(await page.locator('tr', { hasText: 'prefixed' }).locator('a').first().getAttribute('href') === '/idemq/db/shop/queue/prefixed', 'what is refreshed has the prefix');
await database.query("SELECT idemq.drop_queue('prefixed')");
for (const [key, path] of [['f', '/flows'], ['e', '/errors']]) {
  await page.keyboard.press('g');
  await page.keyboard.press(key);
  await page.waitForURL(base + path);
}
await page.keyboard.press('/');
await page.keyboard.type('queue:des');
await page.getByRole('option', { name: 'queue:desk' }).click();
await page.keyboard.press('Enter');
await page.waitForURL(/db\/shop\/search/);
ok(await page.getByRole('link', { name: 'alone' }).count() === 1, 'keys and suggestions work', await said(page));
const stripped = await (await fetch(`${origin}/db/shop/errors`)).text();
ok(stripped.includes('href="/idemq/db/shop/errors"'), 'a proxy that removes the prefix gets the same page');
const { cookie } = { cookie: (await fetch(`${base}/`)).headers.get('set-cookie') };
ok(/; Path=\/idemq\/db\/shop\/;/.test(cookie), 'the cookie is for this path', cookie);

// The menu of databases.
await page.goto(`${base}/errors`);
await page.locator('header summary', { hasText: 'shop' }).click();
await follow(page.locator('header').getByRole('link', { name: 'empty' }));
ok(page.url() === `${origin}/idemq/db/empty/errors` && /No jobs are dead/.test(await said(page)) && (await page.locator('footer').innerText()).includes('@empty'), 'the menu leads to the same page of another database', page.url());
const health = await fetch(`${given}/healthz`);
ok(health.status === 200 && (await health.json()).status === 'ok' && (await fetch(`${origin}/idemq/db/none/`)).status === 404, 'health of all; no other database');

// The first page of an empty database: what it says works.
await page.goto(`${origin}/idemq/db/empty/`);
ok(/Enqueue the first job/.test(await said(page)) && await page.locator('table').count() === 0, 'an empty database says how to begin', await said(page));
const empty = new pg.Client({ database: 'empty' });
await empty.connect();
const sql = await page.locator('h3:text-is("SQL") + pre').allInnerTexts();
for (const text of sql) await empty.query(text);
await page.waitForFunction(() => document.querySelector('main table') && !document.querySelector('[data-part="first"] pre'));
ok(sql.length === 2 && await page.locator('[data-part="first"] pre').count() === 0 && /hello\s+OK\s+1\s/.test(await page.locator('main tr', { hasText: 'hello' }).innerText()), 'and shows the first job by itself', await said(page));
await empty.query("SELECT idemq.drop_queue('hello', force => true), idemq.create_queue('second')");
await page.locator('h3:text-is("SQL") + pre', { hasText: 'second' }).waitFor();
ok((await page.locator('h3:text-is("SQL") + pre').innerText()).includes("idemq.enqueue('second'"), 'an empty queue has its own statement', await said(page));
await reads(`${origin}/idemq/db/empty/`, 'first page');
await empty.query("SELECT idemq.drop_queue('second')");
await empty.end();

// The look: without JavaScript, kept in the browser, for all databases.
const plain = await open({ javaScriptEnabled: false, colorScheme: 'light' });
await plain.goto(`${base}/errors?queue=mail`);
const ground = () => plain.locator('body').evaluate((body) => getComputedStyle(body).backgroundColor);
const height = () => plain.locator('tbody tr').first().evaluate((row) => row.offsetHeight);
const [light, normal] = [await ground(), await height()];
const choose = async (name) => {
  await plain.locator('header summary', { hasText: 'Display' }).click();
  await follow(plain.getByRole('button', { name, exact: true }));
};
await choose('dark');
ok(await ground() !== light && plain.url() === `${base}/errors?queue=mail`, 'a dark theme, on the same page', `${plain.url()} ${await ground()}`);
await choose('compact');
ok(await height() < normal && await ground() !== light, 'and denser rows', `${normal} ${await height()}`);
await plain.goto(`${origin}/idemq/db/empty/`);
ok(await ground() !== light && await plain.locator('html').getAttribute('data-density') === 'compact', 'the browser keeps them for all pages');
await choose('light');
await plain.emulateMedia({ colorScheme: 'dark' });
ok(await ground() === light, 'light, although the system is dark', await ground());
await choose('auto');
ok(await ground() !== light, 'or as the system is');
const look = async (query, headers = {}) => fetch(`${base}/look?${query}`, { redirect: 'manual', headers });
for (const back of ['//evil.example', '/\\evil.example', 'https://evil.example', '/%0d%0aX: y'])
  ok((await look(`theme=dark&back=${back.includes('%') ? back : encodeURIComponent(back)}`)).headers.get('location') === '/idemq/db/shop/', `the look does not lead elsewhere: ${back}`);
ok((await look('theme=x&density=y', { cookie: 'idemq_look=dark.<b>' })).headers.getSetCookie().some((text) => text.startsWith('idemq_look=auto.normal;')), 'no other look is kept');
const policy = (await fetch(`${base}/`, { headers: { cookie: 'idemq_look=dark.compact' } }));
ok(policy.headers.get('content-security-policy').includes("style-src 'self'; script-src 'self'") && !/<style|style="|<script>/.test(await policy.text()), 'the policy has no exception');
const colours = await open({ bypassCSP: true });
await colours.context().addCookies([{ name: 'idemq_look', value: 'dark.compact', domain: '127.0.0.1', path: '/idemq/' }]);
await reads(`${base}/queue/mail?tab=dead`, 'dark and compact', { storageState: await colours.context().storageState() });
await database.end();
ok(page.troubles.filter((trouble) => !/40[04]/.test(trouble)).length === 0, 'no script failed', page.troubles.join('; '));
await browser.close();
