// What the overview shows before there is anything to show: how to enqueue the first job, and what a role that sees one queue can do.
import { html } from '../html.mjs';
import { queueLink } from './layout.mjs';

/** A name as an SQL literal. */
const literal = (text) => `'${text.replaceAll("'", "''")}'`;

const code = (title, text) => html`<h3>${title}</h3><pre><code>${text}</code></pre>`;

/** The steps to the first job; queue: a queue that is empty, or null if there is none. */
function firstSteps(queue) {
  const name = literal(queue ?? 'hello');
  return html`<section class="card first" aria-label="First steps"><h2>Enqueue the first job</h2>
${queue === null && html`<p>1. Create a queue, and allow the roles of your producers and workers to use it:</p>
${code('SQL', `SELECT idemq.create_queue(${name});\nSELECT idemq.grant_queue(${name}, 'app', 'enqueue');\nSELECT idemq.grant_queue(${name}, 'app', 'claim');`)}`}
<p>${queue === null ? '2. ' : ''}Enqueue a job, in the transaction that writes your own data:</p>
${code('SQL', `SELECT id, outcome FROM idemq.enqueue(${name}, '{"name": "world"}');`)}
<p>${queue === null ? '3. ' : ''}Start a worker, which calls your function for each job. There are clients for Python, Node and Go, and the program <code>idemq-work</code>:</p>
${code('Python', `from idemq import Worker\n\ndef handle(job, conn):\n    print(job.payload)\n\nWorker("postgresql:///app", ${name}).run(handle)`)}
${code('Node', `import { Worker } from 'idemq';\n\nawait new Worker({ connectionString: 'postgresql:///app' }, ${name}).run(async (job, db) => { console.log(job.payload); });`)}
<p class="last quiet">This page shows the job as soon as your transaction commits. The manual describes each step in <cite>Your first job</cite> and <cite>Your first worker</cite>.</p></section>`;
}

/** What the overview says to a role that sees no queue, no job, or one queue of several.  all: whether the role sees all queues. */
export function firstOf(queues, all, role) {
  if (queues.length === 0) {
    return html`${!all && html`<p class="notice">The role <code>${role}</code> has no privilege on any queue. If there are queues already, ask an administrator of a queue to run <code>SELECT idemq.grant_queue('queue', ${literal(role)}, 'claim');</code></p>`}${firstSteps(null)}`;
  }
  const empty = queues.every((queue) => [queue.enqueued_total, queue.pending, queue.running, queue.completed, queue.dead].every((value) => Number(value ?? 0) === 0));
  const one = queues.length === 1 && !all && html`<p class="notice">The role <code>${role}</code> sees one queue, ${queueLink(queues[0].queue)}. The page shows nothing of other queues. To see another one, ask its administrator to run <code>SELECT idemq.grant_queue('queue', ${literal(role)}, 'claim');</code></p>`;
  return html`${one}${empty && firstSteps(queues[0].queue)}`;
}
