// What the pages of a flow show, calculated from its jobs (the rows of queries.flowJobs): the graph, the critical path,
// the state, and the jobs that a retry makes ready again.

/** Maximum number of boxes in a graph.  A flow with more jobs is folded. */
export const DRAWN = 100;
/** Maximum length of all lines of a graph, in layers that they cross.  The time for the layout depends on it. */
export const LINES = 240;

const finished = ['completed', 'dead', 'cancelled'];
/** The statuses, starting with the one that a user must see first. */
export const worstFirst = ['dead', 'retrying', 'cancelled', 'running', 'pending', 'blocked', 'completed'];

/** The ways to fold a flow, from the finest to the coarsest: each gives the name of the box that contains a job. */
const ways = [
  ['job', ({ id }) => id],
  ['step', ({ queue, kind }) => JSON.stringify([queue, kind])],
  ['queue', ({ queue }) => JSON.stringify([queue])],
  ['flow', () => 'all'],
];

/** The run time of a job's latest attempt in seconds; null if it is not known. */
export const secondsOf = ({ status, begun, ended }) => (begun !== null && ended !== null && (status === 'running' || finished.includes(status)) ? Math.max(ended - begun, 0) : null);

/**
 * The chain of dependent jobs whose run times add up to the most: {ids, seconds}.  Of two such chains, the longer one; this
 * is how the chain includes jobs that have not run yet.
 */
export function criticalPath(members) {
  const best = new Map();
  let last = null;
  const better = (a, b) => b === undefined || b === null || a.seconds > b.seconds || (a.seconds === b.seconds && a.length > b.length);
  // A job has a greater depth than its parents.
  for (const member of [...members].sort((a, b) => a.depth - b.depth)) {
    let before = null;
    for (const parent of member.parents) {
      const known = best.get(parent);
      if (known && better(known, before)) before = known;
    }
    const own = { id: member.id, before, seconds: (before?.seconds ?? 0) + (secondsOf(member) ?? 0), length: (before?.length ?? 0) + 1 };
    best.set(member.id, own);
    if (better(own, last)) last = own;
  }
  const ids = [];
  if (last !== null && last.seconds > 0) for (let step = last; step; step = step.before) ids.unshift(step.id);
  return { ids, seconds: ids.length > 0 ? last.seconds : 0 };
}

/** The edges between boxes, without loops. */
function edgesOf(members, nameOf) {
  const names = new Map(members.map((member) => [member.id, nameOf(member)]));
  const edges = new Map();
  for (const member of members) {
    const to = names.get(member.id);
    for (const parent of member.parents) {
      const from = names.get(parent);
      if (from === undefined || from === to) continue;
      if (!edges.has(from)) edges.set(from, new Set());
      edges.get(from).add(to);
    }
  }
  return edges;
}

/**
 * Removes the edges that follow from others: if a depends on b and b on c, a line from a to c says nothing new.  Edges that
 * close a cycle, which only a folded graph has, stay.  Returns the edges, and the layers that they cross together.
 */
function reduced(names, edges) {
  const order = [];
  const state = new Map();
  const backward = new Set();
  const visit = (name) => {
    state.set(name, 'open');
    for (const next of edges.get(name) ?? []) {
      if (state.get(next) === 'open') backward.add(`${name}\n${next}`);
      else if (!state.has(next)) visit(next);
    }
    state.set(name, 'done');
    order.push(name); // after everything that depends on it
  };
  for (const name of names) if (!state.has(name)) visit(name);
  const below = new Map(); // what can be reached from a box in one or more steps
  const kept = [];
  for (const name of order) {
    const nexts = [...edges.get(name) ?? []].filter((next) => !backward.has(`${name}\n${next}`));
    const reach = new Set();
    for (const next of nexts) for (const far of below.get(next)) reach.add(far);
    for (const next of nexts) if (!reach.has(next)) kept.push([name, next]);
    for (const next of nexts) reach.add(next);
    below.set(name, reach);
  }
  const layers = new Map();
  for (const name of [...order].reverse()) layers.set(name, layers.get(name) ?? 0);
  const from = new Map();
  for (const [a, b] of kept) from.set(a, [...from.get(a) ?? [], b]);
  for (const name of [...order].reverse()) for (const next of from.get(name) ?? []) layers.set(next, Math.max(layers.get(next), layers.get(name) + 1));
  const length = kept.reduce((sum, [a, b]) => sum + layers.get(b) - layers.get(a), 0) + backward.size;
  return { edges: [...kept, ...[...backward].map((edge) => edge.split('\n'))], length };
}

/**
 * The graph of a flow: {by, nameOf, path, nodes, edges}.  by: job, step (kind and queue), queue or flow, whatever is the finest way
 * that is small enough; nameOf: the name of the box of a job; path: see criticalPath.  nodes: {name, id (of its first job), jobs, kind, queue, counts (jobs by status), status (the worst),
 * seconds (the longest run time), critical, own}.  edges: {from, to, critical}.  own: the job whose page this is, or null.
 */
export function graphOf(members, own = null, most = DRAWN) {
  const path = criticalPath(members);
  const onPath = new Set(path.ids);
  const byId = new Map(members.map((member) => [member.id, member]));
  for (const [by, nameOf] of ways) {
    const nodes = new Map();
    for (const member of members) {
      const name = nameOf(member);
      let node = nodes.get(name);
      if (!node) {
        if (nodes.size === most && by !== 'flow') break;
        node = { name, id: member.id, jobs: 0, kind: by === 'job' || by === 'step' ? member.kind : null, queue: by === 'flow' ? null : member.queue, counts: {}, seconds: null, critical: false, own: false };
        nodes.set(name, node);
      }
      node.jobs += 1;
      node.counts[member.status] = (node.counts[member.status] ?? 0) + 1;
      const seconds = secondsOf(member);
      if (seconds !== null) node.seconds = Math.max(node.seconds ?? 0, seconds);
      node.critical ||= onPath.has(member.id);
      node.own ||= member.id === own;
    }
    if ([...nodes.values()].reduce((sum, { jobs }) => sum + jobs, 0) < members.length) continue;
    const { edges, length } = reduced([...nodes.keys()], edgesOf(members, nameOf));
    if (length > LINES && by !== 'flow') continue;
    const critical = new Set();
    path.ids.forEach((id, i) => { if (i > 0) critical.add(`${nameOf(byId.get(path.ids[i - 1]))}\n${nameOf(byId.get(id))}`); });
    for (const node of nodes.values()) node.status = worstFirst.find((status) => node.counts[status] > 0);
    return { by, nameOf, path, nodes: [...nodes.values()], edges: edges.map(([from, to]) => ({ from, to, critical: critical.has(`${from}\n${to}`) })) };
  }
  return null;
}

/**
 * The jobs that a retry makes ready again: {dead, cancelled}, lists of jobs.  These are the dead jobs and the jobs that were
 * cancelled because of them.  In a flow without dead jobs, they are all cancelled jobs.
 */
export function lostJobs(members) {
  const dead = members.filter(({ status }) => status === 'dead');
  const all = members.filter(({ status }) => status === 'cancelled').sort((a, b) => a.depth - b.depth);
  if (dead.length === 0) return { dead, cancelled: all };
  const lost = new Set(dead.map(({ id }) => id));
  const cancelled = all.filter(({ id, parents }) => {
    if (parents.some((parent) => lost.has(parent))) lost.add(id);
    return lost.has(id);
  });
  return { dead, cancelled };
}

/** The state of a flow, from a row of queries.flow: [the status that its mark shows, a word]. */
export function stateOf(flow) {
  const has = (name) => Number(flow[name]) > 0;
  const left = Number(flow.jobs) - Number(flow.done);
  if (has('dead')) return ['dead', 'Failed'];
  if (has('cancelled')) return ['cancelled', Number(flow.cancelled) === Number(flow.jobs) ? 'Cancelled' : 'Partly cancelled'];
  if (left === 0) return ['completed', 'Completed'];
  return has('running') ? ['running', 'Running'] : has('retrying') ? ['retrying', 'Retrying'] : has('waiting') ? ['pending', 'Waiting'] : ['blocked', 'Blocked'];
}

/** The number of jobs of these that ran at the same time, as averages over `parts` equal parts of the time from `from` to `until`. */
export function concurrency(members, from, until, parts) {
  const sums = new Array(parts).fill(0);
  const width = (until - from) / parts;
  if (!(width > 0)) return sums;
  for (const member of members) {
    if (secondsOf(member) === null) continue;
    const [begin, end] = [(member.begun - from) / width, (member.ended - from) / width];
    for (let i = Math.max(0, Math.floor(begin)); i < Math.min(parts, Math.ceil(end)); i += 1) sums[i] += Math.max(0, Math.min(end, i + 1) - Math.max(begin, i));
  }
  return sums;
}
