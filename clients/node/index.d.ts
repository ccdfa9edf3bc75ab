// idemq: a client for the job queue in PostgreSQL.
//
// Ids and tokens are strings of digits, because they are bigint in the server and a JavaScript number would lose digits.
// An Interval is a number of seconds, or the text of a PostgreSQL interval: 90, '1 min 30 s'.
// Payload and Result are types that the application declares for its queue.  Nothing checks the JSON at run time.

import type { ClientBase, ClientConfig, Pool, PoolConfig, QueryResult } from 'pg';

export type Interval = number | string;
export type Json = any;

/** A connection string, or settings of pg. host and port can be lists, as in libpq: 'postgresql://db1,db2:5433/shop'. */
export type Connection = string | ClientConfig | (Omit<ClientConfig, 'port'> & { port?: number | string });

/** An object that can run a statement: a Client of pg, or a Pool if the call need not be in a transaction of yours. */
export interface Queryable {
  query(text: string, values: unknown[]): Promise<QueryResult<any>>;
}

/** Options that all functions that add jobs have in common. */
export interface MessageOptions {
  delay?: Interval | null;
  runAt?: Date | string | null;
  /** From 0 (highest) to 9 (lowest). Default: 4. */
  priority?: number;
  /** Jobs with the same group key run one after the other. An integer is sent as text. */
  groupKey?: string | number | bigint | null;
  maxAttempts?: number | null;
  /** Metadata for the handler. If @opentelemetry/api is installed, the client adds the caller's trace context. */
  headers?: Record<string, Json> | null;
  expiresIn?: Interval | null;
  /** Label that selects the handler. */
  kind?: string | null;
}

export interface EnqueueOptions extends MessageOptions {
  /** Idempotency key. An integer is sent as text. */
  key?: string | number | bigint | null;
  keyTtl?: Interval | null;
  onDuplicate?: 'keep' | 'ignore' | 'replace' | 'rerun' | 'error';
  nowait?: boolean;
  /** With onDuplicate 'replace': the longest that repeated requests can postpone the job, counted from the first request. */
  maxWait?: Interval | null;
  /** Ids of jobs that must finish first. */
  dependsOn?: string[] | null;
  /** What to do if one of those jobs is dead or cancelled. Default: 'cancel'. */
  onParentFailure?: 'cancel' | 'wait' | 'run';
}

export interface Enqueued<Result = Json> {
  /** Null if the outcome is 'locked'. */
  id: string | null;
  outcome: 'accepted' | 'duplicate' | 'rerun' | 'locked';
  status: Status | null;
  /** Result of the first job, if this is a duplicate and that job is completed. */
  result: Result | null;
}

export type Status = 'blocked' | 'pending' | 'running' | 'retrying' | 'completed' | 'dead' | 'cancelled';

/** Adds a job in the transaction of this client. */
export function enqueue<Payload = Json, Result = Json>(
  client: Queryable, queue: string, payload: Payload, options?: EnqueueOptions,
): Promise<Enqueued<Result>>;

/** A job of a graph. */
export interface GraphJob<Payload = Json> extends Omit<EnqueueOptions, 'nowait' | 'dependsOn'> {
  queue: string;
  payload: Payload;
  /** Names in the graph, and existing jobs as enqueue returns them. */
  dependsOn?: (string | { id: string | null })[] | null;
}

/** Adds jobs that depend on each other, all or none. In dependsOn, a job names the jobs that must finish first. A cycle throws SQLSTATE 22023. */
export function enqueueGraph<Name extends string>(
  client: Queryable, jobs: { readonly [name in Name]: GraphJob },
): Promise<{ [name in Name]: { id: string; outcome: 'accepted' | 'duplicate' | 'rerun'; status: Status } }>;

/**
 * Adds a job for message number seq of one ordered log, such as a Kafka partition. A number that is not greater than the
 * producer's last one is a duplicate. Do not use it for the ids of an outbox table, because transactions commit in another order.
 */
export function enqueueSequenced<Payload = Json, Result = Json>(
  client: Queryable, queue: string, producer: string, seq: number | bigint | string, payload: Payload, options?: MessageOptions,
): Promise<Enqueued<Result>>;

/** Adds a job to each queue that is bound to a topic, and returns these jobs. The array is empty if no queue is bound. */
export function publish<Payload = Json>(
  client: Queryable, topic: string, payload: Payload, options?: MessageOptions & { key?: string | number | bigint | null },
): Promise<{ queue: string; id: string; outcome: 'accepted' | 'duplicate' }[]>;

/**
 * Sends an event to the jobs of a queue that wait for it now, or start to within the queue's idempotency_window. For a
 * duplicate, the first payload counts: samePayload tells whether yours equals it. firstPayload is null for a role that may only enqueue.
 */
export function sendEvent<Payload = Json>(
  client: Queryable, queue: string, name: string, payload?: Payload,
): Promise<{ outcome: 'accepted' | 'duplicate'; firstPayload: Payload | null; samePayload: boolean }>;

/** Progress of a graph or a fan-out. */
export interface Flow {
  /** Number of jobs, including parents that have been deleted. */
  jobs: number;
  waiting: number; blocked: number; running: number; retrying: number; completed: number; dead: number; cancelled: number;
  /** Number of jobs that are completed, dead or cancelled. progress is the percentage. */
  done: number;
  progress: number;
  begunAt: Date | null;
  endedAt: Date | null;
  /** Estimated seconds left at the recent rate; null if no estimate is possible. */
  eta: number | null;
  /** The unfinished job that most others are waiting for, or that has been unfinished longest, and the reason. */
  heldUpBy: string | null;
  heldUpWhy: string | null;
  slowest: string | null;
  slowestKind: string | null;
  /** Seconds. */
  slowestFor: number | null;
  /** Dead jobs, then those that will be retried. failedIds and roots (jobs without parents) contain at most 100 ids. */
  failedIds: string[];
  roots: string[];
  /** Whether there are more than `most` jobs. */
  cut: boolean;
}

/** Returns the progress of the graph or fan-out that contains the job, or null if you may not see the job. */
export function flow(client: Queryable, id: string, most?: number): Promise<Flow | null>;

/** Cancels unfinished jobs without waiting for locks. The outcome 'locked' means that an open transaction holds the job. */
export function cancelMany(
  client: Queryable, ids: string[],
): Promise<{ id: string; outcome: 'cancelled' | 'locked' | 'completed' | 'dead' | 'not_found' }[]>;

/** Selects the jobs of a queue that match every given filter. At least one filter is required. */
export interface Matching {
  kind?: string | null;
  groupKey?: string | null;
  keyPrefix?: string | null;
  /** Maximum number of jobs to cancel in this call. */
  maxJobs?: number | null;
}

/** Cancels the unfinished jobs of a queue that match. locked is the number of matching jobs that open transactions hold. */
export function cancelMatching(client: Queryable, queue: string, which: Matching): Promise<{ cancelled: number; locked: number }>;

/** Options of pauseGroup. */
export interface PauseOptions {
  /** The time at which the group resumes automatically. */
  until?: Date | string | null;
}

/**
 * Pauses one group of a queue. Its jobs wait until resumeGroup is called or the given time is reached. Running jobs continue, and the
 * other groups of the queue are not affected. Requires the privilege admin on the queue.
 */
export function pauseGroup(client: Queryable, queue: string, groupKey: string, options?: PauseOptions): Promise<void>;

/** Resumes a paused group. Requires the privilege admin on the queue. */
export function resumeGroup(client: Queryable, queue: string, groupKey: string): Promise<void>;

/** Settings of a queue. 0 means no limit or no jobTimeout, and '' means no deadLetterQueue. If a value is null or undefined, the setting is not named. */
export interface QueueSettings {
  lease?: Interval | null;
  maxAttempts?: number | null;
  retryBase?: Interval | null;
  retryFactor?: number | null;
  retryMax?: Interval | null;
  retryJitter?: number | null;
  retention?: Interval | null;
  idempotencyWindow?: Interval | null;
  maxRunning?: number | null;
  rateLimit?: number | null;
  ratePeriod?: Interval | null;
  deadLetterQueue?: string | null;
  deadRetention?: Interval | null;
  maxLease?: Interval | null;
  jobTimeout?: Interval | null;
  deadLetterCancelled?: boolean | null;
  groupMaxRunning?: number | null;
  groupRateLimit?: number | null;
  groupRatePeriod?: Interval | null;
  expectWorkers?: boolean | null;
  rateBurst?: number | null;
  groupRateBurst?: number | null;
  maxHoldBack?: Interval | null;
  maxUnfinished?: number | null;
  groupMaxUnfinished?: number | null;
  notifyFinished?: boolean | null;
}

/** Result of ensureQueue and ensureHandler. */
export interface Ensured {
  outcome: 'created' | 'changed' | 'unchanged';
  /** If the outcome is 'changed', the settings that were changed; empty if only the declaration was stored. Intervals are strings. */
  changes: { [setting: string]: { from: Json; to: Json } } | null;
}

/**
 * Declares a queue: creates it, or changes the settings that are named and leaves the others as they are. With exact, settings that are
 * not named get their defaults. A setting is changed only if its value differs from its last declaration. A setting that was changed with
 * alter_queue since then keeps its value, and the client emits a 'notice' with the server's WARNING.
 */
export function ensureQueue(client: Queryable, queue: string, options?: QueueSettings & { exact?: boolean | null }): Promise<Ensured>;

/** Creates a topic space unless it exists. */
export function ensureTopic(client: Queryable, topic: string): Promise<'created' | 'unchanged'>;

/** Options of ensureHandler. */
export interface HandlerOptions {
  /** Maximum number of processes (1). */
  workers?: number | null;
  /** Maximum number of jobs per transaction (1). */
  batch?: number | null;
  /** How long a process may be idle before it exits (10 s). */
  maxIdle?: Interval | null;
}

/** Runs a queue's jobs inside the server, as the current role, by calling a function f(payload jsonb). Does nothing if the same role has already set this handler. */
export function ensureHandler(client: Queryable, queue: string, functionName: string, options?: HandlerOptions): Promise<Ensured>;

/** Sleeps until all these jobs are finished or the timeout (30 s) has passed. The client must not be in a transaction. */
export function waitResults<Result = Json>(
  client: Queryable, ids: string[], timeout?: Interval,
): Promise<{ status: Status; result: Result | null }[]>;

/** A job has finished. This is a hint: by now, it may have been retried or deleted. */
export interface FinishedJob {
  event: 'finished';
  queue: string;
  id: string;
  status: 'completed' | 'dead' | 'cancelled';
}

/** Jobs of a queue may have finished that no FinishedJob names. Read your tables again. */
export interface Overflow {
  event: 'overflow';
  queue: string;
  /** Number of jobs, or null if it is not known, for example after a connection was opened. */
  lost: number | null;
}

/** Options of finishedJobs. */
export interface FinishedJobsOptions {
  /** Ends the iteration when it fires. */
  signal?: AbortSignal;
  logger?: Logger;
}

/**
 * Iterates over the jobs of these queues as they are completed, dead or cancelled. An Overflow means that jobs may have finished that are
 * not named: each queue begins with one, and each new connection does. The queues must have notifyFinished, and the connection must not
 * lead to a pooler in transaction mode. The iterator has its own connection, which ends with the loop.
 */
export function finishedJobs(
  connection: Connection, queues: string | string[], options?: FinishedJobsOptions,
): AsyncGenerator<FinishedJob | Overflow, void, undefined>;

/** Creates a pool of pg that connects to whichever of several hosts accepts writes. It is for producers; a Worker does not need one. */
export function createPool(connection: Connection, options?: PoolConfig): Pool;

/** The job that a handler gets. */
export interface Job<Payload = Json> {
  readonly queue: string;
  readonly id: string;
  /** Fencing token of this attempt. It is larger than the token of any earlier attempt. */
  readonly token: string;
  readonly attempt: number;
  readonly maxAttempts: number;
  readonly payload: Payload;
  readonly headers: Record<string, Json>;
  readonly key: string | null;
  readonly groupKey: string | null;
  readonly kind: string | null;
  /** Data that the latest checkpoint stored, possibly in an earlier attempt; null if there is none. */
  readonly state: Json;
  readonly enqueuedAt: Date;
  /** Time at which the handler will be cancelled. */
  readonly deadline: Date;
  /** Fires when the handler must stop. Its reason is a Cancelled. Pass it to fetch and similar functions. */
  readonly signal: AbortSignal;
  /** Stores data for the next attempt. Only in runOutside. */
  checkpoint(data: Json): Promise<void>;
  /**
   * Waits for an event of the job's queue (sendEvent). The timeout counts from the first call. If the event has not
   * arrived, Waiting ends the handler, its transaction rolls back, and no attempt is counted. The job then waits, for days if
   * necessary. When the event arrives or the timeout has passed, the handler starts again, and this call returns the outcome.
   */
  awaitEvent<Event = Json>(name: string, timeout: Interval): Promise<{ arrived: true; payload: Event } | { arrived: false; payload: null }>;
  /**
   * Makes a child of this job wait for further jobs, which have been enqueued since this one. In a handler with a transaction,
   * they are added if it commits; otherwise immediately. A job that is already a parent stays one. If another transaction is just
   * using one of these jobs, Snooze ends the handler, its transaction rolls back, no attempt is counted, and the job
   * runs again a second later.
   */
  addParents(child: string, parents: readonly string[]): Promise<void>;
  /** The jobs in dependsOn of this one. status is null if the parent was completed and deleted, in a queue that keeps no jobs. */
  parents<Result = Json>(): Promise<{ id: string; queue: string | null; status: Status | null; result: Result | null }[]>;
  /**
   * Calls another system, stores its response and returns it. Later attempts return the stored response. If an
   * attempt was lost between call and response, ask asks the other system; without ask, or if it returns undefined,
   * the call is made again with the same key. Only in runOutside.
   */
  step<T = Json>(name: string, call: (call: StepCall) => T | Promise<T>, options?: StepOptions<T>): Promise<T>;
}

export interface StepCall {
  /** Idempotency key to send. It is the same in each attempt until the other system refuses the call. */
  readonly key: string;
  readonly request: Json;
  /** Fires at `until`, and when the job's signal fires. */
  readonly signal: AbortSignal;
  readonly until: Date;
}

export interface StepOptions<T = Json> {
  /** The request, which is stored. A different request for a step of the same name throws KeyReused. */
  request?: Json;
  /** Seconds after which the call is given up. No later attempt asks earlier. Default: 30. */
  callTimeout?: number;
  /** Asks the other system whether it has performed an earlier call. Returns the response, or undefined. */
  ask?: (earlier: { key: string; request: Json; begunAt: Date; signal: AbortSignal }) => T | undefined | Promise<T | undefined>;
}

/**
 * The client of pg whose transaction completes the job. The transaction begins, and locks the job, at the first use of the client.
 * Statements that begin or end a transaction are refused.
 */
export interface HandlerClient extends ClientBase {
  /** Runs fn in a savepoint, which is rolled back if fn throws. */
  transaction<T>(fn: (client: HandlerClient) => T | Promise<T>): Promise<T>;
}

/** Gets the job and the client whose transaction completes it. The return value becomes the job's result. */
export type Handler<Payload = Json, Result = Json> = (job: Job<Payload>, client: HandlerClient) => Result | Promise<Result>;
/** Gets the job. The return value becomes the job's result. */
export type OutsideHandler<Payload = Json, Result = Json> = (job: Job<Payload>) => Result | Promise<Result>;

/** Handlers by the kind of the job. The key '' is for jobs without a kind. A job of another kind is released for a while. */
export type Handlers<H> = { readonly [kind: string]: H };

export interface Logger {
  info(text: string): void;
  warn(text: string): void;
  error(text: string): void;
}

/** A failed attempt. */
export interface Failure {
  attempt: number;
  /** Whether the job is retried, or another attempt has it. False if it is dead or cancelled, or if another attempt has completed it. */
  willRetry: boolean;
  /** The handler's exception, or a Cancelled if its time was over. */
  error: unknown;
  /** stale and not_found: the lease was lost before the failure could be recorded. lost: the server could not be told. */
  outcome: 'retrying' | 'dead' | 'stale' | 'not_found' | 'lost';
}

/** Functions that an application adds to a worker, for tracing, metrics or logging. */
export interface Hooks {
  /** Called for each attempt instead of the handler; next() runs the handler. The return value is the result, and an exception fails the attempt. */
  around?(job: Job, next: () => Promise<any>): unknown;
  /** Called when an attempt has failed and the server has recorded it. */
  failed?(job: Job, failure: Failure): unknown;
  /** Called before the first claim, and awaited. If it throws, run rejects. */
  started?(worker: Worker<any, any> | ClusterWorker<any, any>): unknown;
  /** Called when all attempts have ended, and awaited. */
  stopped?(worker: Worker<any, any> | ClusterWorker<any, any>, outcomes: Outcomes): unknown;
}

export interface WorkerOptions {
  /** Name shown in idemq.running_jobs and idemq.workers. */
  name?: string;
  /** Direct connection for the session that waits, if `connection` goes through a pooler. */
  waitConnection?: Connection;
  /** Number of jobs that run at once. In run, each has its own connection. Default: 1. */
  concurrency?: number;
  /** Number of jobs in one transaction. If one fails, the transaction rolls back, and each job runs alone. Only in run. Default: 1. */
  batch?: number;
  /** Length of the leases: the longest that a worker that hangs keeps a job. Default: the queue's lease. */
  lease?: Interval;
  /** Maximum duration of an attempt in seconds, if the queue has no job_timeout. If it has one, the limit is some seconds shorter than that. Default: 3600. */
  timeout?: number;
  /** Seconds that running handlers have after SIGTERM or stop(). Default: 30. */
  grace?: number;
  /** Whether leases also end with the worker's session. Default: true in run, unless there is a pooler; false in runOutside. */
  attach?: boolean;
  /** Whether SIGTERM and SIGINT drain the worker. Default: true. */
  signals?: boolean;
  /** Delay for a job whose kind has no handler in this worker; a newer worker may have one. Default: 60. */
  unknownKind?: Interval;
  /** Default: warn and error of console. */
  logger?: Logger;
  /** Functions called around each attempt, after a failure, at the start and at the end. Exceptions of failed and stopped are logged. */
  hooks?: Hooks;
}

/** Number of attempts by outcome: { committed: 3, retrying: 1 }. */
export type Outcomes = Partial<Record<'committed' | 'retrying' | 'dead' | 'released' | 'waiting' | 'stale' | 'not_found' | 'lost', number>>;

/** Payload and Result are the types of the queue's jobs. A handler of one kind can declare its own Job<...> instead. */
export class Worker<Payload = Json, Result = Json> {
  constructor(connection: Connection, queue: string, options?: WorkerOptions);
  readonly queue: string;
  readonly name: string;
  /** Runs jobs until SIGTERM, SIGINT or stop(). The handler's changes and the completion of its job share a transaction. */
  run(handler: Handler<Payload, Result> | Handlers<Handler<Payload, Result>>): Promise<Outcomes>;
  /** Like run, for effects outside this database. */
  runOutside(handler: OutsideHandler<Payload, Result> | Handlers<OutsideHandler<Payload, Result>>): Promise<Outcomes>;
  /** Stops claiming; running handlers have `grace` to finish. A second call ends the grace period. */
  stop(): void;
}

export interface ClusterWorkerOptions extends Omit<WorkerOptions, 'waitConnection'> {
  /** Numbers of the shards to serve first. Default: all shards are equal. */
  home?: number[];
  /** Whether the worker also serves shards that are not in home. Default: true. */
  roam?: boolean;
  /** Host and port to use instead of the map's, such as the server's own port if the map names a pooler. */
  shardPlace?: { host?: string; port?: number | string };
}

/**
 * A Worker for all shards of a cluster. Its connection must lead directly to the router's database, because it listens
 * there; user, password and TLS settings also apply to the shards. `concurrency` is the total for all shards.
 * The changes of a handler of run are committed on the shard that holds the job.
 */
export class ClusterWorker<Payload = Json, Result = Json> {
  constructor(router: Connection, queue: string, options?: ClusterWorkerOptions);
  readonly queue: string;
  readonly name: string;
  run(handler: Handler<Payload, Result> | Handlers<Handler<Payload, Result>>): Promise<Outcomes>;
  runOutside(handler: OutsideHandler<Payload, Result> | Handlers<OutsideHandler<Payload, Result>>): Promise<Outcomes>;
  stop(): void;
}

/** Runs the jobs that are ready, then returns. For tests of an application, and for cron. */
export function drain<Payload = Json, Result = Json>(
  connection: Connection, queue: string, handler: Handler<Payload, Result> | Handlers<Handler<Payload, Result>>,
  options?: WorkerOptions & { outside?: false },
): Promise<Outcomes>;
export function drain<Payload = Json, Result = Json>(
  connection: Connection, queue: string, handler: OutsideHandler<Payload, Result> | Handlers<OutsideHandler<Payload, Result>>,
  options: WorkerOptions & { outside: true },
): Promise<Outcomes>;

/** An error of idemq, with its SQLSTATE. */
export class IdemqError extends Error {
  readonly sqlstate: string;
  readonly detail: string | undefined;
  readonly hint: string | undefined;
}
/** IQ001: the attempt has lost its lease. */
export class StaleToken extends IdemqError {}
/** IQ002: there is no such job, or the role may not see it. */
export class NoSuchJob extends IdemqError {}
/** IQ003: a job with another payload has this key. */
export class KeyReused extends IdemqError {}
/** IQ004: the key is taken, and onDuplicate is 'error'. */
export class DuplicateKey extends IdemqError {}
/** IQ005: there is no such queue. */
export class NoSuchQueue extends IdemqError {}
/** IQ006: this attempt has already completed the job. */
export class AlreadyCommitted extends IdemqError {}
/** IQ007: the queue (max_unfinished) or the job's group (group_max_unfinished) is full. */
export class QueueFull extends IdemqError {}

/** Thrown by a handler: the attempt has failed, and the job is retried after this delay. The attempt counts. */
export class RetryLater extends Error {
  constructor(delay: Interval, reason?: string);
  readonly delay: Interval;
}
/** Thrown by a handler: the job is ready again after this delay. The attempt does not count. */
export class Snooze extends Error {
  constructor(delay: Interval, reason?: string);
  readonly delay: Interval;
}
/**
 * Thrown by a handler whose provider asks for a pause (429): until delay has passed, no further job of the same group (or of the
 * queue, if the job has no group) starts. The job is ready again at that time. The first 100 such attempts in a row do not count.
 */
export class HoldBack extends Error {
  constructor(delay: Interval, scope?: 'group' | 'queue' | null, reason?: string);
  readonly delay: Interval;
  readonly scope: 'group' | 'queue' | null;
}
/** Thrown by a handler: no attempt can succeed, so the job is dead. If the call of a step throws it, it also means the same as Refused. */
export class Dead extends Error {
  constructor(reason: string);
}
/** Thrown by job.awaitEvent. Do not catch it: the attempt ends whatever the handler does. */
export class Waiting extends Error {
  constructor(event: string, timeout: Interval);
  readonly event: string;
  readonly timeout: Interval;
}
/** Thrown by the call of a step: the other system has definitely not performed it. */
export class Refused extends Error {
  constructor(reason: string, options?: ErrorOptions);
}
/** The reason of job.signal. */
export class Cancelled extends Error {
  readonly why: 'lease' | 'timeout' | 'drain';
}
