// The graph of a flow: its jobs in rows, parents above children; of a large one, its kinds, and of
// each how many are in which state.

/** Jobs that are drawn one by one, and as many side by side. */
const MOST = 16;
const WIDE = 5;

/**
 * Makes of a flow's jobs, {id, queue, kind, status, parents, depth} of idemq.flow_jobs, {folded, jobs, levels, edges}: levels of nodes {id, ids, jobs, kind, queue, status, own}, and edges
 * from a node to another, by their names; own: the job that was asked for is there.
 */
export function graphOf(rows, own) {
  const wide = new Map();
  for (const row of rows) wide.set(row.depth, (wide.get(row.depth) ?? 0) + 1);
  const folded = rows.length > MOST || Math.max(...wide.values()) > WIDE;
  const kindOf = (row) => JSON.stringify([row.queue, row.kind]);
  const nameOf = (row) => (folded ? JSON.stringify([row.queue, row.kind, row.status]) : row.id);
  // Kinds stand where their first job does.
  const first = new Map();
  for (const row of rows) first.set(kindOf(row), Math.min(first.get(kindOf(row)) ?? Infinity, row.depth));
  const ranks = [...first.entries()].sort((a, b) => a[1] - b[1]).map(([kind]) => kind);
  const nodes = new Map();
  for (const row of rows) {
    const name = nameOf(row);
    const node = nodes.get(name) ?? { name, id: row.id, jobs: 0, kind: row.kind, queue: row.queue, status: row.status, own: false, level: folded ? ranks.indexOf(kindOf(row)) : row.depth };
    node.jobs += 1;
    node.own ||= row.id === own;
    nodes.set(name, node);
  }
  const byId = new Map(rows.map((row) => [row.id, nameOf(row)]));
  const edges = new Set();
  for (const row of rows) {
    for (const parent of row.parents) {
      const [from, to] = [byId.get(parent), nameOf(row)];
      if (from !== undefined && from !== to && nodes.get(from).level < nodes.get(to).level) edges.add(`${from}\n${to}`);
    }
  }
  const levels = [];
  for (const node of nodes.values()) (levels[node.level] ??= []).push(node);
  return { folded, jobs: rows.length, levels: levels.filter(Boolean), edges: [...edges].map((edge) => edge.split('\n')) };
}
