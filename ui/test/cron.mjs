// Expressions of schedules in words: a table of them, and that different schedules never have the same words.  With PG*, the server is asked for their ticks.
import pg from 'pg';
import { inWords, meaningOf } from '../src/cron.mjs';

const tell = (value, what, detail = '') => {
  process.stdout.write(`${value ? 'ok' : 'not ok'} - ${what}\n`);
  if (!value) process.stderr.write(`${what}: ${JSON.stringify(detail)}\n`);
};
const known = {
  '* * * * *': 'every minute', '*/5 * * * *': 'every 5 minutes', '*/7 * * * *': 'at minutes 0, 7, 14, 21, 28, 35, 42, 49 and 56 of every hour', '0 * * * *': 'every hour', '5 * * * *': 'at minute 5 of every hour',
  '0,30 * * * *': 'at minutes 0 and 30 of every hour', '10-20 * * * *': 'at minutes 10 to 20 of every hour', '0 3 * * *': 'every day at 03:00', '0 3,9,15 * * *': 'every day at 03:00, 09:00 and 15:00', '15 */2 * * *': 'every 2 hours, at minute 15',
  '0 */6 * * *': 'every day at 00:00, 06:00, 12:00 and 18:00', '0 */3 * * *': 'every 3 hours', '0 9-17 * * *': 'every hour from 09:00 to 17:00', '30 9-17 * * 1-5': 'every hour from 09:30 to 17:30, from Monday to Friday', '*/10 9-17 * * mon-fri': 'every 10 minutes from 09:00 to 17:59, from Monday to Friday',
  '*/5 9 * * *': 'every 5 minutes from 09:00 to 09:59', '*/5 9,12,13 * * *': 'every 5 minutes from 09:00 to 09:59 and from 12:00 to 13:59', '0 3 * * 1': 'at 03:00 on Monday', '0 3 * * 0': 'at 03:00 on Sunday', '0 3 * * 7': 'at 03:00 on Sunday', '0 3 * * sat,sun': 'at 03:00 on Saturday and Sunday',
  '0 3 * * MON,Thu': 'at 03:00 on Monday and Thursday', '0 3 1 * *': 'at 03:00 on day 1 of the month', '0 3 1,15 * *': 'at 03:00 on days 1 and 15 of the month', '0 3 1-7 * *': 'at 03:00 on days 1 to 7 of the month', '0 3 1 1 *': 'at 03:00 on 1 January', '0 3 29 feb *': 'at 03:00 on 29 February',
  '0 3 * 6-8 *': 'at 03:00 in June to August', '0 3 * jan,jul *': 'at 03:00 in January and July', '0 3 1 */3 *': 'at 03:00 on day 1 of the month in January, April, July and October', '0 3 13 * 5': 'at 03:00 on day 13 of the month, and also on Friday',
  '0 3 */2 * *': 'at 03:00 on every 2nd day of the month from day 1', '0 3 */2 * 1': 'at 03:00 on every 2nd day of the month from day 1, if it is Monday', '0 3 13 * */2': 'at 03:00 on day 13 of the month, if it is Sunday, Tuesday, Thursday or Saturday', '0 3 1-7 * 1-5': 'at 03:00 on days 1 to 7 of the month, and also from Monday to Friday',
  '0 3 13 6 5': 'at 03:00 on day 13 of the month, and also on Friday, in June', '* 3 * * *': 'every minute from 03:00 to 03:59', '* * 1 * *': 'every minute on day 1 of the month', '0 * * * 1': 'every hour on Monday', '0 * * * 1-5': 'every hour, from Monday to Friday', '*/15 * * * *': 'every 15 minutes', '*/20 * * * 0,6': 'every 20 minutes on Saturday and Sunday',
  '1-59/2 * * * *': 'at minutes 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57 and 59 of every hour', '0 22-23,0-5 * * *': 'every hour from 00:00 to 05:00 and from 22:00 to 23:00', '5 0-22/2 * * *': 'every 2 hours, at minute 5', '30 1,3,5,7,9,11,13 * * *': 'every day at 01:30, 03:30, 05:30, 07:30, 09:30, 11:30 and 13:30',
  '0 3 1-31 * 1': 'every day at 03:00', '0 3 1-31 * *': 'every day at 03:00', '0 0 * * 1,2,3,4,5,6,0': 'every day at 00:00', '@hourly': 'every hour', '@daily': 'every day at 00:00', '@Midnight': 'every day at 00:00', '@weekly': 'at 00:00 on Sunday', '@monthly': 'at 00:00 on day 1 of the month', '@yearly': 'at 00:00 on 1 January', ' @annually ': 'at 00:00 on 1 January',
  'every 10 s': 'every 10 seconds', 'every 1 second': 'every second', 'EVERY 5 Min': 'every 5 minutes', 'every\t1 h': 'every hour', 'every 90 seconds': 'every 90 seconds', 'every 24 hours': 'every 24 hours',
};
for (const [expression, words] of Object.entries(known)) tell(inWords(expression) === words, `${expression}: ${words}`, inWords(expression));
const invalid = ['', '* * * *', '* * * * * *', '60 * * * *', '* 24 * * *', '* * 0 * *', '* * 32 * *', '* * * 13 *', '* * * * 8', 'x * * * *', '5-1 * * * *', '5/2 * * * *', '*/0 * * * *', '*/61 * * * *', '1,, * * * *', '@never', 'every 5', 'every 5 days', 'every x s', 'every 1.5 h', 'every constructor s', '<b> * * * *', '@constructor'];
const accepted = invalid.filter((expression) => inWords(expression) !== null);
tell(accepted.length === 0, 'invalid expressions have no words', accepted);

// A fixed sequence of expressions.
let state = 7;
const random = (n) => { state = (state * 1103515245 + 12345) % 2147483648; return Math.floor(state / 65536) % n; };
const item = (low, high) => {
  const [a, b] = [low + random(high - low + 1), low + random(high - low + 1)].sort((x, y) => x - y);
  return ['*', `${a}`, `${a}-${b}`, `${a},${b}`, `*/${1 + random(Math.min(high - low + 1, 12))}`, `${a}-${b}/${1 + random(b - a + 1)}`, '*', '*'][random(8)];
};
const made = Array.from({ length: 3000 }, () => [item(0, 59), item(0, 23), item(1, 31), item(1, 12), item(0, 7)].join(' '));
const nameless = made.filter((expression) => !/^[a-zA-Z0-9:, ]+$/.test(inWords(expression) ?? '') || /undefined|NaN|  |,,/.test(inWords(expression)));
tell(nameless.length === 0, '3,000 expressions have words', nameless.slice(0, 3));
const same = new Map();
// In the days, what decides is on which days there are ticks.
const key = (expression) => {
  const { minutes, hours, days, months, weekdays, either } = meaningOf(expression);
  const all = either ? days.size === 31 || weekdays.size === 7 : false;
  return [minutes, hours, all ? [] : days, months, all ? [] : weekdays].map((set) => [...set].sort((a, b) => a - b).join()).join(' ') + (all || days.size === 31 || weekdays.size === 7 ? '' : either);
};
const twice = [];
for (const expression of [...made, ...Object.keys(known).filter((one) => !/^every/i.test(one))]) {
  const words = inWords(expression);
  if (same.has(words) && key(same.get(words)) !== key(expression) && !key(expression).includes('  ') && !key(same.get(words)).includes('  ')) twice.push([expression, same.get(words), words]);
  same.set(words, expression);
}
tell(twice.length === 0, 'and no two that differ have the same', twice.slice(0, 3));

// The server computes the ticks.  They are those of the sets that the words describe.
if (process.env.PGHOST) {
  const client = new pg.Client();
  await client.connect();
  await client.query("SET TimeZone = 'UTC'");
  const wrong = [];
  const expressions = [...Object.keys(known).filter((one) => !/^every/i.test(one)), ...made.slice(0, 150)];
  for (const expression of expressions) {
    const meaning = meaningOf(expression);
    const is = (at) => {
      const [day, weekday] = [meaning.days.has(at.getUTCDate()), meaning.weekdays.has(at.getUTCDay())];
      return meaning.minutes.has(at.getUTCMinutes()) && meaning.hours.has(at.getUTCHours()) && meaning.months.has(at.getUTCMonth() + 1) && (meaning.either ? day || weekday : day && weekday);
    };
    const start = Date.UTC(2026, random(12), 1 + random(28), random(24), random(60));
    const { rows } = await client.query(`WITH RECURSIVE t (n, at) AS (SELECT 1, idemq.next_tick($1, 'UTC', to_timestamp($2)) UNION ALL SELECT n + 1, idemq.next_tick($1, 'UTC', at) FROM t WHERE n < 3)
      SELECT extract(epoch FROM at)::float8 * 1000 AS at FROM t WHERE at IS NOT NULL`, [expression, start / 1000]);
    // Between two ticks, there is no other; at most three months are looked at.
    const ticks = rows.map(({ at }) => Number(at));
    const end = Math.min(ticks.at(-1) ?? Infinity, start + 90 * 86_400_000);
    const mine = [];
    for (let at = start + 60_000; at <= end; at += 60_000) if (is(new Date(at))) mine.push(at);
    if (mine.join() !== ticks.filter((at) => at <= end).join()) wrong.push([expression, mine.slice(0, 3).map((at) => new Date(at).toISOString()), ticks.map((at) => new Date(at).toISOString())]);
  }
  tell(wrong.length === 0, `the server has the same ticks for ${expressions.length} expressions`, wrong.slice(0, 3));
  const refused = [];
  for (const expression of invalid) if (await client.query("SELECT idemq.next_tick($1, 'UTC')", [expression]).then(() => true, () => false)) refused.push(expression);
  tell(refused.length === 0, 'and refuses the same', refused);
  await client.end();
}
