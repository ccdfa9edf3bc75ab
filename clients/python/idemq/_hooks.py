"""What an application may have called around its jobs: for tracers, metrics, loggers, a context of its own.

`around` decides what becomes of an attempt, as the handler does; the others only hear.  What `failed` and
`stopped` raise is a line in the log.
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
    """What has become of an attempt that has failed."""

    attempt: int
    will_retry: bool
    """Whether there will be another one."""
    error: BaseException
    """What the handler has raised; TimeoutError when its time was over, StaleToken when the lease was lost."""
    outcome: str
    """retrying, dead; lost or stale: another attempt has the job, or will have it."""


@dataclass(frozen=True)
class Hooks:
    """The hooks of a worker: functions, of an AsyncWorker coroutine functions."""

    around: Optional[Callable[[Any, Callable[[], Any]], Any]] = None
    """around(job, call), for each attempt: call() is the handler, and what around returns is the result."""
    failed: Optional[Callable[[Any, Failure], Any]] = None
    """failed(job, failure), once the server knows of it."""
    started: Optional[Callable[[Any], Any]] = None
    """started(worker), before the first claim; what it raises ends run()."""
    stopped: Optional[Callable[[Any, dict[str, int]], Any]] = None
    """stopped(worker, outcomes), after the last attempt."""


_ARGUMENTS = {"around": ("job", "call"), "failed": ("job", "failure"), "started": ("worker",), "stopped": ("worker", "outcomes")}


def checked_hooks(given: Union[Hooks, Mapping[str, Callable[..., Any]], None], coroutines: bool, worker: str, other: str) -> Hooks:
    """Hooks that the worker can call; raises for others."""
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
    """Calls one, if there is one: a function in a thread, so that it holds up no heartbeat."""
    if hook is None:
        return
    if not coroutines:
        await in_thread(hook, *args)
        return
    answer = hook(*args)
    if inspect.isawaitable(answer):
        await answer


async def call_hook_safely(name: str, hook: Optional[Callable[..., Any]], coroutines: bool, *args: Any) -> None:
    """The same; what it raises is logged."""
    try:
        await call_hook(hook, coroutines, *args)
    except Exception:
        log.exception("hook %s", name)
