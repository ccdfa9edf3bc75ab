// The graph of a flow: its jobs in rows, with parents above children.  The graph of a large flow shows kinds
// instead of jobs, with the number of jobs in each state.

/** Maximum number of jobs that are drawn individually, and maximum number in one row. */
const MOST = 16;
const WIDE = 5;

/**
 * Converts a flow's jobs, {id, queue, kind, status, parents, depth} from idemq.flow_jobs, to {folded, jobs, levels, edges}: levels of nodes {id, jobs, kind, queue, status, own},
 * and edges between the names of nodes.  own: whether the node contains the job whose page this is.
 */
export function graphOf(rows, own) {
  const wide = new Map();
  for (const row of rows) wide.set(row.depth, (wide.get(row.depth) ?? 0) + 1);
  const folded = rows.length > MOST || Math.max(...wide.values()) > WIDE;
  const kindOf = (row) => JSON.stringify([row.queue, row.kind]);
  const nameOf = (row) => (folded ? JSON.stringify([row.queue, row.kind, row.status]) : row.id);
  // A kind is placed on the level of its first job.
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
