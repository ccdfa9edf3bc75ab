// Traces and metrics through OpenTelemetry, by version 1.30.0 of its messaging conventions.  If the package @opentelemetry/api is not
// installed, this does nothing.
//
//   send QUEUE      a call that adds jobs (PRODUCER). Its context goes with the jobs, in their headers.
//   process QUEUE   a handler (CONSUMER). Of a job alone it is a child of the span that sent the job, and links to it. Jobs that share a
//                   transaction share a span, which only links.
//   settle QUEUE    a request that ends attempts (CLIENT). Of a job alone it is a child of process QUEUE.

import { HoldBack, Snooze, Waiting, sqlstate, textOf } from './errors.js';
import { otel } from './packages.js';

const schemaUrl = 'https://opentelemetry.io/schemas/1.30.0';
const boundaries = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10];

/** @typedef {import('./job.js').Attempt} Attempt */
/** @typedef {NonNullable<typeof otel>} Api */
/** @typedef {import('@opentelemetry/api').Attributes} Attributes */
/** @typedef {import('@opentelemetry/api').Context} Context */
/** @typedef {import('@opentelemetry/api').Link} OtelLink */
/** @typedef {{ outcome: (outcome: string) => void, failed: (error: unknown) => void }} Told */

/** @param {Api} api */
function makeInstruments({ metrics }) {
  const meter = metrics.getMeter('idemq', undefined, { schemaUrl });
  const histogram = (/** @type {string} */ name, /** @type {string} */ description) => meter.createHistogram(name, { unit: 's', description, advice: { explicitBucketBoundaries: boundaries } });
  const counter = (/** @type {string} */ name, /** @type {string} */ description) => meter.createCounter(name, { unit: '{message}', description });
  return {
    operation: histogram('messaging.client.operation.duration', 'Duration of a request that adds jobs or ends attempts.'),
    process: histogram('messaging.process.duration', 'Duration of a handler.'),
    sent: counter('messaging.client.sent.messages', 'Number of jobs that the producer tried to add.'),
    consumed: counter('messaging.client.consumed.messages', 'Number of attempts that began.'),
  };
}

const noTraces = otel && new otel.ProxyTracerProvider().getDelegate();

/** Whether somebody receives spans or metrics. The providers of the API itself drop them. @param {Api} api */
function hasSdk({ trace, metrics }) {
  const provider = /** @type {any} */ (trace.getTracerProvider());
  return (provider.getDelegate?.() ?? provider) !== noTraces || metrics.getMeterProvider().constructor.name !== 'NoopMeterProvider';
}

/** @type {unknown} */
let provider;
/** @type {ReturnType<typeof makeInstruments>} */
let made;

/**
 * Called for an error of OpenTelemetry, or of a propagator, sampler or span processor that the application has added to it. A span is missing then, but no
 * call and no job fails.
 * @param {unknown} error
 */
function lost(error) {
  if (warned) return;
  warned = true;
  process.emitWarning(`idemq: OpenTelemetry threw an error, so spans or metrics are missing (later errors are not shown): ${textOf(error)}`);
}
let warned = false;

/** The instruments of the provider that the application has set. A meter does not follow a provider that is set later. @param {Api} api */
function instruments(api) {
  const now = api.metrics.getMeterProvider();
  if (now !== provider) {
    provider = now;
    made = makeInstruments(api);
  }
  return made;
}

/**
 * Adds the caller's trace context to the headers. Headers that the caller has set take precedence.
 * @param {Record<string, unknown> | null | undefined} headers @returns {Record<string, unknown> | null}
 */
export function inject(headers) {
  if (!otel) return headers ?? null;
  /** @type {Record<string, unknown>} */
  const carrier = {};
  try {
    otel.propagation.inject(otel.context.active(), carrier);
  } catch (error) {
    lost(error);
  }
  if (headers && Object.hasOwn(headers, 'traceparent')) delete carrier.tracestate; // it belongs to the other trace
  const all = { ...carrier, ...headers };
  return headers || Object.keys(all).length > 0 ? all : null;
}

/** The context in which a job was added. @param {Api} api @param {Record<string, unknown>} headers @param {Context} base */
function contextOf({ propagation }, headers, base) {
  const texts = Object.fromEntries(Object.entries(headers).filter(([, value]) => typeof value === 'string'));
  try {
    return propagation.extract(base, texts);
  } catch (error) {
    lost(error);
    return base;
  }
}

/** A link to the span whose context the caller passes on. @param {Api} api @param {Record<string, unknown>} headers @returns {OtelLink[]} */
function link(api, headers) {
  const context = api.trace.getSpanContext(contextOf(api, headers, api.ROOT_CONTEXT));
  return context && api.isSpanContextValid(context) ? [{ context }] : [];
}

/** The context in which a job was added, and the span of it, if it is known. @param {Api} api @param {Attempt} attempt */
function sentOf(api, attempt) {
  if (attempt.sent) return attempt.sent;
  const base = api.context.active();
  const context = contextOf(api, attempt.job.headers, base);
  const own = api.trace.getSpan(context) === api.trace.getSpan(base) ? undefined : api.trace.getSpanContext(context);
  return (attempt.sent = { context, span: own && api.isSpanContextValid(own) ? own : undefined });
}

/** Links to the spans that added these jobs. Of several jobs, a link says which one it is. @param {Api} api @param {Attempt[]} attempts @returns {OtelLink[]} */
function links(api, attempts) {
  return attempts.flatMap((attempt) => {
    const { span } = sentOf(api, attempt);
    if (!span) return [];
    const { id, attempt: number } = attempt.job;
    return [{ context: span, attributes: attempts.length === 1 ? undefined : { 'messaging.message.id': id, 'messaging.idemq.message.attempt': number } }];
  });
}

/** @param {string} operation @param {string | undefined} destination @returns {Attributes} */
const attributesOf = (operation, destination) => ({
  'messaging.system': 'idemq', 'messaging.operation.name': operation, ...(destination === undefined ? {} : { 'messaging.destination.name': destination }),
});

/** A span, with its duration as a metric. */
class Operation {
  #began = performance.now();
  #common;
  #duration;
  #redact;
  /** @type {unknown} */
  #error;
  #failed = false;

  /**
   * @param {Api} api @param {{
   *   operation: string, destination?: string, count: number, kind: import('@opentelemetry/api').SpanKind, parent: Context, links: OtelLink[],
   *   more?: Attributes, duration: import('@opentelemetry/api').Histogram, redact?: (text: string) => string,
   * }} of
   */
  constructor(api, { operation, destination, count, kind, parent, links: linked, more = {}, duration, redact = (text) => text }) {
    this.api = api;
    this.#common = attributesOf(operation, destination);
    this.#duration = duration;
    this.#redact = redact;
    const attributes = { ...this.#common, 'messaging.operation.type': operation, ...more, ...(count > 1 ? { 'messaging.batch.message_count': count } : {}) };
    /** Undefined if it could not be started. @type {import('@opentelemetry/api').Span | undefined} */
    this.span = undefined;
    this.context = parent;
    try {
      this.span = api.trace.getTracerProvider().getTracer('idemq', undefined, { schemaUrl }).startSpan(destination === undefined ? operation : `${operation} ${destination}`, { kind, attributes, links: linked }, parent);
      this.context = api.trace.setSpan(parent, this.span);
    } catch (error) {
      lost(error);
    }
  }

  /** @param {string} outcome */
  outcome = (outcome) => void this.span?.setAttribute('messaging.idemq.outcome', outcome);

  /** @param {unknown} error */
  failed = (error) => {
    // With these, a handler postpones its job.
    if (error instanceof Snooze || error instanceof HoldBack || error instanceof Waiting) return;
    this.#failed = true;
    this.#error = error;
  };

  end() {
    const attributes = { ...this.#common };
    if (this.#failed) {
      const error = this.#error;
      const type = sqlstate(error) || (error instanceof Error ? error.constructor?.name ?? error.name : '_OTHER');
      attributes['error.type'] = type;
      if (this.span?.isRecording()) {
        const message = this.#redact(textOf(error));
        const stack = error instanceof Error && typeof error.stack === 'string' ? { 'exception.stacktrace': this.#redact(error.stack) } : {};
        this.span.setAttribute('error.type', type);
        this.span.setStatus({ code: this.api.SpanStatusCode.ERROR, message });
        this.span.addEvent('exception', { 'exception.type': type, 'exception.message': message, ...stack });
      }
    }
    try {
      this.#duration.record((performance.now() - this.#began) / 1000, attributes, this.context);
      this.span?.end();
    } catch (error) {
      lost(error);
    }
    return attributes;
  }
}

/**
 * A function that adds jobs, in a span of the call.
 * @template {(...args: any[]) => Promise<any>} F @param {F} call
 * @param {(...args: any[]) => [destination: unknown, jobs?: unknown, headers?: any]} describe gets the same arguments; jobs: several, as an array or object
 * @returns {F}
 */
export function sends(call, describe) {
  if (!otel) return call;
  const api = otel;
  const traced = async (/** @type {any[]} */ ...args) => {
    if (!hasSdk(api)) return call(...args);
    const [destination, jobs, headers] = describe(...args);
    const count = jobs === null || typeof jobs !== 'object' ? 1 : Object.keys(jobs).length;
    const { operation: duration, sent } = instruments(api);
    const operation = new Operation(api, {
      operation: 'send', destination: typeof destination === 'string' ? destination : undefined, count, kind: api.SpanKind.PRODUCER, parent: api.context.active(),
      links: typeof headers?.traceparent === 'string' ? link(api, headers) : [], duration,
    });
    try {
      const answer = await api.context.with(operation.context, () => call(...args));
      if (typeof answer?.id === 'string') operation.span?.setAttribute('messaging.message.id', answer.id);
      return answer;
    } catch (error) {
      operation.failed(error);
      throw error;
    } finally {
      sent.add(count, operation.end(), operation.context);
    }
  };
  return /** @type {F} */ (/** @type {unknown} */ (traced));
}

/**
 * Calls the handler of an attempt, or the handlers of several that share a transaction, in a span.
 * @template T @param {Attempt[]} attempts @param {() => Promise<T>} call @returns {Promise<T>}
 */
export async function processing(attempts, call) {
  if (!otel) return call();
  const api = otel;
  const [first] = attempts;
  if (!hasSdk(api)) return attempts.length === 1 ? api.context.with(sentOf(api, first).context, call) : call();
  const { process: duration, consumed } = instruments(api);
  const begun = attempts.filter((attempt) => !attempt.consumed);
  if (begun.length > 0) consumed.add(begun.length, attributesOf('process', first.job.queue));
  for (const attempt of begun) attempt.consumed = true; // a handler that runs again in the same attempt does not count
  const active = api.context.active();
  const ambient = api.trace.getSpanContext(active);
  const alone = attempts.length === 1;
  const operation = new Operation(api, {
    operation: 'process', destination: first.job.queue, count: attempts.length, kind: api.SpanKind.CONSUMER, duration, redact: first.redact,
    parent: alone ? sentOf(api, first).context : active,
    links: [...links(api, attempts), ...(alone && ambient && api.isSpanContextValid(ambient) ? [{ context: ambient }] : [])],
    more: {
      'messaging.client.id': first.workerName,
      ...(alone ? { 'messaging.message.id': first.job.id, 'messaging.idemq.message.attempt': first.job.attempt } : {}),
    },
  });
  for (const attempt of attempts) attempt.processContext = operation.context;
  try {
    return await api.context.with(operation.context, call);
  } catch (error) {
    operation.failed(error);
    throw error;
  } finally {
    operation.end();
  }
}

/** @type {Told} */
const nobody = { outcome: () => {}, failed: () => {} };

/**
 * Sends a request that ends attempts, in a span.
 * @template T @param {Attempt[]} attempts @param {(told: Told) => Promise<T>} send @returns {Promise<T>}
 */
export async function settling(attempts, send) {
  if (!otel || attempts.length === 0) return send(nobody);
  const api = otel;
  if (!hasSdk(api)) return send(nobody);
  const [first] = attempts;
  const alone = attempts.length === 1;
  const operation = new Operation(api, {
    operation: 'settle', destination: first.job.queue, count: attempts.length, kind: api.SpanKind.CLIENT, duration: instruments(api).operation, redact: first.redact,
    parent: (alone && first.processContext) || api.ROOT_CONTEXT,
    links: links(api, attempts),
    more: alone ? { 'messaging.message.id': first.job.id } : {},
  });
  try {
    return await send(operation);
  } catch (error) {
    operation.failed(error);
    throw error;
  } finally {
    operation.end();
  }
}
