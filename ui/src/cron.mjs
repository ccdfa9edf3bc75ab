// The expression of a schedule in words.  It reads what src/schedule/cron.c reads; the database decides what is valid, and computes the ticks.

const months = ['January', 'February', 'March', 'April', 'May', 'June', 'July', 'August', 'September', 'October', 'November', 'December'];
const days = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday'];
const short = (names) => names.map((name) => name.slice(0, 3).toLowerCase());
const fields = [[0, 59], [0, 23], [1, 31], [1, 12, short(months)], [0, 7, short(days)]];
const shorthands = { '@hourly': '0 * * * *', '@daily': '0 0 * * *', '@midnight': '0 0 * * *', '@weekly': '0 0 * * 0', '@monthly': '0 0 1 * *', '@yearly': '0 0 1 1 *', '@annually': '0 0 1 1 *' };
const units = { s: 'second', second: 'second', seconds: 'second', min: 'minute', minute: 'minute', minutes: 'minute', h: 'hour', hour: 'hour', hours: 'hour' };

function valueOf(text, [low, high, names]) {
  const named = names?.indexOf(text.toLowerCase()) ?? -1;
  const value = named >= 0 ? named + low : /^\d{1,6}$/.test(text) ? Number(text) : NaN;
  return value >= low && value <= high ? value : null;
}

/** The values of a field: {set, any: whether the field begins with *}, or null. */
function fieldOf(text, field) {
  const [low, high] = field;
  const set = new Set();
  for (const item of text.split(',')) {
    const match = /^(\*|([^-/]+)(?:-([^-/]+))?)(?:\/(\d{1,6}))?$/.exec(item);
    if (!match) return null;
    const [, whole, first, last, by] = match;
    const from = whole === '*' ? low : valueOf(first, field);
    const to = whole === '*' ? high : last === undefined ? from : valueOf(last, field);
    const step = by === undefined ? 1 : Number(by);
    if (from === null || to === null || to < from || (by !== undefined && whole !== '*' && last === undefined) || step < 1 || step > to - from + 1) return null;
    for (let value = from; value <= to; value += step) set.add(value);
  }
  return { set, any: text.startsWith('*') };
}

/** What an expression means: {every: seconds, unit, number}, or sets of {minutes, hours, days, months, weekdays, either}, or null. */
export function meaningOf(expression) {
  const words = expression.trim().split(/[ \t]+/);
  if (words[0].toLowerCase() === 'every') {
    const unit = Object.hasOwn(units, words[2]?.toLowerCase() ?? '') ? units[words[2].toLowerCase()] : null;
    if (words.length !== 3 || !/^\d{1,6}$/.test(words[1]) || unit === null) return null;
    return { every: Number(words[1]) * { second: 1, minute: 60, hour: 3600 }[unit], number: Number(words[1]), unit };
  }
  const name = words[0].toLowerCase();
  const texts = words.length === 1 && Object.hasOwn(shorthands, name) ? shorthands[name].split(' ') : words;
  if (texts.length !== 5) return null;
  const [minutes, hours, monthDays, monthSet, weekdays] = texts.map((text, i) => fieldOf(text, fields[i]));
  if (![minutes, hours, monthDays, monthSet, weekdays].every(Boolean)) return null;
  const sunday = new Set([...weekdays.set].map((day) => day % 7));
  return { minutes: minutes.set, hours: hours.set, days: monthDays.set, months: monthSet.set, weekdays: sunday, either: !monthDays.any && !weekdays.any };
}

const sorted = (set) => [...set].sort((a, b) => a - b);
const two = (number) => String(number).padStart(2, '0');
const list = (texts, last = 'and') => (texts.length < 2 ? texts.join('') : `${texts.slice(0, -1).join(', ')} ${last} ${texts.at(-1)}`);
/** Ranges of consecutive values: [first, last]. */
function ranges(set) {
  const found = [];
  for (const value of sorted(set)) {
    if (found.length > 0 && found.at(-1)[1] === value - 1) found.at(-1)[1] = value;
    else found.push([value, value]);
  }
  return found;
}
/** The step of a set that has each n-th value of its field, beginning with the first, or null. */
function stepOf(set, low, high) {
  const values = sorted(set);
  const step = values[1] - values[0];
  return values.length > 2 && values[0] === low && values.every((value, i) => value === low + i * step) && low + values.length * step > high ? step : null;
}
/** Values with their names, and ranges of three or more as "A to B". */
const named = (set, name, join) => list(ranges(set).flatMap(([from, to]) => (to - from >= 2 ? [`${name(from)}${join}${name(to)}`] : to > from ? [name(from), name(to)] : [name(from)])));
const ordinal = (n) => `${n}${[11, 12, 13].includes(n % 100) ? 'th' : { 1: 'st', 2: 'nd', 3: 'rd' }[n % 10] ?? 'th'}`;

/** The times of day.  alone: whether they name times at which nothing else has to be said about the hour. */
function timesOf({ minutes, hours }) {
  const [minute] = sorted(minutes);
  const each = minutes.size === 60 ? 1 : stepOf(minutes, 0, 59);
  const evenly = each !== null && 60 % each === 0;
  const often = each === 1 ? 'every minute' : evenly ? `every ${each} minutes` : null;
  if (minutes.size * hours.size <= 6) return { at: `at ${list(sorted(hours).flatMap((hour) => sorted(minutes).map((one) => `${two(hour)}:${two(one)}`)))}` };
  const past = often ?? (minutes.size === 1 ? (minute === 0 ? 'every hour' : `at minute ${minute} of every hour`) : `at minutes ${named(minutes, String, ' to ')} of every hour`);
  if (hours.size === 24) return { other: past };
  const step = stepOf(hours, 0, 23);
  if (minutes.size === 1 && step !== null && 24 % step === 0) return { other: `every ${step} hours${minute === 0 ? '' : `, at minute ${minute}`}` };
  if (minutes.size === 1) {
    const spans = ranges(hours);
    if (spans.every(([from, to]) => to - from >= 1)) return { other: `every hour ${list(spans.map(([from, to]) => `from ${two(from)}:${two(minute)} to ${two(to)}:${two(minute)}`))}` };
    return { at: `at ${list(sorted(hours).map((hour) => `${two(hour)}:${two(minute)}`))}` };
  }
  return { other: `${past} ${list(ranges(hours).map(([from, to]) => `from ${two(from)}:00 to ${two(to)}:59`))}` };
}

/** The days on which there are ticks, or an empty text for every day. */
function daysOf({ days: monthDays, months: monthSet, weekdays, either }) {
  const allDays = monthDays.size === 31;
  const allWeekdays = weekdays.size === 7;
  const step = stepOf(monthDays, 1, 31);
  const ofMonth = step !== null && step > 1 ? `on every ${ordinal(step)} day of the month from day 1` : `on ${monthDays.size === 1 ? 'day' : 'days'} ${named(monthDays, String, ' to ')} of the month`;
  const week = [1, 2, 3, 4, 5].every((day) => weekdays.has(day)) && weekdays.size === 5 ? 'from Monday to Friday'
    : `on ${list(sorted(new Set([...weekdays].map((day) => (day === 0 ? 7 : day)))).map((day) => days[day % 7]))}`;
  const month = monthSet.size === 12 ? '' : `in ${named(monthSet, (number) => months[number - 1], ' to ')}`;
  const exact = monthDays.size === 1 && monthSet.size === 1 && allWeekdays;
  if (exact) return `on ${sorted(monthDays)[0]} ${months[sorted(monthSet)[0] - 1]}`;
  // If the fields of both days are restricted, one of them is enough.
  const both = either && (allDays || allWeekdays) ? '' : allDays && allWeekdays ? '' : allDays ? week : allWeekdays ? ofMonth : either ? `${ofMonth}, and also ${week}` : `${ofMonth}, if it is ${list(sorted(weekdays).map((day) => days[day]), 'or')}`;
  return [both, month].filter(Boolean).join(both.includes(',') ? ', ' : ' ');
}

/** An expression in words, for example "every day at 03:00"; null if it is invalid. */
export function inWords(expression) {
  const meaning = meaningOf(expression);
  if (meaning === null) return null;
  if (meaning.every !== undefined) return meaning.number === 1 ? `every ${meaning.unit}` : `every ${meaning.number} ${meaning.unit}s`;
  const times = timesOf(meaning);
  const when = daysOf(meaning);
  if (times.at) return when === '' ? `every day ${times.at}` : `${times.at} ${when}`;
  return when === '' ? times.other : `${times.other}${/^from/.test(when) || times.other.includes(' from ') ? ',' : ''} ${when}`;
}
