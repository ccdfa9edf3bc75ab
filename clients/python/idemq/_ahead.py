"""Jobs that a worker has claimed ahead: they wait in the worker, in the order of their claims, until an executor is idle.

A job that was claimed a moment ago begins at once.  A job that waits longer is marked in the server, so that it returns without
counting an attempt if the worker is killed.  It begins only after the server has removed the mark and confirmed that it still may
begin, which it may not if its lease has ended, if it is cancelled, or if its queue is paused or held back.  So the server never has
a mark on a job that has begun.

Jobs that have waited for ahead_wait are given back.  The worker then claims none ahead until a handler has ended, and at most half as
many.  The number doubles again whenever the last waiting job has begun early.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any, Callable, Optional, Protocol, Sequence

import psycopg

from ._job import BaseJob
from ._links import AnswerLost
from ._options import Options
from ._shared import Shared

log = logging.getLogger("idemq")

FRESH_FOR = 0.02
"""Seconds since the answer of its claim in which a job may begin without being confirmed."""
LONGEST_TICK = 0.2
"""Seconds between two looks at waiting jobs, at most."""

# since 1.0.0
_TELL = "SELECT token, outcome::text FROM idemq.heartbeat_many(%s, %s, NULL, ahead => %s)"
NOT_AHEAD = """CASE WHEN max_running IS NOT NULL THEN 'max_running' WHEN rate_limit IS NOT NULL THEN 'rate_limit' WHEN max_attempts = 1 THEN 'max_attempts 1'
    WHEN group_max_running > 1 THEN 'group_max_running' WHEN group_rate_limit IS NOT NULL THEN 'group_rate_limit'
    WHEN group_max_unfinished IS NOT NULL THEN 'group_max_unfinished' END"""
"""SQL: the setting because of which a queue's jobs are not claimed ahead."""


class Giver(Protocol):
    """The queue whose jobs wait (AttemptRunner)."""

    options: Options
    shared: Shared
    lock: threading.Lock
    unassigned: deque[BaseJob]
    breaker: Any

    async def give_back(self, jobs: Sequence[BaseJob]) -> None:
        ...


class Ahead:
    """The jobs of a queue that wait.  They are in the queue's `unassigned`, which threads of executors use under its lock."""

    def __init__(self, queue: Giver) -> None:
        self._queue = queue
        self._most = queue.options.ahead
        self._wait = queue.options.ahead_wait
        self._stalled = False
        """Whether jobs have waited for too long, and no handler has ended since."""
        self._refused: Optional[str] = None
        """Why the queue's jobs are not claimed ahead."""
        self.dry = False
        """Whether the last claim has found fewer jobs than it asked for."""
        self._arrived = asyncio.Event()
        self._telling = asyncio.Lock()
        """Held while the server is told about jobs, so that no mark is set after it was removed."""

    @property
    def most(self) -> int:
        """Maximum number of jobs that may wait now."""
        return 0 if self._refused is not None or self._stalled or self._queue.shared.ending.is_set() else self._most

    @property
    def low(self) -> bool:
        """Whether few jobs wait, and there may be more in the queue."""
        return not self.dry and self.most > 0 and 2 * len(self._queue.unassigned) < self.most

    def refuse(self, why: str) -> None:
        """Stops claiming jobs ahead, because of a setting of the queue or a job."""
        if self._refused is None:
            log.info("%s: jobs are claimed without ahead, because of %s", self._queue.options.queue, why)
        self._refused = why

    def configure(self, why: Optional[str]) -> None:
        """Takes the queue's settings."""
        if why is not None:
            self.refuse(why)
        elif self._refused not in ("groups", "jobs with one attempt"):
            self._refused = None

    def accept(self, jobs: Sequence[BaseJob]) -> None:
        """Adds claimed jobs, in the event loop."""
        now = time.monotonic()
        for job in jobs:
            job.arrived_at = now
            if job.group_key is not None:
                self.refuse("groups")
            elif job.max_attempts == 1:
                self.refuse("jobs with one attempt")
        with self._queue.lock:
            self._queue.unassigned.extend(jobs)
        self._arrived.set()

    def _is_fresh(self, job: BaseJob, now: float) -> bool:
        return not job.marked and now - job.arrived_at < FRESH_FOR and now < job._lease_until and not self._is_lost(job)

    @staticmethod
    def _is_lost(job: BaseJob) -> bool:
        """Whether the session that claimed it has ended, and with it perhaps the lease."""
        return job.claimed_on.connections != job._session or not job.claimed_on.usable

    def take_fresh(self, most: int) -> list[BaseJob]:
        """The jobs that were claimed first, if they may begin at once.  Any thread may call it."""
        queue, now = self._queue, time.monotonic()
        jobs: list[BaseJob] = []
        if queue.breaker.is_open or queue.shared.ending.is_set():
            return jobs
        with queue.lock:
            while queue.unassigned and len(jobs) < most and self._is_fresh(queue.unassigned[0], now):
                jobs.append(queue.unassigned.popleft())
            if jobs and not queue.unassigned and now - jobs[-1].arrived_at < self._wait / 2:
                self._most = min(queue.options.ahead, 2 * self._most + 1)
        return jobs

    def take(self, most: int) -> list[BaseJob]:
        """The jobs that were claimed first.  They must be confirmed."""
        with self._queue.lock:
            return [self._queue.unassigned.popleft() for _ in range(min(most, len(self._queue.unassigned)))]

    def ended(self, job: BaseJob) -> None:
        """Called when the attempt of a job that has begun has ended."""
        self._stalled = False
        if self._most == 0 and time.monotonic() - job._claimed_at < self._wait / 2:
            self._most = 1

    async def confirm(self, jobs: Sequence[BaseJob]) -> set[int]:
        """The tokens of the jobs that may begin."""
        asked_at = time.monotonic()
        sound = [job for job in jobs if not self._is_lost(job) and job.token in self._queue.shared.leased]
        outcomes = await self._tell(sound, False, "begun")
        for job in sound:
            if outcomes.get(job.token) == "current":
                job._renew_lease(asked_at)
                job._claimed_at, job.marked = asked_at, False
        return {token for token, outcome in outcomes.items() if outcome == "current"}

    async def _tell(self, jobs: Sequence[BaseJob], ahead: bool, what: str) -> dict[int, str]:
        if not jobs:
            return {}
        async with self._telling:
            try:
                rows = await self._queue.shared.control.ask(_TELL, ([job.id for job in jobs], [job.token for job in jobs], ahead))
                return {token: outcome for token, outcome in rows}
            except (AnswerLost, psycopg.Error) as error:
                log.warning("%s: %d waiting jobs could not be %s: %s", self._queue.options.queue, len(jobs), what, str(error).strip())
                return {}

    async def tend(self) -> None:
        """Marks jobs that have begun to wait, and gives back those that must not or need not wait, until the drain begins."""
        queue = self._queue
        ending = queue.shared.ending
        while not ending.is_set():
            if queue.unassigned:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(ending.wait(), self._next_look())
                await self._look()
            else:
                self._arrived.clear()
                waits = [asyncio.ensure_future(event.wait()) for event in (ending, self._arrived)]
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for each in waits:
                        each.cancel()
        await self._give_back(lambda job: True)

    def _next_look(self) -> float:
        with self._queue.lock:
            jobs = list(self._queue.unassigned)
        if not jobs or not all(job.marked for job in jobs):
            return FRESH_FOR
        return min(max(jobs[0].arrived_at + self._wait - time.monotonic(), 0.001), LONGEST_TICK)

    async def _look(self) -> None:
        now, refused = time.monotonic(), self._refused is not None or self._queue.breaker.is_open
        await self._give_back(self._is_lost)
        if await self._give_back(lambda job: refused or now - job.arrived_at >= self._wait) and not refused:
            self._stalled = True
            self._most //= 2
        marking: list[BaseJob] = []
        with self._queue.lock:
            for job in self._queue.unassigned:
                if not job.marked and now - job.arrived_at >= FRESH_FOR:
                    job.marked = True
                    marking.append(job)
        outcomes = await self._tell(marking, True, "marked")
        lost = {token for token, outcome in outcomes.items() if outcome != "current"}
        await self._give_back(lambda job: job.token in lost)

    async def _give_back(self, which: Callable[[BaseJob], bool]) -> int:
        with self._queue.lock:
            jobs = [job for job in self._queue.unassigned if which(job)]
            for job in jobs:
                self._queue.unassigned.remove(job)
        if jobs:
            log.info("%s: %d jobs that were claimed ahead are given back", self._queue.options.queue, len(jobs))
            await self._queue.give_back(jobs)
        return len(jobs)
