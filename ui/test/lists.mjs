// Lists as CSV, and by keyboard:
//   lists.mjs BASE (with actions) BASE (of a role that sees the queue hostile alone)
// The jobs are those of ui_slow.pl and jobs.sql; PG* reach the server.
import pg from 'pg';
import { cell } from '../src/csv.mjs';
import { browser, ok } from './browser.mjs';

const [base, tenant] = process.argv.slice(2);
const database = new pg.Client();
await database.connect();

/** The rows of a CSV text, as objects. */
function read(text) {
  const rows = [];
  for (const match of text.matchAll(/(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|\r\n)/g)) {
    if (rows.length === 0 || rows.at(-1).ended) rows.push({ cells: [], ended: false });
    rows.at(-1).cells.push(match[1] === undefined ? match[2] : match[1].replaceAll('""', '"'));
    rows.at(-1).ended = match[3] !== ',';
  }
  const [heads, ...others] = rows.map(({ cells }) => cells);
  return others.map((cells) => Object.fromEntries(heads.map((head, i) => [head, cells[i]])));
}

// A formula in a key, a kind and an error; quotes, commas, line ends.
const formulas = ['=HYPERLINK("http://evil.example")', '+1', '-1+2', '@SUM(1)', '\t=1', ' =1'];
await database.query("SELECT idemq.create_queue('sheet', max_attempts => 1, expect_workers => false)");
for (const key of formulas) await database.query("SELECT idemq.enqueue('sheet', '{\"a\": \"b, \\\"c\\\"\"}', key => $1, kind => $1)", [key]);
await database.query("SELECT idemq.fail(id, token, E'=cmd|''/c calc''!A1\\nline 2') FROM idemq.claim('sheet', 10)");
const sheet = await fetch(`${base}/queue/sheet/jobs.csv?tab=dead`);
const jobs = read(await sheet.text());
ok(sheet.headers.get('content-type') === 'text/csv; charset=utf-8' && sheet.headers.get('content-disposition') === 'attachment; filename="sheet-dead.csv"', 'a list is a file');
ok(jobs.length === 6 && formulas.every((text) => jobs.some(({ key, kind }) => key === `'${text}` && kind === `'${text}`)), 'formulas are made text', JSON.stringify(jobs));
ok(jobs.every((job) => job.last_error === "'=cmd|'/c calc'!A1\nline 2" && job.payload === '{"a": "b, \\"c\\""}' && job.queue === 'sheet' && job.status === 'dead'), 'and other values are whole', JSON.stringify(jobs[0]));
ok(cell(-5) === '-5' && cell(null) === '' && cell('a"b') === '"a""b"' && cell('plain') === 'plain', 'a number is no formula');

// All of a list, and of a search, in slices.
const sent = read(await (await fetch(`${base}/queue/bulk/jobs.csv?tab=all`)).text()).map(({ id }) => id);
const own = (await database.query("SELECT id::text FROM idemq.job_list WHERE queue = 'bulk'")).rows.map(({ id }) => id);
ok(own.length >= 500 && sent.length === own.length && new Set(sent).size === sent.length && own.every((id) => sent.includes(id)), 'all jobs of a list, once each', `${sent.length} of ${own.length}`);
ok(read(await (await fetch(`${base}/queue/post/jobs.csv?${new URLSearchParams({ tab: 'all', key: 'letter-2026-11-24-order-1800' })}`)).text()).length === 9, 'with its filter');
const found = read(await (await fetch(`${base}/search.csv?${new URLSearchParams({ q: 'payload.customer.id:77' })}`)).text());
ok(found.length === 1 && found[0].key === 'order-1842' && found[0].payload.includes('Jörg Müller'), 'a search is searched to its end', JSON.stringify(found));

// The same privileges.
ok((await fetch(`${tenant}/queue/mail/jobs.csv?tab=all`)).status === 404, 'a role does not see the list of another queue');
ok(read(await (await fetch(`${tenant}/search.csv?q=`)).text()).every(({ queue }) => queue === 'hostile'), 'nor its jobs in a search');
ok((await fetch(`${base}/search.csv?q=stat:dead`)).status === 400 && (await fetch(`${base}/queue/post/jobs.csv?payload=x`)).status === 400, 'what is wrong has a status');
await database.query("SELECT idemq.drop_queue('sheet', force => true)");
await database.end();
await browser.close();
