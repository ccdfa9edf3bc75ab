"""enqueue, in the transaction of the given connection."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime
from typing import Any, Awaitable, Callable, Iterator, NamedTuple, Optional, Sequence, TypeVar, Union, overload

from psycopg import AsyncConnection, Connection
from psycopg.rows import tuple_row
from psycopg.types.json import Jsonb

from . import _trace
from ._arguments import (
    bool_argument,
    delay_argument,
    headers_argument,
    ids_argument,
    key_argument,
    options_of_a_job,
    queue_argument,
    text_argument,
)
from ._values import NotEncodable, Row, jsonb_parameter, require_connection
from .errors import Delay, Key

T = TypeVar("T")

_ENQUEUE = """SELECT id, outcome::text, status::text, result
    FROM idemq.enqueue(%(queue)s, %(payload)s, key => %(key)s, delay => %(delay)s::interval,
        run_at => %(run_at)s, priority => %(priority)s::int, group_key => %(group_key)s,
        max_attempts => %(max_attempts)s::int, headers => %(headers)s::jsonb,
        expires_in => %(expires_in)s::interval, key_ttl => %(key_ttl)s::interval,
        on_duplicate => %(on_duplicate)s, nowait => %(nowait)s, kind => %(kind)s,
        max_wait => %(max_wait)s::interval, depends_on => %(depends_on)s::bigint[],
        on_parent_failure => %(on_parent_failure)s)"""


class Enqueued(NamedTuple):
    """Result of enqueue.  For a duplicate, id, status and result are those of the first job."""

    id: int
    outcome: str
    status: str
    result: Any


@overload
def enqueue(
    conn: Connection[Any],
    queue: str,
    payload: Any,
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
    kind: Optional[str] = None,
    max_wait: Optional[Delay] = None,
    depends_on: Optional[Sequence[int]] = None,
    on_parent_failure: str = "cancel",
) -> Enqueued:
    ...


@overload
def enqueue(
    conn: AsyncConnection[Any],
    queue: str,
    payload: Any,
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
    kind: Optional[str] = None,
    max_wait: Optional[Delay] = None,
    depends_on: Optional[Sequence[int]] = None,
    on_parent_failure: str = "cancel",
) -> Awaitable[Enqueued]:
    ...


def enqueue(
    conn: Union[Connection[Any], AsyncConnection[Any]],
    queue: str,
    payload: Any,
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
    kind: Optional[str] = None,
    max_wait: Optional[Delay] = None,
    depends_on: Optional[Sequence[int]] = None,
    on_parent_failure: str = "cancel",
) -> Union[Enqueued, Awaitable[Enqueued]]:
    """Add a job in the connection's transaction.  Await the call if conn is an AsyncConnection.

    The job exists once the transaction commits.

    payload: any value that can be encoded as JSON.
    key: idempotency key.  A call with the same key and payload returns the first job; one with another payload raises KeyReused.
    delay, run_at: the job is not ready before this time.
    priority: from 0 (highest) to 9.
    group_key: jobs with the same group key run one after the other.
    expires_in: the job is cancelled if no worker has claimed it within this time.
    key_ttl: time for which the key remains reserved.
    on_duplicate: "keep", "ignore", "replace", "rerun" or "error".
    nowait: return the outcome "locked" instead of waiting for a transaction that is using the key.
    kind: label that selects the handler.
    max_wait: with on_duplicate="replace", the longest that repeated requests can postpone the job.
    depends_on: ids of jobs that must finish first.
    on_parent_failure: what to do if one of them fails: "cancel", "wait" or "run".
    """
    require_connection(conn, Connection, AsyncConnection)
    values = {
        **options_of_a_job(delay, run_at, priority, group_key, max_attempts, expires_in, kind),
        "queue": queue_argument(queue),
        "payload": Jsonb(payload),
        "key": key_argument(key),
        "headers": jsonb_parameter("headers", _trace.inject(headers_argument(headers))),
        "key_ttl": delay_argument("key_ttl", key_ttl),
        "on_duplicate": text_argument("on_duplicate", on_duplicate),
        "nowait": bool_argument("nowait", nowait),
        "max_wait": delay_argument("max_wait", max_wait),
        "depends_on": None if depends_on is None else ids_argument("depends_on", depends_on),
        "on_parent_failure": text_argument("on_parent_failure", on_parent_failure),
    }
    return ask(conn, _ENQUEUE, values, lambda rows: Enqueued(*rows[0]))


def ask(
    conn: Union[Connection[Any], AsyncConnection[Any]],
    sql: str,
    values: dict[str, Any],
    answer: Callable[[list[Row]], T],
    binary: bool = False,
) -> Union[T, Awaitable[T]]:
    """The result of a statement, or an awaitable for an AsyncConnection.

    binary: whether to transfer the result in binary format, as times and floats require: their text depends on the
    connection's DateStyle, IntervalStyle and extra_float_digits.
    """
    require_connection(conn, Connection, AsyncConnection)
    if isinstance(conn, AsyncConnection):
        return _ask_async(conn, sql, values, answer, binary)
    with conn.cursor(row_factory=tuple_row, binary=binary) as cursor:
        with _naming_payload(values):
            cursor.execute(sql, values)
        return answer(cursor.fetchall())


@contextmanager
def _naming_payload(values: dict[str, Any]) -> Iterator[None]:
    """Adds the argument's name to an error of the JSON encoder.  An error about headers already contains it.

    psycopg encodes the payload when it sends it, because an application can choose an encoder per connection (set_json_dumps)."""
    try:
        yield
    except (TypeError, ValueError, RecursionError) as error:
        if "payload" not in values or isinstance(error, NotEncodable):
            raise
        raise NotEncodable("payload", error) from error


async def _ask_async(
    conn: AsyncConnection[Any], sql: str, values: dict[str, Any], answer: Callable[[list[Row]], T], binary: bool
) -> T:
    async with conn.cursor(row_factory=tuple_row, binary=binary) as cursor:
        with _naming_payload(values):
            await cursor.execute(sql, values)
        return answer(await cursor.fetchall())

