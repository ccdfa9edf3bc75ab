// Places the boxes and lines of a flow's graph (model.mjs) with dagre.
import dagre from '@dagrejs/dagre';

export const [WIDTH, HEIGHT] = [184, 60];
const MARGIN = 6;
/** Maximum number of layouts that are kept for pages that are refreshed. */
const KEPT = 50;

const kept = new Map();

/**
 * Returns {width, height, boxes: name → {x, y} (top left), lines: [{x, y}, ...] for each edge of the graph}.  direction: LR or TB.
 * The layout depends only on the names and edges, so a page that is refreshed does not calculate it again.
 */
export function place({ nodes, edges }, direction) {
  const key = JSON.stringify([direction, nodes.map(({ name }) => name), edges.map(({ from, to }) => [from, to])]);
  let placed = kept.get(key);
  if (!placed) {
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ rankdir: direction, nodesep: 14, ranksep: direction === 'LR' ? 48 : 36, edgesep: 8, marginx: MARGIN, marginy: MARGIN });
    graph.setDefaultEdgeLabel(() => ({}));
    for (const { name } of nodes) graph.setNode(name, { width: WIDTH, height: HEIGHT });
    for (const { from, to } of edges) graph.setEdge(from, to);
    dagre.layout(graph);
    const { width, height } = graph.graph();
    placed = { width: Math.ceil(width), height: Math.ceil(height), boxes: new Map(), lines: edges.map(({ from, to }) => graph.edge(from, to).points) };
    for (const { name } of nodes) {
      const { x, y } = graph.node(name);
      placed.boxes.set(name, { x: x - WIDTH / 2, y: y - HEIGHT / 2 });
    }
  }
  kept.delete(key);
  kept.set(key, placed);
  if (kept.size > KEPT) kept.delete(kept.keys().next().value);
  return placed;
}
