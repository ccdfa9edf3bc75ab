"""Reports a worker to the server (idemq.report_worker), for monitoring only.

A report that fails is left out.  It uses the connection of the heartbeats, so it waits for no lock, disk or
standby.
"""

from __future__ import annotations

import asyncio
import socket
from importlib import metadata
from typing import Any, Callable, Sequence
from uuid import uuid4

import psycopg

from . import _links
from ._links import AnswerLost, AsyncLink

REPORT_INTERVAL = 30.0
"""Seconds between two reports."""
REPORT_AFTER_REFUSAL = 600.0
"""Seconds until the next report after the server has refused one, because its SQL objects may be of an older version."""
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
        self._about: list[Any] = [str(uuid4()), name, list(queues), _version(), socket.gethostname(), concurrency]

    async def report_regularly(self) -> None:
        """Reports regularly until it is cancelled."""
        pause = FIRST_REPORT_AFTER
        while True:
            await asyncio.sleep(pause)
            pause = await self._report(False)

    async def _report(self, stopping: bool, end_waits: Sequence[int] = ()) -> float:
        if not self._link.usable and not end_waits:
            return FIRST_REPORT_AFTER
        jobs, done = self._state()
        try:
            # The link is still used after a cancelled report, so the answer must be awaited.
            asking = asyncio.ensure_future(self._link.ask(_REPORT_WORKER, [*self._about, list(jobs), done, stopping, list(end_waits)]))
            asking.add_done_callback(_links._retrieved)
            await asyncio.shield(asking)
            self._reported = True
            self._stopping = stopping
        except (AnswerLost, OSError, psycopg.errors.LockNotAvailable):
            pass  # the code that needs the connection logs the error
        except psycopg.Error:
            return REPORT_AFTER_REFUSAL
        return REPORT_INTERVAL

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
