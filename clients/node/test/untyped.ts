// Checked by tsc, never run: the code of an application that does not declare its queues.  types.ts has that of one that does.

import pg from 'pg';
import {
  ClusterWorker, Cancelled, createPool, Dead, Kind, Outside, Refused, RetryLater, Snooze, Worker, cancelMany, cancelMatching, drain, enqueue, enqueueGraph,
  enqueueSequenced, ensureHandler, ensureQueue, ensureTopic, finishedJobs, flow, pauseGroup, job, publish, resumeGroup, sendEvent, waitResults, type Handler, type Job,
} from 'idemq';

export async function application(client: pg.PoolClient): Promise<void> {
  const pool: pg.Pool = createPool({ host: 'db1,db2' }, { max: 5 });
  const { id, outcome } = await enqueue(client, 'mail', { to: 'anna@example.com' }, { key: 'order-42', delay: '1 min', runAt: new Date() });
  await enqueue(pool, 'mail', [id, outcome satisfies string]);
  const worker = new Worker({ host: 'db1,db2', port: '5432,5433', database: 'shop' }, 'mail', { concurrency: 4, waitConnection: 'postgresql://db1/shop' });
  await worker.run(async (job, db) => {
    await db.query('INSERT INTO sent (id) VALUES ($1)', [job.id satisfies string]);
    if (job.attempt > 3) throw new Dead('no');
    throw new RetryLater(10, 'busy');
  });
  await worker.run({ mail: async (job, db) => void (await db.query('SELECT $1', [job.kind satisfies string | null])), '': () => null });
  await drain('postgresql://db1/shop', 'mail', { charge }, { outside: true, unknownKind: '5 min' });
  const done = await drain('postgresql://db1/shop', 'mail', charge, { outside: true });
  if ((done.committed ?? 0) !== 1) throw new Snooze('1 hour');
  // @ts-expect-error a handler of drain without outside gets a client, and options are checked
  await drain('postgresql://db1/shop', 'mail', charge, { concurency: 2 });
  // @ts-expect-error an id is no number
  await client.query('SELECT 1').then(() => ({ id }) as { id: number });
}

export async function page(show: (id: string, status: string) => void, readAgain: (queue: string) => void): Promise<void> {
  for await (const item of finishedJobs('postgresql://db1/shop', ['mail', 'invoices'], { signal: AbortSignal.timeout(1000) })) {
    if (item.event === 'overflow') readAgain(item.queue satisfies string);
    else show(item.id satisfies string, item.status satisfies 'completed' | 'dead' | 'cancelled');
  }
}

export async function flows(pool: pg.Pool, offset: bigint): Promise<string> {
  const first = await enqueue(pool, 'sums', 1, { dependsOn: ['17'], onParentFailure: 'run' });
  const jobs = await enqueueGraph(pool, {
    north: { queue: 'sums', payload: 'north', dependsOn: [first] },
    report: { queue: 'sums', payload: null, kind: 'report', dependsOn: ['north'], maxWait: 60 },
  });
  // @ts-expect-error the graph has no such job
  jobs.south;
  await enqueueSequenced(pool, 'orders', 'shop/3', offset, {}, { kind: 'order' });
  // @ts-expect-error it has a number for a key
  await enqueueSequenced(pool, 'orders', 'shop/3', 4, {}, { key: 'k' });
  for (const { queue, id } of await publish(pool, 'orders.paid', {}, { key: 'k' })) await sendEvent(pool, queue, id, first);
  await new Worker({}, 'orders').run(async (job) => {
    const { arrived, payload } = await job.awaitEvent('paid', '3 days');
    return arrived satisfies boolean ? payload : (await job.parents()).map(({ id, result }) => [id satisfies string, result]);
  });
  const { cancelled, locked } = await cancelMatching(pool, 'orders', { kind: 'order', keyPrefix: 'shop/3/', maxJobs: 1000 });
  // @ts-expect-error which jobs is to be said
  await cancelMatching(pool, 'orders');
  const { outcome: ensured, changes } = await ensureQueue(pool, 'orders', { lease: '1 min', maxRunning: 0, deadLetterQueue: '', exact: true });
  if (ensured === 'changed') console.log(changes?.maxRunning.from, await ensureTopic(pool, 'orders'));
  await ensureHandler(pool, 'orders', 'app.handle', { workers: 4 });
  // @ts-expect-error there is no such setting
  await ensureQueue(pool, 'orders', { colour: 'red' });
  await pauseGroup(pool, 'orders', 'shop/3', { until: new Date() });
  // @ts-expect-error which group is to be said
  await pauseGroup(pool, 'orders');
  await resumeGroup(pool, 'orders', 'shop/3');
  if (cancelled + locked) await cancelMany(pool, (await cancelMany(pool, [jobs.report.id])).map(({ id }) => id));
  const far = await flow(pool, jobs.report.id);
  if (far && far.eta !== null && far.progress < 100) console.log(far.heldUpWhy?.length, far.begunAt?.getTime());
  const [{ status }] = await waitResults(pool, [jobs.report.id], '1 min');
  return status;
}

type Mail = { to: string; copies?: number };
type Sent = { messageId: string };

const send: Handler<Mail, Sent> = async (job, db) => {
  await db.query('INSERT INTO sent (address) VALUES ($1)', [job.payload.to]);
  return { messageId: job.id };
};

export async function typed(pool: pg.Pool): Promise<unknown> {
  const { id, result } = await enqueue(pool, 'mail', { to: 'anna@example.com' });
  // @ts-expect-error nothing says what the result is
  result.messageId;
  const worker = new Worker({}, 'mail');
  await worker.run(send);
  await worker.run({ mail: send, '': (job: Job<Mail>) => ({ messageId: job.payload.to }) });
  // @ts-expect-error nor what the payload is
  await new Worker({}, 'numbers').run((job) => job.payload.to);
  await new ClusterWorker({}, 'mail').runOutside((job: Job<Mail>) => ({ messageId: job.payload.to }));
  await drain({}, 'mail', send);
  await drain({}, { mail: send, numbers: new Outside((job: Job<number>) => job.payload + 1, { concurrency: 2 }) });
  await new Worker({}, 'customer').run({
    mail: send,
    invoice: new Kind((job: Job<{ total: number }>) => job.payload.total.toFixed(2), { timeout: 10 }),
  });
  await new Worker({}, 'orders').run(async (job) => {
    const paid = await job.awaitEvent<{ amount: number }>('paid', '3 days');
    // @ts-expect-error the time may be over
    paid.payload.amount;
    await job.saveCheckpoint({ far: 1 });
    return paid.arrived ? paid.payload.amount : (await job.parents())[0].result;
  });
  const info = await job<Mail, Sent>(pool, id ?? '');
  const names = new Worker({}, { a: send, b: { kind: send } }, { giveUpAfter: 60 }).queues satisfies string[];
  return [(await waitResults<Sent>(pool, [id ?? '']))[0].result?.messageId, info?.payload.to, info?.result?.messageId, names];
}

export async function overShards(): Promise<number> {
  const worker = new ClusterWorker('postgresql://router/router', 'mail', { concurrency: 4, home: [0, 1], roam: false });
  // @ts-expect-error the places of the map are direct ones
  new ClusterWorker('postgresql://router/router', 'mail', { waitConnection: {} });
  setTimeout(() => worker.stop(), 1000);
  return (await worker.runOutside(charge)).committed ?? 0;
}

async function charge(job: Job): Promise<{ charge: number }> {
  const why: 'lease' | 'timeout' | 'drain' | undefined = job.signal.aborted ? (job.signal.reason as Cancelled).why : undefined;
  if (why) throw new Dead(why);
  return job.step(
    'charge',
    async ({ key, signal }) => {
      const answer = await fetch('https://pay.example.com/charges', { method: 'POST', headers: { 'Idempotency-Key': key }, signal });
      if (answer.status === 402) throw new Refused('no money');
      return (await answer.json()) as { charge: number };
    },
    { request: job.payload, callTimeout: 10, ask: async ({ key }) => (key === '' ? undefined : { charge: 1 }) },
  );
}

// The hooks of doc/usage/node.md, with what they ask of other packages.
declare const Sentry: { withScope<T>(fn: (scope: { setTag(name: string, value: string): void }) => T): T; captureException(error: unknown, more: object): void };
declare const seconds: { startTimer(labels: { queue: string }): () => void };

export const hooked = () => [
  new Worker({}, 'mail', {
    hooks: {
      around: (job, next) => Sentry.withScope((scope) => (scope.setTag('queue', job.queue), next())),
      failed: (job, { error, ...more }) => Sentry.captureException(error, { extra: { job: job.id, ...more } }),
    },
  }),
  new Worker({}, 'mail', {
    hooks: {
      around: (job, next, end = seconds.startTimer({ queue: job.queue })) => next().finally(end),
      failed: (_, { attempt, willRetry, outcome }) => void [attempt.toFixed(), willRetry satisfies boolean, outcome === 'dead'],
      started: async (worker) => void (worker.queue satisfies string),
      stopped: (worker, outcomes) => console.log(worker.name, outcomes.committed),
    },
  }),
  // @ts-expect-error there is no such hook
  new ClusterWorker({}, 'mail', { hooks: { onFailed: () => {} } }),
];

export const parts: Handler = (_, db) => db.transaction(async (same) => (await same.query('SELECT 1')).rowCount);
