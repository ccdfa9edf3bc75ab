"""Traces and metrics through OpenTelemetry, by version 1.30.0 of its messaging conventions.  Without the package opentelemetry-api, this
module does nothing.

    send QUEUE      a call that adds jobs (PRODUCER).  Its context goes with the jobs, in their headers.
    process QUEUE   a handler (CONSUMER).  Of a job alone it is a child of the span that sent the job, and links to it.  Jobs that share a
                    transaction share a span, which only links.
    settle QUEUE    a request that ends attempts (CLIENT).  Of a job alone it is a child of process QUEUE.

Spans and metrics are skipped if the application has set up no SDK.  The context of the producer is still passed on.

The application may have added propagators, samplers and span processors of its own.  If one raises an error, a span is missing, but no call and
no job fails.
"""

from __future__ import annotations

import logging
import time
import traceback
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

from .errors import HoldBack, Snooze, Waiting, text_of

try:
    from opentelemetry import context, metrics, propagate, trace  # type: ignore[import]
except ImportError:
    context = metrics = propagate = trace = None

log = logging.getLogger("idemq")

SCHEMA = "https://opentelemetry.io/schemas/1.30.0"
BOUNDARIES = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
SENDS: dict[str, tuple[Optional[str], Optional[str]]] = {
    "enqueue": ("queue", None),
    "enqueue_many": ("queue", "jobs"),
    "enqueue_sequenced": ("queue", None),
    "publish": ("topic", None),
    "enqueue_graph": (None, "jobs"),
}
"""Functions that add jobs: the names of their arguments for the destination and for the jobs."""
_NO_FAILURE = (Snooze, HoldBack, Waiting)
"""Exceptions with which a handler postpones its job."""
_tools: Optional["_Tools"] = None
_reported: set[str] = set()
"""Classes of errors that have been logged."""


def _lost(error: Exception) -> None:
    """Called for an error of OpenTelemetry, or of what the application has added to it."""
    kind = type(error).__qualname__
    if kind not in _reported:
        _reported.add(kind)
        log.warning("OpenTelemetry raised an error, so spans or metrics are missing (later errors of this class are not logged): %s", text_of(error))


def installed() -> bool:
    """Whether opentelemetry-api is installed."""
    return propagate is not None


def _has_sdk() -> bool:
    """Whether somebody receives spans or metrics.  The providers of the API itself drop them."""
    assert trace is not None and metrics is not None
    return not (
        type(trace.get_tracer_provider()).__module__.startswith("opentelemetry.trace")
        and type(metrics.get_meter_provider()).__module__.startswith("opentelemetry.metrics")
    )


def sends(function: str) -> bool:
    """Whether a call of this function gets a span."""
    return propagate is not None and function in SENDS and _has_sdk()


class _Tools:
    """The tracer, and the instruments of metrics."""

    def __init__(self) -> None:
        assert trace is not None and metrics is not None
        self.tracer = trace.get_tracer("idemq", schema_url=SCHEMA)
        meter = metrics.get_meter("idemq", schema_url=SCHEMA)
        self.operation = _histogram(meter, "messaging.client.operation.duration", "Duration of a request that adds jobs or ends attempts.")
        self.process = _histogram(meter, "messaging.process.duration", "Duration of a handler.")
        self.sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Number of jobs that the producer tried to add.")
        self.consumed = meter.create_counter("messaging.client.consumed.messages", "{message}", "Number of attempts that began.")


def _histogram(meter: Any, name: str, description: str) -> Any:
    try:
        return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=BOUNDARIES)
    except TypeError:  # an older opentelemetry-api
        return meter.create_histogram(name, "s", description)


def tools() -> _Tools:
    """The tracer and the instruments, which follow the providers that the application sets later."""
    global _tools
    if _tools is None:
        _tools = _Tools()
    return _tools


def inject(headers: Optional[dict[str, Any]]) -> Optional[dict[str, Any]]:
    """Adds the current trace context to the headers.  Headers that the caller has set take precedence."""
    if propagate is None:
        return headers
    carrier: dict[str, Any] = {}
    try:
        propagate.inject(carrier)
    except Exception as error:
        _lost(error)
    if headers and "traceparent" in headers:
        carrier.pop("tracestate", None)  # it belongs to the other trace
    return {**carrier, **(headers or {})} or None


def _context_of(headers: Mapping[str, Any], base: Any) -> Any:
    """The context in which a job was added."""
    assert propagate is not None
    try:
        return propagate.extract({name: value for name, value in headers.items() if isinstance(value, str)}, base)
    except Exception as error:
        _lost(error)
        return base


def _link(headers: Mapping[str, Any]) -> list[Any]:
    """A link to the span whose context the caller passes on."""
    assert trace is not None and context is not None
    theirs = trace.get_current_span(_context_of(headers, context.Context())).get_span_context()
    return [trace.Link(theirs)] if theirs.is_valid else []


def _sent(job: Any) -> tuple[Any, Any]:
    """The context in which a job was added, and the span of it, or None."""
    assert trace is not None and context is not None
    if job.sent is None:
        base = context.get_current()
        extracted = _context_of(job.headers, base)
        span = trace.get_current_span(extracted)
        own = span.get_span_context() if span is not trace.get_current_span(base) else None
        job.sent = extracted, own if own is not None and own.is_valid else None
    found: tuple[Any, Any] = job.sent
    return found


def _links(jobs: Sequence[Any]) -> list[Any]:
    """Links to the spans that added these jobs.  Of several jobs, a link says which one it is."""
    assert trace is not None
    links = []
    for job in jobs:
        _, span = _sent(job)
        if span is not None:
            attributes = None if len(jobs) == 1 else {"messaging.message.id": str(job.id), "messaging.idemq.message.attempt": job.attempt}
            links.append(trace.Link(span, attributes))
    return links


def _attributes(operation: str, destination: Optional[str]) -> dict[str, Any]:
    common: dict[str, Any] = {"messaging.system": "idemq", "messaging.operation.name": operation}
    return common if destination is None else {**common, "messaging.destination.name": destination}


class _Operation:
    """A span, with its duration as a metric.  redact: for the text of an error."""

    def __init__(self, operation: str, destination: Optional[str], count: int, duration: Any, redact: Optional[Callable[[str], str]] = None) -> None:
        self._common = _attributes(operation, destination)
        self._operation, self._destination, self._count = operation, destination, count
        self._duration, self._redact = duration, redact
        self.span: Any = None
        """None if it could not be started."""
        self.context: Any = None

    def start(self, kind: Any, parent: Any, links: Sequence[Any], more: Mapping[str, Any]) -> None:
        assert trace is not None
        attributes: dict[str, Any] = {**self._common, "messaging.operation.type": self._operation, **more}
        if self._count > 1:
            attributes["messaging.batch.message_count"] = self._count
        name = self._operation if self._destination is None else f"{self._operation} {self._destination}"
        self._began = time.perf_counter()
        self.context = parent
        try:
            self.span = tools().tracer.start_span(name, parent, kind, attributes, links)
            self.context = trace.set_span_in_context(self.span, parent)
        except Exception as error:
            _lost(error)

    def set(self, name: str, value: str) -> None:
        """Adds an attribute."""
        if self.span is not None:
            self.span.set_attribute(name, value)

    def end(self, error: Optional[BaseException]) -> None:
        """Ends it."""
        try:
            self._end(error)
        except Exception as lost:
            _lost(lost)

    def _end(self, error: Optional[BaseException]) -> None:
        assert trace is not None
        seconds = time.perf_counter() - self._began
        common = self._common
        if error is not None and not isinstance(error, _NO_FAILURE):
            kind = type(error).__qualname__ if type(error).__module__ == "builtins" else f"{type(error).__module__}.{type(error).__qualname__}"
            common = {**common, "error.type": kind}
            if self.span is not None and self.span.is_recording():
                self._record(error, kind)
        self._duration.record(seconds, common, **({} if self.context is None else {"context": self.context}))
        if self.span is not None:
            self.span.end()

    def _record(self, error: BaseException, kind: str) -> None:
        assert trace is not None
        redact = self._redact or (lambda text: text)
        text = redact(text_of(error))
        lines = redact("".join(traceback.format_exception(type(error), error, error.__traceback__)))
        self.span.set_attribute("error.type", kind)
        self.span.set_status(trace.Status(trace.StatusCode.ERROR, text))
        self.span.add_event("exception", {"exception.type": kind, "exception.message": text, "exception.stacktrace": lines})


class Sending(_Operation):
    """A call that adds jobs."""

    def __init__(self, function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        assert trace is not None and context is not None
        where, many = SENDS[function]
        destination = None if where is None else kwargs.get(where, args[0] if args else None)
        place = 0 if where is None else 1
        jobs = None if many is None else kwargs.get(many, args[place] if len(args) > place else None)
        headers = kwargs.get("headers")
        super().__init__("send", destination if isinstance(destination, str) else None, len(jobs) if isinstance(jobs, (list, tuple, dict)) else 1, tools().operation)
        links = _link(headers) if isinstance(headers, dict) and "traceparent" in headers else []
        self.start(trace.SpanKind.PRODUCER, context.get_current(), links, {})

    @contextmanager
    def active(self) -> Iterator[None]:
        """Makes it the current span.  An error ends it."""
        assert context is not None
        token = context.attach(self.context)
        try:
            yield
        except BaseException as error:
            self.end(error)
            raise
        finally:
            context.detach(token)

    def sent(self, answer: Any) -> None:
        """Ends it, after the jobs were added."""
        number = getattr(answer, "id", None)
        if isinstance(number, int):
            self.set("messaging.message.id", str(number))
        self.end(None)

    def _end(self, error: Optional[BaseException]) -> None:
        tools().sent.add(self._count, self._common if error is None else {**self._common, "error.type": type(error).__name__})
        super()._end(error)


@contextmanager
def processing(jobs: Sequence[Any], worker: Optional[str], redact: Callable[[str], str]) -> Iterator[None]:
    """Context manager for the handler of one job, or for the handlers of several that share a transaction."""
    if trace is None or context is None:
        yield
        return
    if not _has_sdk():
        token = context.attach(_sent(jobs[0])[0] if len(jobs) == 1 else context.get_current())
        try:
            yield
        finally:
            context.detach(token)
        return
    queue = jobs[0].queue
    new = [job for job in jobs if not job.consumed]
    if new:
        tools().consumed.add(len(new), _attributes("process", queue))
        for job in new:
            job.consumed = True  # a handler that runs again in the same attempt does not count
    more: dict[str, Any] = {} if worker is None else {"messaging.client.id": worker}
    operation = _Operation("process", queue, len(jobs), tools().process, redact)
    if len(jobs) == 1:
        job = jobs[0]
        more.update({"messaging.message.id": str(job.id), "messaging.idemq.message.attempt": job.attempt})
        operation.start(trace.SpanKind.CONSUMER, _sent(job)[0], _links(jobs) + _ambient(), more)
    else:
        operation.start(trace.SpanKind.CONSUMER, context.get_current(), _links(jobs), more)
    for job in jobs:
        job.process_context = operation.context
    token = context.attach(operation.context)
    try:
        yield
    except BaseException as error:
        operation.end(error)
        raise
    else:
        operation.end(None)
    finally:
        context.detach(token)


def _ambient() -> list[Any]:
    """A link to the span in which the worker itself runs."""
    assert trace is not None
    current = trace.get_current_span().get_span_context()
    return [trace.Link(current)] if current.is_valid else []


class Settling(_Operation):
    """A request that ends attempts."""

    def settled(self, outcome: str) -> None:
        """Adds the outcome."""
        self.set("messaging.idemq.outcome", outcome)

    def __init__(self, jobs: Sequence[Any], redact: Callable[[str], str]) -> None:
        assert trace is not None and context is not None
        super().__init__("settle", jobs[0].queue, len(jobs), tools().operation, redact)
        if len(jobs) == 1:
            job = jobs[0]
            own = job.process_context
            self.start(trace.SpanKind.CLIENT, context.Context() if own is None else own, _links(jobs), {"messaging.message.id": str(job.id)})
        else:
            self.start(trace.SpanKind.CLIENT, context.Context(), _links(jobs), {})


@contextmanager
def settling(jobs: Sequence[Any], redact: Callable[[str], str]) -> Iterator[Callable[[str], None]]:
    """Context manager for a request that ends attempts.  Yields a function that takes the outcome."""
    if trace is None or not jobs or not _has_sdk():
        yield lambda outcome: None
        return
    operation = Settling(jobs, redact)
    try:
        yield operation.settled
    except BaseException as error:
        operation.end(error)
        raise
    else:
        operation.end(None)
