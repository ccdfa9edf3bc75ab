"""Queue: a queue whose payloads and results have types.

A Queue encodes payloads for the functions that add jobs, and says how a worker decodes payloads and encodes results.  Everything
else stays as it is for an untyped queue: the statements are those of enqueue, schedule, result and their like.
"""

from __future__ import annotations

import functools
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Generic, Mapping, Optional, Sequence, TypeVar, Union, cast, overload

from psycopg import AsyncConnection, Connection

from . import _flows, _jobs, _producer
from ._arguments import optional_text, text_argument
from ._codec import Codec, checked_codec
from ._flows import Result
from ._handlers import Kind
from ._job import AsyncJob, Job
from ._options import QueueOptions
from ._payload_types import converter
from ._producer import Enqueued, NewJob
from ._queues import Inside, Outside
from ._statements import Plan, Statement, ask, unsent
from ._typed_jobs import QueueTypes
from .errors import Delay, Key

T = TypeVar("T")
P = TypeVar("P")
R = TypeVar("R")

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec, TypeGuard

    from ._statements import Call

    A = ParamSpec("A")

    class Method(Generic[A, T]):
        """A method whose first argument is a connection."""

        def __get__(self, instance: object, owner: Any) -> Call[A, T]:
            ...


def _method(build: Callable[Concatenate[Any, A], Statement[T]]) -> Method[A, T]:
    """Decorator: makes a method that sends the statement which this one returns.  The first argument of its calls is a connection."""

    @functools.wraps(build)
    def call(self: Any, conn: Any, *args: Any, **kwargs: Any) -> Any:
        return ask(conn, build.__name__, (self.name, *args), kwargs, lambda: build(self, *args, **kwargs))

    return cast("Method[A, T]", call)


class Queue(Generic[P, R]):
    """A queue, or one kind of its jobs, whose payloads and results have types.

    mail = Queue("mail", Mail, result=Receipt)
    mail.enqueue(conn, Mail("anna@example.com"), key="order-42")
    Worker(dsn, [mail.inside(send, concurrency=4)]).run()          # def send(job: Job[Mail], conn) -> Receipt
    """

    @overload
    def __init__(self: Queue[Any, Any], name: str, *, kind: Optional[str] = None, codec: Optional[Codec] = None) -> None:
        ...

    @overload
    def __init__(self: Queue[None, None], name: str, payload: None, *, kind: Optional[str] = None, codec: Optional[Codec] = None) -> None:
        ...

    @overload
    def __init__(self: Queue[None, R], name: str, payload: None, *, result: type[R], kind: Optional[str] = None, codec: Optional[Codec] = None) -> None:
        ...

    @overload
    def __init__(self: Queue[P, None], name: str, payload: type[P], *, kind: Optional[str] = None, codec: Optional[Codec] = None) -> None:
        ...

    @overload
    def __init__(self, name: str, payload: type[P], *, result: type[R], kind: Optional[str] = None, codec: Optional[Codec] = None) -> None:
        ...

    def __init__(self, name: str, payload: Any = Any, *, result: Any = None, kind: Optional[str] = None, codec: Optional[Codec] = None) -> None:
        """Connects to nothing.

        payload: type of the payloads.  Without it, payloads and results are not checked.
        result: type of the results.  Without it, the handler must return None.
        kind: the kind of the jobs.  A queue of several kinds has a Queue for each, with the same name.
        codec: encodes the payloads and what is stored about the jobs, to encrypt them for example.

        The types consist of dataclasses, TypedDicts, pydantic models, str, int, float, bool, None, datetime, date, UUID, Decimal, Enum,
        Literal, Optional[X], list[X] and dict[str, X].  Raises TypeError, with the path of the field, for another type.
        """
        self.name = text_argument("name", name)
        self.kind = optional_text("kind", kind)
        self.codec = checked_codec(codec)
        untyped = payload is Any
        self.types = QueueTypes(
            None if untyped else converter(payload, f"queue {name}: payload"),
            None if untyped and result is None else converter(result, f"queue {name}: result"),
            untyped or result is not None,
        )

    def __repr__(self) -> str:
        return f"<queue {self.name}{'' if self.kind is None else f', kind {self.kind}'}>"

    def encode(self, payload: P) -> Any:
        """The payload as it is stored: a value that json.dumps accepts.  Raises TypeMismatch."""
        return self.types.encode_payload(payload)

    def decode(self, value: Any) -> P:
        """The payload from what encode returns.  Raises TypeMismatch."""
        decoded: P = self.types.decode_payload(value)
        return decoded

    def decode_result(self, value: Any) -> Optional[R]:
        """The result from its JSON value, as in a row of idemq.jobs; None means that there is none.  Raises TypeMismatch."""
        decoded: Optional[R] = self.types.decode_result(value)
        return decoded

    @_method
    def enqueue(
        self,
        payload: P,
        *,
        key: Optional[Key] = None,
        delay: Optional[Delay] = None,
        run_at: Optional[datetime] = None,
        priority: int = 4,
        group_key: Optional[str] = None,
        max_attempts: Optional[int] = None,
        headers: Optional[dict[str, Any]] = None,
        expires_in: Optional[Delay] = None,
        key_ttl: Optional[Delay] = None,
        on_duplicate: str = "keep",
        nowait: bool = False,
        max_wait: Optional[Delay] = None,
        depends_on: Optional[Sequence[int]] = None,
        on_parent_failure: str = "cancel",
    ) -> Statement[Enqueued[Optional[R]]]:
        """Like the function enqueue.  Raises TypeMismatch before anything is sent, if the payload does not fit."""
        made: Any = unsent(_producer.enqueue)(
            self.name, self.encode(payload), key=key, delay=delay, run_at=run_at, priority=priority, group_key=group_key, max_attempts=max_attempts,
            headers=headers, expires_in=expires_in, key_ttl=key_ttl, on_duplicate=on_duplicate, nowait=nowait, kind=self.kind, max_wait=max_wait,
            depends_on=depends_on, on_parent_failure=on_parent_failure, codec=self.codec,
        )  # fmt: skip
        mapped: Statement[Enqueued[Optional[R]]] = _mapped(made, self._typed)
        return mapped

    @_method
    def enqueue_many(
        self,
        jobs: Sequence[NewJob[P]],
        *,
        on_duplicate: str = "keep",
        nowait: bool = False,
        max_wait: Optional[Delay] = None,
        depends_on: Optional[Sequence[int]] = None,
        on_parent_failure: str = "cancel",
    ) -> Statement[list[Enqueued[Optional[R]]]]:
        """Like the function enqueue_many."""
        encoded: Any = jobs
        if isinstance(jobs, Sequence) and all(isinstance(job, Mapping) and "payload" in job for job in jobs):  # otherwise the function raises
            encoded = [
                {**job, "payload": self.types.encode_payload(job["payload"], f"jobs[{n}].payload"), "kind": self._kind_of(job, n)} for n, job in enumerate(jobs)
            ]
        made: Any = unsent(_producer.enqueue_many)(
            self.name, encoded, on_duplicate=on_duplicate, nowait=nowait, max_wait=max_wait, depends_on=depends_on, on_parent_failure=on_parent_failure,
            codec=self.codec,
        )  # fmt: skip
        mapped: Statement[list[Enqueued[Optional[R]]]] = _mapped(made, lambda added: [self._typed(each) for each in added])
        return mapped

    def _kind_of(self, job: Mapping[str, Any], n: int) -> Optional[str]:
        kind: Optional[str] = job.get("kind")
        if self.kind is not None and kind not in (None, self.kind):
            raise ValueError(f"job {n} has kind {kind}, but this Queue is of kind {self.kind}")
        return kind if self.kind is None else self.kind

    def _typed(self, added: Enqueued[Any]) -> Enqueued[Optional[R]]:
        return added._replace(result=self.decode_result(added.result))

    @_method
    def schedule(
        self,
        name: str,
        cron: str,
        payload: P,
        *,
        time_zone: str = "UTC",
        priority: int = 4,
        group_key: Optional[str] = None,
        max_attempts: Optional[int] = None,
        headers: Optional[dict[str, Any]] = None,
        expires_in: Optional[Delay] = None,
    ) -> Statement[Optional[datetime]]:
        """Like the function schedule."""
        made: Statement[Optional[datetime]] = unsent(_jobs.schedule)(
            name, cron, self.name, self.encode(payload), time_zone=time_zone, priority=priority, group_key=group_key, max_attempts=max_attempts,
            headers=headers, expires_in=expires_in, kind=self.kind, codec=self.codec,
        )  # fmt: skip
        return made

    @_method
    def result(self, id: int) -> Statement[Result[Optional[R]]]:
        """Like the function result."""
        made: Statement[Any] = unsent(_jobs.result)(id, codec=self.codec)
        mapped: Statement[Result[Optional[R]]] = _mapped(made, self._typed_result)
        return mapped

    @_method
    def wait_results(self, ids: Sequence[int], timeout: Delay = 30) -> Statement[list[Result[Optional[R]]]]:
        """Like the function wait_results."""
        made: Statement[Any] = unsent(_flows.wait_results)(ids, timeout, codec=self.codec)
        mapped: Statement[list[Result[Optional[R]]]] = _mapped(made, lambda results: [self._typed_result(each) for each in results])
        return mapped

    def _typed_result(self, found: Result[Any]) -> Result[Optional[R]]:
        return found._replace(result=self.decode_result(found.result))

    def inside(
        self,
        handler: Union[
            Callable[[Job[P], Connection[Any]], R],
            Callable[[AsyncJob[P], AsyncConnection[Any]], Awaitable[R]],
            Kind[Callable[[Job[P], Connection[Any]], R]],
            Kind[Callable[[AsyncJob[P], AsyncConnection[Any]], Awaitable[R]]],
        ],
        *,
        concurrency: int = 1,
        batch: int = 1,
        lease: Optional[Delay] = None,
        timeout: float = 3600,
        attach: Optional[bool] = None,
        unknown_kind: Delay = 60,
        never_retry: Sequence[type[BaseException]] = (),
        ahead: int = 0,
        ahead_wait: float = 1,
    ) -> Inside:
        """An element of Worker's list: runs the jobs in transactions, as Inside does.  The other arguments are those of Inside.

        Several kinds of a queue share its options: pass them to one, or the same to all.
        """
        return _bound(self, Inside(
            _unbound(handler), concurrency=concurrency, batch=batch, lease=lease, timeout=timeout, attach=attach, unknown_kind=unknown_kind,
            never_retry=never_retry, codec=self.codec, ahead=ahead, ahead_wait=ahead_wait,
        ), handler)  # fmt: skip

    def outside(
        self,
        handler: Union[
            Callable[[Job[P]], R],
            Callable[[AsyncJob[P]], Awaitable[R]],
            Kind[Callable[[Job[P]], R]],
            Kind[Callable[[AsyncJob[P]], Awaitable[R]]],
        ],
        *,
        concurrency: int = 1,
        lease: Optional[Delay] = None,
        timeout: float = 3600,
        attach: Optional[bool] = None,
        unknown_kind: Delay = 60,
        never_retry: Sequence[type[BaseException]] = (),
        ahead: int = 0,
        ahead_wait: float = 1,
    ) -> Outside:
        """Like inside, but runs the jobs as Outside does, without a transaction."""
        return _bound(self, Outside(
            _unbound(handler), concurrency=concurrency, lease=lease, timeout=timeout, attach=attach, unknown_kind=unknown_kind, never_retry=never_retry,
            codec=self.codec, ahead=ahead, ahead_wait=ahead_wait,
        ), handler)  # fmt: skip


def _unbound(handler: Any) -> Any:
    return handler.handler if isinstance(handler, Kind) else handler


H = TypeVar("H", Inside, Outside)


def _bound(queue: Queue[Any, Any], made: H, handler: Any) -> H:
    if not callable(_unbound(handler)):
        raise TypeError("handler must be a function, or a Kind with a function; a queue of several kinds has a Queue for each")
    made.bound = queue
    made.handler = handler
    return made


def _mapped(made: Any, typed: Callable[[Any], Any]) -> Any:
    """The same statement with another answer.  A statement that follows it gets this answer."""
    if not isinstance(made, Statement):
        return _mapped_plan(made, typed)
    return Statement(made.sql, made.values, lambda rows: typed(made.answer(rows)), made.binary, made.then)


def _mapped_plan(plan: Plan[Any], typed: Callable[[Any], Any]) -> Plan[Any]:
    return typed((yield from plan))


def is_list_of_bound(queues: Any) -> TypeGuard[Sequence[Union[Inside, Outside]]]:
    """Whether these are the handlers of several queues, each made by Queue.inside or Queue.outside."""
    return isinstance(queues, (list, tuple)) and len(queues) > 0 and all(isinstance(each, (Inside, Outside)) and each.bound is not None for each in queues)


def handlers_by_queue(bound: Sequence[Union[Inside, Outside]]) -> dict[str, Union[Inside, Outside]]:
    """The handlers of a worker that was created with a list.  Those of one queue become one, with a dict of functions by kind."""
    by_queue: dict[str, list[Union[Inside, Outside]]] = {}
    for each in bound:
        by_queue.setdefault(each.bound.name, []).append(each)
    return {name: _merged(name, several) for name, several in by_queue.items()}


def _merged(queue: str, several: Sequence[Union[Inside, Outside]]) -> Union[Inside, Outside]:
    first = several[0]
    if len(several) == 1 and first.bound.kind is None and not isinstance(first.handler, Kind):
        first.types = first.bound.types
        return first
    handlers: dict[Optional[str], Any] = {}
    types: dict[Optional[str], QueueTypes] = {}
    for each in several:
        kind = each.bound.kind
        if type(each) is not type(first):
            raise TypeError(f"queue {queue}: its handlers must be all inside or all outside")
        if kind in handlers:
            raise ValueError(f"queue {queue} has two handlers for {'jobs without a kind' if kind is None else f'kind {kind}'}")
        handlers[kind], types[kind] = each.handler, each.bound.types
    made = type(first)(handlers)
    made.options = QueueOptions(**{option.name: _common(queue, option, several) for option in fields(QueueOptions)})
    made.types = types
    return made


def _common(queue: str, option: Any, several: Sequence[Union[Inside, Outside]]) -> Any:
    """The value of an option that the handlers of a queue share."""
    given = [value for each in several if (value := getattr(each.options, option.name)) != option.default]
    if any(value != given[0] for value in given):
        raise ValueError(f"queue {queue}: the handlers of a queue share its options, but {option.name} is {given[0]} for one and {given[1]} for another")
    return given[0] if given else option.default
