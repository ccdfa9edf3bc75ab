// The life of a job on one line, of rows that are given: what it consists of, that it is to scale, and what it says.
import { lineOf } from '../src/jobs/line.mjs';
import { lineFigure } from '../src/pages/line.mjs';

const tell = (value, what, detail = '') => {
  process.stdout.write(`${value ? 'ok' : 'not ok'} - ${what}\n`);
  if (!value) process.stderr.write(`${what}: ${JSON.stringify(detail)}\n`);
};
const T0 = Date.parse('2026-11-29T08:00:00Z') / 1000;
/** A time, in seconds after eight, as PostgreSQL writes it. */
const at = (seconds) => (seconds === null ? null : `2026-11-29 ${new Date((T0 + seconds) * 1000).toISOString().slice(11, 23)}+00`);
const job = (status, more = {}) => ({ status, enqueued_at: at(0), run_at: null, ready_at: null, claimed_at: null, finished_at: null, attempt: 1, token: '9', worker: 'w', ...more });
const attempt = (n, outcome, from, to) => ({ attempt: n, token: String(n), outcome, claimed_at: at(from), ended_at: at(to), worker: `w${n}` });
const shown = (line) => line.pieces.map(({ what, from, to, outcome }) => `${what}${outcome ? ` ${outcome}` : ''} ${Math.round((from - T0) * 10) / 10}-${Math.round((to - T0) * 10) / 10}`).join(', ');
const text = (markup) => String(markup).replace(/<title>[^<]*<\/title>/g, '').replace(/<[^>]+>/g, ' ').replace(/\s+/g, ' ');

const dead = lineOf(job('dead', { finished_at: at(20) }), [attempt(1, 'failed', 5, 8), attempt(2, 'failed', 18, 20)], T0 + 500);
tell(shown(dead) === 'wait 0-5, attempt failed 5-8, backoff 8-18, attempt failed 18-20' && dead.end.status === 'dead', 'wait, attempt, backoff, attempt, death', shown(dead));
const figure = String(lineFigure(dead));
const bars = [...figure.matchAll(/<rect x="([\d.]+)%" width="([\d.]+)%"/g)].map(([, x, width]) => `${x}+${width}`).join();
tell(bars === '25+15,90+10', 'bars are to scale', bars);
tell(/<svg class="end dead" x="100%"[^]*M2 0L5 3/.test(figure) && /Waited 5\.0 s, ran 5\.0 s in 2 attempts, backoff 10 s\./.test(text(figure)), 'the death has a shape, and the sums are in words', text(figure));
tell(/<title>attempt 2 by w2: failed, 2\.0 s<\/title>/.test(figure) && /Attempt 1: failed 3\.0 s/.test(text(figure)) && figure.match(/role="row"/g).length === 5, 'titles, and a table', text(figure));
const done = lineOf(job('completed', { claimed_at: at(2), finished_at: at(3) }), [], T0 + 500);
tell(shown(done) === 'wait 0-2, attempt committed 2-3' && done.end.status === 'completed' && done.until === T0 + 3, 'a completed job ends when it was completed, not now', shown(done));
tell(shown(lineOf(job('completed', { claimed_at: at(2), finished_at: at(3) }), [{ ...attempt(1, 'committed', 2, 3), token: '9' }], T0)) === 'wait 0-2, attempt committed 2-3', 'an attempt whose log is stored is there once');
tell(shown(lineOf(job('running', { claimed_at: at(12), attempt: 2 }), [attempt(1, 'expired', 1, 9)], T0 + 30)) === 'wait 0-1, attempt expired 1-9, wait 9-12, attempt running 12-30', 'a running job runs until now; after a lost lease it waits, without backoff');
const retrying = lineOf(job('retrying', { ready_at: at(60) }), [attempt(1, 'failed', 1, 2)], T0 + 20);
tell(shown(retrying) === 'wait 0-1, attempt failed 1-2, backoff 2-20' && retrying.next === T0 + 60 && /Next attempt|next attempt in 40 s/.test(text(lineFigure(retrying))) && /x1="33\.333%" x2="100%"/.test(String(lineFigure(retrying))), 'what is to come is there, to scale', String(lineFigure(retrying)));
tell(shown(lineOf(job('pending', { run_at: at(50), ready_at: at(50) }), [], T0 + 80)) === 'scheduled 0-50, wait 50-80', 'scheduled first, then waiting');
tell(shown(lineOf(job('blocked'), [], T0 + 4)) === 'blocked 0-4', 'a child that waits for its parents is blocked');
tell(shown(lineOf(job('cancelled', { finished_at: at(7) }), [], T0 + 80)) === 'wait 0-7', 'a job that was cancelled before it ran');
tell(shown(lineOf(job('dead', { finished_at: at(9) }), [attempt(7, 'failed', 4, 9)], T0 + 80, false)) === 'attempt failed 4-9' && lineOf(job('dead', { finished_at: at(9) }), [], T0, false) === null, 'of many attempts, the line begins with the first that is shown');
tell(shown(lineOf(job('pending', { run_at: 'infinity', ready_at: 'infinity' }), [], T0 + 3)) === 'wait 0-3', 'a time that never comes is no time');
const many = lineOf(job('dead', { finished_at: at(1000) }), Array.from({ length: 60 }, (_, i) => attempt(i + 1, 'failed', 10 + 10 * i, 11 + 10 * i)), T0 + 2000);
const numbers = [...String(lineFigure(many)).matchAll(/<text x="([\d.]+)%" y="14">#/g)].map(([, x]) => Number(x));
tell(numbers.length > 10 && numbers.every((x, i) => i === 0 || x - numbers[i - 1] >= 2.99), 'numbers do not cover each other', numbers);
