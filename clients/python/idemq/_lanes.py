"""A lane: a place for one handler at a time, and how that is called, interrupted and left behind.

	            the handler is          it has a connection
	AsyncLane   a coroutine function    no
	AsyncTransaction    the same        yes
	ThreadLane  a function              no
	ThreadTransaction   the same        yes

A lane goes on by itself, from job to job, for as long as there is one and all goes well: in its thread, or
in a task for each handler.  What it cannot settle, it brings to the loop (Stop): an attempt that was ended,
has failed, or lost its connection.

The transaction of a handler that uses its connection is the same in both: BEGIN and assert_current of all
its jobs, which keeps them from being reaped until it ends and raises for what was committed or lost; what
the handler does; then, in one message, the ends of its jobs with the claim of the next, which raises for
what cannot be committed, and COMMIT.  Nothing that the handler does can be committed without its job, nor
the job without it.  Where the session is ours and handlers begin with a statement, BEGIN and the lock of the
job that was just claimed go along: whatever comes of them, the commit stands.  A handler that has not used
its connection is as one that has none: its job is committed together with what else has ended.

A thread cannot be ended from outside, nor a coroutine that catches its cancellation.  One that does not
return in time is left behind: its transaction is rolled back by us, who hold the connection's lock from
then on, the server is told, and the connection is cut; the lane goes on with others.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Awaitable, Callable, NamedTuple, Optional, Sequence

import psycopg
from psycopg import Connection
from psycopg.pq import TransactionStatus

from . import _server, _talk
from ._conn import AsyncHandlersConnection, HandlersConnection, Turn
from ._job import AsyncJob, End, Job, Unit
from ._kinds import ran
from ._server import AsyncLink, Link, ThreadLink
from .errors import AlreadyCommitted, NoSuchJob, StaleToken, sqlstate

if TYPE_CHECKING:
    from ._attempts import Attempts

_ROLLBACK = _talk.Statement(b"", b"ROLLBACK")


class Gone(Exception):
    """The jobs of a transaction are not this attempt's any more; the cause says why."""


class Stop(NamedTuple):
    """What a lane brings to the loop."""

    unit: Unit
    end: End


class Lane:
    """What all lanes have."""

    job_class: type[Any]
    threads = False
    link: Optional[Link[Any]] = None
    _frozen: Any = None

    def __init__(self) -> None:
        self.pending: deque[Unit] = deque()
        """What it has, and has not begun."""

    def start(self, run: Attempts) -> "asyncio.Future[Optional[Stop]]":
        """Begins with what is pending, and goes on; answers when it has nothing to do, or must be started again
        with a usable connection, or what has stopped it."""
        raise NotImplementedError

    async def interrupt(self, unit: Unit) -> None:
        """Has a handler end soon, if it can be."""
        await self.interrupt_again(unit)

    async def interrupt_again(self, unit: Unit) -> None:
        """Cancels the statement of a handler: the one that it has begun meanwhile, too."""
        if unit.turn is not None and unit.turn.used and self.link is not None and self.link.conn is not None:
            await _server.interrupt(self.link.conn)

    async def leave(self, unit: Unit) -> None:
        """Gives up waiting for a handler.  Ends its transaction; until the lane goes on the handler cannot
        use the connection; the session is still there, and what is attached to it."""
        if not unit.leave():
            return
        conn = self.link.conn if self.link is not None else None
        if conn is not None:
            try:
                await asyncio.wait_for(self._lock(conn), 1)
                self._frozen = conn
                await asyncio.wait_for(asyncio.to_thread(conn.pgconn.exec_, b"ROLLBACK"), _server.ANSWER)
            except (psycopg.Error, asyncio.TimeoutError):
                _server.sever(conn)
        self._stopped(Stop(unit, End(error=TimeoutError("the handler does not end"), hangs=True)))

    async def _lock(self, conn: Any) -> None:
        raise NotImplementedError

    def _stopped(self, stop: Stop) -> None:
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


class _Transaction(Lane):
    """What both lanes with a connection have."""

    _held = False
    """Whether the transaction is begun, and the next job locked: with the last commit."""
    _quick = False
    """Whether the last handler began with a statement."""

    def _turn(self, unit: Unit, conn: Any) -> Turn:
        begun, self._held = self._held, False
        turn: Turn = conn.lend(unit, begun)
        return turn

    def _message(self, run: Attempts, unit: Unit, conn: Any, link: Link[Any], results: list[Optional[str]]) -> list[_talk.Step]:
        """The end of a transaction."""
        ended = run.ends(unit.jobs, results)
        turn = unit.turn
        assert turn is not None
        self._quick = turn.used and turn.quick
        if self.pending or not run.may_claim():
            return [(_talk.MUST_END, ended), (_talk.COMMIT, ())]
        steps: list[_talk.Step] = [(_talk.MUST_END_AND_CLAIM, (*ended, *run.claims(link, run.options.batch))), (_talk.COMMIT, ())]
        if self._quick and conn.holds and conn.named and run.options.batch == 1 and psycopg.Pipeline.is_supported():
            steps += [(_talk.BEGIN, ()), (_talk.HOLD_CLAIMED, ())]
        return steps

    def _committed(self, run: Attempts, unit: Unit, conn: Any, link: Link[Any], answers: list[str]) -> bool:
        """What the message has answered, whose COMMIT was done; whether the transaction that it has begun is to end."""
        assert unit.commit_at is not None
        begun = conn.pgconn.transaction_status != TransactionStatus.IDLE
        held = begun and answers[-1:] == ["held"]
        run.committed(unit)
        jobs = run.take(answers, unit.commit_at, link)
        self.pending.extend(run.units(jobs, self))
        self._held = held and len(jobs) == 1
        return begun and not self._held

    def _error(self, unit: Unit, conn: Any, error: BaseException) -> BaseException:
        """Why a transaction has not committed, whatever the handler did then."""
        if unit.turn is not None and unit.turn.error is not None:
            error = unit.turn.error
            if isinstance(error, (StaleToken, NoSuchJob, AlreadyCommitted)):
                gone = Gone()
                gone.__cause__ = error
                return gone
        if hasattr(error, "done"):  # of a message of ours
            if error.done == 0 and sqlstate(error) == _talk.ENDED_OTHERWISE:
                return RuntimeError("the handler has ended its job itself")
            if sqlstate(error) == _talk.NO_SUCH_NAME:  # who has deallocated it, nobody knows
                conn.named = False
        return error


class AsyncLane(Lane):
    """Coroutine functions."""

    job_class = AsyncJob

    def start(self, run: Attempts) -> "asyncio.Future[Optional[Stop]]":
        self._answer: "asyncio.Future[Optional[Stop]]" = asyncio.get_running_loop().create_future()
        self._begin(run)
        return self._answer

    def _stopped(self, stop: Optional[Stop]) -> None:
        if not self._answer.done():
            self._answer.set_result(stop)

    def _begin(self, run: Attempts) -> None:
        unit = self.pending.popleft()
        unit.task = asyncio.create_task(self._work(run, unit))

    async def _work(self, run: Attempts, unit: Unit) -> None:
        """A task for each handler, so that it can be cancelled, and has a context of its own."""
        try:
            end = await self._run(run, unit)
            if not unit.finish():
                return
            stop = None if end.error is None and run.settled(unit, end) else Stop(unit, end)
            if stop is None and not end.committed:
                await run.commit(self, unit.jobs, end.value)
            if stop is None and self.pending and run.goes_on(self):
                self._begin(run)
            else:
                await self._put_down()
                self._stopped(stop)
        except BaseException as error:
            if not self._answer.done():
                self._answer.set_exception(error)

    async def _put_down(self) -> None:
        pass

    async def _run(self, run: Attempts, unit: Unit) -> End:
        (job,) = unit.jobs
        job._run = run
        try:
            run.begin(unit)
            return End([run.document(ran(await run.call_async(job)), job)])
        except BaseException as error:  # SystemExit, too, ends the attempt and not the worker
            return End(error=error)

    async def interrupt(self, unit: Unit) -> None:
        await super().interrupt(unit)
        if unit.task is not None and not unit.over and not unit.handled:
            unit.task.cancel()


class AsyncTransaction(_Transaction, AsyncLane):
    """Coroutine functions with an AsyncConnection."""

    link: AsyncLink

    def __init__(self, link: AsyncLink) -> None:
        super().__init__()
        self.link = link

    async def _lock(self, conn: AsyncHandlersConnection) -> None:
        await conn.lock.acquire()

    async def _put_down(self) -> None:
        if self._held and isinstance(self.link.conn, AsyncHandlersConnection):
            self._held = False
            await self._roll_back(self.link.conn)

    async def _roll_back(self, conn: AsyncHandlersConnection) -> None:
        try:
            await asyncio.wait_for(conn.own(_talk.exchange(conn, [(_ROLLBACK, ())], False)), _server.ANSWER)
        except (psycopg.Error, asyncio.TimeoutError):
            _server.sever(conn)

    @staticmethod
    async def _handle(run: Attempts, unit: Unit, conn: Any) -> list[Optional[str]]:
        results = []
        try:
            for job in unit.jobs:
                job._begin(conn)
                results.append(_server.written(ran(await run.call_async(job, conn))))
                if job.waiting is not None:
                    raise job.waiting
        finally:
            unit.handled = True
        return results

    async def _run(self, run: Attempts, unit: Unit) -> End:
        conn = self.link.conn
        assert isinstance(conn, AsyncHandlersConnection)
        turn = self._turn(unit, conn)
        try:
            run.begin(unit)
            if unit.commit_unknown:
                turn.begun = await conn.own(turn.begin(conn)) is not None
            results = await self._handle(run, unit, conn)
            _none_left(await conn.take_back())
            if not _used(turn, conn):
                return End(results)
            steps = self._message(run, unit, conn, self.link, results)
            unit.commit_at = time.monotonic()
            try:
                answers = await conn.own(_talk.exchange(conn, steps, conn.named))
            except psycopg.Error as error:
                answers = _answers(error)
            if self._committed(run, unit, conn, self.link, answers):
                await self._roll_back(conn)
            return _done()
        except BaseException as error:
            unit.handled = True  # a cancel would meet the rollback, and end the lane
            await conn.take_back()
            if unit.commit_unknown and not turn.begun and turn.error is None:
                turn.error = error
            error = self._error(unit, conn, error)
            if not unit.left and not conn.closed:
                try:
                    await conn.own(conn._rollback_gen())
                except psycopg.Error:
                    pass
            return End(error=error)


class ThreadLane(Lane):
    """Functions, each called in a thread of the lane's own."""

    job_class = Job
    threads = True

    def __init__(self) -> None:
        super().__init__()
        self._calls: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        self._answer: Optional["asyncio.Future[End]"] = None

    def start(self, run: Attempts) -> "asyncio.Future[Optional[Stop]]":
        if self._thread is None:
            # A daemon: one that is left behind does not keep the process.
            self._thread = threading.Thread(target=_serve, args=(self._calls,), name="idemq", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        self._calls.put((loop, self._answer, self._work, (run,)))
        return asyncio.ensure_future(_value(self._answer))

    def _stopped(self, stop: Optional[Stop]) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(End(stop))

    def _work(self, run: Attempts) -> Optional[Stop]:
        """In the lane's thread."""
        while self.pending or run.next_in_thread(self):
            if not run.goes_on(self):
                self._put_down()
                return None
            unit = self.pending.popleft()
            end = self._run(run, unit)
            if not unit.finish():
                return None
            if end.error is not None or not run.settled(unit, end) or (not end.committed and run.desk is None):
                self._put_down()
                return Stop(unit, end)
            if not end.committed and self.pending:
                run.from_thread(run.commit(self, unit.jobs, end.value))
            elif not end.committed:
                assert run.desk is not None
                run.desk.leave(unit.jobs, end.value)
        return None

    def _put_down(self) -> None:
        pass

    def _run(self, run: Attempts, unit: Unit) -> End:
        (job,) = unit.jobs
        job._run = run
        try:
            run.begin(unit)
            return End([run.document(ran(run.call(job)), job)])
        except BaseException as error:  # SystemExit, too, ends the attempt and not the worker
            return End(error=error)

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


class ThreadTransaction(_Transaction, ThreadLane):
    """Functions with a Connection."""

    link: ThreadLink

    def __init__(self, link: ThreadLink) -> None:
        super().__init__()
        self.link = link

    async def _lock(self, conn: Connection[Any]) -> None:
        if not await asyncio.to_thread(conn.lock.acquire, True, 0.9):
            raise asyncio.TimeoutError

    def _put_down(self) -> None:
        if self._held and isinstance(self.link.conn, HandlersConnection):
            self._held = False
            self._roll_back(self.link.conn)

    @staticmethod
    def _roll_back(conn: HandlersConnection) -> None:
        try:
            conn.own(_talk.exchange(conn, [(_ROLLBACK, ())], False), _server.ANSWER)
        except psycopg.Error:
            _server.sever(conn)

    def _run(self, run: Attempts, unit: Unit) -> End:
        conn = self.link.conn
        assert isinstance(conn, HandlersConnection)
        turn = self._turn(unit, conn)
        try:
            run.begin(unit)
            if unit.commit_unknown:
                turn.begun = conn.own(turn.begin(conn)) is not None
            results = []
            for job in unit.jobs:
                job._begin(conn)
                results.append(_server.written(ran(run.call(job, conn))))
                if job.waiting is not None:
                    raise job.waiting
            _none_left(conn.take_back())
            if not _used(turn, conn):
                return End(results)
            steps = self._message(run, unit, conn, self.link, results)
            unit.commit_at = time.monotonic()
            try:
                answers = conn.own(_talk.exchange(conn, steps, conn.named))
            except psycopg.Error as error:
                answers = _answers(error)
            if self._committed(run, unit, conn, self.link, answers):
                self._roll_back(conn)
            return _done()
        except BaseException as error:
            conn.take_back()
            if unit.commit_unknown and not turn.begun and turn.error is None:
                turn.error = error
            error = self._error(unit, conn, error)
            if not unit.left and not conn.closed:
                try:
                    conn.own(conn._rollback_gen())
                except psycopg.Error:
                    pass
            return End(error=error)


def _done() -> End:
    end = End()
    end.committed = True
    return end


def _answers(error: psycopg.Error) -> list[str]:
    """What was answered before an error that came after the COMMIT; raises one that came before."""
    if getattr(error, "done", 0) < 2:
        raise error
    answers: list[str] = getattr(error, "answers")
    return answers


def _used(turn: Turn, conn: Any) -> bool:
    """Whether there is a transaction to commit; raises where it could not begin, or has ended."""
    if turn.error is not None:
        raise turn.error
    if turn.begun and _idle(conn):
        raise RuntimeError("the handler has ended the transaction that it was given")
    if not turn.begun and not conn.closed and not _idle(conn):
        raise RuntimeError("the handler has begun a transaction past its connection")
    return turn.begun


def _none_left(left: bool) -> None:
    if left:
        raise RuntimeError("the handler has left a stream(), a COPY or a pipeline half done: end it in the handler")


def _idle(conn: Any) -> bool:
    return bool(conn.pgconn.transaction_status == TransactionStatus.IDLE)


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


async def _value(answer: Awaitable[End]) -> Any:
    end = await answer
    if end.error is not None:
        raise end.error
    return end.value
