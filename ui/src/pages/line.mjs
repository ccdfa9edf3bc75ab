// The life of a job as a picture: its waits, attempts and backoff on one line, to scale.
import { html } from '../html.mjs';
import { duration } from '../format.mjs';
import { ticksOf } from './gantt.mjs';
import { mark, wordOf } from './graph.mjs';
import { key, moment, number, status, table } from './layout.mjs';

/** The outcome of an attempt: [the status whose mark it gets, a word]. */
export const outcomes = { failed: ['retrying', 'failed'], expired: ['dead', 'lease expired'], released: ['pending', 'released'], cancelled: ['cancelled', 'cancelled'], committed: ['completed', 'committed'], running: ['running', 'running'] };
const words = { scheduled: 'scheduled for later', wait: 'waiting', blocked: 'blocked by parents', backoff: 'backoff, then waiting', attempt: 'running' };
/** Distance between the numbers of two attempts, as a part of the line, below which the second has none. */
const NEAR = 0.03;
const [TOP, HEIGHT] = [20, 14];

const sumOf = (pieces, what) => pieces.filter((piece) => piece.what === what).reduce((sum, { from, to }) => sum + to - from, 0);

/** line: from jobs/line.mjs. */
export function lineFigure(line) {
  const { from, pieces, end, next } = line;
  const until = next ?? line.until;
  const span = Math.max(until - from, 1e-6);
  const share = (time) => (time - from) / span;
  const at = (time) => `${Math.round(share(time) * 1e5) / 1e3}%`;
  const attempts = pieces.filter(({ what }) => what === 'attempt');
  const wordsOf = ({ what, attempt, outcome, worker, from: begin, to }) => (what === 'attempt'
    ? `attempt ${attempt}${worker ? ` by ${worker}` : ''}: ${outcomes[outcome]?.[1] ?? outcome}, ${duration(to - begin)}` : `${words[what]}, ${duration(to - begin)}`);
  let labelled = -1;
  const label = (piece) => {
    if (share(piece.from) - labelled < NEAR && labelled >= 0) return null;
    labelled = share(piece.from);
    return html`<text x="${at(piece.from)}" y="14">#${piece.attempt}</text>`;
  };
  const middle = TOP + HEIGHT / 2;
  const shape = (piece) => {
    const title = html`<title>${wordsOf(piece)}</title>`;
    if (piece.what !== 'attempt') return html`<line class="${piece.what}" x1="${at(piece.from)}" x2="${at(piece.to)}" y1="${middle}" y2="${middle}"/><rect class="over" x="${at(piece.from)}" width="${at(from + piece.to - piece.from)}" y="${TOP}" height="${HEIGHT}">${title}</rect>`;
    const [state] = outcomes[piece.outcome] ?? ['blocked'];
    // An attempt that is too short for the scale is a line.
    return html`<g class="attempt ${state}"><rect x="${at(piece.from)}" width="${at(from + piece.to - piece.from)}" y="${TOP}" height="${HEIGHT}">${title}</rect><line class="least" x1="${at(piece.from)}" x2="${at(piece.from)}" y1="${TOP}" y2="${TOP + HEIGHT}"/></g>${label(piece)}`;
  };
  const ticks = ticksOf(span);
  const waited = sumOf(pieces, 'wait') + sumOf(pieces, 'blocked');
  const sums = [sumOf(pieces, 'scheduled') > 0 && `scheduled for ${duration(sumOf(pieces, 'scheduled'))}`, waited > 0 && `waited ${duration(waited)}`,
    attempts.length > 0 && `ran ${duration(sumOf(pieces, 'attempt'))} in ${attempts.length} ${attempts.length === 1 ? 'attempt' : 'attempts'}`, sumOf(pieces, 'backoff') > 0 && `backoff ${duration(sumOf(pieces, 'backoff'))}`, next !== null && `next attempt in ${duration(next - line.until)}`].filter(Boolean).join(', ');
  const last = end ? [end.status, end.at] : next !== null ? ['pending', next] : null;
  return html`<figure class="life"><figcaption>${sums.charAt(0).toUpperCase()}${sums.slice(1)}.</figcaption>
<svg width="100%" height="56" role="img" aria-label="The life of the job, to scale: ${sums}${end ? `; ${wordOf(end.status)}` : ''}">
${ticks.map((tick) => html`<line class="tick" x1="${at(from + tick)}" x2="${at(from + tick)}" y1="${TOP}" y2="46"/><text x="${at(from + tick)}" y="52" dx="4">${tick === 0 ? '0' : duration(tick)}</text>`)}
${pieces.map(shape)}${next !== null && html`<line class="next" x1="${at(line.until)}" x2="${at(next)}" y1="${middle}" y2="${middle}"/>`}
${last && html`<svg class="end ${last[0]}" x="${at(last[1])}" y="${TOP - 3}" overflow="visible"><g transform="translate(-6 0) scale(2)"><title>${end ? wordOf(end.status) : 'ready for the next attempt'}</title>${mark(last[0], 0, 0)}</g></svg>`}</svg>
<details id="life"><summary>As a table</summary>${table('The life of the job', ['What', number('Takes'), 'Begins', 'Worker'],
    pieces.map((piece) => [piece.what === 'attempt' ? html`Attempt ${piece.attempt}: ${status(outcomes[piece.outcome]?.[0] ?? 'blocked', outcomes[piece.outcome]?.[1] ?? piece.outcome)}` : words[piece.what],
      duration(piece.to - piece.from), moment(piece.from * 1000), key(piece.worker)]), '')}</details></figure>`;
}
