"""Functions that send one statement in the transaction of the caller's connection, which is their first argument."""

from __future__ import annotations

import functools
import inspect
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Generic, Iterator, Optional, TypeVar, overload

from psycopg import AsyncConnection, Connection
from psycopg.rows import tuple_row

from . import _trace
from ._values import AnyConnection, NotEncodable, Row, require_connection

T = TypeVar("T")

if TYPE_CHECKING:
    from typing import Protocol

    from typing_extensions import ParamSpec

    P = ParamSpec("P")
    Answer = TypeVar("Answer", covariant=True)

    class Call(Protocol[P, Answer]):
        """A function whose call must be awaited if the connection is an AsyncConnection."""

        __name__: str

        @overload
        def __call__(self, conn: Connection[Any], *args: P.args, **kwargs: P.kwargs) -> Answer:
            ...

        @overload
        def __call__(self, conn: AsyncConnection[Any], *args: P.args, **kwargs: P.kwargs) -> Awaitable[Answer]:
            ...


@dataclass
class Statement(Generic[T]):
    """A statement, and how to read its answer."""

    sql: str
    values: dict[str, Any]
    answer: Callable[[list[Row]], T]
    binary: bool = False
    """Whether to transfer the result in binary format, as times and floats require: their text depends on the connection's DateStyle,
    IntervalStyle and extra_float_digits."""
    then: Optional[Callable[[T], Optional[Statement[T]]]] = None
    """Returns another statement, whose answer is used instead, or None."""


def statement(build: Callable[P, Statement[T]]) -> Call[P, T]:
    """Decorator: makes a function of the connection and the other arguments from one that checks these and returns the statement."""

    @functools.wraps(build)
    def call(conn: AnyConnection, *args: Any, **kwargs: Any) -> Any:
        return ask(conn, build.__name__, args, kwargs, lambda: build(*args, **kwargs))

    signature = inspect.signature(build)
    conn = inspect.Parameter("conn", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation="AnyConnection")
    setattr(call, "__signature__", signature.replace(parameters=[conn, *signature.parameters.values()]))
    return call


def unsent(function: Any) -> Any:
    """The function that returns the statement which this one sends."""
    return function.__wrapped__


def ask(conn: AnyConnection, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], build: Callable[[], Statement[Any]]) -> Any:
    """Sends a statement over the caller's connection, and returns its answer; a coroutine if this is an AsyncConnection.

    name, args, kwargs: the call, for the span of a call that adds jobs.  Its context goes with the jobs."""
    require_connection(conn, Connection, AsyncConnection)
    if not _trace.sends(name):
        first = build()
        return _ask_async(conn, first) if isinstance(conn, AsyncConnection) else _ask(conn, first)
    sending = _trace.Sending(name, args, kwargs)
    with sending.active():
        first = build()
        if isinstance(conn, AsyncConnection):
            return _send_async(conn, first, sending)
        answer = _ask(conn, first)
    sending.sent(answer)
    return answer


async def _send_async(conn: AsyncConnection[Any], first: Statement[T], sending: _trace.Sending) -> T:
    with sending.active():
        answer = await _ask_async(conn, first)
    sending.sent(answer)
    return answer


def _ask(conn: Connection[Any], this: Statement[T]) -> T:
    while True:
        with conn.cursor(row_factory=tuple_row, binary=this.binary) as cursor:
            with _naming_payload(this.values):
                cursor.execute(this.sql.encode(), this.values)
            answer = this.answer(cursor.fetchall() if cursor.description else [])
        following = None if this.then is None else this.then(answer)
        if following is None:
            return answer
        this = following


async def _ask_async(conn: AsyncConnection[Any], this: Statement[T]) -> T:
    while True:
        async with conn.cursor(row_factory=tuple_row, binary=this.binary) as cursor:
            with _naming_payload(this.values):
                await cursor.execute(this.sql.encode(), this.values)
            answer = this.answer(await cursor.fetchall() if cursor.description else [])
        following = None if this.then is None else this.then(answer)
        if following is None:
            return answer
        this = following


@contextmanager
def _naming_payload(values: dict[str, Any]) -> Iterator[None]:
    """Adds the argument's name to an error of the JSON encoder.  An error about headers already contains it.

    psycopg encodes the payload when it sends it, because an application can choose an encoder per connection (set_json_dumps)."""
    try:
        yield
    except (TypeError, ValueError, RecursionError) as error:
        if not {"payload", "payloads"} & values.keys() or isinstance(error, NotEncodable):
            raise
        raise NotEncodable("payload", error) from error
