"""A job as its handler sees it.  The public part is Job and AsyncJob."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Optional, TypeVar, Union

from psycopg import AsyncConnection, Connection
from psycopg.types.json import Jsonb

from ._server import Row

if TYPE_CHECKING:
    from ._run import Run

T = TypeVar("T")

# After these of a row: how long its lease is, in seconds.
COLUMNS = """id, token, attempt, max_attempts, payload, key, group_key, checkpoint, enqueued_at, headers,
    greatest(extract(epoch FROM deadline - pg_catalog.clock_timestamp()), 0.1)::float8"""
_CHECKPOINT = "SELECT idemq.checkpoint(%s, %s, %s)"


class BaseJob:
    """One attempt of a job."""

    id: int
    token: int
    """The attempt's: give it to an outside system that fences."""
    attempt: int
    """1, 2, ..."""
    max_attempts: int
    payload: Any
    key: Optional[str]
    group_key: Optional[str]
    state: Any
    """What the last checkpoint has stored, of an earlier attempt too; None: there was none."""
    enqueued_at: datetime
    headers: dict[str, Any]
    deadline: datetime
    """When the handler will be cancelled: the queue's job_timeout, or the worker's timeout."""
    cancelled: Union[threading.Event, asyncio.Event]

    def __init__(self, queue: str, row: Row, asked_at: float) -> None:
        self.queue = queue
        (self.id, self.token, self.attempt, self.max_attempts, self.payload, self.key, self.group_key) = row[:7]
        (self.state, self.enqueued_at, headers, self._lease) = row[7:]
        self.headers = headers if isinstance(headers, dict) else {}
        self.deadline = datetime.now(timezone.utc)
        self._run: Optional[Run] = None
        self._unit: Optional[Unit] = None
        self._heard(asked_at)

    def __repr__(self) -> str:
        return f"<job {self.id} of {self.queue}, attempt {self.attempt} of {self.max_attempts}>"

    def _heard(self, asked_at: float) -> None:
        """The lease runs from before the question: it never ends later here than in the server."""
        self._beat_at = asked_at + self._lease / 3
        self._lease_until = asked_at + self._lease

    def _outside(self) -> Run:
        if self._run is None:
            raise RuntimeError("only a handler of run_outside() has this: one of run() has a transaction")
        return self._run

    async def _checkpoint(self, state: Any) -> None:
        await self._outside().tell(self, _CHECKPOINT, (self.id, self.token, Jsonb(state)))
        self.state = state


class Job(BaseJob):
    """One attempt of a job, for a handler that is a function."""

    cancelled: threading.Event
    """Set when the lease is lost or the time is over: the handler should end."""

    def __init__(self, queue: str, row: Row, asked_at: float) -> None:
        super().__init__(queue, row, asked_at)
        self.cancelled = threading.Event()

    def checkpoint(self, state: Any, conn: Optional[Connection[Any]] = None) -> None:
        """Store how far the attempt came, for the next one to find in job.state.

        With conn in that connection's transaction, together with the effect.  Raises StaleToken when
        the lease is lost.
        """
        if conn is not None:
            conn.execute(_CHECKPOINT, (self.id, self.token, Jsonb(state)))
            self.state = state
        else:
            self._outside().from_thread(self._checkpoint(state))


class AsyncJob(BaseJob):
    """One attempt of a job, for a handler that is a coroutine function."""

    cancelled: asyncio.Event
    """Set when the lease is lost or the time is over; the handler is cancelled then, too."""

    def __init__(self, queue: str, row: Row, asked_at: float) -> None:
        super().__init__(queue, row, asked_at)
        self.cancelled = asyncio.Event()

    async def checkpoint(self, state: Any, conn: Optional[AsyncConnection[Any]] = None) -> None:
        """As Job.checkpoint."""
        if conn is not None:
            await conn.execute(_CHECKPOINT, (self.id, self.token, Jsonb(state)))
            self.state = state
        else:
            await self._checkpoint(state)


class Unit:
    """What begins and ends together: a handler, or a transaction of several."""

    def __init__(self, jobs: list[Any], seconds: float) -> None:
        self.jobs: list[Any] = sorted(jobs, key=lambda job: int(job.id))
        self.seconds = seconds
        self.ends_at = time.monotonic() + seconds
        self.why: Optional[str] = None
        """Why it was ended: "lost" (the lease), "cut off", "time" or "drain"."""
        self.stop = asyncio.Event()
        self.commit_at: Optional[float] = None
        """When COMMIT was sent."""
        self.commit_unknown = False
        """Whether it was, and not answered."""
        for job in jobs:
            job._unit = self
            job.deadline = datetime.now(timezone.utc) + timedelta(seconds=seconds)

    def end(self, why: str) -> None:
        """Tells the handler to end."""
        if self.why is None:
            self.why = why
            self.stop.set()
            for job in self.jobs:
                job.cancelled.set()

    @property
    def lease_until(self) -> float:
        return float(min(job._lease_until for job in self.jobs))


class End:
    """How a handler, or a transaction of several, has ended."""

    def __init__(self, value: Any = None, error: Optional[BaseException] = None) -> None:
        self.value = value
        self.error = error


Handler = Union[Callable[..., Any], Callable[..., Awaitable[Any]]]
