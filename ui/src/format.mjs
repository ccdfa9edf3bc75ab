// Formats numbers, times and durations for display.
import { now } from './clock.mjs';

/** 12345 as 12,345; null as a dash. */
export function count(value) {
  return value === null || value === undefined ? '–' : BigInt(value).toLocaleString('en');
}
/** A number and its noun: 1 job, 2 jobs. */
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${String(n) === '1' ? one : many}`;

/** Seconds as 340 ms, 12 s, 4 min 10 s, 3 h 5 min, 2 d 4 h. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return '–';
  const value = Number(seconds);
  const sign = value < 0 ? '−' : '';
  const s = Math.abs(value);
  if (s < 0.001) return `${sign}${Math.round(s * 1e6)} µs`;
  if (s < 1) return `${sign}${Math.round(s * 1000)} ms`;
  if (s < 60) return `${sign}${s < 10 ? s.toFixed(1) : Math.floor(s)} s`;
  const two = (big, unit, small, unit2) =>
    `${sign}${Math.floor(s / big)} ${unit}${Math.floor((s % big) / small) ? ` ${Math.floor((s % big) / small)} ${unit2}` : ''}`;
  if (s < 3600) return two(60, 'min', 1, 's');
  if (s < 86400) return two(3600, 'h', 60, 'min');
  return two(86400, 'd', 3600, 'h');
}

/** A timestamptz as PostgreSQL writes it in UTC (2026-11-22 05:12:09.123456+00), in milliseconds. */
function milliseconds(value) {
  return typeof value === 'string' ? Date.parse(value.replace(' ', 'T').replace(/\+00$/, 'Z')) : Number(value);
}

/** Whether JavaScript cannot represent a time, for example infinity, a year of five digits, or a year BC. */
const beyond = (value) => Number.isNaN(milliseconds(value));

/** A time as 2026-11-22 05:12:09 UTC. */
export function time(value) {
  if (value && beyond(value)) return String(value).replace(/\+00\b/, ' UTC');
  return value ? `${new Date(milliseconds(value)).toISOString().slice(0, 19).replace('T', ' ')} UTC` : '–';
}

/** A time in milliseconds as the label of an axis: 14:30, or Tue 24. */
export function axisTime(value, days) {
  const at = new Date(value);
  return !days ? at.toISOString().slice(11, 16) : `${at.toLocaleDateString('en', { weekday: 'short', timeZone: 'UTC' })} ${at.getUTCDate()}`;
}

/** The distance of a time from now: 3 min ago, in 20 s. */
export function distance(value, from = now()) {
  if (!value) return '–';
  if (beyond(value)) return /^-|BC$/.test(value) ? 'long ago' : 'far off';
  const seconds = (milliseconds(value) - from) / 1000;
  return seconds < 0 ? `${duration(-seconds)} ago` : `in ${duration(seconds)}`;
}

/** A number on an axis: 500, 20k, 1.5M; step is the distance between two ticks, which decides how many digits are needed. */
export function axisCount(value, step) {
  const [unit, name] = value >= 1e9 ? [1e9, 'G'] : value >= 1e6 ? [1e6, 'M'] : value >= 10_000 ? [1e3, 'k'] : [1, ''];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
  return `${(value / unit).toLocaleString('en', { minimumFractionDigits: Math.min(digits, 3), maximumFractionDigits: Math.min(digits, 3) })}${name}`;
}

/** A duration on an axis, in one or two units, with as many digits as the step between two ticks needs. */
export function axisDuration(value, step) {
  if (value >= 60) return duration(value);
  const [unit, name] = step >= 1 ? [1, 's'] : step >= 1e-3 ? [1e-3, 'ms'] : [1e-6, 'µs'];
  return `${Number((value / unit).toFixed(3)).toLocaleString('en')} ${name}`;
}

/** A rate: 0, 0.02, 0.4, 12, 1,234. */
export function rate(value) {
  if (value === null || value === undefined) return '–';
  if (value === 0) return '0';
  if (value < 0.1) return value.toPrecision(1);
  return value < 10 ? value.toFixed(1) : Math.round(value).toLocaleString('en');
}

/** A percentage as 7.5 % or 99 %.  Only a complete share is shown as 100 %. */
export function percent(value) {
  const share = Number(value);
  return `${share < 10 || (share > 99 && share < 100) ? Math.floor(share * 10) / 10 : Math.floor(share)} %`;
}

/** Bytes as 812 B, 14 kB, 3.1 MB. */
export function bytes(value) {
  const units = ['B', 'kB', 'MB', 'GB'];
  let size = Number(value);
  let unit = 0;
  while (size >= 1000 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${size < 10 && unit > 0 ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
}
