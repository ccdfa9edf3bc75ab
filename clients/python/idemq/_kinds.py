"""Handlers by the kind of a job.

A worker that has none for a kind gives the job back for a while: a newer one may know it, as while a
deployment is rolled out.  That counts no attempt.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Mapping, Optional, Union

from .errors import Delay, Snooze

log = logging.getLogger("idemq")

Handlers = Mapping[Optional[str], Callable[..., Any]]
"""By kind; that of None is for jobs without one."""


def handler_of(handlers: Union[Callable[..., Any], Handlers], delay: Delay) -> Callable[..., Any]:
    """One handler for all: the one that is given, or one that calls that of the job's kind."""
    if callable(handlers):
        return handlers
    by_kind = dict(handlers)
    unknown: set[Optional[str]] = set()

    def call(job: Any, *args: Any) -> Any:
        handler = by_kind.get(job.kind)
        if handler is not None:
            return handler(job, *args)
        if job.kind not in unknown and len(unknown) < 1000:
            unknown.add(job.kind)
            log.warning("%s %d: no handler here for kind %s; such jobs are given back", job.queue, job.id, job.kind)
        raise Snooze(delay, f"no handler here for kind {job.kind}")

    return call
