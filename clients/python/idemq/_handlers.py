"""Checks of handlers, and handlers by the kind of the job.

Calling a coroutine function or a generator runs nothing, and a function would block the event loop of
an AsyncWorker, which cannot await its result.  Such handlers are refused before a job is claimed.  Mistakes that
appear only when the handler returns fail the attempt.

If a worker has no handler for a kind, it releases the job for a while without counting an attempt: a newer worker may
have one, for example while a deployment is rolled out.
"""

from __future__ import annotations

import concurrent.futures
import functools
import inspect
import logging
import types
from datetime import timedelta
from typing import Any, Callable, Generic, Mapping, Optional, Sequence, TypeVar, Union

from ._arguments import delay_argument, positive_seconds
from .errors import Delay, Snooze

log = logging.getLogger("idemq")
T = TypeVar("T")

H = TypeVar("H", bound=Callable[..., Any], covariant=True)


class Kind(Generic[H]):
    """A handler of one kind of jobs, with a time limit and a backoff of its own."""

    def __init__(
        self, handler: H, *, timeout: Optional[float] = None, backoff: Union[Delay, Sequence[Delay], None] = None
    ) -> None:
        """timeout: maximum duration of an attempt in seconds, even if the queue's job_timeout is longer.
        backoff: the delay after a failed attempt; or a list of the delays after the first, the second, ... attempt, of which the last
            one repeats.  None means the queue's backoff."""
        if not callable(handler):
            raise TypeError(f"handler must be a function, not {type(handler).__name__}")
        if timeout is not None:
            positive_seconds("timeout", timeout)
        delays: list[Any] = list(backoff) if isinstance(backoff, (list, tuple)) else [backoff]
        if not delays:
            raise ValueError("backoff must not be empty")
        self.handler = handler
        self.timeout = timeout
        self._delays = [delay_argument("backoff", delay) for delay in delays]  # [None] if there is no backoff

    def delay_after(self, attempt: int) -> Union[timedelta, str, None]:
        """The delay after this failed attempt; None means the queue's backoff."""
        return self._delays[min(attempt, len(self._delays)) - 1]


Handlers = Mapping[Optional[str], Union[Callable[..., Any], Kind[Any]]]
"""Handlers by kind.  The key None is for jobs without a kind."""


def check_parameters(function: Any, arguments: Sequence[str]) -> None:
    """Raises TypeError for a function that cannot be called with these arguments.

    If the function is decorated, the signature of the wrapper counts, because that is what is called.
    """
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return  # a function in C without a signature
    try:
        signature.bind(*arguments)
    except TypeError as error:
        name = getattr(function, "__qualname__", None) or repr(function)
        raise TypeError(f"{name}{signature} cannot be called with ({', '.join(arguments)}): {error}") from None


def check_callable(function: Any, coroutines: bool, caller: str, other: str, arguments: Sequence[str]) -> None:
    """Raises TypeError for a function that the caller cannot run.  other: the class that can.  arguments: names of the arguments.

    A decorator can turn a coroutine function into a function.  functools.wraps shows this.
    """
    name = getattr(function, "__qualname__", None) or repr(function)
    given = function
    while isinstance(function, functools.partial):
        function = function.func
    called = function if inspect.isroutine(function) else getattr(type(function), "__call__", None)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise TypeError(f"{name} is a generator function, so calling it does not run its body: use a function that returns its "
            "result")
    if not coroutines and any(map(inspect.iscoroutinefunction, (function, called))):
        raise TypeError(f"{caller} requires a plain function, but {name} is a coroutine function: use {other}")
    if (
        coroutines
        and (inspect.ismethod(called) or inspect.isfunction(called))
        and not any(map(inspect.iscoroutinefunction, (function, called, inspect.unwrap(function))))
    ):
        raise TypeError(
            f"{caller} requires a coroutine function, but {name} is a plain function: declare it with async def, or "
            f"use {other}"
        )
    check_parameters(given, arguments)


_LAZY = (types.GeneratorType, map, filter, concurrent.futures.Future)


def _has_not_run(value: Any) -> bool:
    try:
        return inspect.isawaitable(value) or inspect.isasyncgen(value) or isinstance(value, _LAZY)
    except Exception:  # the value may be of any class, whose methods may raise
        return False


def finished_result(answer: T) -> T:
    """The result of a call.  Raises TypeError if it is something that has not run yet, or a list of such."""
    try:
        parts: list[Any] = list(answer) if isinstance(answer, (list, tuple)) else [answer]
    except Exception:
        return answer
    for each in parts:
        if _has_not_run(each):
            if inspect.iscoroutine(each):
                each.close()  # otherwise Python warns that it was never awaited
            raise TypeError(f"the handler returned a {type(each).__name__}, which has not run")
    return answer


def single_handler(
    handlers: Union[Callable[..., Any], Handlers], delay: Delay, coroutines: bool, worker: str, other: str, outside: bool
) -> Callable[..., Any]:
    """One handler for all jobs: the given one, or one that calls the handler for the job's kind."""
    arguments = ("job",) if outside else ("job", "conn")
    if callable(handlers):
        check_callable(handlers, coroutines, worker, other, arguments)
        return handlers
    given = handlers if isinstance(handlers, Mapping) else {}
    by_kind: dict[Optional[str], Any] = {kind: each.handler if isinstance(each, Kind) else each for kind, each in given.items()}
    if not by_kind or not all(callable(handler) for handler in by_kind.values()):
        raise TypeError("handler must be a function, or a dict that maps kinds to functions")
    for handler in by_kind.values():
        check_callable(handler, coroutines, worker, other, arguments)
    unknown: set[Optional[str]] = set()

    def call(job: Any, *args: Any) -> Any:
        handler = by_kind.get(job.kind)
        if handler is not None:
            return handler(job, *args)
        which = "jobs without a kind" if job.kind is None else f"kind {job.kind}"
        if job.kind not in unknown and len(unknown) < 1000:
            unknown.add(job.kind)
            log.warning("%s %d: no handler for %s, so the worker releases such jobs", job.queue, job.id, which)
        raise Snooze(delay, f"no handler for {which}")

    return call
