// The graph of a flow with its layout, as pages/graph.mjs draws it.
import { graphOf } from './model.mjs';
import { HEIGHT, WIDTH, place } from './place.mjs';

/** own: the job whose page this is, or null; direction: LR or TB; most: maximum number of boxes. */
export function drawn(members, { own = null, direction = 'LR', most } = {}) {
  const graph = graphOf(members, own, most);
  return { graph, direction, size: [WIDTH, HEIGHT], placed: place(graph, direction) };
}
