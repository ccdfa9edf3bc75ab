// The time span of the whole page, which is part of the address: from and to.  Charts, errors and jobs show what happened in it.
import { now } from './clock.mjs';

/** Minimum length of a span in milliseconds. */
const SHORTEST = 1000;

/** A time of an address or of a form, in milliseconds; without a time zone it is in UTC.  NaN if it is invalid. */
function timeOf(text) {
  const match = /^(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?))?\s*(Z|UTC|[+-]\d\d:\d\d)?$/i.exec(text);
  if (!match) return NaN;
  const [, day, clock = '00:00', zone = 'Z'] = match;
  const at = Date.parse(`${day}T${clock}${zone.toUpperCase() === 'UTC' ? 'Z' : zone}`);
  // JavaScript reads 31 February as 3 March.
  return Number.isNaN(at) || new Date(Date.parse(`${day}T00:00Z`)).toISOString().slice(0, 10) !== day ? NaN : at;
}

const entered = (value) => (typeof value === 'string' ? value.trim().slice(0, 40) : '');

/** A time for an address, for example 2026-11-30T20:15:00Z.  Milliseconds are kept, because a job may have died in that second. */
export const addressTime = (at) => new Date(at).toISOString().replace('.000Z', 'Z');

/**
 * The time span of a request: {from, to} in milliseconds, or null if the page shows the present.  given: from and to as they were entered;
 * trouble: why they are not a span.
 */
export function timesOf(query = {}) {
  const given = { from: entered(query.from), to: entered(query.to) };
  if (given.from === '' && given.to === '') return { span: null, given, trouble: null };
  const bad = ['from', 'to'].find((name) => given[name] !== '' && Number.isNaN(timeOf(given[name])));
  if (bad) return { span: null, given, trouble: `"${given[bad]}" is not a time. Enter a time such as 2026-11-30 20:15, in UTC.` };
  if (given.from === '') return { span: null, given, trouble: 'Enter the beginning of the time span.' };
  const [from, to] = [timeOf(given.from), given.to === '' ? Math.ceil(now() / 1000) * 1000 : timeOf(given.to)];
  if (to - from < SHORTEST) return { span: null, given, trouble: 'The time span must end after it begins.' };
  return { span: { from, to }, given, trouble: null };
}

/** Whether the span has ended, so that its charts do not change any more.  The background worker may write a step of the history a minute late. */
export const hasEnded = (span, at = now()) => span.to <= at - 60_000;

/**
 * The markup of a page with its time span in every link and form.  A link or a form that has its own span, or that leads back to the
 * present, is marked with data-now before its address.
 */
export function carry(text, span) {
  if (!span) return text;
  const [from, to] = [addressTime(span.from), addressTime(span.to)];
  const both = `from=${encodeURIComponent(from)}&amp;to=${encodeURIComponent(to)}`;
  return text.replace(/<a\b([^>]*?) href="(\/[^"#]*)(#[^"]*)?"/g, (whole, before, address, place = '') => (before.includes('data-now') || address.startsWith('/static/') ? whole
    : `<a${before} href="${address}${address.includes('?') ? '&amp;' : '?'}${both}${place}"`))
    .replace(/<form\b[^>]*>/g, (tag) => (tag.includes('data-now') || !/\saction="\//.test(tag) ? tag
      : `${tag}<input type="hidden" name="from" value="${from}"><input type="hidden" name="to" value="${to}">`));
}

/** The address to which an action leads back, with the time span of the form. */
export function withSpan(address, body) {
  const { span } = timesOf(body ?? {});
  if (!span || /[?&]from=/.test(address)) return address;
  const [path, place] = address.split('#');
  return `${path}${path.includes('?') ? '&' : '?'}${new URLSearchParams({ from: addressTime(span.from), to: addressTime(span.to) })}${place === undefined ? '' : `#${place}`}`;
}
