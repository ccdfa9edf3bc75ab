"""Hooks: functions that an application has called around its jobs, for tracing, metrics or logging.

`around` decides the outcome of an attempt, like the handler.  The other hooks are only notified.  Exceptions of
`failed` and `stopped` are logged.
"""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass, fields
from typing import Any, Callable, Mapping, NamedTuple, Optional, Union

from ._handlers import check_callable, check_parameters
from ._threads import in_thread

log = logging.getLogger("idemq")


class Failure(NamedTuple):
    """A failed attempt."""

    attempt: int
    will_retry: bool
    """Whether there will be another attempt."""
    error: BaseException
    """The handler's exception, TimeoutError after the deadline, or StaleToken if the lease was lost."""
    outcome: str
    """retrying or dead; lost or stale if the lease was lost, or if the failure could not be recorded."""


@dataclass(frozen=True)
class Hooks:
    """The hooks of a worker: functions, or coroutine functions for an AsyncWorker."""

    around: Optional[Callable[[Any, Callable[[], Any]], Any]] = None
    """around(job, call): called for each attempt.  call() runs the handler, and around returns the result."""
    failed: Optional[Callable[[Any, Failure], Any]] = None
    """failed(job, failure): called after the server has recorded the failure."""
    started: Optional[Callable[[Any], Any]] = None
    """started(worker): called before the first claim.  An exception ends run()."""
    stopped: Optional[Callable[[Any, dict[str, int]], Any]] = None
    """stopped(worker, outcomes): called after the last attempt."""


_ARGUMENTS = {"around": ("job", "call"), "failed": ("job", "failure"), "started": ("worker",), "stopped": ("worker", "outcomes")}


def checked_hooks(given: Union[Hooks, Mapping[str, Callable[..., Any]], None], coroutines: bool, worker: str, other: str) -> Hooks:
    """The given hooks as Hooks.  Raises TypeError for hooks that the worker cannot call."""
    names = ", ".join(field.name for field in fields(Hooks))
    if isinstance(given, Mapping):
        unknown = [str(name) for name in given if name not in names.split(", ")]
        if unknown:
            raise TypeError(f"unknown hook {', '.join(unknown)}; the hooks are {names}")
        given = Hooks(**given)
    if given is None:
        return Hooks()
    if not isinstance(given, Hooks):
        raise TypeError(f"hooks must be a Hooks object, or a dict with the keys {names}")
    for field in fields(Hooks):
        function = getattr(given, field.name)
        if function is not None and not callable(function):
            raise TypeError(f"hook {field.name} is not a function")
        if function is not None and (not coroutines or field.name == "around"):
            check_callable(function, coroutines, f"{worker}, for its hook {field.name},", other, _ARGUMENTS[field.name])
        elif function is not None:
            check_parameters(function, _ARGUMENTS[field.name])
    return given


async def call_hook(hook: Optional[Callable[..., Any]], coroutines: bool, *args: Any) -> None:
    """Calls a hook, if there is one.  A function runs in a thread, so that it does not delay heartbeats."""
    if hook is None:
        return
    if not coroutines:
        await in_thread(hook, *args)
        return
    answer = hook(*args)
    if inspect.isawaitable(answer):
        await answer


async def call_hook_safely(name: str, hook: Optional[Callable[..., Any]], coroutines: bool, *args: Any) -> None:
    """Like call_hook, but logs exceptions."""
    try:
        await call_hook(hook, coroutines, *args)
    except Exception:
        log.exception("hook %s", name)
