"""enqueue: in the transaction of the connection that it is given."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Awaitable, Callable, NamedTuple, Optional, Sequence, TypeVar, Union, overload

from psycopg import AsyncConnection, Connection
from psycopg.rows import tuple_row
from psycopg.types.json import Jsonb

from . import _trace
from ._values import Row, jsonb_parameter, require_connection
from .errors import Delay, interval

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
    """What became of an enqueue; of a duplicate the first job's id, status and result."""

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
    key: Optional[str] = None,
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
    key: Optional[str] = None,
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
    key: Optional[str] = None,
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
    """Add a job in the connection's transaction; to be awaited when that is an AsyncConnection.

    The job is there when the transaction commits.  payload is anything that is JSON.  With a key the
    same call again is answered with the first one's outcome; with another payload it raises KeyReused.
    kind is a label by which a worker chooses the handler.  max_wait, with on_duplicate="replace": how long
    after the first request a delay that starts again with each ends.  depends_on: ids of jobs that are
    completed first; on_parent_failure, when one of them fails: "cancel", "wait" or "run".
    """
    values = {
        "queue": queue,
        "payload": Jsonb(payload),
        "key": key,
        "delay": interval(delay),
        "run_at": run_at,
        "priority": priority,
        "group_key": group_key,
        "max_attempts": max_attempts,
        "headers": jsonb_parameter(_trace.inject(headers)),
        "expires_in": interval(expires_in),
        "key_ttl": interval(key_ttl),
        "on_duplicate": on_duplicate,
        "nowait": nowait,
        "kind": kind,
        "max_wait": interval(max_wait),
        "depends_on": None if depends_on is None else list(depends_on),
        "on_parent_failure": on_parent_failure,
    }
    return ask(conn, _ENQUEUE, values, lambda rows: Enqueued(*rows[0]))


def ask(
    conn: Union[Connection[Any], AsyncConnection[Any]],
    sql: str,
    values: dict[str, Any],
    answer: Callable[[list[Row]], T],
) -> Union[T, Awaitable[T]]:
    """What a statement answers; of an AsyncConnection, to be awaited."""
    require_connection(conn, Connection, AsyncConnection)
    if isinstance(conn, AsyncConnection):
        return _ask_async(conn, sql, values, answer)
    with conn.cursor(row_factory=tuple_row) as cursor:
        return answer(cursor.execute(sql, values).fetchall())


async def _ask_async(
    conn: AsyncConnection[Any], sql: str, values: dict[str, Any], answer: Callable[[list[Row]], T]
) -> T:
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(sql, values)
        return answer(await cursor.fetchall())

