// idemq: a client for the job queue inside PostgreSQL.
//
// ids and tokens are strings of digits: they are bigint in the server, and no number here loses one.
// An Interval is a number of seconds, or PostgreSQL's text for one: 90, '1 min 30 s'.
// A type of a Payload or Result is what the application says of its queue: nothing checks what comes as JSON.

import type { ClientBase, ClientConfig, Pool, PoolConfig, QueryResult } from 'pg';

export type Interval = number | string;
export type Json = any;

/** A connection string or settings of pg. host and port may be lists, as in libpq: 'postgresql://db1,db2:5433/shop'. */
export type Connection = string | ClientConfig | (Omit<ClientConfig, 'port'> & { port?: number | string });

/** What can run a statement: pg's Client, or a Pool where the job need not be in a transaction of yours. */
export interface Queryable {
  query(text: string, values: unknown[]): Promise<QueryResult<any>>;
}

/** What all ways to add a job take. */
export interface MessageOptions {
  delay?: Interval | null;
  runAt?: Date | string | null;
  /** 0 is first, 9 last; 4 */
  priority?: number;
  /** An integer is taken as text. */
  groupKey?: string | number | bigint | null;
  maxAttempts?: number | null;
  /** For the worker; the trace context of the caller is added where @opentelemetry/api is installed. */
  headers?: Record<string, Json> | null;
  expiresIn?: Interval | null;
  /** By which a worker chooses the handler. */
  kind?: string | null;
}

export interface EnqueueOptions extends MessageOptions {
  /** An integer is taken as text. */
  key?: string | number | bigint | null;
  keyTtl?: Interval | null;
  onDuplicate?: 'keep' | 'ignore' | 'replace' | 'rerun' | 'error';
  nowait?: boolean;
  /** With onDuplicate replace: a delay that starts again with each request ends so long after the first. */
  maxWait?: Interval | null;
  /** ids of jobs that are completed first. */
  dependsOn?: string[] | null;
  /** What becomes of the job when one of them is dead or cancelled. cancel */
  onParentFailure?: 'cancel' | 'wait' | 'run';
}

export interface Enqueued<Result = Json> {
  /** null with outcome locked */
  id: string | null;
  outcome: 'accepted' | 'duplicate' | 'rerun' | 'locked';
  status: Status | null;
  /** Of a duplicate that is completed. */
  result: Result | null;
}

export type Status = 'blocked' | 'pending' | 'running' | 'retrying' | 'completed' | 'dead' | 'cancelled';

/** Adds a job, in the transaction of this client. */
export function enqueue<Payload = Json, Result = Json>(
  client: Queryable, queue: string, payload: Payload, options?: EnqueueOptions,
): Promise<Enqueued<Result>>;

/** A job of a graph. */
export interface GraphJob<Payload = Json> extends Omit<EnqueueOptions, 'nowait' | 'dependsOn'> {
  queue: string;
  payload: Payload;
  /** Names in the graph, and jobs that are there, such as enqueue answers them. */
  dependsOn?: (string | { id: string | null })[] | null;
}

/** Adds jobs that depend on each other, all or none: by names, which their dependsOn says. A circle is an error (22023). */
export function enqueueGraph<Name extends string>(
  client: Queryable, jobs: { readonly [name in Name]: GraphJob },
): Promise<{ [name in Name]: { id: string; outcome: 'accepted' | 'duplicate' | 'rerun'; status: Status } }>;

/**
 * Adds a job for a message of one ordered log, such as a Kafka partition, by its number there: one that is not
 * higher than the producer's last one is a duplicate. Not for ids of an outbox table, which are committed in another order.
 */
export function enqueueSequenced<Payload = Json, Result = Json>(
  client: Queryable, queue: string, producer: string, seq: number | bigint | string, payload: Payload, options?: MessageOptions,
): Promise<Enqueued<Result>>;

/** Adds a job to each queue that is bound to a topic; answers these jobs, none when nobody is bound. */
export function publish<Payload = Json>(
  client: Queryable, topic: string, payload: Payload, options?: MessageOptions & { key?: string | number | bigint | null },
): Promise<{ queue: string; id: string; outcome: 'accepted' | 'duplicate' }[]>;

/**
 * Tells the jobs of a queue that await this event, now or within its idempotency_window. Of a duplicate the first payload
 * counts: samePayload tells whether yours equals it, and firstPayload is null for a role that may only enqueue.
 */
export function sendEvent<Payload = Json>(
  client: Queryable, queue: string, name: string, payload?: Payload,
): Promise<{ outcome: 'accepted' | 'duplicate'; firstPayload: Payload | null; samePayload: boolean }>;

/** How far a graph or a fan-out is. */
export interface Flow {
  /** How many there are; a parent that is gone counts. */
  jobs: number;
  waiting: number; blocked: number; running: number; retrying: number; completed: number; dead: number; cancelled: number;
  /** Those that are completed, dead or cancelled; progress is that in percent. */
  done: number;
  progress: number;
  begunAt: Date | null;
  endedAt: Date | null;
  /** Seconds to the end, at the pace of late; null: that cannot be said. */
  eta: number | null;
  /** The job that most others wait for, or that is not done for the longest time, and why it is not. */
  heldUpBy: string | null;
  heldUpWhy: string | null;
  slowest: string | null;
  slowestKind: string | null;
  /** Seconds. */
  slowestFor: number | null;
  /** Dead ones, then those that will be tried again; of both, and of jobs without parents, 100 at most. */
  failedIds: string[];
  roots: string[];
  /** There are more jobs than were asked for. */
  cut: boolean;
}

/** How far the graph or fan-out of a job is, whichever of its jobs that is; null for one that you may not see. */
export function flow(client: Queryable, id: string, most?: number): Promise<Flow | null>;

/** Cancels jobs that are not finished, and never waits: locked is one that an open transaction holds. */
export function cancelMany(
  client: Queryable, ids: string[],
): Promise<{ id: string; outcome: 'cancelled' | 'locked' | 'completed' | 'dead' | 'not_found' }[]>;

/** Which jobs of a queue: those that have all that is given, and at least one thing is. */
export interface Matching {
  kind?: string | null;
  groupKey?: string | null;
  keyPrefix?: string | null;
  /** No more in one call. */
  maxJobs?: number | null;
}

/** Cancels the jobs of a queue that are not finished and match; of those that an open transaction holds it answers how many. */
export function cancelMatching(client: Queryable, queue: string, which: Matching): Promise<{ cancelled: number; locked: number }>;

/** Sleeps until all of these jobs are finished, or the timeout (30 s) is over; in no transaction. */
export function waitResults<Result = Json>(
  client: Queryable, ids: string[], timeout?: Interval,
): Promise<{ status: Status; result: Result | null }[]>;

/** A pool for producers: pg's, which goes to whichever of several hosts takes writes. A Worker needs none. */
export function createPool(connection: Connection, options?: PoolConfig): Pool;

/** What a handler is given. */
export interface Job<Payload = Json> {
  readonly queue: string;
  readonly id: string;
  /** The fencing token of this attempt: larger than that of any before. */
  readonly token: string;
  readonly attempt: number;
  readonly maxAttempts: number;
  readonly payload: Payload;
  readonly headers: Record<string, Json>;
  readonly key: string | null;
  readonly groupKey: string | null;
  readonly kind: string | null;
  /** What the last checkpoint has stored, of an earlier attempt too; null at first. */
  readonly state: Json;
  readonly enqueuedAt: Date;
  /** When the handler will be cancelled. */
  readonly deadline: Date;
  /** Fires when the handler is to stop, with a Cancelled as its reason: pass it to fetch and the like. */
  readonly signal: AbortSignal;
  /** Stores how far the job came, for the next attempt. In runOutside alone. */
  checkpoint(data: Json): Promise<void>;
  /**
   * Waits for an event of the job's queue (sendEvent), so long after the first call at most. While there is none the job
   * is given back and sleeps, for days if need be: Waiting ends the handler, what it did in a transaction is undone, and
   * no attempt is counted. Then the handler is called again from its beginning, and this answers what came of it.
   */
  awaitEvent<Event = Json>(name: string, timeout: Interval): Promise<{ arrived: true; payload: Event } | { arrived: false; payload: null }>;
  /** The jobs that this one was enqueued to wait for (dependsOn). status null: completed, in a queue that keeps no jobs. */
  parents<Result = Json>(): Promise<{ id: string; queue: string | null; status: Status | null; result: Result | null }[]>;
  /**
   * Has another system do something, once: a later attempt is given the response that is stored. When an
   * attempt was lost between call and answer, ask finds out; without ask, or when it answers undefined,
   * the call is made again under the same key. In runOutside alone.
   */
  step<T = Json>(name: string, call: (call: StepCall) => T | Promise<T>, options?: StepOptions<T>): Promise<T>;
}

export interface StepCall {
  /** The key of this effect, to send along: the same in each attempt, until the other side refuses. */
  readonly key: string;
  readonly request: Json;
  /** Fires at `until`, and when the job's does. */
  readonly signal: AbortSignal;
  readonly until: Date;
}

export interface StepOptions<T = Json> {
  /** What is asked for; another one under the same name is an error (KeyReused). */
  request?: Json;
  /** Seconds, 30: after that the call is given up, and no attempt asks before. */
  callTimeout?: number;
  /** Asks the other side whether an earlier call was done; answers its response, or undefined. */
  ask?: (earlier: { key: string; request: Json; begunAt: Date; signal: AbortSignal }) => T | undefined | Promise<T | undefined>;
}

/**
 * pg's client, whose transaction the job is committed in. It begins, and locks the job, when the client is used; what begins or ends a
 * transaction is refused.
 */
export interface HandlerClient extends ClientBase {
  /** A part that may fail by itself: a savepoint, undone when fn throws. */
  transaction<T>(fn: (client: HandlerClient) => T | Promise<T>): Promise<T>;
}

/** Gets the client whose transaction the job is committed in; what it returns is the job's result. */
export type Handler<Payload = Json, Result = Json> = (job: Job<Payload>, client: HandlerClient) => Result | Promise<Result>;
/** What it returns is the job's result. */
export type OutsideHandler<Payload = Json, Result = Json> = (job: Job<Payload>) => Result | Promise<Result>;

/** By the kind of a job; that of '' is for jobs without one. A job of another kind is given back for a while. */
export type Handlers<H> = { readonly [kind: string]: H };

export interface Logger {
  info(text: string): void;
  warn(text: string): void;
  error(text: string): void;
}

/** An attempt that has failed. */
export interface Failure {
  attempt: number;
  /** Whether the job is tried again, or another attempt has it: not if it is dead or cancelled, or another attempt has completed it. */
  willRetry: boolean;
  /** What the handler has thrown, or a Cancelled when its time was over. */
  error: unknown;
  /** stale and not_found: the lease was lost before this could be told; lost: the server could not be told. */
  outcome: 'retrying' | 'dead' | 'stale' | 'not_found' | 'lost';
}

/** What an application adds to a worker, for tracers, metrics, loggers. */
export interface Hooks {
  /** Called for each attempt in place of the handler, which next calls: what around returns is the result, what it throws fails the attempt. */
  around?(job: Job, next: () => Promise<any>): unknown;
  /** Called when an attempt has failed, and the server has said what becomes of the job. */
  failed?(job: Job, failure: Failure): unknown;
  /** Called before the first claim, and awaited; what it throws, run throws. */
  started?(worker: Worker<any, any> | ClusterWorker<any, any>): unknown;
  /** Called when all attempts have ended, and awaited. */
  stopped?(worker: Worker<any, any> | ClusterWorker<any, any>, outcomes: Outcomes): unknown;
}

export interface WorkerOptions {
  /** Its name in idemq.running_jobs. */
  name?: string;
  /** Where to sleep until there is work, when `connection` leads to a pooler: a connection of its own. */
  waitConnection?: Connection;
  /** Jobs at a time, 1. In run each has a connection. */
  concurrency?: number;
  /** Jobs in one transaction, 1. If one fails, all of it is undone, and each runs alone. In run alone. */
  batch?: number;
  /** The lease, in place of the queue's: for how long a worker that hangs keeps a job. */
  lease?: Interval;
  /** Seconds that a handler may take, 3600; the queue's job_timeout, if it has one, replaces it, less some seconds to fail the attempt in time. */
  timeout?: number;
  /** Seconds that jobs may take to end after SIGTERM, 30. */
  grace?: number;
  /** Whether leases end with the worker's session. In run yes, unless there is a pooler; in runOutside no. */
  attach?: boolean;
  /** Whether SIGTERM and SIGINT drain. true */
  signals?: boolean;
  /** For how long a job is given back whose kind has no handler here, 60: a newer worker may have one. */
  unknownKind?: Interval;
  /** console's warn and error, unless given. */
  logger?: Logger;
  /** What is called around each attempt, at failures, at start and end. What failed and stopped throw is logged. */
  hooks?: Hooks;
}

/** How often which outcome: { committed: 3, retrying: 1 }. */
export type Outcomes = Partial<Record<'committed' | 'retrying' | 'dead' | 'released' | 'waiting' | 'stale' | 'not_found' | 'lost', number>>;

/** Payload and Result are those of its queue's jobs; a handler of one kind may say Job<...> of its own instead. */
export class Worker<Payload = Json, Result = Json> {
  constructor(connection: Connection, queue: string, options?: WorkerOptions);
  readonly queue: string;
  readonly name: string;
  /** Works until SIGTERM or stop(): the handler's effects and its job's commit share a transaction. */
  run(handler: Handler<Payload, Result> | Handlers<Handler<Payload, Result>>): Promise<Outcomes>;
  /** The same for effects outside of this database. */
  runOutside(handler: OutsideHandler<Payload, Result> | Handlers<OutsideHandler<Payload, Result>>): Promise<Outcomes>;
  /** Claims no more; what runs has `grace` to end. Called again: it has not. */
  stop(): void;
}

export interface ClusterWorkerOptions extends Omit<WorkerOptions, 'waitConnection'> {
  /** The shards that come first; all alike, unless given. */
  home?: number[];
  /** Whether it works for the others, too. true */
  roam?: boolean;
  /** In place of what the map says of each shard: the server's own port, where the map names a pooler's. */
  shardPlace?: { host?: string; port?: number | string };
}

/**
 * A Worker over the shards of a cluster. Its connection is that of the router's database, directly, since it
 * listens there; user, password and TLS are those for the shards, too. `concurrency` is that of all shards
 * together. What a handler of run does with its client is committed on its job's shard.
 */
export class ClusterWorker<Payload = Json, Result = Json> {
  constructor(router: Connection, queue: string, options?: ClusterWorkerOptions);
  readonly queue: string;
  readonly name: string;
  run(handler: Handler<Payload, Result> | Handlers<Handler<Payload, Result>>): Promise<Outcomes>;
  runOutside(handler: OutsideHandler<Payload, Result> | Handlers<OutsideHandler<Payload, Result>>): Promise<Outcomes>;
  stop(): void;
}

/** Does what is ready now, and ends: for tests of an application, and for cron. */
export function drain<Payload = Json, Result = Json>(
  connection: Connection, queue: string, handler: Handler<Payload, Result> | Handlers<Handler<Payload, Result>>,
  options?: WorkerOptions & { outside?: false },
): Promise<Outcomes>;
export function drain<Payload = Json, Result = Json>(
  connection: Connection, queue: string, handler: OutsideHandler<Payload, Result> | Handlers<OutsideHandler<Payload, Result>>,
  options: WorkerOptions & { outside: true },
): Promise<Outcomes>;

/** An error of idemq, by its SQLSTATE. */
export class IdemqError extends Error {
  readonly sqlstate: string;
  readonly detail: string | undefined;
  readonly hint: string | undefined;
}
/** IQ001: the lease is lost. */
export class StaleToken extends IdemqError {}
/** IQ002: no such job, or not for this role. */
export class NoSuchJob extends IdemqError {}
/** IQ003: the key is taken by a job with another payload. */
export class KeyReused extends IdemqError {}
/** IQ004: the key is taken, and onDuplicate is error. */
export class DuplicateKey extends IdemqError {}
/** IQ005: no such queue. */
export class NoSuchQueue extends IdemqError {}
/** IQ006: this attempt has committed already. */
export class AlreadyCommitted extends IdemqError {}

/** Thrown by a handler: it has failed, and is to be tried again after this delay. The attempt counts. */
export class RetryLater extends Error {
  constructor(delay: Interval, reason?: string);
  readonly delay: Interval;
}
/** Thrown by a handler: not now, but after this delay. The attempt does not count. */
export class Snooze extends Error {
  constructor(delay: Interval, reason?: string);
  readonly delay: Interval;
}
/** Thrown by a handler: no attempt will succeed. By a step's call: what Refused says, too. */
export class Dead extends Error {
  constructor(reason: string);
}
/** Thrown in a handler by job.awaitEvent: let it pass. Its attempt is over, whatever the handler does instead. */
export class Waiting extends Error {
  constructor(event: string, timeout: Interval);
  readonly event: string;
  readonly timeout: Interval;
}
/** Thrown by a step's call: the other side has definitely not done it. */
export class Refused extends Error {
  constructor(reason: string, options?: ErrorOptions);
}
/** The reason of job.signal. */
export class Cancelled extends Error {
  readonly why: 'lease' | 'timeout' | 'drain';
}
