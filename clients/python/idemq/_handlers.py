"""Handlers: whether they are what the worker calls, and those by the kind of a job.

A call of a coroutine function or of a generator runs nothing, and a function holds up the event loop of
an AsyncWorker, which cannot await its answer: each is refused before a job is claimed.  What only shows
when the handler returns fails the attempt.

A worker that has none for a kind gives the job back for a while: a newer one may know it, as while a
deployment is rolled out.  That counts no attempt.
"""

from __future__ import annotations

import concurrent.futures
import functools
import inspect
import logging
import types
from typing import Any, Callable, Mapping, Optional, Sequence, TypeVar, Union

from .errors import Delay, Snooze

log = logging.getLogger("idemq")
T = TypeVar("T")

Handlers = Mapping[Optional[str], Callable[..., Any]]
"""By kind; that of None is for jobs without one."""


def check_parameters(function: Any, arguments: Sequence[str]) -> None:
    """Raises for a function that cannot be called with so many arguments.

    That of a decorator is what is called, whatever the function takes that it wraps.
    """
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return  # of a function in C that does not say
    try:
        signature.bind(*arguments)
    except TypeError as error:
        name = getattr(function, "__qualname__", None) or repr(function)
        raise TypeError(f"{name}{signature} cannot be called with ({', '.join(arguments)}): {error}") from None


def check_callable(function: Any, coroutines: bool, caller: str, other: str, arguments: Sequence[str]) -> None:
    """Raises for a function that the caller cannot run; other: what can; arguments: the names of what it is given.

    Of coroutine functions a decorator may make functions; it tells so by functools.wraps.
    """
    name = getattr(function, "__qualname__", None) or repr(function)
    given = function
    while isinstance(function, functools.partial):
        function = function.func
    called = function if inspect.isroutine(function) else getattr(type(function), "__call__", None)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise TypeError(f"{name} is a generator function, which runs nothing when called: use a function that returns its "
            "result")
    if not coroutines and any(map(inspect.iscoroutinefunction, (function, called))):
        raise TypeError(f"{caller} calls functions, but {name} is a coroutine function: use {other}")
    if (
        coroutines
        and (inspect.ismethod(called) or inspect.isfunction(called))
        and not any(map(inspect.iscoroutinefunction, (function, called, inspect.unwrap(function))))
    ):
        raise TypeError(
            f"{caller} awaits coroutine functions, but {name} is a plain function: declare it with async def, or "
            f"use {other}"
        )
    check_parameters(given, arguments)


_LAZY = (types.GeneratorType, map, filter, concurrent.futures.Future)


def _has_not_run(value: Any) -> bool:
    try:
        return inspect.isawaitable(value) or inspect.isasyncgen(value) or isinstance(value, _LAZY)
    except Exception:  # its class is anybody's, and may raise when it is asked what it is
        return False


def finished_result(answer: T) -> T:
    """What a call has returned, unless that is something which has yet to run, or a list of such."""
    try:
        parts: list[Any] = list(answer) if isinstance(answer, (list, tuple)) else [answer]
    except Exception:
        return answer
    for each in parts:
        if _has_not_run(each):
            if inspect.iscoroutine(each):
                each.close()  # else Python says that nobody has awaited it
            raise TypeError(f"the handler returned a {type(each).__name__}, which has not run")
    return answer


def single_handler(
    handlers: Union[Callable[..., Any], Handlers], delay: Delay, coroutines: bool, worker: str, other: str, outside: bool
) -> Callable[..., Any]:
    """One handler for all: the one that is given, or one that calls that of the job's kind."""
    arguments = ("job",) if outside else ("job", "conn")
    if callable(handlers):
        check_callable(handlers, coroutines, worker, other, arguments)
        return handlers
    by_kind = dict(handlers) if isinstance(handlers, Mapping) else {}
    if not by_kind or not all(callable(handler) for handler in by_kind.values()):
        raise TypeError("pass a function as handler, or a dict that maps kinds to functions")
    for handler in by_kind.values():
        check_callable(handler, coroutines, worker, other, arguments)
    unknown: set[Optional[str]] = set()

    def call(job: Any, *args: Any) -> Any:
        handler = by_kind.get(job.kind)
        if handler is not None:
            return handler(job, *args)
        if job.kind not in unknown and len(unknown) < 1000:
            unknown.add(job.kind)
            log.warning("%s %d: no handler for kind %s, so the worker gives such jobs back", job.queue, job.id, job.kind)
        raise Snooze(delay, f"no handler for kind {job.kind}")

    return call
