// The graph of a flow: boxes whose shape, word and colour show the status, and lines from parents to children.
import { href, html } from '../html.mjs';
import { count, duration } from '../format.mjs';
import { worstFirst } from '../flows/model.mjs';
import { addressOf } from './queue.mjs';

/** Number of characters that fit into a box. */
const ROOM = 20;
const EDGE = 12;

const tabOf = { pending: 'waiting' };
const words = { pending: 'waiting' };
export const wordOf = (status) => words[status] ?? status;
/** The shapes from static/style.css, in a square of 10 by 10. */
const shapes = {
  completed: 'M5 0a5 5 0 1 0 .01 0z', pending: 'M5 1a4 4 0 1 0 .01 0z', running: 'M1 0L10 5L1 10z', retrying: 'M5 0L10 10L0 10z',
  blocked: 'M0 0H10V10H0z', cancelled: 'M0 3.5H10V6.5H0z', dead: 'M2 0L5 3L8 0L10 2L7 5L10 8L8 10L5 7L2 10L0 8L3 5L0 2z',
};
/** The mark of a status in a picture, in a square of 10 by 10 pixels. */
export const mark = (status, x, y) => html`<path class="shape" transform="translate(${x} ${y})" d="${shapes[status] ?? shapes.blocked}"/>`;
const cut = (text, room = ROOM) => ([...text].length > room ? `${[...text].slice(0, room - 1).join('')}…` : text);

/** 12 jobs: 10 completed, 2 dead. */
const countsOf = (node) => worstFirst.filter((status) => node.counts[status]).map((status) => `${count(node.counts[status])} ${wordOf(status)}`).join(', ');

/** The points of a line: from the side of the parent's box to the side of the child's, through the points of the layout.  A line that closes a cycle keeps its points. */
function pointsOf({ from, to }, points, { boxes }, direction, [width, height]) {
  const [a, b] = [boxes.get(from), boxes.get(to)];
  const ends = direction === 'LR' ? [{ x: a.x + width, y: a.y + height / 2 }, { x: b.x, y: b.y + height / 2 }] : [{ x: a.x + width / 2, y: a.y + height }, { x: b.x + width / 2, y: b.y }];
  const forward = direction === 'LR' ? ends[0].x < ends[1].x : ends[0].y < ends[1].y;
  // The first and the last point are on the boxes' borders; the others matter only if the line crosses a layer.
  return forward ? [ends[0], ...(points.length > 3 ? points.slice(1, -1) : []), ends[1]] : points;
}

/** A smooth line through points, which leaves and enters boxes in the direction of the layout. */
function line(points, direction) {
  return points.map(({ x, y }, i) => {
    const at = `${Math.round(x)} ${Math.round(y)}`;
    if (i === 0) return `M${at}`;
    const before = points[i - 1];
    const [mx, my] = [Math.round((before.x + x) / 2), Math.round((before.y + y) / 2)];
    return direction === 'LR' ? `C${mx} ${Math.round(before.y)} ${mx} ${Math.round(y)} ${at}` : `C${Math.round(before.x)} ${my} ${Math.round(x)} ${my} ${at}`;
  }).join('');
}

/** An arrow head at the end of a line, in the direction of the layout. */
const head = ({ x, y }, direction) => (direction === 'LR' ? `M${Math.round(x)} ${Math.round(y)}l-8 -4.5v9z` : `M${Math.round(x)} ${Math.round(y)}l-4.5 -8h9z`);

/** The statuses of a folded box, as a bar of its width. */
function shares(node, x, y, width) {
  let at = x;
  return worstFirst.filter((status) => node.counts[status]).map((status) => {
    const part = (node.counts[status] * width) / node.jobs;
    at += part;
    return html`<rect class="share ${status}" x="${(at - part).toFixed(1)}" y="${y}" width="${Math.max(part, 2).toFixed(1)}" height="5"/>`;
  });
}

/** graph: from model.mjs; placed: {width, height, boxes, lines} from place.mjs, for boxes of size [WIDTH, HEIGHT]; direction: LR or TB. */
export function graphPicture({ graph, placed, direction, size }, id) {
  const [WIDTH, HEIGHT] = size;
  const box = (node) => {
    const { x, y } = placed.boxes.get(node.name);
    const single = node.jobs === 1;
    const name = node.kind ?? (graph.by === 'job' || single ? `job ${node.id}` : graph.by === 'queue' ? node.queue : graph.by === 'flow' ? 'jobs' : 'no kind');
    const [title, label, word] = single
      ? [`Job ${node.id}, ${node.kind ?? 'without a kind'}, queue ${node.queue ?? '–'}: ${wordOf(node.status)}`, cut(name), `${wordOf(node.status)}${node.own ? ', this' : ''}`]
      : [`${count(node.jobs)} jobs ${node.kind ?? ''} of queue ${node.queue ?? '–'}: ${countsOf(node)}`, cut(`${count(node.jobs)} × ${name}`),
        cut(`${count(node.counts[node.status])} ${wordOf(node.status)}${node.own ? ', with this' : ''}`, ROOM - 6)];
    const to = single ? `/job/${node.id}` : node.queue === null ? `/flow/${id}` : href(addressOf(node.queue), { tab: tabOf[node.status] ?? node.status, kind: node.kind });
    return html`<a href="${to}"${node.own && single ? html` aria-current="true"` : ''} class="node ${node.status}${node.own ? ' own' : ''}${node.critical ? ' critical' : ''}" data-name="${node.name}">
<rect x="${x}" y="${y}" width="${WIDTH}" height="${HEIGHT}" rx="6"><title>${title}${node.seconds === null ? '' : `, ran for ${duration(node.seconds)}`}${node.critical ? '; on the critical path' : ''}</title></rect><text x="${x + EDGE}" y="${y + 22}">${label}</text>
${mark(node.status, x + EDGE, y + 33)}<text class="state" x="${x + EDGE + 16}" y="${y + 42}">${word}</text>${node.seconds !== null && html`<text class="took" x="${x + WIDTH - EDGE}" y="${y + 42}">${duration(node.seconds)}</text>`}
${!single && shares(node, x + EDGE, y + HEIGHT - 11, WIDTH - 2 * EDGE)}</a>`;
  };
  // Lines of the critical path are drawn over the others.
  const lines = graph.edges.map((edge, i) => ({ ...edge, points: pointsOf(edge, placed.lines[i], placed, direction, size) })).sort((a, b) => a.critical - b.critical);
  return html`<svg width="${placed.width}" height="${placed.height}" viewBox="0 0 ${placed.width} ${placed.height}" role="group" aria-label="Jobs of the flow and what they depend on">
${lines.map(({ critical, points }) => html`<path class="edge${critical ? ' critical' : ''}" d="${line(points, direction)}"/><path class="head${critical ? ' critical' : ''}" d="${head(points.at(-1), direction)}"/>`)}${graph.nodes.map(box)}</svg>`;
}
