// Prints what spans, metrics and captured logs cost the Node client, in microseconds of processor time.
// For run, next to a copy of lib, with one of: none (@opentelemetry/api is not installed), api (no SDK is set up), sdk (an SDK whose exporter discards spans).

import process from 'node:process';

const mode = process.argv[2];
const calls = 2_000;
const traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';

if (mode === 'sdk') {
  const { context, metrics, propagation, trace } = await import('@opentelemetry/api');
  const { BasicTracerProvider, SimpleSpanProcessor } = await import('@opentelemetry/sdk-trace-base');
  const { MeterProvider } = await import('@opentelemetry/sdk-metrics');
  const { AsyncLocalStorageContextManager } = await import('@opentelemetry/context-async-hooks');
  const { W3CTraceContextPropagator } = await import('@opentelemetry/core');
  const exporter = { export: (/** @type {any} */ _, /** @type {any} */ done) => done({ code: 0 }), shutdown: async () => {} };
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  propagation.setGlobalPropagator(new W3CTraceContextPropagator());
  trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }));
  metrics.setGlobalMeterProvider(new MeterProvider());
}
const { processing, settling, sends, inject } = await import('./lib/trace.js');
const { Lines } = await import('./lib/logs.js');

const redact = (/** @type {string} */ text) => text;
const attempt = () => /** @type {any} */ ({
  job: { id: '1', queue: 'mail', attempt: 1, headers: { traceparent } }, workerName: 'worker', redact, consumed: false,
});
const send = sends(async () => inject({ tenant: '7' }), () => ['mail']);

/** Prints the median of the rounds. @param {string} name @param {(argument: any) => unknown} call @param {() => any[]} make the arguments of a round */
async function measure(name, call, make) {
  const rounds = [];
  for (let round = 0; round < Number(process.env.ROUNDS); round++) {
    const given = make();
    const began = process.cpuUsage();
    for (const each of given) await call(each);
    const { user, system } = process.cpuUsage(began);
    rounds.push((user + system) / given.length);
  }
  rounds.sort((a, b) => a - b);
  console.log(`node ${mode}: ${name} ${rounds[Math.floor(rounds.length / 2)].toFixed(1)} us`);
}

await measure('process and settle', async (each) => {
  await processing([each], async () => {});
  await settling([each], async (told) => told.outcome('committed'));
}, () => Array.from({ length: calls }, attempt));
await measure('send', send, () => Array(calls).fill(0));
if (mode === 'none') {
  const lines = new Lines();
  await measure('a line that is captured', () => lines.add(`${new Date().toISOString()} INFO order 42 of customer 77 is confirmed`), () => Array(calls).fill(0));
  await measure('details of 16 kB', (full) => full.details(redact), () => Array.from({ length: 50 }, () => {
    const full = new Lines();
    for (let number = 0; number < 200; number++) full.add(`2026-11-30 20:15:00,000 INFO order ${String(number).padStart(6, '0')} of customer 77 is confirmed and waits`);
    return full;
  }));
}
