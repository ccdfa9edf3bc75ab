// The adapter of the Node client: see protocol.md.

import { createInterface } from 'node:readline';
import * as idemq from 'idemq';
import pg from 'pg';

const dsn = process.env.IDEMQ_DSN;
const inboxes = new Map();
const emit = (event, members) => process.stdout.write(`${JSON.stringify({ event, ...members })}\n`);
const ended = (command, members) => emit('ended', { command: command.id, ...members });
const sqlstate = (error) => error.sqlstate ?? (/^[0-9A-Z]{5}$/.test(error.code) ? error.code : null);
const failed = (command, error) => ended(command, { error: { sqlstate: sqlstate(error), text: String(error) } });

class Unsupported extends Error {}

const camel = (options = {}) => Object.fromEntries(Object.entries(options)
  .map(([name, value]) => [name.replace(/_(.)/g, (_, letter) => letter.toUpperCase()), value]));

// The producer.

const enqueued = ({ id, outcome, status, result }) => ({ id, outcome, status, result });

async function produce(client, command) {
  switch (command.do) {
    case 'sql':
      await client.query(command.sql);
      return null;
    case 'enqueue':
      return enqueued(await idemq.enqueue(client, command.queue, command.payload, camel(command.options)));
    case 'enqueue_many': {
      const jobs = command.jobs.map(({ payload, options }) => ({ payload, ...camel(options) }));
      return (await idemq.enqueueMany(client, command.queue, jobs)).map(enqueued);
    }
    case 'cancel':
      return idemq.cancel(client, String(command.job));
    case 'retry':
      return idemq.retry(client, String(command.job));
    case 'send_event':
      return (await idemq.sendEvent(client, command.queue, command.name, command.payload)).outcome;
    case 'graph': {
      const graph = Object.fromEntries(Object.entries(command.jobs).map(([name, job]) => [name, camel(job)]));
      const made = await idemq.enqueueGraph(client, graph);
      return Object.fromEntries(Object.entries(made).map(([name, { id }]) => [name, id]));
    }
    default:
      throw new Unsupported();
  }
}

// The worker.

// Commands for a handler, in order.
class Inbox {
  #commands = [];
  #wake = () => {};

  put(command) {
    this.#commands.push(command);
    this.#wake();
  }

  async get() {
    while (!this.#commands.length) await new Promise((resolve) => { this.#wake = resolve; });
    return this.#commands.shift();
  }

  rest() { return this.#commands.splice(0); }
}

function errorOf({ error, text = '', delay = 0, scope }, known) {
  if (!known.includes(error)) throw new Unsupported();
  switch (error) {
    case 'retry_later': return new idemq.RetryLater(delay, text);
    case 'snooze': return new idemq.Snooze(delay, text);
    case 'dead': return new idemq.Dead(text);
    case 'refused': return new idemq.Refused(text);
    case 'hold_back': return new idemq.HoldBack(delay, scope, text);
    case 'panic': return text; // not an Error
    default: return new Error(text, { cause: new TypeError(`cause of ${text}`) });
  }
}

const stepFunction = (job, step, inbox, ask) => async ({ key, request }) => {
  emit('started', { token: job.token, step: step.name, ask, key, request });
  for (;;) {
    const command = await inbox.get();
    if (command.do === 'answer') {
      ended(command, {});
      return command.value ?? (ask ? undefined : null);
    }
    if (command.do === 'raise') {
      ended(command, {});
      throw errorOf(command, ['plain', 'refused', 'dead']);
    }
    ended(command, { unsupported: true });
  }
};

async function execute(job, client, command, inbox) {
  switch (command.do) {
    case 'effect':
      if (client) await client.query('INSERT INTO conformance.effects (job, token, name) VALUES ($1, $2, $3)', [job.id, job.token, command.name]);
      else emit('effect', { token: job.token, name: command.name });
      return null;
    case 'query':
      await client.query(command.sql);
      return null;
    case 'checkpoint':
      await (command.in_transaction ? job.saveCheckpoint(command.data, client) : job.saveCheckpoint(command.data));
      return null;
    case 'await_event': {
      const { arrived, payload } = await job.awaitEvent(command.name, command.timeout);
      return { arrived, payload };
    }
    case 'parents':
      return (await job.parents()).map(({ id, status, result }) => ({ id, status, result }));
    case 'step':
      return job.step(command.name, stepFunction(job, command, inbox, false),
        { request: command.request ?? null, ...(command.call_timeout ? { callTimeout: command.call_timeout } : {}), ...(command.ask ? { ask: stepFunction(job, command, inbox, true) } : {}) });
    default:
      throw new Unsupported();
  }
}

async function obey(job, client, inbox) {
  for (;;) {
    const command = await inbox.get();
    if (command.do === 'return') {
      ended(command, {});
      if (command.unencodable) return { n: 1n };
      return command.echo ? job.payload : command.value;
    }
    try {
      if (command.do === 'raise') {
        const error = errorOf(command, ['plain', 'retry_later', 'snooze', 'dead', 'hold_back', 'panic']);
        ended(command, {});
        command.raised = true;
        throw error;
      }
      ended(command, { value: await execute(job, client, command, inbox) });
    } catch (error) {
      if (command.raised) throw error;
      if (error instanceof Unsupported) {
        ended(command, { unsupported: true });
      } else {
        failed(command, error);
        if (!command.catch) throw error;
      }
    }
  }
}

async function handle(job, client) {
  const { id, token, queue, kind, key, groupKey, attempt, maxAttempts, headers, payload, checkpoint } = job;
  const inbox = new Inbox();
  const told = () => emit('ended', { token, told: true });
  inboxes.set(token, inbox);
  job.signal.addEventListener('abort', told, { once: true });
  if (job.signal.aborted) told();
  emit('started', { token, job: id, queue, kind, key, group: groupKey, attempt, max_attempts: maxAttempts, headers, payload, checkpoint });
  try {
    return await obey(job, client, inbox);
  } finally {
    job.signal.removeEventListener('abort', told);
    if (inboxes.get(token) === inbox) inboxes.delete(token);
    emit('ended', { token });
    inbox.rest().forEach((command) => ended(command, { error: { gone: true } }));
  }
}

const hook = (name) => emit('effect', { token: null, name });
const hooks = {
  started: () => hook('started'),
  around: (job, next) => { hook(`around ${job.id}`); return next(); },
  failed: (job, failure) => hook(`failed ${job.id} ${failure.outcome} ${failure.willRetry}`),
  stopped: () => hook('stopped'),
};

async function work({ queue, mode, options = {} }) {
  const { kinds, hooks: hooked, wait_dsn: waitConnection, grace, ...others } = options;
  const handler = kinds ? Object.fromEntries(kinds.map((kind) => [kind, handle])) : handle;
  const log = (text) => process.stderr.write(`${text}\n`);
  const worker = new idemq.Worker(dsn, queue, {
    ...camel(others), logger: { info: log, warn: log, error: log }, ...(hooked ? { hooks } : {}),
    ...(waitConnection ? { waitConnection } : {}), ...(grace === undefined ? {} : { grace }),
  });
  return mode === 'run' ? worker.run(handler) : worker.runOutside(handler);
}

let client;
let last = Promise.resolve();

async function answer(command) {
  try {
    if (command.do === 'work') {
      ended(command, { value: await work(command) });
      process.stdout.write('', () => process.exit(0));
      return;
    }
    if (!client) {
      client = new pg.Client(dsn);
      await client.connect();
    }
    ended(command, { value: await produce(client, command) });
  } catch (error) {
    if (error instanceof Unsupported) ended(command, { unsupported: true });
    else failed(command, error);
  }
}

createInterface({ input: process.stdin }).on('line', (line) => {
  const command = JSON.parse(line);
  if (command.token === undefined) last = last.then(() => answer(command));
  else if (inboxes.has(command.token)) inboxes.get(command.token).put(command);
  else ended(command, { error: { gone: true } });
}).on('close', () => process.exit(0));
