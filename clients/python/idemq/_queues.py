"""What a worker does with the jobs of a queue: Inside, Outside, and their options."""

from __future__ import annotations

from typing import Any, Awaitable, Callable, Mapping, Optional, Sequence, Union

from psycopg import AsyncConnection, Connection

from ._arguments import bool_argument, classes_argument, count_argument, delay_argument, int_argument, positive_seconds
from ._codec import Codec, checked_codec
from ._handlers import Kind
from ._job import AsyncJob, Job
from ._logs import mode_argument
from ._options import QueueOptions
from .errors import Delay

InsideFunction = Union[Callable[[Job[Any], Connection[Any]], Any], Callable[[AsyncJob[Any], AsyncConnection[Any]], Awaitable[Any]]]
OutsideFunction = Union[Callable[[Job[Any]], Any], Callable[[AsyncJob[Any]], Awaitable[Any]]]


def queue_options(
    concurrency: int,
    batch: int,
    lease: Optional[Delay],
    timeout: float,
    attach: Optional[bool],
    unknown_kind: Delay,
    never_retry: Sequence[type[BaseException]],
    capture_logs: Optional[str] = None,
    codec: Optional[Codec] = None,
    ahead: int = 0,
    ahead_wait: float = 1,
) -> QueueOptions:
    """The options of a queue.  Raises TypeError for an argument of the wrong type, and ValueError for a number out of range."""
    count_argument("concurrency", concurrency)
    count_argument("batch", batch)
    positive_seconds("timeout", timeout)
    if int_argument("ahead", ahead) < 0:
        raise ValueError(f"ahead must be at least 0, not {ahead}")
    positive_seconds("ahead_wait", ahead_wait)
    delay_argument("lease", lease)
    delay_argument("unknown_kind", unknown_kind)
    if attach is not None:
        bool_argument("attach", attach)
    classes = classes_argument("never_retry", never_retry)
    if capture_logs is not None:
        mode_argument("capture_logs", capture_logs)
    return QueueOptions(concurrency, batch, lease, timeout, attach, unknown_kind, classes, capture_logs, checked_codec(codec), ahead, ahead_wait)


class TypedHandler:
    """What Inside and Outside have in common, if a Queue has made them."""

    bound: Any = None
    """The Queue that has made this one."""
    types: Any = None
    """The types of the payloads and results (QueueTypes), or a dict of them by kind; None if they are not checked."""


class Inside(TypedHandler):
    """Runs a queue's jobs in transactions, as Worker.run does: the handler gets the job and a connection, whose transaction also
    completes the job."""

    def __init__(
        self,
        handler: Union[InsideFunction, Mapping[Optional[str], Union[InsideFunction, Kind[Any]]]],
        *,
        concurrency: int = 1,
        batch: int = 1,
        lease: Optional[Delay] = None,
        timeout: float = 3600,
        attach: Optional[bool] = None,
        unknown_kind: Delay = 60,
        never_retry: Sequence[type[BaseException]] = (),
        capture_logs: Optional[str] = None,
        codec: Optional[Codec] = None,
        ahead: int = 0,
        ahead_wait: float = 1,
    ) -> None:
        """handler: a function, or a dict of functions (or Kind) by the kind of the job (None for jobs without a kind).
        capture_logs: None means that of the worker.  The other arguments are those of Worker."""
        self.handler: Any = handler
        self.options = queue_options(concurrency, batch, lease, timeout, attach, unknown_kind, never_retry, capture_logs, codec, ahead, ahead_wait)


class Outside(TypedHandler):
    """Runs a queue's jobs without a transaction, as Worker.run_outside does: the handler gets the job, which is completed afterwards."""

    def __init__(
        self,
        handler: Union[OutsideFunction, Mapping[Optional[str], Union[OutsideFunction, Kind[Any]]]],
        *,
        concurrency: int = 1,
        lease: Optional[Delay] = None,
        timeout: float = 3600,
        attach: Optional[bool] = None,
        unknown_kind: Delay = 60,
        never_retry: Sequence[type[BaseException]] = (),
        capture_logs: Optional[str] = None,
        codec: Optional[Codec] = None,
        ahead: int = 0,
        ahead_wait: float = 1,
    ) -> None:
        """Like Inside."""
        self.handler: Any = handler
        self.options = queue_options(concurrency, 1, lease, timeout, attach, unknown_kind, never_retry, capture_logs, codec, ahead, ahead_wait)


QueueHandler = Union[Inside, Outside, InsideFunction, Mapping[Optional[str], Union[InsideFunction, Kind[Any]]]]
"""What a worker does with a queue.  A function or a dict means Inside."""


def checked_queues(queues: Mapping[Any, QueueHandler]) -> dict[str, Union[Inside, Outside]]:
    """The handlers by queue, from the argument of a worker."""
    if not queues:
        raise ValueError("queues must not be empty")
    checked: dict[str, Union[Inside, Outside]] = {}
    for name, handler in queues.items():
        if not isinstance(name, str):
            raise TypeError(f"each queue must be the name of a queue as a str, not {type(name).__name__}")
        if isinstance(handler, TypedHandler) and handler.bound is not None:
            raise TypeError(f"queue {name}: pass what Queue.inside and Queue.outside return in a list, not in a dict")
        checked[str.__str__(name)] = handler if isinstance(handler, (Inside, Outside)) else Inside(handler)
    return checked
