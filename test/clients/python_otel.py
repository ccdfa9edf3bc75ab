"""python_otel.py: spans and metrics, with OpenTelemetry's SDK and exporters in memory.

For python_otel.pl, which says where the server is (IDEMQ_DSN), and has installed the SDK.
"""

import asyncio
import collections

import tap
from opentelemetry import baggage, context, metrics, propagate, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import idemq
from python_common import DSN, Client

# Before the providers are set: instruments that exist already follow them.
idemq._trace.tools()
EXPORTER = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
trace.set_tracer_provider(provider)
READER = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([READER]))


class Otel(Client):
    def setUp(self):
        super().setUp()
        EXPORTER.clear()

    def spans(self):
        """The finished spans of this queue by name, in order."""
        named = collections.defaultdict(list)
        for span in EXPORTER.get_finished_spans():
            named[span.name.replace(f" {self.queue}", "")].append(span)
        return named

    def metric(self, name, **attributes):
        """Count and sum of a metric's points of this queue with these attributes."""
        count = total = 0
        for resource in (READER.get_metrics_data() or type("", (), {"resource_metrics": []})).resource_metrics:
            for scope in resource.scope_metrics:
                for each in scope.metrics:
                    if each.name != name:
                        continue
                    for point in each.data.data_points:
                        if point.attributes.get("messaging.destination.name") == self.queue and all(
                            point.attributes.get(key.replace("_", ".")) == value for key, value in attributes.items()
                        ):
                            count += getattr(point, "count", 0) or point.value
                            total += getattr(point, "sum", 0)
        return count, total

    def handler(self, job, conn=None):
        with trace.get_tracer("app").start_as_current_span("own"):
            if conn is not None:
                self.effect(conn, job.payload)

    async def handler_async(self, job, conn=None):
        await asyncio.sleep(0)
        self.handler(job)

    def ways(self):
        return ((self.drain, self.handler, False), (self.drain, self.handler, True), (self.drain_async, self.handler_async, False),
                (self.drain_async, self.handler_async, True))  # fmt: skip

    def test_a_job_alone(self):
        for drain, handler, outside in self.ways():
            with self.subTest(drain=drain.__name__, outside=outside):
                EXPORTER.clear()
                with trace.get_tracer("app").start_as_current_span("request") as request:
                    (job,) = self.add(1)
                drain(handler, outside)
                spans = self.spans()
                (sent,), (processed,), (settled,), (own,) = spans["send"], spans["process"], spans["settle"], spans["own"]
                self.assertEqual((sent.kind, processed.kind, settled.kind), (SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CLIENT))
                self.assertEqual({span.context.trace_id for span in (sent, processed, settled, own)}, {request.get_span_context().trace_id})
                self.assertEqual(sent.parent.span_id, request.get_span_context().span_id)
                self.assertEqual(processed.parent.span_id, sent.context.span_id)
                self.assertEqual([link.context.span_id for link in processed.links], [sent.context.span_id])
                self.assertEqual(settled.parent.span_id, processed.context.span_id)
                self.assertEqual([link.context.span_id for link in settled.links], [sent.context.span_id])
                self.assertEqual(own.parent.span_id, processed.context.span_id)
                for span, operation in ((sent, "send"), (processed, "process"), (settled, "settle")):
                    expected = {"messaging.system": "idemq", "messaging.operation.name": operation, "messaging.operation.type": operation,
                                "messaging.destination.name": self.queue, "messaging.message.id": str(job)}  # fmt: skip
                    self.assertEqual({key: span.attributes.get(key) for key in expected}, expected)
                    self.assertEqual(span.instrumentation_scope.schema_url, "https://opentelemetry.io/schemas/1.30.0")
                    self.assertTrue(span.status.is_unset)
                self.assertEqual(processed.attributes["messaging.idemq.message.attempt"], 1)
                ((headers,),) = self.sql("SELECT headers FROM idemq.jobs WHERE id = %s", job)
                self.assertEqual(headers["traceparent"].split("-")[2], f"{sent.context.span_id:016x}")

    def test_a_batch_has_links_only(self):
        for drain, handler in ((self.drain, self.handler), (self.drain_async, self.handler_async)):
            EXPORTER.clear()
            jobs = self.add(1, 2)
            enqueued = idemq.enqueue_many(self.conn, self.queue, [{"payload": 3}, {"payload": 4}])
            self.drain(self.handler, batch=10) if drain == self.drain else drain(handler, batch=10)
            spans = self.spans()
            self.assertEqual((len(spans["send"]), len(spans["process"]), len(spans["settle"])), (3, 1, 1))
            first, second, many = spans["send"]
            self.assertEqual((many.attributes["messaging.batch.message_count"], many.kind), (2, SpanKind.PRODUCER))
            for span in (spans["process"][0], spans["settle"][0]):
                self.assertIsNone(span.parent)
                self.assertEqual(span.attributes["messaging.batch.message_count"], 4)
                self.assertNotIn("messaging.message.id", span.attributes)
                self.assertEqual(
                    [(link.attributes["messaging.message.id"], link.context.span_id) for link in span.links],
                    [(str(jobs[0]), first.context.span_id), (str(jobs[1]), second.context.span_id),
                     *((str(each.id), many.context.span_id) for each in enqueued)])  # fmt: skip
            self.assertEqual({span.parent.span_id for span in spans["own"]}, {spans["process"][0].context.span_id})

    def test_failures(self):
        def redact(text):
            return text.replace("secret", "(removed)")

        def fails(job, conn):
            conn.execute("SELECT 1")
            raise {"fails": ValueError("secret"), "snoozes": idemq.Snooze("1 h")}[job.payload]

        for drain, outside in ((self.drain, False), (self.drain, True)):
            EXPORTER.clear()
            self.add("fails", "snoozes", max_attempts=1)
            drain((lambda job: fails(job, self.conn)) if outside else fails, outside, redact=redact)
            spans = self.spans()
            failed, snoozed = sorted(spans["process"], key=lambda span: span.status.is_unset)
            self.assertEqual((failed.status.status_code, failed.status.description, failed.attributes["error.type"]), (StatusCode.ERROR, "ValueError: (removed)", "ValueError"))
            (event,) = failed.events
            self.assertEqual((event.name, event.attributes["exception.type"], event.attributes["exception.message"]), ("exception", "ValueError", "ValueError: (removed)"))
            self.assertIn("in fails", event.attributes["exception.stacktrace"])
            self.assertNotIn("secret", event.attributes["exception.stacktrace"].replace('ValueError("', ""))
            self.assertTrue(snoozed.status.is_unset and not snoozed.events)
            outcomes = sorted(span.attributes["messaging.idemq.outcome"] for span in spans["settle"])
            self.assertEqual(outcomes, ["dead", "released"])
            self.assertEqual({span.parent.span_id for span in spans["settle"]}, {failed.context.span_id, snoozed.context.span_id})
        # A batch that fails, and then runs one by one.
        EXPORTER.clear()
        self.sql("SELECT idemq.purge(%s)", self.queue)
        self.sql("DELETE FROM idemq.jobs WHERE queue_id = idemq.queue_id(%s)", self.queue)
        before = self.metric("messaging.client.consumed.messages")[0]
        self.add(1, "fails", max_attempts=1)
        self.drain(lambda job, conn: self.handler(job) if job.payload == 1 else fails(job, conn), batch=5)
        spans = self.spans()
        self.assertEqual(sorted(span.attributes.get("messaging.batch.message_count", 1) for span in spans["process"]), [1, 1, 2])
        self.assertEqual(self.metric("messaging.client.consumed.messages")[0] - before, 2)
        # An enqueue that fails.
        with self.assertRaises(idemq.NoSuchQueue):
            idemq.enqueue(self.conn, "no such queue", 1)
        with self.assertRaises(TypeError):
            idemq.enqueue(self.conn, self.queue, 1, key=1.5)
        span = next(span for span in EXPORTER.get_finished_spans() if span.name == "send no such queue")
        self.assertEqual((span.status.status_code, span.attributes["error.type"]), (StatusCode.ERROR, "idemq.errors.NoSuchQueue"))
        self.assertFalse(trace.get_current_span().get_span_context().is_valid)

    def test_metrics(self):
        self.add(1, 2, max_attempts=1)
        idemq.enqueue_many(self.conn, self.queue, [{"payload": 3}, {"payload": 4}])
        with self.assertRaises(TypeError):
            idemq.enqueue(self.conn, self.queue, 1, key=1.5)
        self.drain(lambda job: job.payload > 1 or 1 / 0, True)
        self.assertEqual(self.metric("messaging.client.sent.messages")[0], 5)
        self.assertEqual(self.metric("messaging.client.sent.messages", error_type=None)[0], 4)
        self.assertEqual(self.metric("messaging.client.consumed.messages")[0], 4)
        count, total = self.metric("messaging.process.duration")
        self.assertTrue(count == 4 and 0 < total < 60, (count, total))
        self.assertEqual(self.metric("messaging.process.duration", error_type="ZeroDivisionError")[0], 1)
        self.assertEqual(self.metric("messaging.client.operation.duration", messaging_operation_name="send")[0], 4)
        self.assertTrue(self.metric("messaging.client.operation.duration", messaging_operation_name="settle")[0] >= 2)

    def test_headers_of_the_caller(self):
        """A context that the caller passes on stays as it is, and the span of the call links to it."""
        theirs = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        token = context.attach(baggage.set_baggage("customer", "7"))
        self.addCleanup(context.detach, token)
        (job,) = self.add(1, headers={"traceparent": theirs, "own": 1})
        self.assertEqual(self.sql("SELECT headers FROM idemq.jobs WHERE id = %s", job), [({"traceparent": theirs, "own": 1, "baggage": "customer=7"},)])
        seen = []

        def handler(job):
            carrier = {}
            propagate.inject(carrier)
            seen.append((carrier["traceparent"].split("-")[1], carrier["baggage"]))
            idemq.enqueue(self.conn, self.queue + "_2", 1)

        self.sql("SELECT idemq.create_queue(%s)", self.queue + "_2")
        self.drain(handler, True)
        self.assertEqual(seen, [("0af7651916cd43dd8448eb211c80319c", "customer=7")])
        sent = self.spans()["send"][0]
        self.assertEqual([link.context.span_id for link in sent.links], [0xB7AD6B7169203331])
        # What the handler sends is part of the trace.
        (second,) = [span for span in EXPORTER.get_finished_spans() if span.name == f"send {self.queue}_2"]
        self.assertEqual(f"{second.context.trace_id:032x}", "0af7651916cd43dd8448eb211c80319c")

    def test_every_producer(self):
        import psycopg

        async def connected():
            async with await psycopg.AsyncConnection.connect(DSN, autocommit=True) as conn:
                await idemq.enqueue(conn, self.queue, 1)

        self.sql("SELECT idemq.create_topic(%s)", f"{self.queue}_space")
        asyncio.run(connected())
        idemq.enqueue_sequenced(self.conn, self.queue, "me", 1, 1)
        idemq.enqueue_graph(self.conn, {"a": {"queue": self.queue, "payload": 1}})
        idemq.publish(self.conn, f"{self.queue}_space.x", 1)
        names = [span.name for span in EXPORTER.get_finished_spans()]
        self.assertEqual(names, [f"send {self.queue}", f"send {self.queue}", "send", f"send {self.queue}_space.x"])
        traced = self.sql("SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id(%s) AND headers ? 'traceparent'", self.queue)
        self.assertEqual(traced, [(3,)])

    def test_bad_headers(self):
        """What is not a trace context does not disturb the job."""
        for headers in ({"traceparent": 7}, {"traceparent": "nonsense"}, {"baggage": "%%%=", "tracestate": "x"}):
            self.add(1, headers=headers)
        self.assertEqual(self.drain(self.handler), {"committed": 3})
        self.assertEqual([len(span.links) for span in self.spans()["process"]], [0, 0, 1])


if __name__ == "__main__":
    tap.main()
