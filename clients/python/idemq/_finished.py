"""Notifications of finished jobs, as an iterator (setting notify_finished of a queue).

A connection of its own runs LISTEN, and is read all the time, even while the caller does something else: if the server could not
send, PostgreSQL's queue of notifications would fill up.  What the caller has not taken yet is limited: beyond MOST_KEPT items,
each queue's items become one Overflow with their number.

Each new connection begins with an Overflow for every queue, because jobs may have finished while nobody listened.  The caller
therefore reads its tables whenever it gets one, and needs no other code for the start, a failover or a slow consumer.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections import deque
from typing import Any, AsyncIterator, Callable, Iterator, NamedTuple, Optional, Sequence, Union

import psycopg
from psycopg import AsyncConnection, Notify

from ._arguments import queue_argument, text_argument
from ._links import AnswerLost, AsyncLink

MOST_KEPT = 10_000
"""Items that are kept for a caller that does not take them."""
PING_AFTER = 60.0
"""Seconds without a notification after which the server is asked for an answer, because the connection may be silent."""
_PREFIX = "idemq_finished:"
_STATUSES = ("completed", "dead", "cancelled")


class FinishedJob(NamedTuple):
    """A job has finished.  This is a hint: by now, it may have been retried or deleted."""

    queue: str
    id: int
    status: str
    """Either "completed", "dead" or "cancelled"."""


class Overflow(NamedTuple):
    """Jobs of a queue may have finished that no FinishedJob names.  Read your tables again."""

    queue: str
    lost: Optional[int]
    """Number of jobs, or None if it is not known, for example after a connection was opened."""


Item = Union[FinishedJob, Overflow]


def items_of(payload: str) -> list[Item]:
    """The items of a notification.  Events and members of later versions are ignored."""
    message: dict[str, Any] = json.loads(payload)
    queue = message["queue"]
    if message["event"] == "overflow":
        return [Overflow(queue, message["lost"])]
    if message["event"] != "finished":
        return []
    return [FinishedJob(queue, id, status) for status in _STATUSES for id in message.get(status, ())]


class Buffer:
    """Items that the caller has not taken yet."""

    def __init__(self) -> None:
        self.items: "deque[Item]" = deque()

    def put(self, item: Item) -> None:
        """Adds an item.  If there are too many, those of each queue become one Overflow."""
        if len(self.items) >= MOST_KEPT:
            counts: dict[str, Optional[int]] = {}
            for kept in self.items:
                lost = kept.lost if isinstance(kept, Overflow) else 1
                known = counts.get(kept.queue, 0)
                counts[kept.queue] = None if lost is None or known is None else known + lost
            self.items = deque(Overflow(queue, lost) for queue, lost in counts.items())
        self.items.append(item)


async def _until_readable(conn: AsyncConnection[Any]) -> bool:
    """Waits until data has arrived.  Returns False if none has arrived for PING_AFTER."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    fd = conn.fileno()
    loop.add_reader(fd, readable.set)
    try:
        await asyncio.wait_for(readable.wait(), PING_AFTER)
        return True
    except asyncio.TimeoutError:
        return False
    finally:
        loop.remove_reader(fd)


async def _listen(dsn: str, queues: Sequence[str], put: Callable[[list[Item]], None]) -> None:
    """Listens until it is cancelled, and passes on what arrives."""
    link = AsyncLink("finished jobs", dsn, needs_idemq=False)
    connections = 0

    def heard(notification: Notify) -> None:
        if notification.channel.startswith(_PREFIX):
            put(items_of(notification.payload))

    try:
        while True:
            try:
                conn = await link.ready()
                if link.connections != connections:
                    conn.add_notify_handler(heard)
                    for queue in queues:
                        await link.ask(f'LISTEN "{_PREFIX}{queue}"')
                    connections = link.connections
                    put([Overflow(queue, None) for queue in queues])
                if not await _until_readable(conn):
                    await link.ask("SELECT")
                conn.pgconn.consume_input()
                while (notification := conn.pgconn.notifies()) is not None:
                    heard(Notify(notification.relname.decode(), notification.extra.decode(), notification.be_pid))
            except AnswerLost:
                await asyncio.sleep(0.1)
            except psycopg.OperationalError as error:
                await link.drop(error)
                await asyncio.sleep(0.1)
    finally:
        await link.drop(in_use=True)


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,47}", re.ASCII)


def _checked(dsn: Any, queues: Any) -> "tuple[str, list[str]]":
    names = [queues] if isinstance(queues, str) else list(queues)
    if not names:
        raise ValueError("queues must contain at least one name")
    for name in names:
        if not _NAME.fullmatch(queue_argument(name)):
            raise ValueError(f"invalid queue name {name!r}")
    return text_argument("dsn", dsn), list(dict.fromkeys(names))


def finished_jobs_async(dsn: str, queues: Union[str, Sequence[str]]) -> AsyncIterator[Item]:
    """Like finished_jobs, with asyncio.  To end it, leave the loop and call aclose(), or cancel the task."""
    return _finished_jobs_async(*_checked(dsn, queues))


async def _finished_jobs_async(dsn: str, queues: Sequence[str]) -> AsyncIterator[Item]:
    buffer = Buffer()
    more = asyncio.Event()

    def put(items: list[Item]) -> None:
        for item in items:
            buffer.put(item)
        more.set()

    listening = asyncio.ensure_future(_listen(dsn, queues, put))
    listening.add_done_callback(lambda _: more.set())
    try:
        while not listening.done():
            while buffer.items:
                yield buffer.items.popleft()
            more.clear()
            if not listening.done():
                await more.wait()
        listening.result()
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


def finished_jobs(dsn: str, queues: Union[str, Sequence[str]]) -> Iterator[Item]:
    """Yield a FinishedJob for each job of these queues that is completed, dead or cancelled, as long as the caller iterates.

    An Overflow means that jobs may have finished that are not named: read your tables again.  Each queue begins with
    one, and each new connection does.  The queues must have notify_finished, and the DSN must not lead to a pooler in
    transaction mode.  The iterator has its own connection and thread, which end when it is closed.
    """
    return _finished_jobs(*_checked(dsn, queues))


def _finished_jobs(dsn: str, queues: Sequence[str]) -> Iterator[Item]:
    buffer = Buffer()
    more = threading.Condition()
    loop = asyncio.new_event_loop()
    listening = loop.create_task(_listen(dsn, queues, lambda items: put(items)))

    def put(items: list[Item]) -> None:
        with more:
            for item in items:
                buffer.put(item)
            more.notify()

    def listen() -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(asyncio.wait([listening]))
        finally:
            loop.close()
            put([])

    thread = threading.Thread(target=listen, name="idemq finished jobs", daemon=True)
    thread.start()
    try:
        while True:
            with more:
                while not buffer.items and not listening.done():
                    more.wait()
                if not buffer.items:
                    break
                item = buffer.items.popleft()
            yield item
        listening.result()
    finally:
        try:
            loop.call_soon_threadsafe(listening.cancel)
        except RuntimeError:
            pass  # the event loop has ended
        thread.join(1)
