"""Reports a worker to the server (idemq.report_worker), for monitoring only.

A report that fails is left out.  It uses the connection of the heartbeats, so it waits for no lock, disk or
standby.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from importlib import metadata
from typing import Any, Callable, Optional, Sequence
from uuid import uuid4

import psycopg

from . import _links
from ._links import AnswerLost, AsyncLink
from .errors import sqlstate

REPORT_INTERVAL = 30.0
"""Seconds between two reports."""
REPORT_AFTER_REFUSAL = 600.0
"""Seconds until the worker reports again what the server has refused: a queue, or everything if its SQL objects are of an older version."""
_QUEUE_REFUSED = "IQ005", "42501"
"""SQLSTATEs of a report that names a queue that does not exist or from which the role may not claim."""
REPORT_STOPPING_TIMEOUT = 0.5
"""Seconds that the last report may take."""
FIRST_REPORT_AFTER = 1.0
"""Seconds until the first report.  A worker that ends sooner reports nothing."""

# Like heartbeats, its commit does not wait for the disk or a standby.
_REPORT_WORKER = """SELECT pg_catalog.set_config('synchronous_commit', 'off', true),
    idemq.report_worker(%s::uuid, %s, %s,
    program => 'python', version => %s, host => %s, concurrency => %s::int, running => %s::bigint[],
    done => %s::bigint, stopping => %s, end_waits => %s::int[])"""


def _version() -> str:
    try:
        return metadata.version("idemq")
    except metadata.PackageNotFoundError:
        return "from source"


class WorkerReport:
    """The reports of one worker."""

    def __init__(
        self, link: AsyncLink, name: str, queues: Sequence[str], concurrency: int, state: Callable[[], tuple[Sequence[int], int]]
    ) -> None:
        """state: returns the running jobs, and the number of attempts that have ended."""
        self._link = link
        self._state = state
        self._reported = False
        self._stopping = False
        """Whether the last report said that the worker is stopping."""
        self._id, self._name, self._concurrency = str(uuid4()), name, concurrency
        self._queues = list(queues)
        self._accepted = self._queues
        """The queues that are reported until _all_again_at."""
        self._all_again_at = math.inf

    async def report_regularly(self) -> None:
        """Reports regularly until it is cancelled."""
        pause = FIRST_REPORT_AFTER
        while True:
            await asyncio.sleep(pause)
            pause = await self._report(False)

    async def _report(self, stopping: bool, end_waits: Sequence[int] = ()) -> float:
        if not self._link.usable and not end_waits:
            return FIRST_REPORT_AFTER
        if time.monotonic() >= self._all_again_at:
            self._accepted, self._all_again_at = self._queues, math.inf
        try:
            try:
                await self._send(self._accepted, stopping, end_waits)
            except psycopg.Error as error:
                if sqlstate(error) not in _QUEUE_REFUSED or len(self._accepted) < 2:
                    raise
                await self._send_without_refused(stopping)
        except (AnswerLost, OSError, psycopg.errors.LockNotAvailable):
            pass  # the code that needs the connection logs the error
        except psycopg.Error:
            self._all_again_at = 0.0
            return REPORT_AFTER_REFUSAL
        return REPORT_INTERVAL

    async def _send(self, queues: Sequence[str], stopping: bool, end_waits: Sequence[int] = ()) -> None:
        jobs, done = self._state()
        values = self._id, self._name, list(queues), _version(), socket.gethostname(), self._concurrency, list(jobs), done, stopping, list(end_waits)
        # The link is still used after a cancelled report, so the answer must be awaited.
        asking = asyncio.ensure_future(self._link.ask(_REPORT_WORKER, values))
        asking.add_done_callback(_links._retrieved)
        await asyncio.shield(asking)
        self._reported = True
        self._stopping = stopping

    async def _send_without_refused(self, stopping: bool) -> None:
        """Reports each queue by itself, to find those that the server refuses, and then the others together."""
        accepted: list[str] = []
        refusal: Optional[psycopg.Error] = None
        for queue in self._accepted:
            try:
                await self._send([queue], stopping)
                accepted.append(queue)
            except psycopg.Error as error:
                if sqlstate(error) not in _QUEUE_REFUSED:
                    raise
                refusal = error
        if refusal is not None and not accepted:
            raise refusal
        self._accepted, self._all_again_at = accepted, time.monotonic() + REPORT_AFTER_REFUSAL
        await self._send(accepted, stopping)

    async def end_wait(self, process: int, stopping: bool) -> None:
        """Asks the server to end the wait of a session of this role, given its process number."""
        await self._report(stopping, [process])

    async def report_stopping(self) -> None:
        """Reports that the worker is stopping, if it has reported before and the server answers at once."""
        if self._reported and not self._stopping:
            try:
                await asyncio.wait_for(self._report(True), REPORT_STOPPING_TIMEOUT)
            except asyncio.TimeoutError:
                pass
