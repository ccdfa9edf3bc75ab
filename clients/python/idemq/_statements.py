"""Functions that send one statement in the transaction of the caller's connection, which is their first argument."""

from __future__ import annotations

import functools
import inspect
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Generator, Generic, Iterator, Optional, TypeVar, Union, overload

from psycopg import AsyncConnection, Connection
from psycopg.pq import TransactionStatus
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


@dataclass
class Savepoint(Generic[T]):
    """Statements of which all or none take effect: in a savepoint, or in a transaction of their own if none is open."""

    plan: Plan[T]


class InTransaction:
    """A question: whether a transaction is open, or would be begun."""


Plan = Generator[Union[Statement[Any], Savepoint[Any], InTransaction], Any, T]
"""Several statements: a generator that yields each, and gets its answer or its error."""


def statement(build: Callable[P, Union[Statement[T], Plan[T]]]) -> Call[P, T]:
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


def ask(conn: AnyConnection, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], build: Callable[[], Union[Statement[Any], Plan[Any]]]) -> Any:
    """Sends a statement over the caller's connection, and returns its answer; a coroutine if this is an AsyncConnection.

    name, args, kwargs: the call, for the span of a call that adds jobs.  Its context goes with the jobs."""
    require_connection(conn, Connection, AsyncConnection)
    if not _trace.sends(name):
        first = build()
        return _run_async(conn, first) if isinstance(conn, AsyncConnection) else _run(conn, first)
    sending = _trace.Sending(name, args, kwargs)
    with sending.active():
        first = build()
        if isinstance(conn, AsyncConnection):
            return _send_async(conn, first, sending)
        answer = _run(conn, first)
    sending.sent(answer)
    return answer


async def _send_async(conn: AsyncConnection[Any], first: Union[Statement[Any], Plan[Any]], sending: _trace.Sending) -> Any:
    with sending.active():
        answer = await _run_async(conn, first)
    sending.sent(answer)
    return answer


def _run(conn: Connection[Any], first: Union[Statement[Any], Plan[Any]]) -> Any:
    return _ask(conn, first) if isinstance(first, Statement) else _run_plan(conn, first)


async def _run_async(conn: AsyncConnection[Any], first: Union[Statement[Any], Plan[Any]]) -> Any:
    return await (_ask_async(conn, first) if isinstance(first, Statement) else _run_plan_async(conn, first))


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


def _run_plan(conn: Connection[Any], plan: Plan[Any]) -> Any:
    resume: Callable[[], Any] = functools.partial(next, plan)
    while True:
        try:
            this = resume()
        except StopIteration as end:
            return end.value
        try:
            if isinstance(this, Savepoint):
                with conn.transaction():
                    answer = _run_plan(conn, this.plan)
            elif isinstance(this, InTransaction):
                answer = _is_in_transaction(conn)
            else:
                answer = _ask(conn, this)
            resume = functools.partial(plan.send, answer)
        except Exception as error:
            resume = functools.partial(plan.throw, error)


def _is_in_transaction(conn: AnyConnection) -> bool:
    return not conn.autocommit or hasattr(conn, "begins_transaction") or conn.info.transaction_status != TransactionStatus.IDLE


async def _run_plan_async(conn: AsyncConnection[Any], plan: Plan[Any]) -> Any:
    resume: Callable[[], Any] = functools.partial(next, plan)
    while True:
        try:
            this = resume()
        except StopIteration as end:
            return end.value
        try:
            if isinstance(this, Savepoint):
                async with conn.transaction():
                    answer = await _run_plan_async(conn, this.plan)
            elif isinstance(this, InTransaction):
                answer = _is_in_transaction(conn)
            else:
                answer = await _ask_async(conn, this)
            resume = functools.partial(plan.send, answer)
        except Exception as error:
            resume = functools.partial(plan.throw, error)


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
