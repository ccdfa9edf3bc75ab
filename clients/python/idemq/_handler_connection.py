"""The connection that a handler gets: a subclass of psycopg's, whose transaction begins at the first use.

A handler that never uses it needs no transaction.  The first use of any kind sends BEGIN and
assert_current, which locks the job, and waits for them.  Everything that psycopg does goes through wait(), before any
of it is sent.  A flag of this class records whether the connection was used, independently of its state.

A connection serves one handler after another.  A task or thread that a handler has left running is
refused when the handler has ended, because its statements would run outside a job's transaction, or in that of another job.

The transaction belongs to the worker: commit, rollback, and a handler's own BEGIN and COMMIT raise and are not sent.
conn.transaction() is a savepoint, because a transaction is already open.  If the attempt is over and the handler
has not used its connection, the connection refuses statements, because another attempt can get the job.

Until the first use, steps and checkpoints of the job go over the worker's shared connection.  Afterwards they are refused, because
they would wait for the row that this transaction has locked.  For the same reason, the first use is refused while one is under way.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import select
import socket
import threading
import time
import weakref
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any, AsyncIterator, Coroutine, Iterator, NoReturn, Optional, Protocol

import psycopg
from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor, sql
from psycopg.pq import TransactionStatus

from . import _pipeline
from ._threads import in_thread
from ._values import AnyConnection
from ._pipeline import ASSERT_CURRENT, BEGIN, NO_IDLE_TIMEOUT, ROLLBACK, exchange, numbers
from .errors import StaleToken

log = logging.getLogger("idemq")

QUICK_FIRST_USE = 0.002
"""If a handler sends its first statement within this many seconds, its commit also begins the transaction of the next
handler."""

CANCEL_TIMEOUT = 2.0
"""Seconds that a cancelled statement has to answer before its session is given up.  Less than ABANDON_AFTER
of _attempt_runner.py, because otherwise its handler would be abandoned first."""

_SPACE = r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/|;)*"
_ENDS_TRANSACTION = re.compile(
    _SPACE + r"(?:BEGIN|START|COMMIT|END|ABORT|ROLLBACK(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b)|PREPARE\s+TRANSACTION)\b",
    re.IGNORECASE | re.DOTALL,
)
_DEALLOCATES = re.compile(_SPACE + r"(?:DEALLOCATE|DISCARD)\b", re.IGNORECASE | re.DOTALL)


_CURRENT: "ContextVar[Optional[HandlerTransaction]]" = ContextVar("idemq_transaction", default=None)
"""Set in the context of the handler and of the tasks that it creates.  A thread that it starts does not have it."""
_BY_WORKER: "ContextVar[bool]" = ContextVar("idemq_by_worker", default=False)
"""Whether the worker itself is using the connection."""


def sever(conn: AnyConnection) -> None:
    """Closes a connection that another thread or task may be using.  The server rolls back."""
    try:
        with socket.socket(fileno=os.dup(conn.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        pass  # it has already ended


def give_up(conn: Any) -> None:
    """The same, because the server does not respond: its session may be there still."""
    conn.silent = True
    sever(conn)


@contextmanager
def by_worker() -> Iterator[None]:
    """Runs a statement of the worker with a cursor."""
    token = _BY_WORKER.set(True)
    try:
        yield
    finally:
        _BY_WORKER.reset(token)


class BatchEnded(BaseException):
    """A handler whose transaction has other jobs has asked for a step or a checkpoint, so each job runs alone.  `except Exception` does
    not catch it."""


class TransactionOwner(Protocol):
    """The interface of the object that owns a transaction (Execution)."""

    jobs: list[Any]
    handler_transaction: Optional[HandlerTransaction]

    def must_be_current(self) -> None:
        ...

    def own_limit(self, conn: Any) -> Optional[float]:
        ...


class HandlerTransaction:
    """The transaction of a handler's connection.  It begins at the first use."""

    def __init__(self, owner: TransactionOwner, begun: bool) -> None:
        self.owner = owner
        self.at = time.monotonic()
        self.begun = begun
        """Whether the transaction has begun and its jobs are locked."""
        self.used = False
        self.quick = False
        self.error: Optional[BaseException] = None
        """The error that prevents it from committing, whatever the handler did afterwards."""
        self._requests: list[str] = []
        """Requests over the worker's shared connection that are under way.  A thread of the handler may make one."""
        self._lock = threading.Lock()

    def use(self) -> None:
        """Called before anything is sent."""
        if (_CURRENT.get() or self) is not self:
            _refuse()
        if self.error is not None:
            raise self.error
        if not self.used:
            with self._lock:
                self._use_first()

    def _use_first(self) -> None:
        if self._requests:
            what = self._requests[0]
            self._fail(psycopg.ProgrammingError(f"the handler's connection was used while {what} was under way; use it after {what} has returned"))
        if not self.begun:
            try:
                self.owner.must_be_current()
            except StaleToken as error:
                self._fail(error)
        self.quick = time.monotonic() - self.at <= QUICK_FIRST_USE
        self.used = True

    def _fail(self, error: BaseException) -> NoReturn:
        self.error = error
        raise error

    @contextmanager
    def before_use(self, what: str) -> Iterator[None]:
        """Context manager of a request over the worker's shared connection, which must be made before the first use."""
        with self._lock:
            if self.error is not None:
                raise self.error
            if len(self.owner.jobs) > 1:
                self._fail(BatchEnded(f"{what} was called"))
            if self.used:
                self._fail(RuntimeError(
                    f"{what} is not available after the handler has used its connection, because the transaction that completes the job has "
                    "begun. Call it before the first statement, or save a checkpoint in the transaction with job.save_checkpoint(data, conn)"
                ))  # fmt: skip
            self._requests.append(what)
            self.at = 0.0  # not quick: the next transaction must not begin before its handler
        try:
            yield
        finally:
            with self._lock:
                self._requests.remove(what)

    def begin(self, conn: Any) -> _pipeline.Message:
        jobs = self.owner.jobs
        steps: list[_pipeline.Step] = [(BEGIN, ()), (ASSERT_CURRENT, (numbers(job.id for job in jobs), numbers(job.token for job in jobs)))]
        if not conn.direct:
            steps.insert(1, (NO_IDLE_TIMEOUT, ()))
        return exchange(conn, steps, conn.named)


def _refuse() -> None:
    log.warning("a statement was refused because its handler had already ended")
    raise psycopg.ProgrammingError("the handler has ended, and so has its transaction")


class _HandlersConnectionBase:
    """Base class of both connections."""

    handler_transaction: Optional[HandlerTransaction] = None
    """The current transaction of a handler, or None while the worker uses the connection."""
    was_lent = False
    """Whether a handler has used it."""
    direct = False
    """Whether the session is direct, without a pooler."""
    named = False
    """Whether statements have names."""
    has_hold_claimed = False
    """Whether the server has idemq.hold_claimed."""
    answer_within: Optional[float] = None
    """Seconds within which a statement of the worker must be answered before the connection is closed; None means no limit."""
    progress_at: Optional[float] = None
    """While an answer is awaited: the time at which data was last sent or received."""
    silent = False
    """Whether it was given up because the server did not answer.  The session may still exist."""
    begins_transaction = True
    """Its first statement begins a transaction, although it is in autocommit mode (_statements.py)."""
    given_up = False
    """Whether take_back() has closed it because of unfinished work of a handler, so it was not lost."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.statements: set[bytes] = set()
        """Names of statements of _pipeline.py that the session has prepared."""
        self.streams: "weakref.WeakSet[Any]" = weakref.WeakSet()
        """Generators of handlers that may be only partly read.  Such a generator holds the connection's lock."""
        self.copies: set[Any] = set()
        """Cursors with an open copy(), from before its statement is sent.  Since psycopg 3.3, it also holds the lock."""

    def lend(self, owner: TransactionOwner, begun: bool) -> HandlerTransaction:
        """Gives the connection to a handler.  Call it in the handler's context."""
        self.was_lent = True
        self.handler_transaction = owner.handler_transaction = HandlerTransaction(owner, begun)
        _CURRENT.set(self.handler_transaction)
        return self.handler_transaction

    def _exec_command(self, command: Any, *args: Any, **kwargs: Any) -> Any:
        if command == b"DEALLOCATE ALL":  # psycopg sends it after a ROLLBACK or a DROP
            self.statements.clear()
        return super()._exec_command(command, *args, **kwargs)  # type: ignore[misc]

    def _observed(self, gen: Any) -> Any:
        """The same generator, which records when data was last sent or received (AttemptRunner checks this)."""
        self.progress_at = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready:
                    self.progress_at = time.monotonic()
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value
        finally:
            self.progress_at = None

    def _half_done(self) -> bool:
        if self.copies:
            return True
        if self.lock.locked():  # type: ignore[attr-defined]
            return False  # a statement of a thread, for which run_own() waits
        return self.pgconn.transaction_status == TransactionStatus.ACTIVE or self._pipeline is not None  # type: ignore[attr-defined]

    def _rollback_early(self, transaction: HandlerTransaction) -> Any:
        """Ends a transaction that the worker has begun before the handler used it, because it has locked the job."""
        transaction.begun = False
        return exchange(self, [(ROLLBACK, ())], False)

    def _refuse_in_handler(self, what: str) -> None:
        if self.handler_transaction is not None:
            raise psycopg.ProgrammingError(
                f"{what} is not allowed, because the worker commits its transaction together with the job. Use "
                "conn.transaction() for a savepoint, or raise an error to roll back everything"
            )

    def _check_still_begun(self, transaction: HandlerTransaction) -> None:
        status = self.pgconn.transaction_status  # type: ignore[attr-defined]
        if status == TransactionStatus.IDLE:
            raise psycopg.ProgrammingError("the handler has ended the worker's transaction")


class HandlersConnection(_HandlersConnectionBase, Connection[Any]):
    """The connection of a handler that is a function."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cursor_factory = _Cursor

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        transaction = self.handler_transaction
        if transaction is None:
            if self.was_lent and not _BY_WORKER.get():
                _refuse()
            if self.answer_within is not None:
                return self._wait_for(gen, self.answer_within)
            return super().wait(gen, *args, **kwargs)
        transaction.use()
        if not transaction.begun:
            try:
                self._wait_own(transaction.begin(self), transaction.owner.own_limit(self))
            except BaseException as error:
                transaction.error = error
                raise
            transaction.begun = True
        answer = super().wait(self._observed(gen), *args, **kwargs)
        self._check_still_begun(transaction)
        return answer

    def take_back(self) -> bool:
        """Takes the connection back from a handler.  Returns whether the handler has left something unfinished.  A stream() holds the lock.  psycopg
        cannot end a COPY or a pipeline from outside, and a thread may continue it, so the connection is closed."""
        left = False
        for rows in list(self.streams):
            left |= rows.gi_frame is not None and self.lock.locked()
            try:
                rows.close()
            except (psycopg.Error, ValueError):  # another thread is reading it
                pass
        transaction, self.handler_transaction = self.handler_transaction, None
        if left or not self._half_done():
            return left
        self.given_up |= transaction is not None and not self.closed
        self.close()
        return True

    def unlock_job(self, transaction: HandlerTransaction) -> None:
        """Unlocks the job for a request over another connection, unless the handler has used its transaction."""
        if transaction.begun and not transaction.used:
            self.run_own(self._rollback_early(transaction), transaction.owner.own_limit(self))

    def run_own(self, gen: Any, seconds: Optional[float] = None) -> Any:
        """Runs the worker's own statements.  If they take longer than this many seconds, the connection is closed."""
        with self.lock:
            return self._wait_own(gen, seconds)

    def _wait_own(self, gen: Any, seconds: Optional[float]) -> Any:
        return super().wait(self._observed(gen)) if seconds is None else self._wait_for(gen, seconds)

    def _wait_for(self, gen: Any, seconds: float) -> Any:
        until = time.monotonic() + seconds
        ready = select.poll()
        try:
            wanted = next(gen)
            while True:
                ready.register(self.pgconn.socket, (wanted & 1 and select.POLLIN) | (wanted & 2 and select.POLLOUT))
                while not (events := ready.poll(max(until - time.monotonic(), 0) * 1000)):
                    if time.monotonic() >= until:
                        gen.close()
                        self.silent = True
                        self.close()
                        raise psycopg.OperationalError("the server is not responding")
                event = events[0][1]
                wanted = gen.send((event & ~select.POLLOUT and 1) | (event & select.POLLOUT and 2))
        except StopIteration as end:
            return end.value

    def commit(self) -> None:
        self._refuse_in_handler("commit()")
        super().commit()

    def rollback(self) -> None:
        self._refuse_in_handler("rollback()")
        super().rollback()


class AsyncHandlersConnection(_HandlersConnectionBase, AsyncConnection[Any]):
    """The connection of a handler that is a coroutine function."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cursor_factory = _AsyncCursor

    async def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        transaction = self.handler_transaction
        if transaction is None:
            if self.was_lent and not _BY_WORKER.get():
                _refuse()
            return await super().wait(gen, *args, **kwargs)
        transaction.use()
        if not transaction.begun:
            try:
                with self.limited(transaction.owner.own_limit(self)):
                    await self._wait_to_the_end(transaction.begin(self))
            except BaseException as error:
                transaction.error = error
                raise
            transaction.begun = True
        answer = await self._wait_to_the_end(gen, *args, **kwargs)
        self._check_still_begun(transaction)
        return answer

    async def _wait_to_the_end(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """If the task of a statement is cancelled, the answer is still awaited, as psycopg does since 3.2.  An unfinished statement
        would cost the session.  Its end would count as the end of the attempt, and until then the server would hold its locks."""
        observed = self._observed(gen)
        try:
            return await super().wait(observed, *args, **kwargs)
        except asyncio.CancelledError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                await _await_despite_cancel(self._cancel(observed, *args, **kwargs), CANCEL_TIMEOUT)
            raise

    async def _try_cancel(self, *args: Any, **kwargs: Any) -> None:
        """Leaves a cancelled statement to _cancel(), which has a time limit.  Since 3.2, psycopg calls this, and then waits for the answer
        without a limit."""
        raise asyncio.CancelledError

    async def _cancel(self, gen: Any, *args: Any, **kwargs: Any) -> None:
        with suppress(Exception):  # whatever the answer, or if it was not sent: take_back() checks the state
            # Before anything else is sent: once this returns, the server has received the request, which has no effect on an idle session.
            await in_thread(self.cancel)
            await super().wait(gen, *args, **kwargs)

    async def take_back(self) -> bool:
        """Like take_back of HandlersConnection.  Earlier statements of the handler's tasks belong to the handler."""
        left = False
        for rows in list(self.streams):
            left |= rows.ag_frame is not None and self.lock.locked()
            try:
                await rows.aclose()
            except (psycopg.Error, RuntimeError):  # a task is reading it
                pass
        if self.lock.locked() and not self.copies:
            async with self.lock:
                pass
        transaction, self.handler_transaction = self.handler_transaction, None
        if left or not self._half_done():
            return left
        self.given_up |= transaction is not None and not self.closed
        await self.close()
        return True

    async def unlock_job(self, transaction: HandlerTransaction) -> None:
        """Like unlock_job of HandlersConnection."""
        if transaction.begun and not transaction.used:
            await self.run_own(self._rollback_early(transaction), transaction.owner.own_limit(self))

    async def run_own(self, gen: Any, seconds: Optional[float] = None) -> Any:
        """Runs the worker's own statements.  If they take longer than this many seconds, the connection is closed."""
        async with self.lock:
            return await self._wait_own(gen, seconds)

    async def _wait_own(self, gen: Any, seconds: Optional[float]) -> Any:
        with self.limited(seconds):
            return await super().wait(self._observed(gen))

    @contextmanager
    def limited(self, seconds: Optional[float]) -> Iterator[None]:
        """Context manager in which statements must be answered within this many seconds; otherwise the connection is given up."""
        timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, give_up, self)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()

    async def commit(self) -> None:
        self._refuse_in_handler("commit()")
        await super().commit()

    async def rollback(self) -> None:
        self._refuse_in_handler("rollback()")
        await super().rollback()


async def _await_despite_cancel(work: Coroutine[Any, Any, None], seconds: float) -> None:
    """Waits for work that must be finished, however often the task is cancelled meanwhile."""
    task, until = asyncio.ensure_future(work), time.monotonic() + seconds
    while not task.done() and time.monotonic() < until:
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task}, timeout=until - time.monotonic())
    task.cancel()
    await asyncio.wait({task})


def _check_statement(conn: Any, query: Any) -> None:
    """Raises for a statement that would begin or end a transaction in the handler's transaction."""
    if conn.handler_transaction is None:
        return
    if isinstance(query, sql.Composable):
        query = query.as_string(conn)
    if isinstance(query, (bytes, bytearray)):
        query = bytes(query).decode("utf-8", "replace")
    if isinstance(query, str):
        if _ENDS_TRANSACTION.match(query):
            conn._refuse_in_handler(query.strip()[:40])
        elif _DEALLOCATES.match(query):
            conn.statements.clear()


def _track_stream(conn: Any, rows: Any) -> Any:
    conn.streams.add(rows)
    return rows


@contextmanager
def _copying(conn: Any, cursor: Any) -> Iterator[None]:
    conn.copies.add(cursor)
    try:
        yield
    finally:
        conn.copies.discard(cursor)


class _Cursor(Cursor[Any]):
    def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        _check_statement(self._conn, query)
        return super().execute(query, *args, **kwargs)

    def executemany(self, query: Any, *args: Any, **kwargs: Any) -> None:
        _check_statement(self._conn, query)
        super().executemany(query, *args, **kwargs)

    def stream(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        _check_statement(self._conn, query)
        return _track_stream(self._conn, super().stream(query, *args, **kwargs))

    @contextmanager
    def copy(self, statement: Any, *args: Any, **kwargs: Any) -> Any:
        _check_statement(self._conn, statement)
        with _copying(self._conn, self), super().copy(statement, *args, **kwargs) as copy:
            yield copy


class _AsyncCursor(AsyncCursor[Any]):
    async def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        _check_statement(self._conn, query)
        return await super().execute(query, *args, **kwargs)

    async def executemany(self, query: Any, *args: Any, **kwargs: Any) -> None:
        _check_statement(self._conn, query)
        await super().executemany(query, *args, **kwargs)

    def stream(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        _check_statement(self._conn, query)
        return _track_stream(self._conn, super().stream(query, *args, **kwargs))

    @asynccontextmanager
    async def copy(self, statement: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        _check_statement(self._conn, statement)
        with _copying(self._conn, self):
            async with super().copy(statement, *args, **kwargs) as copy:
                yield copy
