"""An execution: one call of a handler, or of several whose jobs share a transaction, and its result."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, Optional, Protocol

from . import _links
from ._handler_connection import HandlerTransaction
from .errors import StaleToken

SESSION_CHECK_INTERVAL = 1.0
"""Seconds between two checks whether the session of an attached lease still exists."""

END_REASONS = {
    "lost": "the lease was lost",
    "cancelled": "the job is being cancelled",
    "cut off": "the lease has expired, and the server is not responding",
    "time": "job_timeout has passed",
    "drain": "the worker is stopping",
}


class HandlerControl(Protocol):
    """The interface of the executor that runs an execution and can end it (Executor)."""

    link: Optional[_links.Link[Any]]

    async def interrupt(self, execution: Execution) -> None:
        ...

    async def interrupt_again(self, execution: Execution) -> None:
        ...

    async def abandon(self, execution: Execution) -> None:
        ...


class ExecutionRunner(Protocol):
    """The functions of the worker that an execution uses (AttemptRunner)."""

    lock: threading.Lock

    def call_loop(self, function: Callable[..., Any], *args: Any) -> None:
        ...

    def enforce_end(self, execution: Execution) -> None:
        ...

    def time_is_over(self, execution: Execution, now: float) -> bool:
        ...


class Execution:
    """A handler, or several that share a transaction.

    The event loop ends it, and it may run in an executor's thread.  Each side sets its own flag before it reads
    the other's.
    """

    def __init__(self, jobs: list[Any], executor: HandlerControl, run: ExecutionRunner) -> None:
        self.jobs: list[Any] = jobs if len(jobs) == 1 else sorted(jobs, key=lambda job: int(job.id))
        self.executor = executor
        self.begun = False
        self.seconds = 0.0
        self.limit = "job_timeout"
        """Name of its time limit."""
        self.ends_at = 0.0
        self.session_check_at = 0.0
        self.tries = 0
        self.end_reason: Optional[str] = None
        """Why it was ended: "lost" (the lease), "cancelled", "cut off", "time" or "drain"."""
        self.ended = False
        """Whether the handler and its transaction have ended."""
        self.handled = False
        """Whether the handler has ended and the following statements must not be cancelled."""
        self.abandoned = False
        """Whether it was abandoned."""
        self.handler_transaction: Optional[HandlerTransaction] = None
        """Its transaction, if the handler has a connection."""
        self.task: Optional["asyncio.Task[Any]"] = None
        """The task in which its handler runs, if that is a coroutine."""
        self.end_task: Optional["asyncio.Task[None]"] = None
        """The task that enforces its end, once it was told to end."""
        self.commit_at: Optional[float] = None
        """Time at which COMMIT was sent."""
        self.committed_after = 2
        """How many statements of the last message must succeed until COMMIT has."""
        self.commit_unknown = False
        """Whether COMMIT was sent but not answered."""
        self._run = run
        self._end_requested: Optional["asyncio.Future[None]"] = None
        self._deadline: Optional[datetime] = None
        for job in jobs:
            job._execution = self

    def begin(self, seconds: float, after_claim: Optional[float], of_kind: Optional[float]) -> None:
        """Called before its handler is called, possibly again.

        seconds: maximum duration.  after_claim: maximum time since the claim, instead.  of_kind: maximum duration for its kind."""
        self.ended, self.handled, self.commit_at = False, False, None
        if not self.begun:
            now = time.monotonic()
            self.begun, self.session_check_at = True, now + SESSION_CHECK_INTERVAL
            self.seconds, self.ends_at = (seconds, now + seconds) if after_claim is None else (after_claim, self.claimed_at + after_claim)
            if of_kind is not None and now + of_kind < self.ends_at:
                self.seconds, self.ends_at, self.limit = of_kind, now + of_kind, f"timeout of kind {self.jobs[0].kind}"

    def finish(self) -> bool:
        """Records that the handler has ended.  Returns False if it was abandoned."""
        with self._run.lock:
            self.ended = True
            return not self.abandoned

    def abandon(self) -> bool:
        """Records that the handler is abandoned.  Returns False if it has ended."""
        with self._run.lock:
            self.abandoned = not self.ended
            return self.abandoned

    @property
    def deadline(self) -> datetime:
        """Time at which its time is over."""
        if self._deadline is None:
            left = self.ends_at - time.monotonic() if self.begun else 0
            self._deadline = datetime.now(timezone.utc) + timedelta(seconds=left)
        return self._deadline

    @property
    def end_requested(self) -> "asyncio.Future[None]":
        """Future of the event loop that is done when the handler is told to end."""
        if self._end_requested is None:
            self._end_requested = asyncio.get_running_loop().create_future()
            if self.end_reason is not None:
                self._end_requested.set_result(None)
        return self._end_requested

    def request_end(self, why: str) -> None:
        """Tells the handler to end.  Called by the event loop."""
        if self.end_reason is None:
            self.end_reason = why
            if self._end_requested is not None:
                self._end_requested.set_result(None)
            for job in self.jobs:
                job._cancel()
            if self.begun and not self.ended:
                self._run.enforce_end(self)

    @property
    def end_text(self) -> str:
        """Why it was ended, for a message."""
        text = END_REASONS.get(self.end_reason or "", "no reason is known")
        return text if len(self.jobs) == 1 else text.replace("the lease", "a lease")

    @property
    def locked(self) -> bool:
        """Whether its jobs are locked, so that no other attempt can get them."""
        return self.handler_transaction is not None and self.handler_transaction.begun

    def must_be_current(self) -> None:
        """Raises if a handler would begin its transaction after the attempt is over."""
        if self.end_reason is None and time.monotonic() < self.lease_until:
            return
        why = "time" if self.time_is_over(time.monotonic()) else "cut off"
        self._run.call_loop(self.request_end, why)
        raise StaleToken(f"the attempt has ended ({END_REASONS[self.end_reason or why]}), so its connection accepts no more statements")

    def time_is_over(self, now: float) -> bool:
        """Whether its lease has ended because of the queue's job_timeout."""
        return self._run.time_is_over(self, now)

    def own_limit(self, conn: Any) -> Optional[float]:
        """Seconds within which the worker's statements on a handler's connection must be answered.  None means that the worker asks the
        server over another connection whether the session is busy (AttemptRunner), which is impossible behind a pooler."""
        return None if conn.direct else max(self.lease, _links.ANSWER_TIMEOUT)

    @property
    def lease(self) -> float:
        """Length of the shortest lease of its jobs, in seconds."""
        return float(min(job._lease for job in self.jobs))

    @property
    def claimed_at(self) -> float:
        return float(min(job._claimed_at for job in self.jobs))

    @property
    def lease_until(self) -> float:
        return float(min(job._lease_until for job in self.jobs))


class ExecutionResult:
    """The result of a handler, or of a transaction of several."""

    def __init__(self, value: Any = None, error: Optional[BaseException] = None, hangs: bool = False) -> None:
        self.value = value
        self.error = error
        self.hangs = hangs
        """Whether it has not ended."""
        self.committed = False
