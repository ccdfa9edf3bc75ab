"""The job that a handler gets.  The public classes are Job and AsyncJob."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta, timezone
from types import GenericAlias
from typing import (
    TYPE_CHECKING,
    Any,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generic,
    Iterator,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    TypeVar,
    overload,
)

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.rows import tuple_row
from psycopg.types.json import Jsonb

from ._arguments import delay_argument, ids_argument, int_argument, positive_seconds, text_argument
from ._codec import Codec, decoded, encoded, encoded_json, encoded_with_each_key, jsonb_of
from ._execution import Execution, ExecutionResult
from ._handler_connection import HandlerTransaction
from ._handlers import check_callable, check_parameters, finished_result
from ._links import Link
from ._logs import Lines, redacted
from ._values import AnyConnection, Row, json_text, own_copy, require_connection, storable_text
from .errors import Dead, Delay, KeyReused, Refused, Snooze, StaleToken, Waiting, said, sqlstate, text_of

T = TypeVar("T")
P = TypeVar("P")
R = TypeVar("R")
Result = TypeVar("Result", covariant=True)
log = logging.getLogger("idemq")

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_CHECKPOINT = "SELECT idemq.checkpoint(%s, %s, %s)"
_BEGIN_STEP = "CALL idemq.begin_step(%s, %s, %s, %s::jsonb, %s::interval)"
_FINISH_STEP = "SELECT idemq.finish_step(%(id)s, %(token)s, %(name)s, %(value)s::jsonb), idemq.validate(%(id)s, %(token)s)::text"
_REFUSE_STEP = "SELECT idemq.refuse_step(%(id)s, %(token)s, %(name)s, %(value)s)"
AWAIT = "SELECT outcome, payload FROM idemq.await_event(%s, %s, %s, %s::interval)"
_ADD_PARENTS = "SELECT parent, outcome::text FROM idemq.add_parents(%s, %s::bigint[], %s, %s)"
_PARENTS = """SELECT p.parent, p.queue, p.status::text, p.result FROM idemq.parents(%s) AS p LEFT JOIN idemq.jobs AS j ON j.id = p.parent AND %s::text IS NOT NULL
    WHERE (%s::text IS NULL OR p.queue = %s::text) AND (%s::text IS NULL OR j.id IS NULL OR j.kind = %s::text) ORDER BY p.parent"""
"""A parent that the role may not see is not left out, because its kind is not known."""


class StepCall(NamedTuple):
    """The argument of a step's call and ask."""

    key: str
    """Idempotency key of the effect.  It is the same for every attempt until the other system refuses the call."""
    request: Any
    """The request; in ask, that of the earlier call."""
    until: datetime
    """When the call must have ended.  Another attempt may call from then on."""
    begun_at: Optional[datetime]
    """In ask: when the call began whose answer was lost."""

    @property
    def timeout(self) -> float:
        """Seconds left until then.  Use it as the timeout of the request."""
        return max((self.until - datetime.now(timezone.utc)).total_seconds(), 0.001)


def _in_time(name: str, step: StepCall) -> None:
    """Raises if the time of a step's call is over.  The call is not made then, because another attempt may already have asked whether it was."""
    if datetime.now(timezone.utc) >= step.until:
        raise TimeoutError(f"step {name}: the time for the call was over before the call, so it was not made")


class Event(NamedTuple):
    """Result of await_event."""

    arrived: bool
    """False if the timeout passed first."""
    payload: Any


if TYPE_CHECKING:

    class Parent(NamedTuple, Generic[R]):
        """A job in depends_on of this one, with its status and result."""

        id: int
        queue: Optional[str]
        status: Optional[str]
        """None if the parent was completed and deleted, in a queue that keeps no jobs (retention 0)."""
        result: R

else:  # Python 3.9 and 3.10 have no generic NamedTuple

    class Parent(NamedTuple):
        """A job in depends_on of this one, with its status and result."""

        id: int
        queue: Optional[str]
        status: Optional[str]
        result: Any
        __class_getitem__ = classmethod(GenericAlias)


class ResultsOf(Protocol[Result]):
    """A queue whose results have a type (Queue)."""

    name: str
    kind: Optional[str]

    def decode_result(self, value: Any) -> Optional[Result]:
        ...


class JobRunner(Protocol):
    """The functions of the worker (AttemptRunner) with which a job makes requests over the shared connection."""

    options: Any

    async def ask_about_job(self, job: BaseJob, sql: str, values: Any, anyway: bool = False) -> list[Row]:
        ...

    def from_thread(self, work: Coroutine[Any, Any, T]) -> T:
        ...


class BaseJob:
    """One attempt of a job."""

    id: int
    token: int
    """Fencing token of this attempt.  Send it to a system that rejects older tokens."""
    attempt: int
    """Number of this attempt, starting at 1."""
    max_attempts: int
    payload: Any
    key: Optional[str]
    group_key: Optional[str]
    kind: Optional[str]
    checkpoint: Any
    """Data that save_checkpoint stored last, possibly in an earlier attempt; None if there is none."""
    headers: dict[str, Any]
    unreadable: Optional[Exception]
    """Why the payload, checkpoint or headers cannot be decoded; None if they can."""
    _event: type[Any]
    _await_step: str
    """What a handler must do that has ended before its steps."""
    _run: JobRunner
    _codec: Optional[Codec] = None
    """The codec of the queue, once the job has been decoded."""

    def __init__(self, queue: str, row: Sequence[Any], asked_at: float, link: Link[Any], attached: bool) -> None:
        """row: a result of _pipeline.read_row without the outcome.  link: the connection that claimed the job."""
        self.queue = queue
        (self.id, self.token, self.attempt, self.max_attempts, self.payload, self.key, self.group_key) = row[:7]
        (self.checkpoint, self._enqueued_at, headers, self.kind, lease, self.unreadable) = row[7:]
        # Only the numbers of an unreadable job are known.  Its attempt fails before its handler is called.
        self.headers = headers if isinstance(headers, dict) else {}
        self._stored_payload, self._stored_headers = self.payload, self.headers
        """What was decoded from JSON.  The handler gets copies, which it may change, or a payload with a type (Queue)."""
        self._lease = lease / 1000
        self._claimed_at = asked_at
        self._zone = link.zone
        self._link = link if attached else None
        """The link to whose session the lease is attached, and below the number of that session."""
        self._session = link.connections
        self.claimed_on = link
        self.arrived_at = asked_at
        """Time at which its claim was answered, if it was claimed ahead."""
        self.marked = False
        """Whether the server knows that it waits for an idle executor."""
        self._cancelled: Any = None
        self._being_cancelled = False
        """Whether an open transaction is cancelling the job, according to a heartbeat."""
        self._execution: Optional[Execution] = None
        self._conn: Any = None
        """The connection of a handler that has a transaction."""
        self._stored_checkpoint = self.checkpoint
        """The checkpoint without that of the transaction, which may roll back."""
        self.waiting: Optional[Waiting] = None
        """The Waiting that was raised in the handler, if it waits for an event."""
        self.wait_stored = False
        """Whether this wait was stored outside the handler's transaction, and has ended the attempt."""
        self._arrived: list[Waiting] = []
        """Events that the handler has received in its transaction."""
        self._steps: list[str] = []
        """Names of the steps that are under way."""
        self.handled = False
        """Whether the handler has ended, so that it must begin no step."""
        self.lines: Optional[Lines] = None
        """The log lines of this attempt, if they are captured."""
        self.consumed = False
        """Whether metrics have counted this attempt."""
        self.process_context: Any = None
        """OpenTelemetry's context of its handler."""
        self.sent: Any = None
        """OpenTelemetry's context of the producer (_trace)."""
        self.after_commit: Optional[Callable[[], Any]] = None
        """Called once the handler's transaction is committed (idemq.django)."""
        self.error_details: dict[str, Any] = {}
        """What the handler adds to the details of a failed attempt (idemq.django)."""
        self._renew_lease(asked_at)

    @property
    def enqueued_at(self) -> datetime:
        """Time at which the job was enqueued."""
        return (_EPOCH + timedelta(microseconds=self._enqueued_at)).astimezone(self._zone)

    @property
    def deadline(self) -> datetime:
        """Time at which the handler will be cancelled, from the queue's job_timeout or the worker's timeout."""
        return self._execution.deadline if self._execution is not None else datetime.now(timezone.utc)

    @property
    def cancelled(self) -> Any:
        """Event that is set when the handler should end: the lease is lost, or the time is over."""
        if self._cancelled is None:
            self._cancelled = self._event()
            if self._execution is not None and self._execution.end_reason is not None:  # the reason is set before the event is looked for
                self._cancelled.set()
        return self._cancelled

    def _cancel(self) -> None:
        if self._cancelled is not None:
            self._cancelled.set()

    def __repr__(self) -> str:
        return f"<job {self.id} of {self.queue}, attempt {self.attempt} of {self.max_attempts}>"

    def _renew_lease(self, asked_at: float) -> None:
        """Counts the lease from before the request was sent, so it never ends later here than in the server."""
        self._heartbeat_at = asked_at + self._lease / 3
        self._lease_until = asked_at + self._lease

    def begin(self, run: JobRunner, conn: Optional[AnyConnection] = None) -> None:
        """Called when a handler starts, possibly again.  conn: its connection, if it has a transaction."""
        self._run, self._conn = run, conn
        self.payload, self.headers, self.checkpoint = own_copy(self._stored_payload), own_copy(self._stored_headers), own_copy(self._stored_checkpoint)
        self.waiting, self.wait_stored, self._arrived = None, False, []
        self._steps, self.handled = [], False
        self.after_commit, self.error_details = None, {}

    def call_after_commit(self) -> None:
        """Called in a thread once the handler's transaction is committed.  An exception cannot undo that."""
        function, self.after_commit = self.after_commit, None
        try:
            if function is not None:
                function()
        except BaseException:
            log.exception("%s %d: after the commit", self.queue, self.id)

    def decode(self, codec: Codec) -> None:
        """Decodes payload and checkpoint, before the handler is called for the first time."""
        if self._codec is None:
            payload, checkpoint = decoded(codec, self._stored_payload), decoded(codec, self._stored_checkpoint)
            self._stored_payload, self._stored_checkpoint = payload, checkpoint
            self.payload, self.checkpoint = own_copy(payload), own_copy(checkpoint)
            self._codec = codec

    def check_steps(self) -> None:
        """Called when the handler has returned.  Raises if a step is still under way, because the job must not be completed before its calls."""
        for name in list(self._steps):
            raise RuntimeError(f"the handler has ended while step {name} was under way; {self._await_step}")

    def _refuse_after_end(self) -> None:
        """Called when a step begins, after it was added to _steps.  The end of the handler also sets its flag before it looks for steps."""
        if self.handled:
            raise RuntimeError("job.step was called after the handler had ended")

    @property
    def _transaction(self) -> Optional[HandlerTransaction]:
        return self._execution.handler_transaction if self._execution is not None and self._conn is not None else None

    @property
    def _in_transaction(self) -> bool:
        """Whether events and parents belong to the handler's transaction: it has begun, or other jobs share it."""
        transaction = self._transaction
        return transaction is not None and (transaction.used or len(transaction.owner.jobs) > 1)

    def _checkpoint_values(self, data: Any) -> tuple[Any, ...]:
        return self.id, self.token, encoded(self._codec, "the checkpoint", data)

    async def _save_checkpoint(self, data: Any, values: tuple[Any, ...]) -> None:
        await self._run.ask_about_job(self, _CHECKPOINT, values)
        self.checkpoint, self._stored_checkpoint = data, own_copy(data)

    def _parents_of(self, queue: Optional[ResultsOf[Any]]) -> tuple[Any, ...]:
        name, kind = (None, None) if queue is None else (queue.name, queue.kind)
        return self.id, kind, name, name, kind, kind

    def _parents(self, queue: Optional[ResultsOf[Any]], rows: list[Row]) -> list[Parent[Any]]:
        plain = [(id, name, status, decoded(self._codec, result)) for id, name, status, result in rows]
        return [Parent(id, name, status, result if queue is None else queue.decode_result(result)) for id, name, status, result in plain]

    def _await(self, name: str, timeout: Delay) -> tuple[str, tuple[Any, ...]]:
        return AWAIT, (self.id, self.token, text_argument("name", name), delay_argument("timeout", timeout))

    def _adding(self, child: int, parents: Sequence[int]) -> tuple[str, tuple[Any, ...]]:
        return _ADD_PARENTS, (int_argument("child", child), ids_argument("parents", parents), self.id, self.token)

    @staticmethod
    def _added(rows: list[Row]) -> None:
        locked = [str(parent) for parent, outcome in rows if outcome == "locked"]
        if locked:
            # If this attempt went on and completed, the child would start without these parents.
            raise Snooze(1, f"parents could not be added because another transaction is using them: {', '.join(locked[:10])}")

    def _awaited(self, name: str, timeout: Delay, rows: list[Row], in_transaction: bool) -> Event:
        outcome, payload = rows[0]
        if outcome == "waiting":
            self.waiting, self.wait_stored = Waiting(name, timeout), not in_transaction
            raise self.waiting
        if outcome == "arrived" and in_transaction:
            self._arrived.append(Waiting(name, timeout))
        return Event(outcome == "arrived", decoded(self._codec, payload))

    # A handler in a thread encodes and decodes the documents of its steps there, because a codec may be slow, and the event loop renews leases.

    def _encoded_request(self, name: str, request: Any, seconds: float) -> tuple[datetime, list[Jsonb]]:
        """When a call that begins now must have ended, and its request, encoded with each key."""
        until = datetime.now(timezone.utc) + timedelta(seconds=positive_seconds("call_timeout", seconds))
        text_argument("name", name)
        return until, [Jsonb(request)] if self._codec is None else encoded_with_each_key(self._codec, "the request", request)

    def _begun_step(self, name: str, request: Any, until: datetime, rows: list[Row]) -> tuple[bool, Any, StepCall]:
        """Whether the step is done, with its response; otherwise the argument of call or ask."""
        outcome, response, former, begun_at, retry_after, key = rows[0]
        if outcome == "busy":
            # The call of a lost attempt may still arrive, so the other system could answer "no" too early.
            raise Snooze(retry_after, f"step {name}: an earlier request may still arrive")
        unknown = outcome == "unknown"
        earlier = decoded(self._codec, former) if unknown else request
        return outcome == "done", decoded(self._codec, response), StepCall(key, earlier, until, begun_at if unknown else None)

    async def _ask_begin_step(self, name: str, requests: Sequence[Jsonb], seconds: float) -> list[Row]:
        """An earlier attempt may have encoded the same request with another key."""
        for n, request in enumerate(requests, 1):
            try:
                return await self._run.ask_about_job(self, _BEGIN_STEP, (self.id, self.token, name, request, timedelta(seconds=seconds)))
            except KeyReused:
                if n == len(requests):
                    raise
        raise AssertionError

    def _encoded_response(self, response: Any) -> tuple[Optional[str], Optional[BaseException]]:
        """A response as it is stored, or why it cannot be encoded."""
        try:
            return json_text(response) if self._codec is None else encoded_json(self._codec, "the response", response), None
        except Exception as error:  # encoders and responses may be of any class
            return None, error

    async def _finish_step(self, name: str, response: Any, text: Optional[str], refusal: Optional[BaseException]) -> tuple[Any, bool]:
        """Stores the response, even if the lease is lost, because the call was made.  Returns the response that counts, and whether it is
        as it is stored.  Raises StaleToken if the lease is lost."""
        if refusal is None:
            try:
                return await self._store_response(name, None if text is None else jsonb_of(text)), True
            except psycopg.Error as error:
                if sqlstate(error)[:2] not in ("22", "54"):
                    raise
                refusal = error
        log.error("%s %d: step %s is done, but its response cannot be stored: %s", self.queue, self.id, name, redacted(self._run.options.redact, text_of(refusal)))
        await self._store_response(name, None)
        return response, False

    def _plain_response(self, response: Any, is_stored: bool) -> Any:
        return decoded(self._codec, response) if is_stored else response

    async def _store_response(self, name: str, response: Optional[Jsonb]) -> Any:
        ((stored, outcome),) = await self._report_step(_FINISH_STEP, name, response)
        if outcome in ("stale", "not_found"):
            raise StaleToken(f"the answer of step {name} arrived after the lease was lost; it is stored, and the next attempt returns it")
        return stored

    async def _refuse_step(self, name: str, error: BaseException) -> None:
        await self._report_step(_REFUSE_STEP, name, storable_text(redacted(self._run.options.redact, said(error))))

    async def _report_step(self, sql: str, name: str, value: Any) -> list[Row]:
        return await self._run.ask_about_job(self, sql, {"id": self.id, "token": self.token, "name": name, "value": value}, anyway=True)


class Job(BaseJob, Generic[P]):
    """One attempt of a job whose handler is a function.  P: type of its payload."""

    payload: P
    _event = threading.Event
    _await_step = "wait for the thread that calls job.step"

    @property
    def cancelled(self) -> threading.Event:
        """Event that is set when the handler should end: the lease is lost, the deadline has passed, or a drain's grace is over."""
        event: threading.Event = super().cancelled
        return event

    @contextmanager
    def _before_use(self, what: str) -> Iterator[None]:
        """Context manager of a request that must be made before the handler uses its connection."""
        transaction = self._transaction
        if transaction is None:
            yield
            return
        with transaction.before_use(what):
            self._conn.unlock_job(transaction)
            yield

    def save_checkpoint(self, data: Any, conn: Optional[Connection[Any]] = None) -> None:
        """Store data for the next attempt, which finds it in job.checkpoint.

        With conn, it is stored in that connection's transaction, together with the effect.  Without conn, call it before the
        handler uses its connection.  Raises StaleToken if the lease is lost.
        """
        if conn is not None:
            require_connection(conn, Connection)
        if conn is not None and conn is self._conn:
            conn.execute(_CHECKPOINT, self._checkpoint_values(data))
            self.checkpoint = data
            return
        with self._before_use("job.save_checkpoint"):
            if conn is None:
                self._run.from_thread(self._save_checkpoint(data, self._checkpoint_values(data)))
            else:
                conn.execute(_CHECKPOINT, self._checkpoint_values(data))
                self.checkpoint = data

    def step(
        self,
        name: str,
        call: Callable[[StepCall], Any],
        request: Any = None,
        call_timeout: float = 30,
        ask: Optional[Callable[[StepCall], Any]] = None,
    ) -> Any:
        """Call another system, store its response and return it.  Later attempts return the stored response.

        If an attempt was lost between call and response, ask(step) asks the other system.  It returns the response, or
        None if the call was not performed.  In that case, or without ask, call(step) runs again with
        the same key.  A call must end within step.timeout.  If it raises Refused or Dead, the other system has
        definitely done nothing, and the next call uses another key.

        Call it before the handler uses its connection.  If the handler returns while a step is still under way, the attempt
        fails.  Raises StaleToken if the lease was lost before the answer arrived.
        """
        for function in (call, ask or call):
            check_callable(function, False, "Job.step", "AsyncWorker and its AsyncJob.step", ("step",))
        steps = self._steps
        steps.append(name)
        try:
            self._refuse_after_end()
            with self._before_use("job.step"):
                return self._step(name, call, request, call_timeout, ask)
        finally:
            steps.remove(name)

    def _step(
        self, name: str, call: Callable[[StepCall], Any], request: Any, call_timeout: float, ask: Optional[Callable[[StepCall], Any]]
    ) -> Any:
        run = self._run
        until, requests = self._encoded_request(name, request, call_timeout)
        done, response, step = self._begun_step(name, request, until, run.from_thread(self._ask_begin_step(name, requests, call_timeout)))
        if done:
            return response
        definite: tuple[type[Exception], ...] = (Refused,)
        try:
            if step.begun_at is not None and ask is not None:
                response = finished_result(ask(step))
            if response is None:
                definite = (Refused, Dead)
                _in_time(name, step)
                response = finished_result(call(step._replace(request=request, begun_at=None)))
        except definite as error:
            run.from_thread(self._refuse_step(name, error))
            raise
        return self._plain_response(*run.from_thread(self._finish_step(name, response, *self._encoded_response(response))))

    def await_event(self, name: str, timeout: Delay) -> Event:
        """Wait for an event of the job's queue (send_event).  The timeout counts from the first call.

        If the event has not arrived, Waiting ends the handler, its transaction rolls back, and no attempt is counted.
        The job then waits, for days if necessary.  When the event arrives or the timeout has passed, the handler is
        called again from the beginning, and this call returns the outcome, as it does in every later attempt.
        """
        in_transaction = self._in_transaction
        return self._awaited(name, timeout, self._ask("job.await_event", *self._await(name, timeout)), in_transaction)

    def add_parents(self, child: int, parents: Sequence[int]) -> None:
        """Make a child of this job wait for further jobs, which have been enqueued since this one.

        In a handler with a transaction, they are added if it commits; otherwise immediately.  A job that is already
        a parent stays one.  If another transaction is just using one of these jobs, Snooze ends the handler, its
        transaction rolls back, no attempt is counted, and the job runs again a second later.
        """
        self._added(self._ask(None, *self._adding(child, parents)))

    @overload
    def parents(self) -> list[Parent[Any]]:
        ...

    @overload
    def parents(self, queue: ResultsOf[R]) -> list[Parent[Optional[R]]]:
        ...

    def parents(self, queue: Optional[ResultsOf[Any]] = None) -> list[Parent[Any]]:
        """Return the jobs in depends_on of this one, with their results.

        With a Queue: only those in that queue and of its kind, with results of its type (None if there is none).
        """
        return self._parents(queue, self._ask("job.parents", _PARENTS, self._parents_of(queue)))

    def _ask(self, what: Optional[str], sql: str, values: Sequence[Any]) -> list[Row]:
        """Runs a statement, in the handler's transaction if it has begun, or, if `what` is None, if it has one."""
        if self._conn is None or not (what is None or self._in_transaction):
            with self._before_use(what or ""):
                return self._run.from_thread(self._run.ask_about_job(self, sql, values))
        with self._conn.cursor(row_factory=tuple_row, binary=True) as own:
            rows: list[Row] = own.execute(sql, values).fetchall()
        return rows


class AsyncJob(BaseJob, Generic[P]):
    """One attempt of a job whose handler is a coroutine function.  P: type of its payload."""

    payload: P
    _event = asyncio.Event
    _await_step = "await job.step"

    @property
    def cancelled(self) -> asyncio.Event:
        """Event that is set when the handler should end.  The handler is also cancelled."""
        event: asyncio.Event = super().cancelled
        return event

    @asynccontextmanager
    async def _before_use(self, what: str) -> AsyncIterator[None]:
        transaction = self._transaction
        if transaction is None:
            yield
            return
        with transaction.before_use(what):
            await self._conn.unlock_job(transaction)
            yield

    async def save_checkpoint(self, data: Any, conn: Optional[AsyncConnection[Any]] = None) -> None:
        """Like Job.save_checkpoint."""
        if conn is not None:
            require_connection(conn, AsyncConnection)
        if conn is not None and conn is self._conn:
            await conn.execute(_CHECKPOINT, self._checkpoint_values(data))
            self.checkpoint = data
            return
        async with self._before_use("job.save_checkpoint"):
            if conn is None:
                await self._save_checkpoint(data, self._checkpoint_values(data))
            else:
                await conn.execute(_CHECKPOINT, self._checkpoint_values(data))
                self.checkpoint = data

    def step(
        self,
        name: str,
        call: Callable[[StepCall], Awaitable[Any]],
        request: Any = None,
        call_timeout: float = 30,
        ask: Optional[Callable[[StepCall], Awaitable[Any]]] = None,
    ) -> Coroutine[Any, Any, Any]:
        """Like Job.step, for coroutine functions.  A call is cancelled after call_timeout."""
        # It is under way as soon as the coroutine exists, so that the end of the handler notices if it was never awaited.
        self._steps.append(name)
        return self._run_step(self._steps, name, call, request, call_timeout, ask)

    async def _run_step(
        self,
        steps: list[str],
        name: str,
        call: Callable[[StepCall], Awaitable[Any]],
        request: Any,
        call_timeout: float,
        ask: Optional[Callable[[StepCall], Awaitable[Any]]],
    ) -> Any:
        try:
            self._refuse_after_end()
            for function in (call, ask or call):
                check_parameters(function, ("step",))
            async with self._before_use("job.step"):
                return await self._step(name, call, request, call_timeout, ask)
        finally:
            steps.remove(name)

    async def _step(
        self,
        name: str,
        call: Callable[[StepCall], Awaitable[Any]],
        request: Any,
        call_timeout: float,
        ask: Optional[Callable[[StepCall], Awaitable[Any]]],
    ) -> Any:
        until, requests = self._encoded_request(name, request, call_timeout)
        done, response, step = self._begun_step(name, request, until, await self._ask_begin_step(name, requests, call_timeout))
        if done:
            return response
        definite: tuple[type[Exception], ...] = (Refused,)
        try:
            if step.begun_at is not None and ask is not None:
                response = await self._answer(ask, step)
            if response is None:
                definite = (Refused, Dead)
                _in_time(name, step)
                response = await self._answer(call, step._replace(request=request, begun_at=None))
        except definite as error:
            await _despite_cancel(self._refuse_step(name, error))
            raise
        # The call has been made, even if the handler is cancelled now.
        return self._plain_response(*await _despite_cancel(self._finish_step(name, response, *self._encoded_response(response))))

    @staticmethod
    async def _answer(function: Callable[[StepCall], Awaitable[Any]], step: StepCall) -> Any:
        """The result of a call within its time.  If the function did not return an awaitable, its result counts as well."""
        answer = function(step)
        if not inspect.isawaitable(answer):
            return finished_result(answer)
        end = await asyncio.wait_for(_no_exit(answer), step.timeout)
        if end.error is not None:
            raise end.error
        return finished_result(end.value)

    async def await_event(self, name: str, timeout: Delay) -> Event:
        """Like Job.await_event."""
        in_transaction = self._in_transaction
        return self._awaited(name, timeout, await self._ask("job.await_event", *self._await(name, timeout)), in_transaction)

    async def add_parents(self, child: int, parents: Sequence[int]) -> None:
        """Like Job.add_parents."""
        self._added(await self._ask(None, *self._adding(child, parents)))

    @overload
    async def parents(self) -> list[Parent[Any]]:
        ...

    @overload
    async def parents(self, queue: ResultsOf[R]) -> list[Parent[Optional[R]]]:
        ...

    async def parents(self, queue: Optional[ResultsOf[Any]] = None) -> list[Parent[Any]]:
        """Like Job.parents."""
        return self._parents(queue, await self._ask("job.parents", _PARENTS, self._parents_of(queue)))

    async def _ask(self, what: Optional[str], sql: str, values: Sequence[Any]) -> list[Row]:
        if self._conn is None or not (what is None or self._in_transaction):
            async with self._before_use(what or ""):
                return await self._run.ask_about_job(self, sql, values)
        async with self._conn.cursor(row_factory=tuple_row, binary=True) as own:
            await own.execute(sql, values)
            rows: list[Row] = await own.fetchall()
        return rows


async def _despite_cancel(work: Coroutine[Any, Any, T]) -> T:
    """The result of work that goes on if the caller is cancelled."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # otherwise asyncio warns about an error that no one awaits
    return await asyncio.shield(task)


async def _no_exit(answer: Awaitable[Any]) -> ExecutionResult:
    """Catches SystemExit.  Until Python 3.11, wait_for runs a task, in which SystemExit would end the loop and the worker."""
    try:
        return ExecutionResult(await answer)
    except (KeyboardInterrupt, SystemExit) as error:
        return ExecutionResult(error=error)
