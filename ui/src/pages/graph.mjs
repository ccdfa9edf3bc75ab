// The diagram of a flow: boxes whose shape, word and colour show the state, and lines from parents to children.
import { href, html } from '../html.mjs';
import { count } from '../format.mjs';
import { addressOf } from './queue.mjs';

const [WIDTH, HEIGHT, GAP, BETWEEN, EDGE] = [148, 52, 10, 36, 4];
/** Number of characters that fit into a box. */
const ROOM = 17;

const tabOf = { pending: 'waiting' };
/** The shapes from static/style.css, in a square of 10 by 10. */
const shapes = {
  completed: 'M5 0a5 5 0 1 0 .01 0z', pending: 'M5 1a4 4 0 1 0 .01 0z', running: 'M1 0L10 5L1 10z', retrying: 'M5 0L10 10L0 10z',
  blocked: 'M0 0H10V10H0z', cancelled: 'M0 3.5H10V6.5H0z', dead: 'M2 0L5 3L8 0L10 2L7 5L10 8L8 10L5 7L2 10L0 8L3 5L0 2z',
};
const cut = (text) => ([...text].length > ROOM ? `${[...text].slice(0, ROOM - 1).join('')}…` : text);

export function graphPicture(graph, id) {
  const widest = Math.max(...graph.levels.map((level) => level.length));
  const width = widest * WIDTH + (widest - 1) * GAP + 2 * EDGE;
  const height = graph.levels.length * (HEIGHT + BETWEEN) - BETWEEN + 2 * EDGE;
  const places = new Map();
  graph.levels.forEach((level, y) => {
    const left = (width - (level.length * WIDTH + (level.length - 1) * GAP)) / 2;
    level.forEach((node, x) => places.set(node.name, { x: left + x * (WIDTH + GAP), y: EDGE + y * (HEIGHT + BETWEEN) }));
  });
  const line = ([from, to]) => {
    const [a, b] = [places.get(from), places.get(to)];
    const [x1, y1, x2, y2] = [a.x + WIDTH / 2, a.y + HEIGHT, b.x + WIDTH / 2, b.y];
    const middle = (y1 + y2) / 2;
    return html`<path class="edge" d="M${x1} ${y1}C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}"/>`;
  };
  const box = (node) => {
    const { x, y } = places.get(node.name);
    const state = node.status ?? 'completed';
    const word = node.status ?? 'done and deleted';
    const name = node.kind ?? (graph.folded ? node.queue ?? 'gone' : `job ${node.id}`);
    const many = graph.folded && node.jobs > 1;
    const to = many && node.queue ? href(addressOf(node.queue), { tab: tabOf[state] ?? state, kind: node.kind }) : `/job/${node.id}`;
    const title = many ? `${count(node.jobs)} jobs ${node.kind ?? ''} of queue ${node.queue ?? '–'}: ${word}` : `Job ${node.id}, ${node.kind ?? 'without a kind'}, queue ${node.queue ?? '–'}: ${word}`;
    return html`<a href="${to}"${node.own && !many ? html` aria-current="true"` : ''} class="node ${state}${node.own ? ' own' : ''}">
<rect x="${x}" y="${y}" width="${WIDTH}" height="${HEIGHT}" rx="6"><title>${title}</title></rect><text x="${x + 12}" y="${y + 21}">${cut(`${many ? `${count(node.jobs)} × ` : ''}${name}`)}</text>
<path class="shape" transform="translate(${x + 12} ${y + 32})" d="${shapes[state] ?? shapes.blocked}"/><text class="state" x="${x + 28}" y="${y + 41}">${word}${node.own ? ', this' : ''}</text></a>`;
  };
  return html`<div class="scroll graph" role="region" aria-label="The flow of job ${id}" tabindex="0"><svg width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" role="group" aria-label="Jobs of the flow, parents above children">
${graph.edges.map(line)}${graph.levels.flat().map(box)}</svg></div>`;
}
