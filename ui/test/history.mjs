// How the page shows what it reads.  idemq.history has no rows for a step in which nothing happened, and a row may arrive late;
// data that was read is not read again.  2,000 queues must fit into memory, so run this with
// node --max-old-space-size=160.
import { History } from '../src/history.mjs';
import * as queries from '../src/queries.mjs';

const tell = (value, what, detail = '') => {
  process.stdout.write(`${value ? 'ok' : 'not ok'} - ${what}\n`);
  if (!value) process.stderr.write(`${what}: ${JSON.stringify(detail)}\n`);
};
const start = Date.UTC(2026, 0, 5, 12) / 1000;
let clock = start;
Date.now = () => clock * 1000;
// Ends of steps of 10 s in which something happened: [queue, end, what].
let steps = [];
let begun = start - 7200;
let before;
const asked = [];
const database = {
  async query(statement, [step, point, since, places, queue]) {
    asked.push({ statement, places });
    const found = new Map();
    const there = steps.filter((row) => row.at > Date.parse(since) / 1000 && row.at <= clock && places.includes((row.at / step) % 360)
      && { [queries.historyOfAll]: row.queue === null, [queries.historyOfQueue]: row.queue === queue, [queries.historyOfEach]: row.queue !== null }[statement]);
    for (const row of there) {
      const number = Math.ceil(row.at / point);
      const key = `${row.queue} ${number}`;
      const old = found.get(key) ?? { point: number, queue: row.queue, enqueued: 0, completed: 0, failures: 0, died: 0, oldest_due: null };
      found.set(key, { ...old, until: row.at, pending: row.pending, running: 0, due_last: row.due, oldest_due: Math.max(old.oldest_due, row.due),
        completed: old.completed + row.completed, died: old.died + (row.died ?? 0) });
    }
    return [...found.values()];
  },
  async one(statement) {
    return statement === queries.historyBegun ? { begun } : before;
  },
};
const charts = async (history, queue) => history.of(await history.charts('1h', queue), queue, new Map([['quiet', { pending: '7', running: '0' }]]));

// All together: an hour ago 40 waited, a quarter of an hour ago 30 jobs were done in 10 s, and 5 died.
before = { pending: 40, running: 0, due_last: null };
steps = [{ queue: null, at: start - 900, pending: 10, due: 60, completed: 30, died: 5 }];
const history = new History(database);
let all = await charts(history, null);
const at = all.times.indexOf((start - 900) * 1000);
tell(all.times.length === 120 && all.times.at(-1) === start * 1000, 'an hour has 120 points', all.times.length);
tell(all.pending[0] === 40 && all.pending[at - 1] === 40 && all.pending[at] === 10 && all.pending.at(-1) === 10, 'what waits is as before where nothing happened', all.pending);
tell(all.completed[at] === 1 && all.completed[at - 1] === 0 && all.completed.at(-2) === 0 && all.died[at] === 5, 'nothing is done where nothing happened', all.completed);
tell(all.oldest_due[at] === 60 && all.oldest_due[at + 2] === 120 && all.oldest_due[at - 1] === null, 'what is due becomes older', all.oldest_due);

// What is new, and what was written late; not the rest.
steps.push({ queue: null, at: start - 20, pending: 11, due: 70, completed: 60 }, { queue: null, at: start + 10, pending: 12, due: 80, completed: 90 });
clock = start + 12;
asked.length = 0;
all = await charts(history, null);
tell(all.completed.at(-2) === 2 && all.completed.at(-1) === 9 && all.pending.at(-1) === 12, 'a step that was late, and a new one', all.completed.slice(-4));
tell(asked.length === 1 && asked[0].places.length <= 14, 'what was read is not read again', asked.map(({ places }) => places.length));
await charts(history, null);
tell(asked.length === 1, 'nor asked for within ten seconds');

// A queue in which nothing happened; a history that is younger than the hour.
before = undefined;
const quiet = await charts(history, 'quiet');
tell(quiet.pending.every((value, i) => value === 7 || i === 119) && quiet.completed.slice(0, -1).every((value) => value === 0), 'a quiet queue has what it has now', quiet.pending);
begun = start - 900;
const young = await charts(new History(database), null);
tell(young.times.length === 32 && young.pending[0] === 10, 'a young history fills its chart', [young.times.length, young.pending[0]]);

// A chosen span: its steps and no others; read once, if it has ended.
begun = start - 7200;
before = { pending: 40, running: 0, due_last: null };
clock = start;
steps = [-1900, -1800, -1500, -1200, -60].map((seconds) => ({ queue: null, at: start + seconds, pending: -seconds, due: 1, completed: 30 }));
const past = new History(database);
const when = { from: (start - 1800) * 1000, to: (start - 1200) * 1000 };
const chosen = async (times) => past.of(await past.chosen(times, null), null, new Map());
asked.length = 0;
let span = await chosen(when);
tell(span.times[0] === (start - 1800 + span.point) * 1000 && span.times.at(-1) === (start - 1200) * 1000 && span.times.length === 20, 'a chosen span has its points', [span.point, span.times.length]);
tell(span.completed.filter((value) => value > 0).length === 2 && span.pending.at(-1) === 1200 && span.pending[0] === 40, 'and what happened in it, and not before or after', [span.completed, span.pending]);
clock = start + 600;
await chosen(when);
tell(asked.length === 1, 'and is not asked for again', asked.length);
const running = { from: (clock - 300) * 1000, to: (clock + 300) * 1000 };
span = await chosen(running);
tell(span.completed.at(-1) === null && span.completed[5] === 0 && span.pending.at(-1) === null, 'what has not happened yet is not known', span.completed);
clock += 60;
steps.push({ queue: null, at: clock - 10, pending: 3, due: 1, completed: 30 });
span = await chosen(running);
tell(span.completed.some((value) => value > 0), 'but a span that has not ended goes on', span.completed);
for (let i = 0; i < 30; i += 1) await chosen({ from: (start - 1800 - i * 60) * 1000, to: (start - 1200) * 1000 });
tell(past.kept.size <= 21, 'and few are kept', past.kept.size);
tell((await chosen({ from: 0, to: start * 1000 })).times.length <= 84, 'a span of years has few points');

// Two thousand queues.
steps = [];
clock = start;
for (let queue = 0; queue < 2000; queue += 1) for (let end = start - 3540; end <= start; end += 60) steps.push({ queue: `queue ${queue}`, at: end, pending: 1, due: 1, completed: 6 });
const many = new History({ ...database,
  query: async (statement, [, point]) => steps.map((row) => ({ ...row, point: row.at / point, until: row.at, running: 0, enqueued: 0, failures: 0, died: 0, due_last: 1, oldest_due: 1 })) });
const table = await many.table();
const series = Array.from({ length: 2000 }, (_, queue) => many.of(table, `queue ${queue}`, new Map()).completed.at(-1));
tell(series.every((value) => value === 0.1), '2,000 queues have room', series.slice(0, 3));
