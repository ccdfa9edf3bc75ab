// The NestJS module with real Nest: node --test nestjs.test.js.  DSN names a database that has idemq.
import 'reflect-metadata';
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { after, before, test } from 'node:test';
import { Controller, Inject, Injectable, Module, Scope, type DynamicModule, type ModuleMetadata } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import type { HandlerClient, Job } from 'idemq';
import { IdemqModule, InjectQueue, Process, Processor, Queue, getQueueToken, type IdemqModuleOptions } from 'idemq/nestjs';
import pg from 'pg';
import { Database, Orders, OrdersModule } from './orders.js';

const connection = process.env.DSN!;
const pool = new pg.Pool({ connectionString: connection });
const said: string[] = [];
const logger = { info: (text: string) => said.push(text), warn: (text: string) => said.push(text), error: (text: string) => said.push(text) };
const one = async (sql: string, ...values: unknown[]) => (await pool.query(sql, values)).rows[0];
const count = async (from: string) => Number((await one(`SELECT count(*) FROM ${from}`)).count);

/** Waits until something is true. */
async function until(what: string, holds: () => boolean | Promise<boolean>) {
  for (let tries = 0; !(await holds()); tries++) {
    if (tries > 3000) assert.fail(`never true: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Waits until a statement returns true. */
const soon = (sql: string, ...values: unknown[]) => until(`${sql} ${values}`, async () => Object.values((await one(sql, ...values)) ?? {})[0] === true);

/** An application of these providers, with a worker. */
async function application(metadata: ModuleMetadata, options: Partial<IdemqModuleOptions> = {}, root?: DynamicModule) {
  const { imports = [], ...rest } = metadata;
  @Module({ ...rest, imports: [root ?? IdemqModule.forRoot({ connection, logger, ...options }), ...imports] })
  class Application {}
  return NestFactory.createApplicationContext(Application, { logger: false, abortOnError: false });
}

let queues = 0;
/** A new queue, and a job of each payload. */
async function queue(settings = '', ...payloads: unknown[]) {
  const name = `nest_${++queues}`;
  await pool.query(`SELECT idemq.create_queue('${name}', lease => '1 h'${settings})`);
  for (const payload of payloads) await pool.query('SELECT idemq.enqueue($1, $2)', [name, JSON.stringify(payload)]);
  return name;
}
const statusOf = (name: string) => `SELECT array_agg(status ORDER BY id) = $1 FROM idemq.jobs WHERE queue_id = idemq.queue_id('${name}')`;

before(async () => {
  await pool.query(`
    SELECT idemq.create_queue('mail', lease => '1 h', retry_base => '1 ms');
    CREATE TABLE orders (id int PRIMARY KEY, reminded bool); CREATE TABLE receipts (order_id int); CREATE TABLE marks (queue text, mark text)`);
});
after(() => pool.end());

test('a queue adds a job in the transaction of the caller', async () => {
  const app = await application({ imports: [OrdersModule] }, { work: false });
  try {
    const mail = app.get<Queue>(getQueueToken('mail'), { strict: false });
    assert.ok(mail instanceof Queue && mail.name === 'mail');
    await app.get(Orders, { strict: false }).place(1);
    await assert.rejects(app.get(Orders, { strict: false }).place(1), { code: '23505' }); // after which the transaction is rolled back
    const client = await app.get(Database, { strict: false }).connect();
    await client.query('BEGIN');
    await client.query('INSERT INTO orders VALUES (2)');
    const { id, outcome } = await mail.enqueue(client, { order: 2 }, { kind: 'receipt' });
    assert.equal(outcome, 'accepted');
    await mail.enqueueMany(client, [{ payload: { order: 3 }, kind: 'receipt' }, { payload: { order: 4 }, kind: 'receipt' }]);
    const statement = mail.enqueueStatement({ order: 5 }, { kind: 'receipt' });
    await client.query(statement.text, statement.values);
    await mail.sendEvent(client, 'paid', { order: 2 });
    assert.equal((await client.query('SELECT count(*)::int FROM idemq.jobs WHERE queue_id = idemq.queue_id($1)', ['mail'])).rows[0].count, 5);
    await client.query('ROLLBACK');
    client.release();
    assert.equal(await count(`idemq.jobs WHERE id = ${id}`), 0);
    assert.deepEqual((await pool.query("SELECT key, kind, payload, status FROM idemq.jobs WHERE queue_id = idemq.queue_id('mail')")).rows, [{ key: 'order-1', kind: 'receipt', payload: { order: 1 }, status: 'pending' }]);
    assert.equal(await count('orders'), 1);
    assert.deepEqual((await mail.sendEvent(pool, 'paid', { order: 2 })).outcome, 'accepted'); // so the first one was rolled back
  } finally {
    await app.close();
  }
});

test('the effect of a processor and the completion of its job share a transaction', async () => {
  const q = await queue(", retry_base => '1 ms'", 'a', 'b');
  let fails = 2;
  @Processor(q)
  class Marks {
    readonly name = 'mark';
    @Process()
    async mark(job: Job<string>, db: HandlerClient) {
      await db.query('INSERT INTO marks VALUES ($1, $2)', [job.queue, this.name + job.payload]);
      if (fails-- > 0) throw new Error('rolled back');
      return { at: job.attempt };
    }
  }
  const app = await application({ providers: [Marks] });
  await soon(statusOf(q), '{completed,completed}');
  await app.close();
  const { rows } = await pool.query('SELECT mark, m.xmin = j.xmin AS together, result FROM marks m JOIN idemq.jobs j ON j.payload #>> $2 = substr(mark, 5) WHERE queue = $1 AND j.queue_id = idemq.queue_id($1) ORDER BY mark', [q, '{}']);
  assert.deepEqual(rows.map(({ mark, together }) => [mark, together]), [['marka', true], ['markb', true]]);
  assert.equal(rows.reduce((sum, { result }) => sum + result.at, 0), 4);
});

test('two queues, kinds, an unknown kind, and a processor outside of transactions', async () => {
  const [one, two] = [await queue(), await queue('', 'outside')];
  for (const kind of ['a', 'b', 'c', 'd', null]) await pool.query('SELECT idemq.enqueue($1, $2, kind => $3)', [one, '1', kind]);
  const seen: unknown[] = [];
  abstract class Base {
    @Process('b')
    inherited(job: Job) {
      seen.push(['inherited', job.kind]);
    }
  }
  @Processor(one, { unknownKind: '1 h' })
  class Kinds extends Base {
    @Process('a', { timeout: 60 })
    @Process('c')
    several(job: Job) {
      seen.push(['several', job.kind]);
    }
    @Process()
    without(job: Job) {
      seen.push(['without', job.kind]);
    }
  }
  @Processor(two, { outside: true })
  class Sender {
    @Process()
    async send(...given: [Job]) {
      seen.push(['outside', given.length]);
    }
  }
  // The second token is of the same instance.
  const app = await application({ providers: [Kinds, Sender, { provide: 'alias', useExisting: Kinds }] }, { queues: { [two]: { concurrency: 3 } }, name: 'nest' });
  await soon(statusOf(one), '{completed,completed,completed,pending,completed}');
  await soon(statusOf(two), '{completed}');
  await soon("SELECT concurrency = 4 FROM idemq.workers WHERE worker = 'nest'");
  await app.close();
  assert.deepEqual(seen.sort(), [['inherited', 'b'], ['outside', 1], ['several', 'a'], ['several', 'c'], ['without', null]]);
  const { rows } = await pool.query("SELECT attempt, ready_at > now() + interval '30 min' AS later FROM idemq.jobs WHERE kind = 'd'");
  assert.deepEqual(rows, [{ attempt: 0, later: true }]);
  assert.ok(said.some((text) => text.includes('no handler for kind d')), said.join('\n'));
});

test('app.close() waits for running jobs, and claims no others', async () => {
  const q = await queue('', 1, 2, 3);
  const events: string[] = [];
  let finish = () => {};
  const finished = new Promise<void>((resolve) => (finish = resolve));
  @Processor(q, { concurrency: 2 })
  class Slow {
    beforeApplicationShutdown() {
      events.push('shutdown');
    }
    @Process()
    async run(job: Job<number>, db: HandlerClient) {
      await db.query('INSERT INTO marks VALUES ($1, $2)', [q, job.payload]);
      events.push('begun');
      await finished;
      events.push('done');
    }
  }
  const app = await application({ providers: [Slow] });
  await until('two are running', () => events.length === 2);
  const closed = app.close();
  await until('it is stopping', () => said.some((text) => text.includes(`${q}: stopping: 2 jobs have 30 s to finish`)));
  finish();
  await closed;
  assert.deepEqual(events, ['begun', 'begun', 'done', 'done', 'shutdown']);
  await soon(statusOf(q), '{completed,completed,pending}');
  assert.equal(await count(`marks WHERE queue = '${q}'`), 2);
});

test('a job that outlasts grace is given back, and its attempt does not count', async () => {
  const q = await queue('', 1);
  let begun = () => {};
  const beginning = new Promise<void>((resolve) => (begun = resolve));
  let why: unknown;
  @Processor(q)
  class Endless {
    @Process()
    async run(job: Job, db: HandlerClient) {
      await db.query('INSERT INTO marks VALUES ($1, $2)', [q, 'undone']);
      begun();
      await once(job.signal, 'abort');
      why = job.signal.reason.why;
      throw job.signal.reason;
    }
  }
  const app = await application({ providers: [Endless] }, { grace: 0 });
  await beginning;
  await app.close();
  assert.equal(why, 'drain');
  assert.deepEqual(await one('SELECT status, attempt FROM idemq.jobs WHERE queue_id = idemq.queue_id($1)', q), { status: 'pending', attempt: 0 });
  assert.equal(await count(`marks WHERE queue = '${q}'`), 0);
});

/** The program of the manual, in a process of its own. */
function program() {
  const child = spawn(process.execPath, ['main.js'], { stdio: ['ignore', 'pipe', 'inherit'] });
  let text = '';
  child.stdout.on('data', (data) => (text += data));
  return { child, text: () => text, ended: once(child, 'exit') as Promise<[number | null, string | null]> };
}
const order = (id: number, kind = 'receipt') => pool.query("WITH o AS (INSERT INTO orders VALUES ($1)) SELECT idemq.enqueue('mail', jsonb_build_object('order', $1::int), kind => $2)", [id, kind]);
/** Holds up the handlers of the program, and returns a function that lets them go on. */
async function held() {
  const client = await pool.connect();
  await client.query('BEGIN');
  await client.query('LOCK TABLE receipts IN SHARE MODE');
  return async () => {
    await client.query('COMMIT');
    client.release();
  };
}
const blocked = "SELECT count(*) = $1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT INTO receipts%'";

test('kill -9 while jobs are running: each effect happens once', async () => {
  const first = program();
  await soon(statusOf('mail'), '{completed}'); // the job of the first test
  const release = await held();
  for (const id of [11, 12, 13]) await order(id);
  await soon(blocked, 3);
  first.child.kill('SIGKILL');
  assert.deepEqual(await first.ended, [null, 'SIGKILL']);
  await release();
  const second = program();
  await soon(statusOf('mail'), '{completed,completed,completed,completed}');
  assert.deepEqual((await pool.query('SELECT order_id FROM receipts ORDER BY 1')).rows.map((row) => row.order_id), [1, 11, 12, 13]);
  assert.equal(await count("idemq.jobs WHERE queue_id = idemq.queue_id('mail') AND attempt = 2"), 3);
  second.child.kill('SIGTERM');
  assert.deepEqual(await second.ended, [null, 'SIGTERM']);
});

test('SIGTERM while a job is running: it is completed, and the process ends', async () => {
  const { child, text, ended } = program();
  await order(20, 'reminder');
  await soon('SELECT reminded FROM orders WHERE id = 20');
  const release = await held();
  await order(21);
  await soon(blocked, 1);
  child.kill('SIGTERM');
  await until('it is stopping', () => text().includes('mail: stopping: 1 jobs have 30 s to finish'));
  await release();
  assert.deepEqual(await ended, [null, 'SIGTERM']);
  assert.deepEqual(await one('SELECT attempt, status FROM idemq.jobs WHERE queue_id = idemq.queue_id($1) ORDER BY id DESC LIMIT 1', 'mail'), { attempt: 1, status: 'completed' });
  assert.equal(await count('receipts WHERE order_id = 21'), 1);
});

test('forRootAsync with a factory, a class and an existing provider', async () => {
  for (const how of ['useFactory', 'useClass', 'useExisting']) {
    const q = await queue('', how);
    @Injectable()
    class Options {
      createIdemqOptions() {
        return { connection, logger, queues: { [q]: { concurrency: 2 } } };
      }
    }
    @Module({ providers: [Options, { provide: 'dsn', useFactory: async () => connection }], exports: [Options, 'dsn'] })
    class Configuration {}
    @Processor(q)
    class Marks {
      constructor(@Inject('marks') private readonly table: string) {}
      @Process()
      async mark(job: Job<string>, db: HandlerClient) {
        await db.query(`INSERT INTO ${this.table} VALUES ($1, $2)`, [q, job.payload]);
      }
    }
    const root = IdemqModule.forRootAsync({
      imports: [Configuration],
      ...(how === 'useFactory' ? { inject: ['dsn'], useFactory: async (dsn: string) => ({ connection: dsn, logger }) } : how === 'useClass' ? { useClass: Options } : { useExisting: Options }),
    });
    const app = await application({ providers: [Marks, { provide: 'marks', useValue: 'marks' }] }, {}, root);
    await soon(statusOf(q), '{completed}');
    await app.close();
    assert.deepEqual((await pool.query('SELECT mark FROM marks WHERE queue = $1', [q])).rows, [{ mark: how }]);
  }
});

test('what cannot work is refused when the application starts', async () => {
  const q = await queue('', 1);
  @Processor(q)
  class Empty {}
  @Injectable()
  class Lone {
    @Process()
    run() {}
  }
  @Injectable({ scope: Scope.REQUEST })
  class Request {}
  @Processor(q)
  class Requested {
    constructor(readonly request: Request) {}
    @Process()
    run() {}
  }
  @Injectable({ scope: Scope.TRANSIENT })
  class Transient {
    @Process()
    run() {}
  }
  Processor(q)(Transient);
  Injectable({ scope: Scope.TRANSIENT })(Transient);
  @Processor(q)
  class Twice {
    @Process('a')
    run() {}
    @Process('a')
    again() {}
  }
  @Processor(q)
  class Fine {
    @Process()
    run() {}
  }
  @Controller()
  class AlsoFine {
    @Process()
    run() {}
  }
  Processor(q)(AlsoFine);
  class Consumer {
    constructor(readonly queue: Queue) {}
  }
  InjectQueue(q)(Consumer, undefined, 0);
  const refused: [RegExp, ModuleMetadata, Partial<IdemqModuleOptions>?][] = [
    [/^Error: Empty has @Processor, but no method with @Process$/, { providers: [Empty] }],
    [/^Error: Empty has @Processor/, { providers: [Empty] }, { work: false }],
    [/^Error: Lone has a method with @Process, but not @Processor$/, { providers: [Lone] }],
    [/^Error: Requested must be a singleton/, { providers: [Request, Requested] }],
    [/^Error: Transient must be a singleton/, { providers: [Transient] }],
    [/^Error: Twice has two methods for the kind a$/, { providers: [Twice] }],
    [/^Error: Fine and AlsoFine both process the queue /, { providers: [Fine], controllers: [AlsoFine] }],
    [/^Error: IdemqModule has options for the queue mial, which no provider/, { providers: [Fine] }, { queues: { mial: {} } }],
    [/^Error: IdemqModule.forRoot or forRootAsync is imported twice/, { imports: [IdemqModule.forRoot({ connection, name: 'second' })], providers: [Fine] }],
    [/^TypeError: Inside has no option concurency: did you mean concurrency/, { providers: [Fine] }, { queues: { [q]: { concurency: 2 } as object } }],
    [/^TypeError: Worker has no option gracee: did you mean grace/, { providers: [Fine] }, { gracee: 1 } as object],
    [/^TypeError: IdemqModule has no option signals: call app.enableShutdownHooks/, { providers: [Fine] }, { signals: true } as object],
    [/^TypeError: IdemqModule needs the option connection/, { providers: [Fine] }, { connection: undefined }],
    [/^TypeError: onError must be a function/, { providers: [Fine] }, { onError: 1 } as object],
    [/resolve dependencies of the Consumer/, { providers: [Consumer] }],
  ];
  for (const [message, metadata, options] of refused) {
    await assert.rejects(application(metadata, options).then((app) => app.close()), (error) => (assert.match(String(error), message), true));
  }
  assert.throws(() => Process()(Fine, 'name', {} as TypedPropertyDescriptor<() => void>), /@Process must be on a method/);
  assert.throws(() => Processor(''), /@Processor needs the name of a queue/);
  assert.throws(() => IdemqModule.forFeature(), /forFeature needs the names of queues/);
  // None of them has run the job.
  await soon(statusOf(q), '{pending}');
});

test('a worker that ends with an error is reported', async () => {
  @Processor('no_such_queue')
  class Marks {
    @Process()
    run() {}
  }
  let app: Awaited<ReturnType<typeof application>>;
  const error = await new Promise<any>((resolve, reject) => {
    application({ providers: [Marks] }, { onError: resolve }).then((started) => (app = started), reject);
  });
  assert.equal(error.sqlstate, 'IQ005');
  await app!.close();
  await pool.query('CREATE ROLE nobody_in_particular');
  const child = spawn(process.execPath, ['main.js'], { stdio: ['ignore', 'ignore', 'pipe'], env: { ...process.env, DSN: `${connection}&options=-c%20role%3Dnobody_in_particular` } });
  let text = '';
  child.stderr.on('data', (data) => (text += data));
  const [status] = await once(child, 'exit');
  assert.equal(status, 1, text);
  assert.match(text, /'42501'/);
});
