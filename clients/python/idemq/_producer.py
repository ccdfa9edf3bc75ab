"""enqueue: in the transaction of the connection that it is given."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Awaitable, NamedTuple, Optional, Union, overload

from psycopg import AsyncConnection, Connection
from psycopg.rows import tuple_row
from psycopg.types.json import Jsonb

from . import _trace
from ._server import document
from .errors import Delay, interval

_ENQUEUE = """SELECT id, outcome::text, status::text, result
    FROM idemq.enqueue(%(queue)s, %(payload)s, key => %(key)s, delay => %(delay)s::interval,
        run_at => %(run_at)s, priority => %(priority)s::int, group_key => %(group_key)s,
        max_attempts => %(max_attempts)s::int, headers => %(headers)s::jsonb,
        expires_in => %(expires_in)s::interval, key_ttl => %(key_ttl)s::interval,
        on_duplicate => %(on_duplicate)s, nowait => %(nowait)s, kind => %(kind)s,
        max_wait => %(max_wait)s::interval)"""


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
) -> Union[Enqueued, Awaitable[Enqueued]]:
    """Add a job in the connection's transaction; to be awaited when that is an AsyncConnection.

    The job is there when the transaction commits.  payload is anything that is JSON.  With a key the
    same call again is answered with the first one's outcome; with another payload it raises KeyReused.
    kind is a label by which a worker chooses the handler.  max_wait, with on_duplicate="replace": how long
    after the first request a delay that starts again with each ends.
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
        "headers": document(_trace.inject(headers)),
        "expires_in": interval(expires_in),
        "key_ttl": interval(key_ttl),
        "on_duplicate": on_duplicate,
        "nowait": nowait,
        "kind": kind,
        "max_wait": interval(max_wait),
    }
    if isinstance(conn, AsyncConnection):
        return _enqueue_async(conn, values)
    with conn.cursor(row_factory=tuple_row) as cursor:
        return _enqueued(cursor.execute(_ENQUEUE, values).fetchone())


async def _enqueue_async(conn: AsyncConnection[Any], values: dict[str, Any]) -> Enqueued:
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(_ENQUEUE, values)
        return _enqueued(await cursor.fetchone())


def _enqueued(row: Optional[tuple[Any, ...]]) -> Enqueued:
    assert row is not None
    return Enqueued(*row)

