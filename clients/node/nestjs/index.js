// The NestJS module: classes with @Processor run the jobs of their queues, and a Queue adds jobs in the caller's transaction.
//
// One worker serves all queues of an application, so they share its connections. It starts in onApplicationBootstrap, when every provider
// exists. It drains in onModuleDestroy, so everything that is closed in beforeApplicationShutdown or later is still open for its handlers.
// The worker does not listen to signals: Nest does, if the application has called enableShutdownHooks.

import { Inside, Kind, Outside, Worker, enqueue, enqueueMany, enqueueStatement, sendEvent } from '../lib/index.js';
import { load } from '../lib/packages.js';

/** @template T @param {string} name @returns {T} */
function required(name) {
  const found = load(name);
  if (found) return found;
  throw Object.assign(new Error(`idemq/nestjs requires the package ${name}, which is not installed; run npm install ${name}`), { code: 'ERR_MODULE_NOT_FOUND' });
}

/** @type {typeof import('@nestjs/common')} */
const nest = required('@nestjs/common');
/** @type {typeof import('@nestjs/core')} */
const core = required('@nestjs/core');
/** Nest loads reflect-metadata. @type {any} */
const metadata = Reflect;

const PROCESSOR = 'idemq:processor';
const PROCESS = 'idemq:process';

/** @typedef {ReturnType<import('@nestjs/core').DiscoveryService['getProviders']>[number]} Wrapper */
/** @typedef {import('../index.js').InsideOptions & { outside?: boolean }} Options of the jobs of a queue */

/** @param {string} queue */
export const getQueueToken = (queue) => `idemq:queue:${queue}`;

/** @param {string} queue */
export const InjectQueue = (queue) => nest.Inject(getQueueToken(queue));

/** @param {string} queue @param {Options} [options] */
export function Processor(queue, options = {}) {
  if (typeof queue !== 'string' || queue === '') throw new TypeError('@Processor needs the name of a queue');
  return nest.applyDecorators(nest.Injectable(), nest.SetMetadata(PROCESSOR, { queue, options }));
}

/** @param {string} [kind] the empty string, for jobs without a kind @param {import('../index.js').KindOptions} [options] */
export function Process(kind = '', options) {
  return (/** @type {object} */ target, /** @type {string | symbol} */ name, /** @type {PropertyDescriptor} */ descriptor) => {
    if (typeof target === 'function' || typeof descriptor?.value !== 'function') throw new TypeError(`@Process must be on a method, and ${String(name)} is not one`);
    const others = metadata.getOwnMetadata(PROCESS, descriptor.value) ?? [];
    metadata.defineMetadata(PROCESS, [{ kind, options }, ...others], descriptor.value);
  };
}

export class Queue {
  /** @param {string} name */
  constructor(name) {
    this.name = name;
  }

  /** @param {any} client @param {any} payload @param {any} options */
  enqueue(client, payload, ...options) {
    return enqueue(client, this.name, payload, ...options);
  }

  /** @param {any} client @param {any} jobs @param {any} [options] */
  enqueueMany(client, jobs, options) {
    return enqueueMany(client, this.name, jobs, options);
  }

  /** @param {any} payload @param {any} options */
  enqueueStatement(payload, ...options) {
    return enqueueStatement(this.name, payload, ...options);
  }

  /** @param {any} client @param {string} event @param {any} [payload] @param {any} [options] */
  sendEvent(client, event, payload, options) {
    return sendEvent(client, this.name, event, payload, options);
  }
}

/** The methods of a class that run jobs, with their kinds. @param {any} type @returns {{ method: string, kind: string, options: any }[]} */
function methodsOf(type) {
  const { prototype } = type;
  const names = new core.MetadataScanner().getAllMethodNames(prototype);
  return names.flatMap((method) => (metadata.getMetadata(PROCESS, prototype[method]) ?? []).map((/** @type {any} */ found) => ({ method, ...found })));
}

/** The handlers of a processor, by kind. @param {Wrapper} wrapper @param {any} type its class @param {ReturnType<typeof methodsOf>} methods */
function handlersOf(wrapper, type, methods) {
  if (methods.length === 0) throw new Error(`${type.name} has @Processor, but no method with @Process`);
  if (wrapper.isTransient || !wrapper.isDependencyTreeStatic()) {
    throw new Error(
      `${type.name} must be a singleton, because a job does not belong to a request, but it or a provider that it injects is request-scoped or transient. ` +
        'Inject ModuleRef instead, and call its resolve() for each job',
    );
  }
  /** @type {Record<string, any>} */
  const handlers = {};
  for (const { method, kind, options } of methods) {
    if (Object.hasOwn(handlers, kind)) throw new Error(`${type.name} has two methods for ${kind === '' ? 'jobs without a kind' : `the kind ${kind}`}`);
    /** @type {(...given: any[]) => unknown} */
    const handler = (...given) => wrapper.instance[method](...given);
    handlers[kind] = options === undefined ? handler : new Kind(handler, options);
  }
  return handlers;
}

/** How the worker runs the jobs of all queues that have a processor. @param {Wrapper[]} wrappers @param {Record<string, Options>} queues options */
function waysOf(wrappers, queues) {
  /** @type {Map<string, { type: any, instance: any, way: Inside | Outside }>} */
  const found = new Map();
  for (const wrapper of wrappers) {
    // The class of a value or of what a factory has returned; for a request-scoped class, instance is its prototype.
    const type = wrapper.instance?.constructor ?? wrapper.metatype;
    if (typeof type !== 'function' || !type.prototype) continue;
    const processor = metadata.getMetadata(PROCESSOR, type);
    const methods = processor || !wrapper.isNotMetatype ? methodsOf(type) : [];
    if (!processor && methods.length > 0) throw new Error(`${type.name} has a method with @Process, but not @Processor`);
    if (!processor) continue;
    const { queue } = processor;
    const other = found.get(queue);
    // useExisting gives one instance a second token.
    if (other && other.instance === wrapper.instance) continue;
    if (other) throw new Error(`${other.type.name} and ${type.name} both process the queue ${queue}; a queue can have one provider with @Processor, with one method per kind`);
    const { outside = false, ...options } = { ...processor.options, ...queues[queue] };
    const Way = outside ? Outside : Inside;
    found.set(queue, { type, instance: wrapper.instance, way: new Way(handlersOf(wrapper, type, methods), options) });
  }
  const unknown = Object.keys(queues).find((queue) => !found.has(queue));
  if (unknown !== undefined) throw new Error(`IdemqModule has options for the queue ${unknown}, which no provider with @Processor processes`);
  return Object.fromEntries([...found].map(([queue, { way }]) => [queue, way]));
}

function nestLogger() {
  const logger = new nest.Logger('Idemq');
  const each = (/** @type {'log' | 'warn' | 'error'} */ level) => (/** @type {string} */ text) => logger[level](text);
  return { info: each('log'), warn: each('warn'), error: each('error') };
}

const { ConfigurableModuleClass, MODULE_OPTIONS_TOKEN } = new nest.ConfigurableModuleBuilder({ moduleName: 'Idemq' })
  .setClassMethodName('forRoot').setFactoryMethodName('createIdemqOptions').build();

/** Runs the worker of an application. */
class Runner {
  /** @type {Worker | undefined} */
  #worker;
  /** @type {Promise<unknown>} */
  #running = Promise.resolve();

  /** @param {import('@nestjs/core').DiscoveryService} discovery @param {any} options */
  constructor(discovery, options) {
    this.discovery = discovery;
    this.options = options;
  }

  onApplicationBootstrap() {
    const { connection, work = true, queues = {}, onError, ...options } = this.options ?? {};
    if (connection === undefined) throw new TypeError('IdemqModule needs the option connection');
    if (onError !== undefined && typeof onError !== 'function') throw new TypeError('onError must be a function');
    if ('signals' in options) throw new TypeError('IdemqModule has no option signals: call app.enableShutdownHooks(), so that SIGTERM closes the application');
    const wrappers = [...this.discovery.getProviders(), ...this.discovery.getControllers()];
    if (wrappers.filter(({ metatype }) => metatype === Runner).length > 1) throw new Error('IdemqModule.forRoot or forRootAsync is imported twice, so each job would have two workers');
    const ways = waysOf(wrappers, queues);
    if (!work || Object.keys(ways).length === 0) return;
    this.#worker = new Worker(connection, ways, { logger: nestLogger(), ...options, signals: false });
    this.#running = this.#worker.run();
    // Without onError, the rejection is not handled, so Node ends the process: an application whose worker is gone must not look healthy.
    if (onError) this.#running.catch(onError);
  }

  async onModuleDestroy() {
    this.#worker?.stop();
    await this.#running.catch(() => {});
  }
}
nest.Injectable()(Runner);
nest.Inject(core.DiscoveryService)(Runner, undefined, 0);
nest.Inject(MODULE_OPTIONS_TOKEN)(Runner, undefined, 1);

/** Provides the Queues of one forFeature. */
class IdemqFeatureModule {}
nest.Module({})(IdemqFeatureModule);

export class IdemqModule extends ConfigurableModuleClass {
  /** @param {string[]} queues */
  static forFeature(...queues) {
    const odd = queues.find((queue) => typeof queue !== 'string' || queue === '');
    if (queues.length === 0 || odd !== undefined) throw new TypeError('forFeature needs the names of queues');
    const providers = queues.map((queue) => ({ provide: getQueueToken(queue), useValue: new Queue(queue) }));
    return { module: IdemqFeatureModule, providers, exports: providers.map(({ provide }) => provide) };
  }
}
nest.Module({ imports: [core.DiscoveryModule], providers: [Runner] })(IdemqModule);
