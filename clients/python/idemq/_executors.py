"""Executors.  An executor runs one handler at a time: it calls, interrupts and abandons it.

	                            the handler is          it has a connection
	AsyncExecutor               a coroutine function    no
	AsyncTransactionExecutor    the same                yes
	ThreadExecutor              a function              no
	ThreadTransactionExecutor   the same                yes

An executor continues from job to job as long as there are jobs and no error occurs, in its thread or
in a task for each handler.  It passes attempts that it cannot settle to the event loop (Unsettled): those that were ended,
have failed, or have lost their connection.

The transaction of a handler that uses its connection is the same in both classes.  It starts with BEGIN and assert_current for
all its jobs, which locks them until the transaction ends, and raises for jobs that are committed or lost.  Then come the statements
of the handler.  The last message contains a statement that commits the jobs and claims the next ones, and raises for a job
that cannot be committed, and then COMMIT.  So no change of the handler can be committed without its job, or
the job without the changes.  If the session is direct and handlers use it at once, the message also contains BEGIN and the lock
of the job just claimed.  An error there does not affect the commit.  If a handler has not used
its connection, its job is committed together with others, as if the handler had none.

A thread cannot be ended from outside, and neither can a coroutine that catches its cancellation.  A handler that does not
return in time is abandoned.  The executor takes the connection's lock, rolls back the transaction,
tells the server, closes the connection and continues with other jobs.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from typing import Any, Awaitable, Callable, ContextManager, Coroutine, NamedTuple, Optional, Protocol, Sequence, TypeVar

import psycopg
from psycopg import Connection
from psycopg.pq import TransactionStatus

from . import _links, _pipeline
from ._execution import Execution, ExecutionResult, ExecutionRunner
from ._group_commit import GroupCommit
from ._handler_connection import AsyncHandlersConnection, HandlersConnection, HandlerTransaction, give_up, sever
from ._handlers import finished_result
from ._job import AsyncJob, BaseJob, Job
from ._links import AsyncLink, Link, ThreadLink
from ._options import Options
from ._threads import in_thread
from .errors import AlreadyCommitted, NoSuchJob, StaleToken, sqlstate

T = TypeVar("T")
LOCK_TIMEOUT = 0.5
"""Seconds within which an abandoned handler must release its connection; otherwise the connection is closed."""
ROLLBACK_TIMEOUT = 0.5
"""Seconds within which its ROLLBACK must be answered; otherwise the connection is closed."""


class AttemptOver(Exception):
    """The attempt no longer owns the jobs of its transaction.  The cause is the reason."""


class Unsettled(NamedTuple):
    """An execution that the executor cannot settle and passes to the event loop, with its result."""

    execution: Execution
    end: ExecutionResult


class Runner(ExecutionRunner, Protocol):
    """The functions of the worker that an executor uses (AttemptRunner)."""

    options: Options
    group_commit: Optional[GroupCommit]
    ahead: Any

    def executions(self, jobs: Sequence[BaseJob], executor: Executor) -> list[Execution]:
        ...

    def may_begin(self, executor: Executor) -> bool:
        ...

    def next_in_thread(self, executor: Executor) -> bool:
        ...

    def next_ahead(self) -> list[BaseJob]:
        ...

    def begin(self, execution: Execution) -> None:
        ...

    def call(self, job: BaseJob, *conn: Any) -> Any:
        ...

    async def call_async(self, job: BaseJob, *conn: Any) -> Any:
        ...

    def result_text(self, value: Any) -> Optional[str]:
        ...

    def result_json(self, value: Any, job: BaseJob) -> Optional[str]:
        ...

    def handler_succeeded(self, execution: Execution, end: ExecutionResult) -> bool:
        ...

    def may_claim(self) -> bool:
        ...

    def claims(self, link: Link[Any], most: int) -> _pipeline.Values:
        ...

    def ends(self, jobs: Sequence[BaseJob], results: Sequence[Optional[str]]) -> _pipeline.Values:
        ...

    def processing_batch(self, jobs: Sequence[BaseJob]) -> ContextManager[None]:
        ...

    def settling(self, jobs: Sequence[BaseJob]) -> ContextManager[Callable[[str], None]]:
        ...

    def records(self, jobs: Sequence[BaseJob], link: Link[Any]) -> list[_pipeline.Step]:
        ...

    def committed(self, execution: Execution) -> None:
        ...

    def take(self, answers: Sequence[str], asked_at: float, link: Link[Any]) -> list[BaseJob]:
        ...

    async def commit(self, executor: Executor, jobs: list[BaseJob], results: list[Optional[str]]) -> None:
        ...

    def from_thread(self, work: Coroutine[Any, Any, T]) -> T:
        ...


class Executor:
    """Base class of all executors."""

    job_class: type[Any]
    threads = False
    link: Optional[Link[Any]] = None
    _locked_conn: Any = None

    def __init__(self) -> None:
        self.pending: deque[Execution] = deque()
        """Executions that it has not started."""

    def start(self, run: Runner) -> "asyncio.Future[Optional[Unsettled]]":
        """Runs the pending executions and those that follow.  Returns when there is nothing to do or it must be started again
        with a usable connection; in the other cases, returns the execution that has stopped it."""
        raise NotImplementedError

    async def interrupt(self, execution: Execution) -> None:
        """Makes a handler end soon, if possible."""
        await self.interrupt_again(execution)

    async def interrupt_again(self, execution: Execution) -> None:
        """Cancels the current statement of a handler, even if it began after the first cancel request."""
        if execution.handler_transaction is not None and execution.handler_transaction.used and self.link is not None and self.link.conn is not None:
            await _links.interrupt(self.link.conn)

    async def abandon(self, execution: Execution) -> None:
        """Gives up waiting for a handler, and ends its transaction.  Until the executor continues, the handler cannot
        use the connection.  The session and the leases attached to it still exist."""
        if not execution.abandon():
            return
        conn = self.link.conn if self.link is not None else None
        if conn is not None:
            try:
                await asyncio.wait_for(self._lock(conn), LOCK_TIMEOUT + 0.1)
                self._locked_conn = conn
                await asyncio.wait_for(in_thread(conn.pgconn.exec_, b"ROLLBACK"), ROLLBACK_TIMEOUT)
            except (psycopg.Error, asyncio.TimeoutError):
                give_up(conn)
        self._stopped(Unsettled(execution, ExecutionResult(error=TimeoutError("the handler has not stopped"), hangs=True)))

    async def _lock(self, conn: Any) -> None:
        raise NotImplementedError

    def _stopped(self, unsettled: Unsettled) -> None:
        raise NotImplementedError

    async def reset_connection(self, end: ExecutionResult) -> None:
        """Prepares the connection after an attempt that has not committed, and replaces it if necessary."""
        if end.hangs:
            await self._drop_abandoned()
        elif self.link is not None and self.link.conn is not None and not _is_idle(self.link.conn):
            await self.link.drop()

    async def _drop_abandoned(self) -> None:
        if self.link is not None:
            await self.link.drop(in_use=True)
        if self._locked_conn is not None:
            self._locked_conn.lock.release()  # so that the handler finds the connection closed
            self._locked_conn = None

    async def close(self) -> None:
        if self.link is not None:
            await self.link.drop()


class _TransactionExecutor(Executor):
    """Base class of both executors with a connection."""

    _begun_early = False
    """Whether the last commit has also begun the next transaction and locked its job."""
    _quick = False
    """Whether the last handler used its connection at once."""

    def _lend_connection(self, execution: Execution, conn: Any) -> HandlerTransaction:
        begun, self._begun_early = self._begun_early, False
        transaction: HandlerTransaction = conn.lend(execution, begun)
        return transaction

    def _message(self, run: Runner, execution: Execution, conn: Any, link: Link[Any], results: list[Optional[str]]) -> list[_pipeline.Step]:
        """Ends a transaction."""
        ended = run.ends(execution.jobs, results)
        transaction = execution.handler_transaction
        assert transaction is not None
        self._quick = transaction.used and transaction.quick
        records = run.records(execution.jobs, link)
        execution.committed_after = len(records) + 2
        if self.pending or run.ahead is not None or not run.may_claim():
            return [(_pipeline.COMMIT_MANY_OR_RAISE, ended), *records, (_pipeline.COMMIT, ())]
        end = _pipeline.COMMIT_MANY_AND_CLAIM_OR_RAISE, (*ended, *run.claims(link, run.options.batch))
        steps: list[_pipeline.Step] = [end, *records, (_pipeline.COMMIT, ())]
        if self._quick and conn.has_hold_claimed and conn.named and run.options.batch == 1 and psycopg.Pipeline.is_supported():
            steps += [(_pipeline.BEGIN, ()), (_pipeline.HOLD_CLAIMED, ())]
        return steps

    def _committed(self, run: Runner, execution: Execution, conn: Any, link: Link[Any], answers: list[str]) -> bool:
        """The answers of a message whose COMMIT succeeded, and whether the transaction that it has begun must end."""
        assert execution.commit_at is not None
        begun = conn.pgconn.transaction_status != TransactionStatus.IDLE
        held = begun and answers[-1:] == ["held"]
        run.committed(execution)
        jobs = run.take(answers, execution.commit_at, link)
        self.pending.extend(run.executions(jobs, self))
        self._begun_early = held and len(jobs) == 1
        return begun and not self._begun_early

    def _cause_of_failure(self, execution: Execution, conn: Any, error: BaseException) -> BaseException:
        """The reason why a transaction has not committed, whatever the handler did afterwards."""
        if execution.handler_transaction is not None and execution.handler_transaction.error is not None:
            error = execution.handler_transaction.error
            if isinstance(error, (StaleToken, NoSuchJob, AlreadyCommitted)):
                over = AttemptOver()
                over.__cause__ = error
                return over
        if hasattr(error, "done"):  # an error of the worker's message
            if getattr(error, "done") == 0 and sqlstate(error) == _pipeline.ENDED_BY_HANDLER:
                return RuntimeError("the handler has ended its own job")
            if sqlstate(error) == _pipeline.NO_SUCH_NAME:  # something has deallocated the statement
                conn.named = False
        return error


class AsyncExecutor(Executor):
    """Runs coroutine functions."""

    job_class = AsyncJob

    def start(self, run: Runner) -> "asyncio.Future[Optional[Unsettled]]":
        self._answer: "asyncio.Future[Optional[Unsettled]]" = asyncio.get_running_loop().create_future()
        self._begin(run)
        return self._answer

    def _stopped(self, unsettled: Optional[Unsettled]) -> None:
        if not self._answer.done():
            self._answer.set_result(unsettled)

    def _begin(self, run: Runner) -> None:
        execution = self.pending.popleft()
        execution.task = asyncio.create_task(self._work(run, execution))

    async def _work(self, run: Runner, execution: Execution) -> None:
        """Runs each handler in a task, so that it can be cancelled and has its own context."""
        try:
            end = await self._run(run, execution)
            if not execution.finish():
                return
            unsettled = None if end.error is None and run.handler_succeeded(execution, end) else Unsettled(execution, end)
            if unsettled is None and not end.committed:
                await run.commit(self, execution.jobs, end.value)
            if unsettled is None and end.committed and not self.pending:
                self.pending.extend(run.executions(run.next_ahead(), self))
            if unsettled is None and self.pending and run.may_begin(self):
                self._begin(run)
            else:
                await self._undo_early_begin()
                self._stopped(unsettled)
        except BaseException as error:
            if not self._answer.done():
                self._answer.set_exception(error)

    async def _undo_early_begin(self) -> None:
        pass

    async def _run(self, run: Runner, execution: Execution) -> ExecutionResult:
        (job,) = execution.jobs
        job.begin(run)
        try:
            run.begin(execution)
            return ExecutionResult([run.result_json(finished_result(await run.call_async(job)), job)])
        except BaseException as error:  # even SystemExit ends the attempt and not the worker
            return ExecutionResult(error=error)

    async def interrupt(self, execution: Execution) -> None:
        await super().interrupt(execution)
        if execution.task is not None and not execution.ended and not execution.handled:
            execution.task.cancel()


class AsyncTransactionExecutor(_TransactionExecutor, AsyncExecutor):
    """Runs coroutine functions with an AsyncConnection."""

    link: AsyncLink

    def __init__(self, link: AsyncLink) -> None:
        super().__init__()
        self.link = link  # pyright: ignore[reportIncompatibleVariableOverride]

    async def _lock(self, conn: AsyncHandlersConnection) -> None:
        await conn.lock.acquire()

    async def _undo_early_begin(self) -> None:
        if self._begun_early and isinstance(self.link.conn, AsyncHandlersConnection):
            self._begun_early = False
            await self._roll_back(self.link.conn)

    async def _roll_back(self, conn: AsyncHandlersConnection) -> None:
        try:
            await conn.run_own(_pipeline.exchange(conn, [(_pipeline.ROLLBACK, ())], False), _links.ANSWER_TIMEOUT)
        except psycopg.Error:
            sever(conn)

    @staticmethod
    async def _handle(run: Runner, execution: Execution, conn: Any) -> list[Optional[str]]:
        results = []
        try:
            with run.processing_batch(execution.jobs):
                for job in execution.jobs:
                    job.begin(run, conn)
                    results.append(run.result_text(finished_result(await run.call_async(job, conn))))
                    if job.waiting is not None:
                        raise job.waiting
        finally:
            execution.handled = True
        return results

    async def _run(self, run: Runner, execution: Execution) -> ExecutionResult:
        conn = self.link.conn
        assert isinstance(conn, AsyncHandlersConnection)
        transaction = self._lend_connection(execution, conn)
        try:
            run.begin(execution)
            if execution.commit_unknown:
                transaction.begun = await conn.run_own(transaction.begin(conn), execution.own_limit(conn)) is not None
            results = await self._handle(run, execution, conn)
            _check_nothing_left(await conn.take_back())
            if not _is_used(transaction, conn):
                return ExecutionResult(results)
            steps = self._message(run, execution, conn, self.link, results)
            execution.commit_at = time.monotonic()
            with run.settling(execution.jobs):
                try:
                    answers = await conn.run_own(_pipeline.exchange(conn, steps, conn.named), execution.own_limit(conn))
                except psycopg.Error as error:
                    answers = _answers_after_commit(error, execution)
            if self._committed(run, execution, conn, self.link, answers):
                await self._roll_back(conn)
            return _committed_result()
        except BaseException as error:
            execution.handled = True  # a cancel would hit the rollback and end the executor
            await conn.take_back()
            if execution.commit_unknown and not transaction.begun and transaction.error is None:
                transaction.error = error
            error = self._cause_of_failure(execution, conn, error)
            if not execution.abandoned and not conn.closed:
                try:
                    await conn.run_own(conn._rollback_gen(), _links.ANSWER_TIMEOUT)
                except psycopg.Error:
                    pass
            return ExecutionResult(error=error)


class ThreadExecutor(Executor):
    """Runs functions in the executor's thread."""

    job_class = Job
    threads = True

    def __init__(self) -> None:
        super().__init__()
        self._calls: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        self._answer: Optional["asyncio.Future[ExecutionResult]"] = None

    def start(self, run: Runner) -> "asyncio.Future[Optional[Unsettled]]":
        if self._thread is None:
            # A daemon thread, so that an abandoned handler does not keep the process alive.
            self._thread = threading.Thread(target=_run_calls, args=(self._calls,), name="idemq", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        self._calls.put((loop, self._answer, self._work, (run,)))
        return asyncio.ensure_future(_value(self._answer))

    def _stopped(self, unsettled: Optional[Unsettled]) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(ExecutionResult(unsettled))

    def _work(self, run: Runner) -> Optional[Unsettled]:
        """Runs in the executor's thread."""
        while self.pending or run.next_in_thread(self):
            if not run.may_begin(self):
                self._undo_early_begin()
                return None
            execution = self.pending.popleft()
            end = self._run(run, execution)
            if not execution.finish():
                return None
            if end.committed:
                for job in execution.jobs:
                    job.call_after_commit()
            if end.error is not None or not run.handler_succeeded(execution, end) or (not end.committed and run.group_commit is None):
                self._undo_early_begin()
                return Unsettled(execution, end)
            if not end.committed and self.pending:
                run.from_thread(run.commit(self, execution.jobs, end.value))
            elif not end.committed:
                assert run.group_commit is not None
                run.group_commit.add(execution.jobs, end.value)
        return None

    def _undo_early_begin(self) -> None:
        pass

    def _run(self, run: Runner, execution: Execution) -> ExecutionResult:
        (job,) = execution.jobs
        job.begin(run)
        try:
            run.begin(execution)
            return ExecutionResult([run.result_json(finished_result(run.call(job)), job)])
        except BaseException as error:  # even SystemExit ends the attempt and not the worker
            return ExecutionResult(error=error)

    async def _drop_abandoned(self) -> None:
        await super()._drop_abandoned()
        self._end_thread()

    async def close(self) -> None:
        self._end_thread()
        await super().close()

    def _end_thread(self) -> None:
        self._calls.put(None)
        self._calls = queue.SimpleQueue()
        self._thread = None


class ThreadTransactionExecutor(_TransactionExecutor, ThreadExecutor):
    """Runs functions with a Connection."""

    link: ThreadLink

    def __init__(self, link: ThreadLink) -> None:
        super().__init__()
        self.link = link  # pyright: ignore[reportIncompatibleVariableOverride]

    async def _lock(self, conn: Connection[Any]) -> None:
        if not await in_thread(conn.lock.acquire, True, LOCK_TIMEOUT):
            raise asyncio.TimeoutError

    def _undo_early_begin(self) -> None:
        if self._begun_early and isinstance(self.link.conn, HandlersConnection):
            self._begun_early = False
            self._roll_back(self.link.conn)

    @staticmethod
    def _roll_back(conn: HandlersConnection) -> None:
        try:
            conn.run_own(_pipeline.exchange(conn, [(_pipeline.ROLLBACK, ())], False), _links.ANSWER_TIMEOUT)
        except psycopg.Error:
            sever(conn)

    def _run(self, run: Runner, execution: Execution) -> ExecutionResult:
        conn = self.link.conn
        assert isinstance(conn, HandlersConnection)
        transaction = self._lend_connection(execution, conn)
        try:
            run.begin(execution)
            if execution.commit_unknown:
                transaction.begun = conn.run_own(transaction.begin(conn), execution.own_limit(conn)) is not None
            results = []
            with run.processing_batch(execution.jobs):
                for job in execution.jobs:
                    job.begin(run, conn)
                    results.append(run.result_text(finished_result(run.call(job, conn))))
                    if job.waiting is not None:
                        raise job.waiting
            _check_nothing_left(conn.take_back())
            if not _is_used(transaction, conn):
                return ExecutionResult(results)
            steps = self._message(run, execution, conn, self.link, results)
            execution.commit_at = time.monotonic()
            with run.settling(execution.jobs):
                try:
                    answers = conn.run_own(_pipeline.exchange(conn, steps, conn.named), execution.own_limit(conn))
                except psycopg.Error as error:
                    answers = _answers_after_commit(error, execution)
            if self._committed(run, execution, conn, self.link, answers):
                self._roll_back(conn)
            return _committed_result()
        except BaseException as error:
            conn.take_back()
            if execution.commit_unknown and not transaction.begun and transaction.error is None:
                transaction.error = error
            error = self._cause_of_failure(execution, conn, error)
            if not execution.abandoned and not conn.closed:
                try:
                    conn.run_own(conn._rollback_gen(), _links.ANSWER_TIMEOUT)
                except psycopg.Error:
                    pass
            return ExecutionResult(error=error)


def _committed_result() -> ExecutionResult:
    end = ExecutionResult()
    end.committed = True
    return end


def _answers_after_commit(error: psycopg.Error, execution: Execution) -> list[str]:
    """The answers up to an error that came after COMMIT.  Raises an error that came before."""
    if getattr(error, "done", 0) < execution.committed_after:
        raise error
    answers: list[str] = getattr(error, "answers")
    return answers


def _is_used(transaction: HandlerTransaction, conn: Any) -> bool:
    """Whether there is a transaction to commit.  Raises if it could not begin or has ended."""
    if transaction.error is not None:
        raise transaction.error
    if transaction.begun and _is_idle(conn):
        raise RuntimeError("the handler has ended the worker's transaction")
    if not transaction.begun and not conn.closed and not _is_idle(conn):
        raise RuntimeError("the handler began a transaction without using its connection object")
    return transaction.begun


def _check_nothing_left(left: bool) -> None:
    if left:
        raise RuntimeError("the handler left a stream(), a COPY or a pipeline unfinished; finish it in the handler")


def _is_idle(conn: Any) -> bool:
    return bool(conn.pgconn.transaction_status == TransactionStatus.IDLE)


def _run_calls(calls: "queue.SimpleQueue[Any]") -> None:
    """Main function of an executor's thread."""
    while True:
        call = calls.get()
        if call is None:
            return
        loop, future, function, args = call
        try:
            end = ExecutionResult(function(*args))
        except BaseException as error:
            end = ExecutionResult(error=error)
        try:
            loop.call_soon_threadsafe(_resolve, future, end)
        except RuntimeError:
            return  # the event loop has already ended
        del call, future, function, args, end


def _resolve(future: "asyncio.Future[ExecutionResult]", end: ExecutionResult) -> None:
    if not future.done():
        future.set_result(end)


async def _value(answer: Awaitable[ExecutionResult]) -> Any:
    end = await answer
    if end.error is not None:
        raise end.error
    return end.value
