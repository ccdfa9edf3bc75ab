// idemq: a client for the job queue in PostgreSQL.
//
// Ids and tokens are strings of digits, because they are bigint in the server and a JavaScript number would lose digits.
// An Interval is a number of seconds, or the text of a PostgreSQL interval: 90, '1 min 30 s'.
// An application declares the payload and result of its queues once, as members of Queues.  At run time, only a schema checks them.

import type { ClientBase, ClientConfig, Pool, PoolConfig } from 'pg';

export type Interval = number | string;
export type Json = any;

/** A connection string, or settings of pg. host and port can be lists, as in libpq: 'postgresql://db1,db2:5433/shop'. */
export type Connection = string | ClientConfig | (Omit<ClientConfig, 'port'> & { port?: number | string });

/**
 * An object that can run a statement: a Client of pg, or a Pool if the call need not be in a transaction of yours. enqueue also accepts any other object whose
 * query sends text with $1 and so on, and resolves to the rows, or to an object that has them. All of enqueue's values are strings or null.
 */
export interface Queryable {
  query(text: string, values: unknown[]): Promise<{ rows: any[] } | any[]>;
}

/**
 * The queues of an application, which adds them with declare module 'idemq' { interface Queues { mail: { payload: Mail; result: Receipt } } }. A queue with
 * several kinds is { kinds: { charge: { payload: ...; result: ... }; refund: ... } }; the kind '' is for jobs without one. Without members, every queue
 * is accepted, and payloads and results are unknown. With members, another queue is a compile error, unless its name is `queue as string`.
 */
export interface Queues {}

type Declared = keyof Queues & string;
/** Checks the name of a queue. */
export type QueueName<Q extends string> = Q & ([Declared] extends [never] ? unknown : string extends Q ? unknown : Q extends Declared ? unknown : Declared);
type Spec<Q> = Q extends keyof Queues ? Queues[Q] : unknown;
type PayloadIn<S> = S extends { payload: infer P } ? P : unknown;
type ResultIn<S> = S extends { result: infer R } ? R : unknown;
type Kinds<Q> = Spec<Q> extends { kinds: infer K } ? K : never;
/** Names of the kinds of a queue. */
export type KindName<Q> = [Kinds<Q>] extends [never] ? string | null : keyof Kinds<Q> & string;
/** The payload of a queue, or of one of its kinds. */
export type PayloadOf<Q, K = KindName<Q>> = [Kinds<Q>] extends [never] ? PayloadIn<Spec<Q>> : K extends keyof Kinds<Q> ? PayloadIn<Kinds<Q>[K]> : never;
/** The result of a queue, or of one of its kinds. */
export type ResultOf<Q, K = KindName<Q>> = [Kinds<Q>] extends [never] ? ResultIn<Spec<Q>> : K extends keyof Kinds<Q> ? ResultIn<Kinds<Q>[K]> : never;
/** The options of a call, in which kind is required if the queue has kinds. */
export type WithKind<Q, K, Options> = [Kinds<Q>] extends [never] ? [options?: Options]
  : '' extends keyof Kinds<Q> ? [options?: Options & { kind?: K }] : [options: Options & { kind: K }];

/** A validator by the convention Standard Schema: one of zod, valibot or arktype, for example. */
export interface Schema {
  readonly '~standard': {
    readonly validate: (value: unknown) => SchemaResult | Promise<SchemaResult>;
  };
}
type SchemaResult = { readonly value: unknown; readonly issues?: undefined } | {
  readonly issues: readonly { readonly message: string; readonly path?: readonly (PropertyKey | { readonly key: PropertyKey })[] }[];
};
/** A validator of a queue's payloads, or validators by kind; '' is for jobs without a kind. Kinds without one are not checked. */
export type Schemas = Schema | { readonly [kind: string]: Schema };

/**
 * Encodes the documents of jobs, for example encrypts them: payload, result, checkpoint, the requests and responses of steps, and payloads of events.
 * Equal documents must become equal bytes with the same key, because the server compares them.
 */
export interface Codec {
  /** Name of the encoding, such as 'aes-gcm'. It is stored with each document. */
  readonly name: string;
  /** Names of the keys, the current one first. The others decode what was encoded before a rotation. */
  readonly keys: readonly string[];
  encode(data: Uint8Array, key: string): Uint8Array | Promise<Uint8Array>;
  /** Decodes what encode has returned. Throws if it was changed. */
  decode(data: Uint8Array, key: string): Uint8Array | Promise<Uint8Array>;
}
/** Options of functions that only need a codec. */
export interface CodecOptions {
  codec?: Codec;
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
  /** Checks the payload before anything is sent. A payload that does not fit throws a TypeError with the path of the field. */
  schema?: Schemas;
  /** Encodes the payload, and decodes the result of a duplicate. */
  codec?: Codec;
}

export interface Enqueued<Result = unknown> {
  /** Null if the outcome is 'locked'. */
  id: string | null;
  outcome: 'accepted' | 'duplicate' | 'rerun' | 'locked';
  status: Status | null;
  /** Result of the first job, if this is a duplicate and that job is completed. */
  result: Result | null;
  /** The last error of the first job, if this is a duplicate and that job is dead. */
  error: string | null;
}

export type Status = 'blocked' | 'pending' | 'running' | 'retrying' | 'completed' | 'dead' | 'cancelled';

/** Adds a job in the transaction of this client. */
export function enqueue<Q extends string, K extends KindName<Q> = '' & KindName<Q>>(
  client: Queryable, queue: QueueName<Q>, payload: PayloadOf<Q, K>, ...options: WithKind<Q, K, EnqueueOptions>
): Promise<Enqueued<ResultOf<Q, K>>>;

/** How a statement writes its parameters: `$1`, `?`, `:name`, or as the arguments of a template tag. */
export type StatementStyle = '$1' | '?' | ':name' | 'template';

export interface EnqueueStatementOptions<S extends StatementStyle = StatementStyle> extends Omit<EnqueueOptions, 'codec'> {
  /** Default: '$1'. */
  style?: S;
}

/** SQL and its values, which are strings or null. The style 'template' gives the arguments of a template tag: sql(...statement). */
export type Statement<S extends StatementStyle = '$1'> =
  S extends 'template' ? [strings: TemplateStringsArray, ...values: (string | null)[]]
  : { text: string; values: S extends ':name' ? Record<string, string | null> : (string | null)[] };

/**
 * Returns what enqueue would execute, for any driver, ORM or query builder. The statement returns one row: id, outcome, status and result. The options are those of
 * enqueue, and style.
 */
export function enqueueStatement<Q extends string, K extends KindName<Q> = '' & KindName<Q>, S extends StatementStyle = '$1'>(
  queue: QueueName<Q>, payload: PayloadOf<Q, K>, ...options: WithKind<Q, K, EnqueueStatementOptions<S>>
): Statement<S>;

/** A job of enqueueMany. */
export interface NewJob<Payload = unknown> extends MessageOptions {
  payload: Payload;
  key?: string | number | bigint | null;
  keyTtl?: Interval | null;
}

/** A job of a queue for enqueueMany. */
export type NewJobOf<Q> = [Kinds<Q>] extends [never] ? NewJob<PayloadOf<Q>>
  : { [K in keyof Kinds<Q>]: NewJob<PayloadOf<Q, K>> & (K extends '' ? { kind?: null } : { kind: K }) }[keyof Kinds<Q>];

/** Options for all jobs of enqueueMany. */
export type EnqueueManyOptions = Pick<EnqueueOptions, 'onDuplicate' | 'nowait' | 'maxWait' | 'dependsOn' | 'onParentFailure' | 'schema' | 'codec'>;

/** Adds many jobs to a queue in one statement, and returns what enqueue would return for each, in the order of jobs. */
export function enqueueMany<Q extends string>(
  client: Queryable, queue: QueueName<Q>, jobs: readonly NewJobOf<Q>[], options?: EnqueueManyOptions,
): Promise<Enqueued<ResultOf<Q>>[]>;

/** A job of a graph. */
export interface GraphJob<Payload = unknown> extends Omit<EnqueueOptions, 'nowait' | 'dependsOn' | 'schema' | 'codec'> {
  queue: string;
  payload: Payload;
  /** Names in the graph, and existing jobs as enqueue returns them. */
  dependsOn?: (string | { id: string | null })[] | null;
}

/** Adds jobs that depend on each other, all or none. In dependsOn, a job names the jobs that must finish first. A cycle throws SQLSTATE 22023. */
export function enqueueGraph<Name extends string>(
  client: Queryable, jobs: { readonly [name in Name]: GraphJob }, options?: CodecOptions,
): Promise<{ [name in Name]: { id: string; outcome: 'accepted' | 'duplicate' | 'rerun'; status: Status } }>;

/**
 * Adds a job for message number seq of one ordered log, such as a Kafka partition. A number that is not greater than the
 * producer's last one is a duplicate. Do not use it for the ids of an outbox table, because transactions commit in another order.
 */
export function enqueueSequenced<Payload = unknown, Result = unknown>(
  client: Queryable, queue: string, producer: string, seq: number | bigint | string, payload: Payload, options?: MessageOptions & CodecOptions,
): Promise<Enqueued<Result>>;

/** Adds a job to each queue that is bound to a topic, and returns these jobs. The array is empty if no queue is bound. */
export function publish<Payload = unknown>(
  client: Queryable, topic: string, payload: Payload, options?: MessageOptions & CodecOptions & { key?: string | number | bigint | null },
): Promise<{ queue: string; id: string; outcome: 'accepted' | 'duplicate' }[]>;

/**
 * Sends an event to the jobs of a queue that wait for it now, or start to within the queue's idempotency_window. For a
 * duplicate, the first payload counts: samePayload tells whether yours equals it. firstPayload is null for a role that may only enqueue.
 */
export function sendEvent<Payload = Json>(
  client: Queryable, queue: string, name: string, payload?: Payload, options?: CodecOptions,
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

/** Pauses a queue: its jobs wait until resume is called or the given time is reached. Running jobs continue. Requires the privilege admin on the queue. */
export function pause(client: Queryable, queue: string, options?: PauseOptions): Promise<void>;

/** Resumes a paused queue. Requires the privilege admin on the queue. */
export function resume(client: Queryable, queue: string): Promise<void>;

/** Options of the jobs that a schedule adds. */
export interface ScheduleOptions extends Pick<MessageOptions, 'priority' | 'groupKey' | 'maxAttempts' | 'headers' | 'expiresIn' | 'kind'> {
  /** Time zone of the cron expression. Default: UTC. */
  timeZone?: string | null;
  /** Encodes the payload. */
  codec?: Codec;
}

/**
 * Adds one job at each tick of a cron expression or interval ('every 5 min'). Creates or replaces the schedule of this name; does nothing if it is the same.
 * Returns the time of the next run, or null if the schedule is paused.
 */
export function schedule<Payload = unknown>(client: Queryable, name: string, cron: string, queue: string, payload: Payload, options?: ScheduleOptions): Promise<Date | null>;

/** Drops a schedule. Returns false if there is none of this name. */
export function unschedule(client: Queryable, name: string): Promise<boolean>;

/** Makes a job ready now: one that waits for a retry or a delay, or that is dead or cancelled. */
export function retry(client: Queryable, id: string): Promise<'retrying' | 'current' | 'locked' | 'blocked' | 'completed' | 'not_found'>;

/** Cancels an unfinished job. Waits for an open transaction that holds it. */
export function cancel(client: Queryable, id: string): Promise<'cancelled' | 'completed' | 'dead' | 'not_found'>;

/** New values of reschedule; what is not given stays. */
export interface RescheduleOptions {
  runAt?: Date | string | null;
  priority?: number | null;
}

/** Changes the run time or the priority of a waiting job. */
export function reschedule(
  client: Queryable, id: string, options: RescheduleOptions,
): Promise<'accepted' | 'locked' | 'completed' | 'dead' | 'cancelled' | 'not_found'>;

/** A job as it is stored now. */
export interface JobInfo<Payload = unknown, Result = unknown> {
  id: string;
  queue: string;
  status: Status;
  payload: Payload;
  key: string | null;
  groupKey: string | null;
  kind: string | null;
  priority: number;
  attempt: number;
  maxAttempts: number;
  checkpoint: Json;
  result: Result | null;
  /** The last error. */
  error: string | null;
  worker: string | null;
  headers: Record<string, Json> | null;
  enqueuedAt: Date;
  readyAt: Date | null;
  claimedAt: Date | null;
  finishedAt: Date | null;
}

/** Returns a job, or null if there is none or you may not see it. */
export function job<Payload = unknown, Result = unknown>(client: Queryable, id: string, options?: CodecOptions): Promise<JobInfo<Payload, Result> | null>;

/** Returns the status and result of a job now; waitResults waits until it is finished. Throws NoSuchJob. */
export function result<Result = unknown>(client: Queryable, id: string, options?: CodecOptions): Promise<{ status: Status; result: Result | null }>;

/** Explains in one sentence what a job is waiting for and what to do next. */
export function why(client: Queryable, id: string): Promise<string>;

/** For tests: makes the jobs that wait for a delay or a retry due now, of one queue or of all. Returns their number. */
export function makeDue(client: Queryable, queue?: string | null): Promise<number>;

/** What assertEnqueued expects: a part of the payload, the key, the kind, and the number of such jobs (1). */
export interface ExpectedJob<Payload = unknown> {
  payload?: Payload;
  key?: string | number | bigint | null;
  kind?: string | null;
  times?: number;
  /** Decodes the payloads. */
  codec?: Codec;
}

/** For tests: throws an AssertionError that lists the jobs of the queue unless it has the expected number of such jobs, in any status. */
export function assertEnqueued(client: Queryable, queue: string, expected?: ExpectedJob): Promise<void>;

/** For tests on a server with idemq.test_clock: moves idemq's time forward, and returns when everything that is due by then has run. */
export function advanceClock(client: Queryable, by: Interval): Promise<void>;

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
export function waitResults<Result = unknown>(
  client: Queryable, ids: string[], timeout?: Interval, options?: CodecOptions,
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
export interface Job<Payload = unknown, Kind extends string | null = string | null> {
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
  readonly kind: Kind;
  /** Data that the latest checkpoint stored, possibly in an earlier attempt; null if there is none. */
  readonly checkpoint: Json;
  readonly enqueuedAt: Date;
  /** Time at which the handler will be cancelled. */
  readonly deadline: Date;
  /** Fires when the handler must stop. Its reason is a Cancelled. Pass it to fetch and similar functions. */
  readonly signal: AbortSignal;
  /** Writes log lines with queue, id and attempt. captureLogs stores them. */
  readonly log: JobLog;
  /**
   * Stores data for the next attempt, which finds it in `checkpoint`. With a client, in the transaction of that client. Without one, it is
   * stored at once; a handler of run may do this only before it first uses its client.
   */
  saveCheckpoint(data: Json, client?: Queryable): Promise<void>;
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
  parents<Q extends string = [Declared] extends [never] ? string : Declared>(): Promise<Parent<Q>[]>;
  /**
   * Calls another system, stores its response and returns it. Later attempts return the stored response. If an
   * attempt was lost between call and response, ask asks the other system; without ask, or if it returns undefined,
   * the call is made again with the same key. A handler of run may do this only before it first uses its client. If the
   * handler ends while a step is still under way, the attempt fails.
   */
  step<T = Json>(name: string, call: (call: StepCall) => T | Promise<T>, options?: StepOptions<T>): Promise<T>;
}

/** A job in dependsOn of another. For a declared queue, queue tells the type of the result. */
export type Parent<Q extends string = string> = Q extends string
  ? { id: string; queue: Q | null; status: Status | null; result: ResultOf<Q> | null } : never;

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
export type Handler<Payload = unknown, Result = unknown> = (job: Job<Payload, any>, client: HandlerClient) => Result | Promise<Result>;
/** Gets the job. The return value becomes the job's result. */
export type OutsideHandler<Payload = unknown, Result = unknown> = (job: Job<Payload, any>) => Result | Promise<Result>;

/** Handlers by the kind of the job. The key '' is for jobs without a kind. A job of another kind is released for a while. */
export type Handlers<H> = { readonly [kind: string]: H | Kind<H> };

type AnyHandler<Client extends unknown[]> = (job: Job<any, any>, ...client: Client) => unknown;
/** A job of a queue. If the queue has kinds, kind tells the type of the payload. */
export type JobOf<Q> = [Kinds<Q>] extends [never] ? Job<PayloadOf<Q>> : { [K in keyof Kinds<Q>]: Job<PayloadOf<Q, K>, K extends '' ? null : K & string> }[keyof Kinds<Q>];
type Returns<R> = unknown extends R ? unknown : R | Promise<R>;
/** A handler of a declared queue: a function, or one per kind. */
type DeclaredHandlers<Q, Client extends unknown[]> = ((job: JobOf<Q>, ...client: Client) => Returns<ResultOf<Q>>) | ([Kinds<Q>] extends [never] ? never : {
  readonly [K in keyof Kinds<Q>]: OrKind<(job: Job<PayloadOf<Q, K>>, ...client: Client) => Returns<ResultOf<Q, K>>>;
});
type OrKind<H> = H | Kind<H>;
/** The handler of a queue. P is the payload of a queue that is not declared. */
type HandlersOf<Q, Client extends unknown[], P = unknown> = Q extends Declared ? DeclaredHandlers<Q, Client>
  : ((job: Job<P>, ...client: Client) => unknown) | { readonly [kind: string]: OrKind<AnyHandler<Client>> };

export interface Logger {
  info(text: string): void;
  warn(text: string): void;
  error(text: string): void;
}

/** The log of a job: the logger of the worker (by default console), with queue, id and attempt in front of each line. Values are formatted as by console.log. */
export interface JobLog {
  info(...values: unknown[]): void;
  warn(...values: unknown[]): void;
  error(...values: unknown[]): void;
}

/** Whose logs are stored in idemq.attempts: of no attempt, of attempts that fail, or also of those that complete their jobs. */
export type CaptureLogs = 'off' | 'failed' | 'all';

/** Returns the job whose handler has called this, directly or through other functions; undefined outside of a handler. Loggers can add it to their lines. */
export function currentJob(): Job | undefined;

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
  started?(worker: Worker<any> | ClusterWorker<any>): unknown;
  /** Called when all attempts have ended, and awaited. */
  stopped?(worker: Worker<any> | ClusterWorker<any>, outcomes: Outcomes): unknown;
}

/** Options of one queue whose jobs have effects outside the database. */
export interface OutsideOptions {
  /** Number of jobs that run at once. In Inside, each has its own connection. Default: 1. */
  concurrency?: number;
  /** Length of the leases: the longest that a worker that hangs keeps a job. Default: the queue's lease. */
  lease?: Interval;
  /** Maximum duration of an attempt in seconds, if the queue has no job_timeout. If it has one, the limit is some seconds shorter than that. Default: 3600. */
  timeout?: number;
  /** Whether leases also end with the worker's session. Default: true in Inside, unless there is a pooler; false in Outside. */
  attach?: boolean;
  /** Delay for a job whose kind has no handler in this worker; a newer worker may have one. Default: 60. */
  unknownKind?: Interval;
  /** Checks each payload before the handler gets it, and may change it. An attempt whose payload does not fit fails with the path of the field, and is retried. */
  schema?: Schemas;
  /** Classes of errors after which no attempt can succeed: the job is dead at once. Default: none. */
  neverRetry?: readonly (abstract new (...args: any[]) => Error)[];
  /** Whether to store the last 16 kB of what a handler writes to job.log. Default: that of the worker. */
  captureLogs?: CaptureLogs;
  /** Decodes payloads and encodes what is stored about the jobs, to encrypt them for example. */
  codec?: Codec;
  /** Maximum number of jobs that the worker claims ahead, which wait in it for a free place. Default: 0. */
  ahead?: number;
  /** Seconds after which a job that was claimed ahead, and has not begun, is given back. Default: 1. */
  aheadWait?: number;
}

/** Options of one queue whose handlers share a transaction with the completion of their jobs. */
export interface InsideOptions extends OutsideOptions {
  /** Number of jobs in one transaction. If one fails or makes a step, the transaction rolls back, and each job runs alone. Default: 1. */
  batch?: number;
}

/** Options of a worker for several queues. */
export interface QueuesWorkerOptions {
  /** Name shown in idemq.running_jobs and idemq.workers. */
  name?: string;
  /** Direct connection for the session that waits, if `connection` goes through a pooler. */
  waitConnection?: Connection;
  /** Seconds that running handlers have after SIGTERM or stop(). Default: 30. */
  grace?: number;
  /** Seconds after which run ends with the last error if the worker cannot connect. Default: it tries forever. */
  giveUpAfter?: number;
  /** Whether SIGTERM and SIGINT drain the worker. Default: true. */
  signals?: boolean;
  /** Default: warn and error of console. */
  logger?: Logger;
  /** Functions called around each attempt, after a failure, at the start and at the end. Exceptions of failed and stopped are logged. */
  hooks?: Hooks;
  /** Whether to store the last 16 kB of what a handler writes to job.log, in idemq.attempts. Inside and Outside can have a value of their own. Default: off. */
  captureLogs?: CaptureLogs;
  /** Gets each text of a handler (log, error, stack) before it is stored, and returns what may be stored. */
  redact?: (text: string) => string;
}

/** Options of a worker for one queue. */
export interface WorkerOptions extends QueuesWorkerOptions, InsideOptions {}

/** Settings of one kind. */
export interface KindOptions {
  /** Maximum duration of an attempt in seconds. The queue's job_timeout still applies. */
  timeout?: number;
  /** Delay before the next attempt, or an array: the delay after the 1st, 2nd, ... attempt. The last one repeats. Default: the queue's. */
  backoff?: Interval | readonly Interval[];
}
/** A handler of one kind, with settings. */
export class Kind<H = any> {
  constructor(handler: H, options?: KindOptions);
  readonly handler: H;
}

/** How a worker runs the jobs of a queue: the changes of the handler and the completion of its job share a transaction. */
export class Inside<H = any> {
  constructor(handler: H, options?: InsideOptions);
  readonly inside: H;
}
/** How a worker runs the jobs of a queue: each is completed after its handler has returned. For effects outside the database. */
export class Outside<H = any> {
  constructor(handler: H, options?: OutsideOptions);
  readonly outside: H;
}
/** How a worker runs the jobs of a queue. A function, or an object of functions by kind, means Inside. */
export type Way<Q extends string> = HandlersOf<Q, [client: HandlerClient], any> | Inside<HandlersOf<Q, [client: HandlerClient], any>> | Outside<HandlersOf<Q, [], any>>;
/** Queues with their handlers. */
export type Ways<Q extends string> = { readonly [N in Q]: N extends QueueName<N> ? Way<N> : never };

/** Number of attempts by outcome: { committed: 3, retrying: 1 }. */
export type Outcomes = Partial<Record<'committed' | 'retrying' | 'dead' | 'released' | 'waiting' | 'stale' | 'not_found' | 'lost', number>>;

export class Worker<Q extends string = string> {
  constructor(connection: Connection, queues: Ways<Q>, options?: QueuesWorkerOptions);
  constructor(connection: Connection, queue: QueueName<Q>, options?: WorkerOptions);
  /** Name of the queue; several names are joined by ', '. */
  readonly queue: string;
  readonly queues: string[];
  readonly name: string;
  /** Runs jobs until SIGTERM, SIGINT or stop(). A worker for several queues has its handlers already. */
  run(): Promise<Outcomes>;
  /** The handler's changes and the completion of its job share a transaction. */
  run<P = unknown>(handler: HandlersOf<Q, [client: HandlerClient], P>): Promise<Outcomes>;
  /** Like run, for effects outside this database. */
  runOutside<P = unknown>(handler: HandlersOf<Q, [], P>): Promise<Outcomes>;
  /** Stops claiming; running handlers have `grace` to finish. A second call ends the grace period. */
  stop(): void;
}

export interface ClusterWorkerOptions extends Omit<WorkerOptions, 'waitConnection' | 'giveUpAfter' | 'ahead' | 'aheadWait'> {
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
export class ClusterWorker<Q extends string = string> {
  constructor(router: Connection, queue: QueueName<Q>, options?: ClusterWorkerOptions);
  readonly queue: string;
  readonly name: string;
  run<P = unknown>(handler: HandlersOf<Q, [client: HandlerClient], P>): Promise<Outcomes>;
  runOutside<P = unknown>(handler: HandlersOf<Q, [], P>): Promise<Outcomes>;
  stop(): void;
}

/** Runs the jobs that are ready, then returns. For tests of an application, and for cron. */
export function drain<Q extends string>(connection: Connection, queues: Ways<Q>, options?: QueuesWorkerOptions): Promise<Outcomes>;
export function drain<Q extends string, P = unknown>(
  connection: Connection, queue: QueueName<Q>, handler: HandlersOf<Q, [client: HandlerClient], P>, options?: WorkerOptions & { outside?: false },
): Promise<Outcomes>;
export function drain<Q extends string, P = unknown>(
  connection: Connection, queue: QueueName<Q>, handler: HandlersOf<Q, [], P>, options: WorkerOptions & { outside: true },
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
