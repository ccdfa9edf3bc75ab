"""A lane: a place for one handler at a time, and how that is called, interrupted and left behind.

	            the handler is          it has a transaction
	AsyncLane   a coroutine function    no
	AsyncTransaction    the same        yes
	ThreadLane  a function              no
	ThreadTransaction   the same        yes

A transaction is the same in both: assert_current of all its jobs, which keeps them from being reaped
until it ends and raises for what was committed or lost; the handler for each; then commit_many_and_claim
with the results, whose claim is valid with the commit.  Nothing that the handler does can be committed
without its job, nor the job without it.

A thread cannot be ended from outside, nor a coroutine that catches its cancellation.  One that does not
return in time is left behind: its transaction is rolled back by us, who hold the connection's lock from
then on, the server is told, and the connection is cut; the lane goes on with others.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from typing import Any, Awaitable, Callable, Optional, Sequence

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.rows import tuple_row

from . import _server, _trace
from ._job import COLUMNS, AsyncJob, End, Job, Unit
from ._kinds import ran
from ._server import AnyConnection, AsyncLink, Link, Row, ThreadLink
from .errors import AlreadyCommitted, NoSuchJob, StaleToken

# Behind a pooler, too, the server does not end a transaction in which the handler is busy with something else.
_NO_IDLE_END = "pg_catalog.set_config('idle_in_transaction_session_timeout', '0', true)"
ASSERT = f"""SELECT idemq.assert_current(id, token), (SELECT {_NO_IDLE_END})
    FROM ROWS FROM (pg_catalog.unnest(%s::bigint[]), pg_catalog.unnest(%s::bigint[])) AS job (id, token)"""
CLAIM = f"""SELECT {COLUMNS}
    FROM idemq.claim(%s, max_jobs => %s, lease => %s::interval, worker => %s, attach => %s)"""
COMMIT = "SELECT outcome::text, id, token FROM idemq.commit_many(%s, %s, %s::jsonb[])"
COMMIT_AND_CLAIM = f"""SELECT outcome::text, {COLUMNS}
    FROM idemq.commit_many_and_claim(%s, %s, %s::jsonb[], %s, %s, lease => %s::interval,
        worker => %s, attach => %s)"""

# The same for one job: a driver is quicker with values than with lists.
_LISTS = "%s, %s, %s::jsonb[]"
_ONE = "ARRAY[%s::bigint], ARRAY[%s::bigint], ARRAY[%s::jsonb]"
_OF_ONE = {
    ASSERT: f"SELECT idemq.assert_current(%s, %s), {_NO_IDLE_END}",
    COMMIT: COMMIT.replace(_LISTS, _ONE),
    COMMIT_AND_CLAIM: COMMIT_AND_CLAIM.replace(_LISTS, _ONE),
}

Values = Sequence[Any]
Then = Callable[[Link[Any]], tuple[str, Values]]
"""The last statement of a transaction, and its parameters after jobs and results."""


class Gone(Exception):
    """The jobs of a transaction are not this attempt's any more; the cause says why."""


class Lane:
    """What all lanes have."""

    job_class: type[Any]
    link: Optional[Link[Any]] = None
    _frozen: Any = None

    def begin(self, handler: Callable[..., Any], unit: Unit, then: Then) -> "asyncio.Task[End]":
        """Calls the handler for the jobs; of a transaction, then is its last statement."""
        return asyncio.ensure_future(self._guarded(handler, unit, then))

    async def _guarded(self, handler: Callable[..., Any], unit: Unit, then: Then) -> End:
        try:
            return End(await self._call(handler, unit, then))
        except BaseException as error:  # SystemExit, too, ends the attempt and not the worker
            return End(error=error)

    async def _call(self, handler: Callable[..., Any], unit: Unit, then: Then) -> Any:
        raise NotImplementedError

    async def interrupt(self, body: "asyncio.Task[End]") -> None:
        """Has a handler end soon, if it can be."""
        if self.link is not None and self.link.conn is not None:
            await _server.interrupt(self.link.conn)
        else:
            body.cancel()

    async def interrupt_again(self) -> None:
        """Cancels the statement that a handler has begun meanwhile."""
        if self.link is not None and self.link.conn is not None:
            await _server.interrupt(self.link.conn)

    async def freeze(self) -> None:
        """Ends the transaction of a handler that does not end.  Until the lane goes on the handler cannot
        use the connection; the session is still there, and what is attached to it."""
        conn = self.link.conn if self.link is not None else None
        if conn is None:
            return
        try:
            await asyncio.wait_for(self._lock(conn), 1)
            self._frozen = conn
            await asyncio.wait_for(asyncio.to_thread(conn.pgconn.exec_, b"ROLLBACK"), _server.ANSWER)
        except (psycopg.Error, asyncio.TimeoutError):
            _server.sever(conn)

    async def _lock(self, conn: Any) -> None:
        raise NotImplementedError

    async def go_on(self, end: End) -> None:
        """After an attempt that has not committed: with another connection, where that is needed."""
        if end.hangs:
            await self._leave()
        elif self.link is not None and self.link.conn is not None and not _idle(self.link.conn):
            await self.link.drop()

    async def _leave(self) -> None:
        if self.link is not None:
            await self.link.drop(in_use=True)
        if self._frozen is not None:
            self._frozen.lock.release()  # to find that the connection has ended
            self._frozen = None

    async def close(self) -> None:
        if self.link is not None:
            await self.link.drop()


class AsyncLane(Lane):
    """Coroutine functions."""

    job_class = AsyncJob

    async def _call(self, handler: Callable[..., Any], unit: Unit, then: Then) -> Any:
        (job,) = unit.jobs
        with _trace.around(job.queue, job.headers):
            return ran(await handler(job))

    async def interrupt(self, body: "asyncio.Task[End]") -> None:
        await super().interrupt(body)
        body.cancel()


class AsyncTransaction(AsyncLane):
    """Coroutine functions with an AsyncConnection."""

    link: AsyncLink

    def __init__(self, link: AsyncLink) -> None:
        self.link = link

    async def _lock(self, conn: AsyncConnection[Any]) -> None:
        await conn.lock.acquire()

    async def _call(self, handler: Callable[..., Any], unit: Unit, then: Then) -> Any:
        conn = await self.link.ready()
        async with conn.transaction():
            async with conn.cursor(row_factory=tuple_row, binary=True) as own:
                try:
                    await own.execute(*_statement(ASSERT, unit))
                except (StaleToken, NoSuchJob, AlreadyCommitted) as error:
                    raise Gone from error
                results = []
                for job in unit.jobs:
                    job._begin(conn)
                    with _trace.around(job.queue, job.headers):
                        results.append(_server.document(ran(await handler(job, conn))))
                    if job.waiting is not None:
                        raise job.waiting
                _still_open(conn)
                sql, values = then(self.link)
                await own.execute(*_statement(sql, unit, results, values))
                rows = await own.fetchall()
                _all_committed(rows)
            unit.commit_at = time.monotonic()
        return rows


class ThreadLane(Lane):
    """Functions, each called in a thread of the lane's own."""

    job_class = Job

    def __init__(self) -> None:
        self._calls: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None

    def _in_thread(self, function: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        if self._thread is None:
            # A daemon: one that is left behind does not keep the process.
            self._thread = threading.Thread(target=_serve, args=(self._calls,), name="idemq", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._calls.put((loop, future, function, args))
        return future

    async def _call(self, handler: Callable[..., Any], unit: Unit, then: Then) -> Any:
        (job,) = unit.jobs
        return _answer(await self._in_thread(self._handle, handler, job))

    @staticmethod
    def _handle(handler: Callable[..., Any], job: Job) -> Any:
        with _trace.around(job.queue, job.headers):
            return ran(handler(job))

    async def interrupt(self, body: "asyncio.Task[End]") -> None:
        if self.link is not None:
            await super().interrupt(body)

    async def _leave(self) -> None:
        await super()._leave()
        self._end_thread()

    async def close(self) -> None:
        self._end_thread()
        await super().close()

    def _end_thread(self) -> None:
        self._calls.put(None)
        self._calls = queue.SimpleQueue()
        self._thread = None


class ThreadTransaction(ThreadLane):
    """Functions with a Connection."""

    link: ThreadLink

    def __init__(self, link: ThreadLink) -> None:
        super().__init__()
        self.link = link

    async def _lock(self, conn: Connection[Any]) -> None:
        if not await asyncio.to_thread(conn.lock.acquire, True, 0.9):
            raise asyncio.TimeoutError

    async def _call(self, handler: Callable[..., Any], unit: Unit, then: Then) -> Any:
        conn = await self.link.ready()
        return _answer(await self._in_thread(self._transact, conn, handler, unit, lambda: then(self.link)))

    @staticmethod
    def _transact(
        conn: Connection[Any], handler: Callable[..., Any], unit: Unit, then: Callable[[], tuple[str, Values]]
    ) -> list[Row]:
        with conn.transaction():
            with conn.cursor(row_factory=tuple_row, binary=True) as own:
                try:
                    own.execute(*_statement(ASSERT, unit))
                except (StaleToken, NoSuchJob, AlreadyCommitted) as error:
                    raise Gone from error
                results = []
                for job in unit.jobs:
                    job._begin(conn)
                    with _trace.around(job.queue, job.headers):
                        results.append(_server.document(ran(handler(job, conn))))
                    if job.waiting is not None:
                        raise job.waiting
                _still_open(conn)
                sql, values = then()
                own.execute(*_statement(sql, unit, results, values))
                rows = own.fetchall()
                _all_committed(rows)
            unit.commit_at = time.monotonic()
        return rows


def _statement(sql: str, unit: Unit, results: Optional[list[Any]] = None, more: Values = ()) -> tuple[str, Values]:
    """A statement about the jobs of a transaction."""
    if len(unit.jobs) == 1:
        (job,) = unit.jobs
        return _OF_ONE[sql], (job.id, job.token, *(results or ()), *more)
    columns = [[job.id for job in unit.jobs], [job.token for job in unit.jobs]]
    return sql, (*columns, *([] if results is None else [results]), *more)


def _idle(conn: AnyConnection) -> bool:
    return conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def _still_open(conn: AnyConnection) -> None:
    if _idle(conn):
        raise RuntimeError("the handler has ended the transaction that it was given")


def _all_committed(rows: list[Row]) -> None:
    """One that the handler has committed itself is as good; one that it has ended otherwise is not."""
    for row in rows:
        if row[0] not in ("committed", "already_committed", "claimed"):
            raise RuntimeError(f"the handler has ended job {row[1]} itself: {row[0]}")


def _serve(calls: "queue.SimpleQueue[Any]") -> None:
    """A lane's thread."""
    while True:
        call = calls.get()
        if call is None:
            return
        loop, future, function, args = call
        try:
            end = End(function(*args))
        except BaseException as error:
            end = End(error=error)
        try:
            loop.call_soon_threadsafe(_resolve, future, end)
        except RuntimeError:
            return  # the loop has ended without us
        del call, future, function, args, end


def _resolve(future: "asyncio.Future[End]", end: End) -> None:
    if not future.done():
        future.set_result(end)


def _answer(end: End) -> Any:
    if end.error is not None:
        raise end.error
    return end.value
