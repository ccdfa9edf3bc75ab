"""Trace context in a job's headers.  Without the package opentelemetry-api, this module does nothing."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, Optional

try:
    from opentelemetry import context, propagate, trace  # type: ignore[import]
except ImportError:
    context = propagate = trace = None


def installed() -> bool:
    """Whether opentelemetry-api is installed."""
    return propagate is not None


def inject(headers: Optional[dict[str, Any]]) -> Optional[dict[str, Any]]:
    """Adds the current trace context to the headers.  Headers that the caller has set take precedence."""
    if propagate is None:
        return headers
    carrier: dict[str, Any] = {}
    propagate.inject(carrier)
    return {**carrier, **(headers or {})} or None


@contextlib.contextmanager
def around(queue: str, headers: dict[str, Any]) -> Iterator[None]:
    """Context manager for a handler: a span below the one that enqueued its job."""
    if propagate is None or context is None or trace is None:
        yield
        return
    carrier = {name: value for name, value in headers.items() if isinstance(value, str)}
    attached = context.attach(propagate.extract(carrier))
    try:
        tracer = trace.get_tracer("idemq")
        with tracer.start_as_current_span(f"process {queue}", kind=trace.SpanKind.CONSUMER):
            yield
    finally:
        context.detach(attached)
