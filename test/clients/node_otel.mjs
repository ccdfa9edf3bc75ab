// node_otel.mjs: spans and metrics, with OpenTelemetry's SDK and exporters in memory, which only npm has.  CONNECTION is JSON, and its
// database has idemq.

import assert from 'node:assert/strict';
import { after, beforeEach, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { ROOT_CONTEXT, SpanKind, SpanStatusCode, context, metrics, propagation, trace } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import { CompositePropagator, W3CBaggagePropagator, W3CTraceContextPropagator } from '@opentelemetry/core';
import { AggregationTemporality, InMemoryMetricExporter, MeterProvider, PeriodicExportingMetricReader } from '@opentelemetry/sdk-metrics';
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-base';
import pg from 'pg';
import { NoSuchQueue, Snooze, drain, enqueue, enqueueGraph, enqueueMany, enqueueSequenced, publish } from 'idemq';

const connection = JSON.parse(process.env.CONNECTION);
const pool = new pg.Pool(connection);
const logger = { info: () => {}, warn: () => {}, error: () => {} };
await pool.query("SELECT idemq.create_queue('before')");
await enqueue(pool, 'before', 1); // an application may set the providers after the first call
const exporter = new InMemorySpanExporter();
/** A span processor of the application that throws. */
const faulty = { fails: undefined, forceFlush: async () => {}, shutdown: async () => {} };
for (const when of ['onStart', 'onEnd']) faulty[when] = () => { if (faulty.fails === when) throw new Error('of a processor'); };
trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter), faulty] }));
context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
propagation.setGlobalPropagator(new CompositePropagator({ propagators: [new W3CTraceContextPropagator(), new W3CBaggagePropagator()] }));
const metricExporter = new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE);
const reader = new PeriodicExportingMetricReader({ exporter: metricExporter, exportIntervalMillis: 3_600_000 });
metrics.setGlobalMeterProvider(new MeterProvider({ readers: [reader] }));
let queues = 0;

async function queue() {
  const name = `q${++queues}`;
  await pool.query("SELECT idemq.create_queue($1, lease => '1 h')", [name]);
  return name;
}

/** The finished spans by name, without the queue's. */
function spansOf(q) {
  const spans = {};
  for (const span of exporter.getFinishedSpans()) (spans[span.name.replace(` ${q}`, '')] ??= []).push(span);
  return spans;
}

/** Number of measurements of a metric of a queue with these attributes, or the sum of a counter. */
async function metric(q, name, attributes = {}) {
  metricExporter.reset();
  await reader.forceFlush();
  let count = 0;
  for (const { scopeMetrics } of metricExporter.getMetrics()) {
    for (const { descriptor, dataPoints } of scopeMetrics.flatMap((scope) => scope.metrics)) {
      if (descriptor.name !== name) continue;
      for (const point of dataPoints) {
        if (point.attributes['messaging.destination.name'] !== q || Object.entries(attributes).some(([key, value]) => point.attributes[key] !== value)) continue;
        count += point.value.count ?? point.value;
      }
    }
  }
  return count;
}

const own = (fn = async () => {}) => trace.getTracer('app').startActiveSpan('own', async (span) => {
  await sleep(1);
  await fn();
  span.end();
});
const idOf = (span) => span.spanContext().spanId;
const parentOf = (span) => span.parentSpanContext?.spanId ?? span.parentSpanId;

beforeEach(() => exporter.reset());
after(() => pool.end());

test('a job alone: a child of the span that sent it, with a link', async () => {
  const q = await queue();
  for (const outside of [false, true]) {
    exporter.reset();
    const { id } = await trace.getTracer('app').startActiveSpan('request', async (span) => {
      const added = await enqueue(pool, q, 1);
      span.end();
      return added;
    });
    await drain(connection, q, (job, db) => own(() => db?.query('SELECT 1')), { outside, logger });
    const spans = spansOf(q);
    const [[request], [sent], [processed], [settled], [inner]] = ['request', 'send', 'process', 'settle', 'own'].map((name) => spans[name]);
    assert.deepEqual(['send', 'process', 'settle'].map((name) => spans[name].length), [1, 1, 1]);
    assert.deepEqual([sent.kind, processed.kind, settled.kind], [SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CLIENT]);
    assert.deepEqual(new Set([sent, processed, settled, inner].map((span) => span.spanContext().traceId)), new Set([request.spanContext().traceId]));
    assert.deepEqual([parentOf(sent), parentOf(processed), parentOf(settled), parentOf(inner)], [idOf(request), idOf(sent), idOf(processed), idOf(processed)]);
    for (const span of [processed, settled]) assert.deepEqual(span.links.map((link) => link.context.spanId), [idOf(sent)]);
    for (const [span, operation] of [[sent, 'send'], [processed, 'process'], [settled, 'settle']]) {
      const expected = { 'messaging.system': 'idemq', 'messaging.operation.name': operation, 'messaging.operation.type': operation, 'messaging.destination.name': q, 'messaging.message.id': id };
      for (const [key, value] of Object.entries(expected)) assert.equal(span.attributes[key], value, `${operation} ${key}`);
      assert.equal((span.instrumentationScope ?? span.instrumentationLibrary).schemaUrl, 'https://opentelemetry.io/schemas/1.30.0');
      assert.equal(span.status.code, SpanStatusCode.UNSET);
    }
    assert.equal(processed.attributes['messaging.idemq.message.attempt'], 1);
    const { headers } = (await pool.query('SELECT headers FROM idemq.jobs WHERE id = $1', [id])).rows[0];
    assert.equal(headers.traceparent.split('-')[2], idOf(sent));
  }
});

test('a batch has links only', async () => {
  const q = await queue();
  for (const uses of [true, false]) {
    exporter.reset();
    const { id } = await enqueue(pool, q, 1);
    const many = await enqueueMany(pool, q, [{ payload: 2 }, { payload: 3 }]);
    await drain(connection, q, (job, db) => own(() => uses && db.query('SELECT 1')), { batch: 10, logger });
    const spans = spansOf(q);
    assert.deepEqual(['send', 'process', 'settle', 'own'].map((name) => spans[name].length), [2, 1, 1, 3]);
    const [first, second] = spans.send;
    assert.deepEqual([second.attributes['messaging.batch.message_count'], second.kind], [2, SpanKind.PRODUCER]);
    for (const span of [...spans.process, ...spans.settle]) {
      assert.equal(parentOf(span), undefined);
      assert.equal(span.attributes['messaging.batch.message_count'], 3);
      assert.equal(span.attributes['messaging.message.id'], undefined);
      assert.deepEqual(span.links.map((link) => [link.attributes['messaging.message.id'], link.context.spanId]), [[id, idOf(first)], ...many.map((each) => [each.id, idOf(second)])]);
    }
    assert.deepEqual(new Set(spans.own.map(parentOf)), new Set([idOf(spans.process[0])]));
  }
});

test('failures', async () => {
  const redact = (text) => text.replaceAll('secret', '(removed)');
  for (const outside of [false, true]) {
    const q = await queue();
    exporter.reset();
    for (const payload of ['fails', 'snoozes']) await enqueue(pool, q, payload, { maxAttempts: 1 });
    const fails = async (job, db) => {
      await db?.query('SELECT 1');
      throw job.payload === 'fails' ? new RangeError('secret') : new Snooze('1 h');
    };
    await drain(connection, q, fails, { outside, redact, logger });
    const { process: processed, settle } = spansOf(q);
    const [failed, snoozed] = processed.sort((a, b) => b.status.code - a.status.code);
    assert.deepEqual([failed.status, failed.attributes['error.type']], [{ code: SpanStatusCode.ERROR, message: 'RangeError: (removed)' }, 'RangeError']);
    const [{ name, attributes }] = failed.events;
    assert.deepEqual([name, attributes['exception.type'], attributes['exception.message']], ['exception', 'RangeError', 'RangeError: (removed)']);
    assert.match(attributes['exception.stacktrace'], /^RangeError: \(removed\)\n.*fails/);
    assert.deepEqual([snoozed.status.code, snoozed.events.length], [SpanStatusCode.UNSET, 0]);
    assert.deepEqual(settle.map((span) => span.attributes['messaging.idemq.outcome']).sort(), ['dead', 'released']);
    assert.deepEqual(new Set(settle.map(parentOf)), new Set(processed.map(idOf)));
  }
  // A batch that fails, and then runs one by one.
  const q = await queue();
  await enqueueMany(pool, q, [{ payload: 1, maxAttempts: 1 }, { payload: 2, maxAttempts: 1 }]);
  await drain(connection, q, (job) => { if (job.payload === 2) throw new Error('no'); }, { batch: 5, logger });
  assert.deepEqual(spansOf(q).process.map((span) => span.attributes['messaging.batch.message_count'] ?? 1), [2, 1, 1]);
  assert.equal(await metric(q, 'messaging.client.consumed.messages'), 2);
  // A call that fails.
  await assert.rejects(enqueue(pool, 'no such queue', 1), NoSuchQueue);
  const span = exporter.getFinishedSpans().find(({ name }) => name === 'send no such queue');
  assert.deepEqual([span.status.code, span.attributes['error.type']], [SpanStatusCode.ERROR, 'IQ005']);
});

test('metrics', async () => {
  const q = await queue();
  for (const payload of [1, 2]) await enqueue(pool, q, payload, { maxAttempts: 1 });
  await enqueueMany(pool, q, [{ payload: 3 }, { payload: 4 }]);
  await assert.rejects(enqueue(pool, q, 1, { key: 1.5 }), TypeError);
  await drain(connection, q, (job) => { if (job.payload === 1) throw new RangeError('no'); }, { outside: true, logger });
  assert.equal(await metric(q, 'messaging.client.sent.messages'), 5);
  assert.equal(await metric(q, 'messaging.client.sent.messages', { 'error.type': 'TypeError' }), 1);
  assert.equal(await metric(q, 'messaging.client.consumed.messages'), 4);
  assert.equal(await metric(q, 'messaging.process.duration'), 4);
  assert.equal(await metric(q, 'messaging.process.duration', { 'error.type': 'RangeError' }), 1);
  assert.equal(await metric(q, 'messaging.client.operation.duration', { 'messaging.operation.name': 'send' }), 4);
  assert.ok(await metric(q, 'messaging.client.operation.duration', { 'messaging.operation.name': 'settle' }) >= 2);
});

test('headers of the caller, and every producer', async () => {
  const q = await queue();
  const theirs = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
  const withBaggage = propagation.setBaggage(ROOT_CONTEXT, propagation.createBaggage({ customer: { value: '7' } }));
  const { id } = await context.with(withBaggage, () => enqueue(pool, q, 1, { headers: { traceparent: theirs, own: 1 } }));
  assert.deepEqual((await pool.query('SELECT headers FROM idemq.jobs WHERE id = $1', [id])).rows[0].headers, { traceparent: theirs, own: 1, baggage: 'customer=7' });
  assert.deepEqual(spansOf(q).send[0].links.map((link) => link.context.spanId), ['b7ad6b7169203331']);
  const seen = [];
  await drain(connection, q, async () => {
    await sleep(1);
    const carrier = {};
    propagation.inject(context.active(), carrier);
    seen.push([carrier.traceparent.split('-')[1], carrier.baggage]);
  }, { logger });
  assert.deepEqual(seen, [['0af7651916cd43dd8448eb211c80319c', 'customer=7']]);
  exporter.reset();
  await pool.query("SELECT idemq.create_topic('space')");
  await enqueueSequenced(pool, q, 'me', 1, 1);
  await enqueueGraph(pool, { a: { queue: q, payload: 1 } });
  await publish(pool, 'space.x', 1);
  assert.deepEqual(exporter.getFinishedSpans().map(({ name }) => name), [`send ${q}`, 'send', 'send space.x']);
  // What is not a trace context does not disturb the job.
  for (const headers of [{ traceparent: 7 }, { traceparent: 'nonsense' }, { baggage: '%%%=', tracestate: 'x' }]) await enqueue(pool, q, 1, { headers });
  assert.deepEqual(await drain(connection, q, () => {}, { logger }), { committed: 5 });
});

test('errors of OpenTelemetry do no harm', async () => {
  const warned = [];
  process.on('warning', ({ message }) => warned.push(message));
  try {
    for (const when of ['onStart', 'onEnd']) {
      faulty.fails = when;
      const q = await queue();
      await enqueueMany(pool, q, [{ payload: 1 }, { payload: 2 }]);
      assert.equal((await enqueue(pool, q, 3)).outcome, 'accepted');
      assert.deepEqual(await drain(connection, q, () => {}, { logger, batch: 2 }), { committed: 3 });
      await enqueue(pool, q, 4);
      assert.deepEqual(await drain(connection, q, () => {}, { logger, outside: true }), { committed: 1 });
    }
    faulty.fails = undefined;
    propagation.disable();
    propagation.setGlobalPropagator({ inject() { throw new Error('of a propagator'); }, extract() { throw new Error('of a propagator'); }, fields: () => [] });
    const q = await queue();
    await enqueue(pool, q, 1);
    assert.deepEqual(await drain(connection, q, () => {}, { logger }), { committed: 1 });
  } finally {
    faulty.fails = undefined;
  }
  await sleep(1);
  assert.deepEqual(warned.filter((text) => /OpenTelemetry/.test(text)).map((text) => text.split(': ').at(-1)), ['of a processor']);
});
