"""Prints what spans, metrics and captured logs cost the Python client, in microseconds of processor time.

For run, with one of: none (opentelemetry-api is not installed), api (no SDK is set up), sdk (an SDK whose exporter discards spans).
"""

import logging
import os
import statistics
import sys
import time
from types import SimpleNamespace

from idemq import _logs, _trace

MODE = sys.argv[1]
CALLS = 2_000
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
assert _trace.installed() == (MODE != "none")

if MODE == "sdk":
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

    class Discard(SpanExporter):
        def export(self, spans):
            return SpanExportResult.SUCCESS

    _trace.tools()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Discard()))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([InMemoryMetricReader()]))


def keep(text):
    return text


def job():
    """A new attempt, as far as traces and logs use one."""
    return SimpleNamespace(id=1, queue="mail", attempt=1, headers={"traceparent": TRACEPARENT}, consumed=False, process_context=None, sent=None, lines=_logs.Lines())


def process_and_settle(each):
    with _trace.processing([each], "worker", keep):
        pass
    with _trace.settling([each], keep) as settled:
        settled("committed")


def send(_):
    headers = {"tenant": "7"}
    if _trace.sends("enqueue"):
        sending = _trace.Sending("enqueue", ("mail",), {})
        with sending.active():
            _trace.inject(headers)
        sending.sent(None)
    else:
        _trace.inject(headers)


def details(each):
    each.details(keep)


def measure(name, call, arguments):
    """Prints the median of the rounds; arguments makes those of a round."""
    rounds = []
    for _ in range(int(os.environ["ROUNDS"])):
        given = arguments()
        began = time.process_time()
        for each in given:
            call(each)
        rounds.append((time.process_time() - began) / len(given) * 1e6)
    print(f"python {MODE}: {name} {statistics.median(rounds):.1f} us")


measure("process and settle", process_and_settle, lambda: [job() for _ in range(CALLS)])
measure("send", send, lambda: range(CALLS))
if MODE == "none":
    logger = logging.getLogger("app")
    logger.setLevel(logging.INFO)
    logging.getLogger().addHandler(logging.NullHandler())

    def log_line(_):
        logger.info("order %s of customer %s is confirmed", 42, 77)

    current = job()
    token = _logs.enter(current)
    measure("a log line that is not captured", log_line, lambda: range(CALLS))
    with _logs.capturing(True):
        measure("a log line that is captured", log_line, lambda: range(CALLS))
    _logs.leave(token)

    def lines():
        full = _logs.Lines()
        for number in range(200):
            full.add(f"2026-11-30 20:15:00,000 INFO app: order {number:06} of customer 77 is confirmed and waits")
        return full

    measure("details of 16 kB", details, lambda: [lines() for _ in range(50)])
