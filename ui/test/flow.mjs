// Flows, of rows that are given: how they are folded, the critical path, what a retry makes ready, the headline, when jobs ran, and which jobs
// belong together.
import { DRAWN, LINES, concurrency, criticalPath, graphOf, lostJobs, stateOf } from '../src/flows/model.mjs';
import { Sets, newestFlows } from '../src/flows/list.mjs';
import { flowPage } from '../src/pages/flow.mjs';
import { flowsPage } from '../src/pages/flows.mjs';
import { ganttOf, ticksOf } from '../src/pages/gantt.mjs';
import { EDGES, newestEdges, flowRoot } from '../src/queries.mjs';

const tell = (value, what, detail = '') => {
  process.stdout.write(`${value ? 'ok' : 'not ok'} - ${what}\n`);
  if (!value) process.stderr.write(`${what}: ${JSON.stringify(detail)}\n`);
};
const text = (markup) => String(markup).replace(/<[^>]+>/g, ' ').replace(/\s+/g, ' ');
/** A job: its number, parents, and {kind, queue, status, begun, ended}.  Its depth follows from its parents. */
const flowOf = (...jobs) => {
  const all = new Map();
  for (const [id, parents, more = {}] of jobs) all.set(String(id), { id: String(id), queue: 'q', kind: 'k', status: 'completed', parents: parents.map(String), begun: null, ended: null, last_error: null,
    depth: Math.max(0, ...parents.map((parent) => all.get(String(parent)).depth + 1)), ...more });
  return [...all.values()];
};
const range = (n, from = 0) => Array.from({ length: n }, (_, i) => from + i);
const names = (graph) => graph.nodes.map(({ jobs, kind }) => `${jobs} ${kind}`).join();

// Folding: the number of boxes and lines, which decides how long the layout takes.
const fan = (rows, more = () => ({})) => flowOf([0, [], { kind: 'file' }], ...range(rows, 1).map((id) => [id, [0], { kind: 'row', ...more(id) }]), [rows + 1, range(rows, 1), { kind: 'report' }]);
const small = graphOf(fan(98));
tell(small.by === 'job' && small.nodes.length === DRAWN && small.edges.length === 196, 'up to 100 jobs are drawn one by one', [small.by, small.nodes.length]);
const large = graphOf(fan(99));
tell(large.by === 'step' && names(large) === '1 file,99 row,1 report' && large.edges.length === 2, 'more are folded by step', names(large));
const huge = graphOf(fan(2998, (id) => ({ status: id % 100 === 7 ? 'dead' : 'completed' })));
tell(huge.by === 'step' && huge.nodes.length === 3 && huge.nodes[1].counts.dead === 30 && huge.nodes[1].status === 'dead', '3,000 jobs are three boxes, and the worst status is seen', huge.nodes);
const kinds = graphOf(fan(2998, (id) => ({ kind: `kind ${id}`, queue: `queue ${id % 20}` })));
tell(kinds.by === 'queue' && kinds.nodes.length === 21 && kinds.nodes.reduce((sum, { jobs }) => sum + jobs, 0) === 3000, 'of as many kinds as jobs, by queue', [kinds.by, kinds.nodes.length]);
const queues = graphOf(fan(2998, (id) => ({ kind: `kind ${id}`, queue: `queue ${id}` })));
tell(queues.by === 'flow' && queues.nodes.length === 1 && queues.nodes[0].jobs === 3000, 'of as many queues as well, in one box', [queues.by, queues.nodes.length]);
const dense = graphOf(flowOf(...range(30).map((id) => [id, []]), ...range(30, 30).map((id) => [id, range(30)])));
tell(dense.by === 'step' && 30 * 30 > LINES, 'and so is a flow of few jobs with too many lines', dense.by);
const every = graphOf(flowOf(...range(60).map((id) => [id, range(id)])));
tell(every.by === 'job' && every.edges.length === 59, 'a line that follows from others is not drawn', every.edges.length);
const circle = graphOf(flowOf(...range(120).map((id) => [id, id === 0 ? [] : [id - 1], { kind: id % 2 ? 'odd' : 'even' }])));
tell(names(circle) === '60 even,60 odd' && circle.edges.length === 2, 'steps may depend on each other', circle.edges);
tell(graphOf(fan(40), '7', 30).nodes.find(({ own }) => own).kind === 'row' && graphOf(fan(10), '7').nodes.filter(({ own }) => own).map(({ id }) => id).join() === '7', 'the job of a page is marked');

// The critical path.
const ran = (begun, ended, more = {}) => ({ begun, ended, ...more });
const shop = flowOf([1, [], ran(0, 1, { kind: 'order' })], [2, [1], ran(1, 5, { kind: 'pay' })], [3, [1], ran(1, 2, { kind: 'stock' })], [4, [2, 3], ran(6, 8, { kind: 'pack', status: 'running' })], [5, [4], { kind: 'mail', status: 'blocked' }]);
tell(JSON.stringify(criticalPath(shop)) === '{"ids":["1","2","4","5"],"seconds":7}', 'the chain with the longest run time, with what has not run yet', criticalPath(shop));
tell(criticalPath(flowOf([1, [], { status: 'pending' }], [2, [1], { status: 'blocked' }])).ids.length === 0, 'nothing has run, so there is none');
tell(graphOf(shop).edges.filter(({ critical }) => critical).map(({ from, to }) => from + to).sort().join() === '12,24,45', 'its lines are marked', graphOf(shop).edges);

// What a retry makes ready: not what somebody has cancelled for another reason.
const lost = lostJobs(flowOf([1, [], { status: 'dead' }], [2, [1], { status: 'cancelled' }], [3, [2], { status: 'cancelled' }], [4, [], { status: 'cancelled' }], [5, [4], { status: 'cancelled' }], [6, [1]]));
tell(lost.dead.map(({ id }) => id).join() === '1' && lost.cancelled.map(({ id }) => id).join() === '2,3', 'a retry takes the dead jobs, and the jobs that were cancelled because of them', lost);
tell(lostJobs(flowOf([1, [], { status: 'cancelled' }], [2, [1], { status: 'cancelled' }], [3, []])).cancelled.length === 2, 'without dead jobs, all cancelled jobs');

// The headline.
const counts = { jobs: '9', waiting: '0', blocked: '0', running: '0', retrying: '0', completed: '9', dead: '0', cancelled: '0', done: '9', progress: 100, begun_at: null, ended_at: null, eta: null, held_up_by: null, failed_ids: [], roots: ['1'], slowest: null, cut: false };
const page = (more, lostOf = { dead: [], cancelled: [] }) => text(flowPage('7', { ...counts, ...more }, { members: [], picture: null, lost: lostOf }, { writes: false }));
const failed = page({ completed: '3', dead: '1', cancelled: '5' }, { dead: [{ kind: 'payment.charge' }], cancelled: [] });
tell(/Failed : payment\.charge died, 5 jobs cancelled\. 3 of 9 jobs completed \(33 %\)/.test(failed) && !failed.includes('100'), 'what died is named', failed);
tell(/Failed : 2 jobs died\. 1,997 of 1,999 jobs completed \(99\.8 %\)/.test(page({ jobs: '1999', completed: '1997', dead: '2', done: '1999' }, { dead: [{ kind: 'a' }, { kind: 'b' }], cancelled: [] })), 'a lost job is never 100 %', page({ jobs: '1999', completed: '1997', dead: '2', done: '1999' }));
tell(/Completed \. 9 of 9 jobs completed \(100 %\)/.test(page({})), 'a flow that lost none has completed', page({}));
const states = [[{ dead: '1', cancelled: '1' }, 'Failed'], [{ cancelled: '1' }, 'Partly cancelled'], [{ cancelled: '9' }, 'Cancelled'], [{ running: '1', waiting: '1', done: '7' }, 'Running'], [{ retrying: '1', done: '8' }, 'Retrying'], [{ waiting: '1', done: '8' }, 'Waiting'], [{ blocked: '1', done: '8' }, 'Blocked']];
tell(states.every(([more, word]) => stateOf({ ...counts, ...more })[1] === word), 'each state has its word', states.map(([more]) => stateOf({ ...counts, ...more })));

// When jobs ran, to scale.
const times = String(ganttOf(shop, graphOf(shop)));
const bars = [...times.matchAll(/<rect class="one" x="([\d.]+)%" y="3" width="([\d.]+)%"/g)].map(([, x, width]) => `${x}+${width}`).join();
tell(bars === '0+12.5,12.5+12.5,12.5+50,75+25' && /has not run/.test(times), 'a bar is where and as long as the job ran', bars);
tell(/No job of this flow has run yet/.test(ganttOf(flowOf([1, [], { status: 'pending' }]), graphOf(flowOf([1, [], { status: 'pending' }])))), 'nothing has run');
tell(JSON.stringify(concurrency([{ status: 'completed', begun: 0, ended: 2 }, { status: 'dead', begun: 1, ended: 4 }, { status: 'pending', begun: null, ended: null }], 0, 4, 4)) === '[1,2,1,1]', 'how many ran at the same time');
tell(ticksOf(7).join() === '0,2,4,6' && ticksOf(3 * 365 * 86400).length <= 6 && ticksOf(0).length === 0, 'ticks are few and round', ticksOf(7));

// Which jobs belong together.
const sets = new Sets();
const first = [[9, 8], [7, 3], [8, 7], [5, 4], [2, 1]].map(([child, parent]) => sets.add(String(child), String(parent)));
tell(first.join() === 'true,true,false,true,true' && new Set(range(9, 1).filter((id) => id !== 6).map((id) => sets.find(String(id)))).size === 3 && sets.find('3') === '9', 'edges connect jobs to sets, named after the newest job');
// 30 flows of two jobs, of which each asks for its progress; and a join of more parents than one read has.
const asked = [];
const pretend = (edges) => async (statement, [from]) => {
  if (statement === newestEdges) return edges.filter(([child]) => from === null || child < Number(from)).slice(0, EDGES).map(([child, parent]) => ({ child: String(child), parent: String(parent) }));
  if (statement === flowRoot) return [];
  asked.push(from);
  return [{ ...counts, newest: from, roots: [] }];
};
const pairs = range(30).map((i) => [2000 - 2 * i, 1999 - 2 * i]);
const one = await newestFlows(pretend(pairs));
const two = await newestFlows(pretend(pairs), one.next);
tell(one.flows.length === 20 && two.flows.length === 10 && two.next === null && new Set(asked).size === 30, 'pages of flows hold each once', [one.flows.length, two.flows.length, two.next]);
const join = await newestFlows(pretend([...range(EDGES + 5).reverse().map((parent) => [90_000, parent + 50]), [40, 39]]));
tell(join.flows.map(({ newest }) => newest).join() === '90000,40' && join.next === null, 'a join of thousands is one flow, and what is older comes after it', [join.flows.map(({ newest }) => newest), join.next]);
// Two sets of edges that are parts of one flow, which what is older connects: it is there once, and not on the next page again.
const parts = async (statement, values) => (statement === newestEdges || statement === flowRoot ? pretend([[100, 50], [90, 40]])(statement, values) : [{ ...counts, newest: '100', roots: [] }]);
const whole = await newestFlows(parts);
const nothing = await newestFlows(parts, '95');
tell(whole.flows.length === 1 && nothing.flows.length === 0, 'a flow that is found in parts is there once', [whole.flows.length, nothing.flows.length]);
const list = String(flowsPage({ flows: [{ ...counts, id: '7', root: { id: '5', queue: 'shop', key: 'order-7', kind: 'order', enqueued_at: null }, completed: '3', dead: '1', cancelled: '5' }], next: null }, null));
tell(/order-7 shop Failed 33 % 9 5 cancelled 1 dead/.test(text(list)) && /href="\/flow\/5"/.test(list), 'a row says what a flow is, how far, and what it lost', text(list));
