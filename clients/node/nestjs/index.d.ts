// The NestJS module of idemq. doc/usage/nestjs.md explains how to use it.

import type { DynamicModule, ModuleMetadata, Type } from '@nestjs/common';
import type {
  CodecOptions, Connection, Enqueued, EnqueueManyOptions, EnqueueOptions, EnqueueStatementOptions, InsideOptions, Job, Json, KindName, KindOptions, NewJobOf, PayloadOf,
  Queryable, QueueName, QueuesWorkerOptions, ResultOf, Statement, StatementStyle, WithKind, sendEvent,
} from '../index.js';

/** How the jobs of a queue are run. */
export interface ProcessorOptions extends InsideOptions {
  /** Whether jobs are completed after their methods have returned, as by Outside. The methods then get no client. Default: false. */
  outside?: boolean;
}

/** Options of the application's worker. */
export interface IdemqModuleOptions extends Omit<QueuesWorkerOptions, 'signals'> {
  connection: Connection;
  /** Whether this process runs jobs. With false, it only adds jobs. Default: true. */
  work?: boolean;
  /** Options of queues that are known only at run time, such as a concurrency from the configuration. They replace those of @Processor. */
  queues?: { readonly [queue: string]: ProcessorOptions };
  /** Called if the worker ends with an error, for example because a queue does not exist. Without it, the process ends with that error. */
  onError?(error: unknown): void;
}

export interface IdemqOptionsFactory {
  createIdemqOptions(): IdemqModuleOptions | Promise<IdemqModuleOptions>;
}

/** Takes useFactory, useClass or useExisting. */
export interface IdemqModuleAsyncOptions extends Pick<ModuleMetadata, 'imports'> {
  inject?: any[];
  useFactory?(...injected: any[]): IdemqModuleOptions | Promise<IdemqModuleOptions>;
  useClass?: Type<IdemqOptionsFactory>;
  useExisting?: Type<IdemqOptionsFactory>;
}

export class IdemqModule {
  /** Runs the jobs of all providers with @Processor in one worker. Import it once, into the root module. */
  static forRoot(options: IdemqModuleOptions): DynamicModule;
  static forRootAsync(options: IdemqModuleAsyncOptions): DynamicModule;
  /** Provides a Queue for each of these queues. */
  static forFeature<Q extends readonly string[]>(...queues: { [N in keyof Q]: Q[N] & QueueName<Q[N]> }): DynamicModule;
}

/** Makes a class the processor of a queue. It needs a method with @Process, and must be a singleton. */
export function Processor<Q extends string>(queue: QueueName<Q>, options?: ProcessorOptions): ClassDecorator;

/**
 * Makes a method the handler of the jobs of one kind, or of the jobs without a kind. It gets the job and, unless the processor has the option outside, the
 * client whose transaction completes the job. A method can have several. Jobs of other kinds are released for a while.
 */
export function Process(kind?: string, options?: KindOptions):
  <H extends (job: Job<any, any>, client: any) => unknown>(target: object, name: string | symbol, method: TypedPropertyDescriptor<H>) => void;

/** Injects the Queue of this name, which a forFeature of the module must provide. */
export function InjectQueue<Q extends string>(queue: QueueName<Q>): PropertyDecorator & ParameterDecorator;
/** The token of a Queue, to override it in a test. */
export function getQueueToken(queue: string): string;

/** Adds jobs to one queue. The first argument of each method is the client whose transaction the jobs belong to. */
export class Queue<Q extends string = string> {
  constructor(name: Q);
  readonly name: Q;
  enqueue<K extends KindName<Q> = '' & KindName<Q>>(client: Queryable, payload: PayloadOf<Q, K>, ...options: WithKind<Q, K, EnqueueOptions>): Promise<Enqueued<ResultOf<Q, K>>>;
  enqueueMany(client: Queryable, jobs: readonly NewJobOf<Q>[], options?: EnqueueManyOptions): Promise<Enqueued<ResultOf<Q>>[]>;
  enqueueStatement<K extends KindName<Q> = '' & KindName<Q>, S extends StatementStyle = '$1'>(payload: PayloadOf<Q, K>, ...options: WithKind<Q, K, EnqueueStatementOptions<S>>): Statement<S>;
  sendEvent<Payload = Json>(client: Queryable, event: string, payload?: Payload, options?: CodecOptions): ReturnType<typeof sendEvent<Payload>>;
}
