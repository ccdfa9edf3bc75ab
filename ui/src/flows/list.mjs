// Finds the newest flows.  There is no list of flows in the database: a flow is a set of jobs that dependencies connect.  The
// newest dependencies are read until there are enough sets.
import { EDGES, flowBrief, flowRoot, newestEdges } from '../queries.mjs';

/** Number of flows on a page, and the time in milliseconds after which the search stops and the page links to the rest. */
const PAGE = 20;
const TIME = 1000;
/** Maximum number of reads of dependencies for one page. */
const READS = 20;

/** The sets of jobs that edges connect.  A set is named after its newest job. */
export class Sets {
  constructor() {
    this.up = new Map();
  }

  find(id) {
    let at = id;
    while (this.up.get(at) !== at) {
      this.up.set(at, this.up.get(this.up.get(at)));
      at = this.up.get(at);
    }
    return at;
  }

  /** Adds an edge; returns true if its jobs belong to no known set. */
  add(child, parent) {
    const known = this.up.has(child) || this.up.has(parent);
    if (!this.up.has(child)) this.up.set(child, child);
    if (!this.up.has(parent)) this.up.set(parent, parent);
    const [a, b] = [this.find(child), this.find(parent)];
    if (a === b) return !known;
    if (BigInt(a) > BigInt(b)) this.up.set(b, a);
    else this.up.set(a, b);
    return !known;
  }
}

/** Returns {flows, next}: at most one page of flows whose newest job is older than `before` (null: the newest), and where the next page begins. */
export async function newestFlows(query, before = null) {
  const until = Date.now() + TIME;
  const sets = new Sets();
  const firsts = [];
  let from = before;
  let rest = true;
  for (let reads = 0; reads < READS && rest && Date.now() < until; reads += 1) {
    const edges = await query(newestEdges, [from]);
    // If the edges of the last child go on, the next read begins with this child again.
    const last = edges.at(-1)?.child;
    rest = edges.length === EDGES;
    for (const { child, parent } of edges) if (sets.add(child, parent)) firsts.push(child);
    if (rest) from = edges.length > 1 && edges[0].child !== last ? String(BigInt(last) + 1n) : last;
    if (new Set(firsts.map((id) => sets.find(id))).size > PAGE) break;
  }
  const flows = [];
  const seen = new Set();
  let next = rest ? from : null;
  for (const id of new Set(firsts.map((first) => sets.find(first)))) {
    if (flows.length === PAGE || (flows.length > 0 && Date.now() >= until)) {
      next = String(BigInt(id) + 1n);
      break;
    }
    const [flow] = await query(flowBrief, [id]);
    // A set may be a part of a flow that is on this page, or on the page before.
    if (!flow || (before !== null && BigInt(flow.newest) >= BigInt(before)) || seen.has(flow.newest)) continue;
    seen.add(flow.newest);
    const [root] = await query(flowRoot, [flow.roots?.length > 0 ? flow.roots : [id]]);
    flows.push({ id, ...flow, root: root ?? null });
  }
  return { flows, next };
}
