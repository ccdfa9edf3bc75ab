// Passes the trace context from the producer to the handler, in the job's headers.  If the package
// @opentelemetry/api is not installed, this does nothing.

import { otel } from './packages.js';

/**
 * Adds the caller's trace context to the headers. Headers that the caller has set take precedence.
 * @param {Record<string, unknown> | null | undefined} headers @returns {Record<string, unknown> | null}
 */
export function inject(headers) {
  if (!otel) return headers ?? null;
  /** @type {Record<string, unknown>} */
  const carrier = {};
  otel.propagation.inject(otel.context.active(), carrier);
  const all = { ...carrier, ...headers };
  return headers || Object.keys(all).length > 0 ? all : null;
}

/**
 * Calls a handler in a new span of the trace in its job's headers.
 * @template T @param {import('./job.js').Job} job @param {() => Promise<T>} call @returns {Promise<T>}
 */
export function traced(job, call) {
  if (!otel) return call();
  const { propagation, context, trace, SpanKind, SpanStatusCode } = otel;
  const parent = propagation.extract(context.active(), job.headers);
  const attributes = { 'messaging.system': 'idemq', 'messaging.destination.name': job.queue, 'messaging.message.id': job.id, 'idemq.attempt': job.attempt };
  return trace.getTracer('idemq').startActiveSpan(`process ${job.queue}`, { kind: SpanKind.CONSUMER, attributes }, parent, async (span) => {
    try {
      return await call();
    } catch (error) {
      span.setStatus({ code: SpanStatusCode.ERROR });
      if (error instanceof Error) span.recordException(error);
      throw error;
    } finally {
      span.end();
    }
  });
}
