"""The connection that a handler is given: psycopg's own, whose transaction begins when it is used.

A handler that never touches it needs no transaction.  The first use, whatever it is, sends BEGIN and the
lock that assert_current takes, and waits for them; all that psycopg does comes by wait(), before anything
of it is sent.  Whether it was used is our own flag, not what the connection says.

The transaction is the worker's: commit, rollback, and a handler's own BEGIN and COMMIT raise, unsent;
conn.transaction() is a savepoint, since it finds a transaction.  Once the attempt is over for a handler
that has not used its connection, it refuses statements: nothing keeps the job from being another's.
"""

from __future__ import annotations

import re
import select
import time
from typing import TYPE_CHECKING, Any, Optional

import psycopg
from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor, sql
from psycopg.pq import TransactionStatus

from . import _talk
from ._talk import BEGIN, HOLD, NO_IDLE_END, exchange, numbers
from .errors import StaleToken

if TYPE_CHECKING:
    from ._job import Unit

QUICK = 0.002
"""Seconds from a handler's begin to its first statement, within which the next one's transaction is begun with this
one's commit."""

_SPACE = r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/|;)*"
_ENDS = re.compile(
    _SPACE + r"(?:BEGIN|START|COMMIT|END|ABORT|ROLLBACK(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b)|PREPARE\s+TRANSACTION)\b",
    re.IGNORECASE | re.DOTALL,
)
_FORGETS = re.compile(_SPACE + r"(?:DEALLOCATE|DISCARD)\b", re.IGNORECASE | re.DOTALL)


class Turn:
    """One transaction's, in which handlers have the connection."""

    def __init__(self, unit: Unit, begun: bool) -> None:
        self.unit = unit
        self.at = time.monotonic()
        self.begun = begun
        """Whether the transaction is, and its jobs are locked."""
        self.used = False
        self.quick = False
        self.error: Optional[BaseException] = None
        """Why it could not begin, whatever the handler did then."""

    def use(self) -> None:
        """Something is about to be sent."""
        if self.error is not None:
            raise self.error
        if not self.used:
            if not self.begun:
                try:
                    self.unit.must_be_current()
                except StaleToken as error:
                    self.error = error
                    raise
            self.quick = time.monotonic() - self.at <= QUICK
            self.used = True

    def begin(self, conn: Any) -> _talk.Message:
        jobs = self.unit.jobs
        steps: list[_talk.Step] = [(BEGIN, ()), (HOLD, (numbers(job.id for job in jobs), numbers(job.token for job in jobs)))]
        if not conn.ours:
            steps.insert(1, (NO_IDLE_END, ()))
        return exchange(conn, steps, conn.named)


class _Handlers:
    """What both connections have."""

    turn: Optional[Turn] = None
    """None: it is the worker's own."""
    ours = False
    """Whether the session is."""
    named = False
    """Whether statements have names."""
    holds = False
    """Whether the server has idemq.hold_claimed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.statements: set[bytes] = set()
        """Names of _talk.py's that the session knows."""

    def _exec_command(self, command: Any, *args: Any, **kwargs: Any) -> Any:
        if command == b"DEALLOCATE ALL":  # psycopg's, after a ROLLBACK or a DROP
            self.statements.clear()
        return super()._exec_command(command, *args, **kwargs)  # type: ignore[misc]

    def _not_in_a_turn(self, what: str) -> None:
        if self.turn is not None:
            raise psycopg.ProgrammingError(
                f"{what}: the transaction is the worker's, which commits it with the job; conn.transaction() is a savepoint,"
                " and an error that is raised undoes all"
            )

    def _still_begun(self, turn: Turn) -> None:
        status = self.pgconn.transaction_status  # type: ignore[attr-defined]
        if status == TransactionStatus.IDLE:
            raise psycopg.ProgrammingError("the handler has ended the transaction that it was given")


class HandlersConnection(_Handlers, Connection[Any]):
    """A handler's that is a function."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cursor_factory = _Cursor

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        turn = self.turn
        if turn is None:
            return super().wait(gen, *args, **kwargs)
        turn.use()
        if not turn.begun:
            try:
                super().wait(turn.begin(self))
            except BaseException as error:
                turn.error = error
                raise
            turn.begun = True
        answer = super().wait(gen, *args, **kwargs)
        self._still_begun(turn)
        return answer

    def own(self, gen: Any, seconds: Optional[float] = None) -> Any:
        """What is the worker's own; within so many seconds, or the connection is cut."""
        with self.lock:
            return super().wait(gen) if seconds is None else self._wait_for(gen, seconds)

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
                        self.close()
                        raise psycopg.OperationalError("the server does not answer")
                event = events[0][1]
                wanted = gen.send((event & ~select.POLLOUT and 1) | (event & select.POLLOUT and 2))
        except StopIteration as end:
            return end.value

    def commit(self) -> None:
        self._not_in_a_turn("commit()")
        super().commit()

    def rollback(self) -> None:
        self._not_in_a_turn("rollback()")
        super().rollback()


class AsyncHandlersConnection(_Handlers, AsyncConnection[Any]):
    """A handler's that is a coroutine function."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cursor_factory = _AsyncCursor

    async def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        turn = self.turn
        if turn is None:
            return await super().wait(gen, *args, **kwargs)
        turn.use()
        if not turn.begun:
            try:
                await super().wait(turn.begin(self))
            except BaseException as error:
                turn.error = error
                raise
            turn.begun = True
        answer = await super().wait(gen, *args, **kwargs)
        self._still_begun(turn)
        return answer

    async def own(self, gen: Any) -> Any:
        """What is the worker's own."""
        async with self.lock:
            return await super().wait(gen)

    async def commit(self) -> None:
        self._not_in_a_turn("commit()")
        await super().commit()

    async def rollback(self) -> None:
        self._not_in_a_turn("rollback()")
        await super().rollback()


def _look_at(conn: Any, query: Any) -> None:
    """Raises for a statement that would end the handler's transaction, or begin one."""
    if conn.turn is None:
        return
    if isinstance(query, sql.Composable):
        query = query.as_string(conn)
    if isinstance(query, (bytes, bytearray)):
        query = bytes(query).decode("utf-8", "replace")
    if isinstance(query, str):
        if _ENDS.match(query):
            conn._not_in_a_turn(query.strip()[:40])
        elif _FORGETS.match(query):
            conn.statements.clear()


class _Cursor(Cursor[Any]):
    def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        _look_at(self._conn, query)
        return super().execute(query, *args, **kwargs)

    def executemany(self, query: Any, *args: Any, **kwargs: Any) -> None:
        _look_at(self._conn, query)
        super().executemany(query, *args, **kwargs)

    def stream(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        _look_at(self._conn, query)
        return super().stream(query, *args, **kwargs)


class _AsyncCursor(AsyncCursor[Any]):
    async def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        _look_at(self._conn, query)
        return await super().execute(query, *args, **kwargs)

    async def executemany(self, query: Any, *args: Any, **kwargs: Any) -> None:
        _look_at(self._conn, query)
        await super().executemany(query, *args, **kwargs)

    def stream(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        _look_at(self._conn, query)
        return super().stream(query, *args, **kwargs)

