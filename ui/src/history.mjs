// The data of idemq.history for a time span, with one value for each point of a chart.  The first request
// reads the whole span, and later requests read only new rows.  If no page is open, nothing is read.
import { now as present } from './clock.mjs';
import * as queries from './queries.mjs';

/** The lengths of a step of idemq.history, of a point of the chart, and of the span, in seconds. */
export const spans = {
  '1h': { title: 'the last hour', step: 10, point: 30, seconds: 3600 },
  '24h': { title: 'the last 24 hours', step: 60, point: 600, seconds: 86400 },
  '7d': { title: 'the last 7 days', step: 600, point: 3600, seconds: 604800 },
};

/** The span for the table of queues: one point per minute, so that a thousand queues can be read at once. */
const table = { title: 'the last hour', step: 60, point: 60, seconds: 3600 };

/** The values of a point: gauges at its end, counts of events within it, and times in seconds. */
const gauges = ['pending', 'running', 'due_last'];
const happened = ['enqueued', 'completed', 'failures', 'died'];
const fields = [...gauges, ...happened, 'oldest_due', 'wait_p50', 'wait_p95', 'run_p50', 'run_p95'];
const place = Object.fromEntries(fields.map((name, i) => [name, i]));
const WIDTH = fields.length;
/** A span that has not been requested for this time, in milliseconds, is forgotten. */
const KEPT = 600_000;
/** Maximum number of chosen time spans that are kept. */
const CHOSEN = 20;
/** The key of the points for all queues together. */
const ALL = Symbol('all queues');

/** The places of a span's steps in their retention tier, from one time to another. */
function places(span, since, now) {
  const size = { 10: 360, 60: 1440, 600: 1008 }[span.step];
  const [from, to] = [Math.floor(since / span.step) + 1, Math.floor(now / span.step)];
  return Array.from({ length: Math.min(to - from + 1, size) }, (_, i) => (from + i) % size);
}

/** The steps and points of a chosen time span, from and to in milliseconds: the finest steps that reach back far enough, and at most 60 points. */
function windowOf({ from, to }, now) {
  const age = now - from / 1000;
  const step = age <= 3600 ? 10 : age <= 86400 ? 60 : 600;
  const point = [10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400].find((seconds) => seconds >= step && (to - from) / 1000 / seconds <= 58) ?? 14400;
  const first = Math.floor(from / 1000 / point);
  // At most two weeks, because the history covers one week, and at least six points.
  const last = Math.min(Math.max(Math.ceil(to / 1000 / point), first + 6), first + 84);
  const text = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 19).replace('T', ' ');
  return { title: `${text(first * point)} to ${text(last * point)} UTC`, step, point, seconds: (last - first) * point, end: last * point };
}

class Span {
  constructor(span) {
    this.span = span;
    this.size = span.seconds / span.point;
    this.rows = new Map();
    this.last = 0; // number of the last point, which ends at last * span.point seconds
    this.until = 0; // time in seconds up to which the history is known; in an earlier step without a row, nothing happened
    this.first = Infinity; // number of the first point with data
    this.before = null; // gauges before the first point
    this.read = 0;
    this.closed = false; // whether the span has ended, and does not have to be read again
  }

  /** Makes room for all points up to this one. */
  advance(last) {
    const shift = Math.min(last - this.last, this.size);
    if (shift <= 0) return;
    for (const [queue, row] of this.rows) {
      row.copyWithin(0, shift * WIDTH).fill(NaN, (this.size - shift) * WIDTH);
      if (row.every(Number.isNaN)) this.rows.delete(queue);
    }
    this.last = last;
  }

  put(queue, number, values) {
    const at = number - this.last + this.size - 1;
    if (at < 0 || at >= this.size) return;
    let row = this.rows.get(queue);
    if (!row) this.rows.set(queue, row = new Float64Array(this.size * WIDTH).fill(NaN));
    for (const name of fields) row[at * WIDTH + place[name]] = values[name] === null || values[name] === undefined ? NaN : Number(values[name]);
    this.first = Math.min(this.first, number);
  }

  /** Adds the rows that were read at a time, in seconds.  A chosen span has a fixed end. */
  add(rows, now) {
    this.advance(Math.ceil((this.span.end ?? now) / this.span.point));
    this.until = Math.max(this.until, (Math.floor(now / this.span.step) - 1) * this.span.step);
    if (this.span.end !== undefined) this.closed = now - this.span.end >= 60;
    for (const row of rows) {
      this.put(row.queue ?? ALL, row.point, row);
      this.until = Math.max(this.until, row.until);
    }
  }

  /**
   * The values of one field at each point, or null if nothing is known.  In a point without events, a gauge keeps
   * its value, and the age of the oldest due job increases.  now: the value of the gauge if there are no events at all.
   */
  values(queue, name, now = null) {
    const row = this.rows.get(queue);
    const at = (field, i) => (row ? row[i * WIDTH + place[field]] : NaN);
    const values = [];
    let before = this.before?.[name] ?? null;
    if (before === null && gauges.includes(name)) {
      before = now;
      for (let i = this.size - 1; i >= 0; i -= 1) if (!Number.isNaN(at(name, i))) before = at(name, i);
    }
    let due = NaN;
    for (let i = 0; i < this.size; i += 1) {
      const number = this.last - this.size + 1 + i;
      const value = at(name, i);
      // How much of the point has been read.  The last point has not ended yet.
      const seconds = Math.min(this.span.point, this.until - (number - 1) * this.span.point);
      const there = !Number.isNaN(at('enqueued', i));
      due = there ? at('due_last', i) : due + Math.max(seconds, 0);
      if (number < this.first || seconds <= 0) values.push(null);
      else if (name === 'died') values.push(there ? value : 0);
      else if (happened.includes(name)) values.push(there ? value / seconds : 0);
      else if (!Number.isNaN(value)) values.push(before = value);
      else if (gauges.includes(name)) values.push(before);
      else values.push(name === 'oldest_due' && !there && !Number.isNaN(due) ? due : null);
    }
    return values;
  }

  sum(name, now) {
    const sums = new Array(this.size).fill(null);
    for (const queue of new Set([...this.rows.keys(), ...now.keys()])) {
      if (queue === ALL) continue;
      this.values(queue, name, Number(now.get(queue)?.[name] ?? 0)).forEach((value, i) => { if (value !== null) sums[i] = (sums[i] ?? 0) + value; });
    }
    return sums;
  }
}

export class History {
  constructor(database) {
    this.database = database;
    this.kept = new Map();
    this.reads = new Map();
  }

  /** Reads the new rows of a span.  rows: queries the server with the parameters that it receives. */
  async ask(name, span, rows) {
    const kept = this.kept.get(name) ?? new Span(span);
    const at = present() / 1000;
    if (kept.read === 0) {
      const begun = (await this.database.one(queries.historyBegun, [span.step])).begun
        ?? (await this.database.one(queries.historyOfSomeBegun, [span.step])).begun;
      if (begun !== null) kept.first = Math.ceil(begun / span.point);
    }
    // Only part of the last point was read, and the worker may be late by a minute, so this time is read again.
    const read = kept.read / 1000 - Math.max(60, 2 * span.step);
    const since = Math.max(Math.floor(read / span.point) * span.point, (Math.ceil((span.end ?? at) / span.point) - kept.size) * span.point);
    kept.add(await rows([span.step, span.point, new Date(since * 1000).toISOString(), places(span, since, Math.min(span.end ?? at, at))], kept), at);
    kept.read = present();
    this.kept.set(name, kept);
    return kept;
  }

  /** The span of this name.  Requests that arrive during a read wait for the same read. */
  async read(name, span, rows) {
    for (const [other, { looked }] of this.kept) if (Date.now() - looked > KEPT) this.kept.delete(other);
    const chosen = [...this.kept].filter(([, { span: { end } }]) => end !== undefined).sort(([, a], [, b]) => a.looked - b.looked);
    for (const [other] of chosen.slice(0, Math.max(chosen.length - CHOSEN, 0))) this.kept.delete(other);
    const kept = this.kept.get(name);
    if (!kept || (!kept.closed && present() - kept.read >= span.step * 1000))
      await (this.reads.get(name) ?? this.reads.set(name, this.ask(name, span, rows).finally(() => this.reads.delete(name))).get(name));
    const read = this.kept.get(name);
    read.looked = Date.now();
    return read;
  }

  /** The last hour of each queue, to be passed to of(). */
  table() {
    return this.read('table', table, (asked) => this.database.query(queries.historyOfEach, asked));
  }

  /** A span of a queue, or of all queues (null), to be passed to of(). */
  charts(name, queue) {
    return this.readSpan(name, spans[name], queue);
  }

  /** A chosen time span of a queue, or of all queues (null), to be passed to of(). */
  chosen(times, queue) {
    const span = windowOf(times, present() / 1000);
    return this.readSpan(`${span.end - span.seconds} ${span.end}`, span, queue);
  }

  /** A chosen time span of each queue, to be passed to of(). */
  chosenTable(times) {
    const span = windowOf(times, present() / 1000);
    return this.read(`table ${span.end - span.seconds} ${span.end}`, span, (asked) => this.database.query(queries.historyOfEach, asked));
  }

  readSpan(name, span, queue) {
    return this.read(JSON.stringify([name, queue]), span, async (asked, kept) => {
      if (kept.read === 0) kept.before = await this.database.one(queries.historyBefore, [asked[0], asked[2], queue]);
      if (queue !== null) return (await this.database.query(queries.historyOfQueue, [...asked, queue])).map((row) => ({ ...row, queue }));
      const all = kept.some ? [] : await this.database.query(queries.historyOfAll, asked);
      if (all.length > 0) return all;
      // A role that sees only some queues gets the sum of these queues.
      const each = await this.database.query(queries.historyOfEach, asked);
      kept.some = each.length > 0;
      return kept.some ? [...each, ...await this.database.query(queries.historyOfSome, asked)] : [];
    });
  }

  /**
   * The points of a queue, or of all queues (null): {times: the end of each point in milliseconds; an array for each field;
   * latest: the index of the last known point}.  Counts are per second, except died.  now: the rows of idemq.metrics by queue.
   */
  of(span, queue, now) {
    // If the history is shorter than the span, return only the existing points, but at least one sixth of the span.
    const chosen = span.span.end !== undefined;
    const from = chosen ? 0 : Math.min(Math.max(span.first - (span.last - span.size + 1), 0), span.size - span.size / 6);
    const series = { title: span.span.title, point: span.span.point, empty: span.first === Infinity, chosen,
      times: Array.from({ length: span.size }, (_, i) => (span.last - span.size + 1 + i) * span.span.point * 1000).slice(from) };
    for (const field of fields) {
      const values = queue === null && span.some && gauges.includes(field) ? span.sum(field, now)
        : span.values(queue ?? ALL, field, gauges.includes(field) && queue !== null ? Number(now.get(queue)?.[field] ?? 0) : null);
      series[field] = values.slice(from);
    }
    // The last point with data.  A field may have no value there, for example a p95 when nothing was claimed.
    series.latest = Math.max(series.completed.findLastIndex((value) => value !== null), 0);
    return series;
  }
}
