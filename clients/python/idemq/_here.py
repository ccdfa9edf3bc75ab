"""Reports a worker to the server (idemq.report_worker), for people; no promise depends on it.

A report that fails is left out.  It goes by the connection of the heartbeats, so it waits for
no lock, disk or standby.
"""

from __future__ import annotations

import asyncio
import socket
from importlib import metadata
from typing import Any, Callable, Sequence
from uuid import uuid4

import psycopg

from ._server import AsyncLink, Lost

EACH = 30.0
"""Seconds between two reports."""
AFTER_REFUSAL = 600.0
"""Seconds after the server has refused one: its SQL may be an older version's."""
FIRST = 1.0
"""A worker that ends sooner reports nothing."""

# Its commit waits for no disk and no standby, which heartbeats do not either.
_REPORT_WORKER = """SELECT pg_catalog.set_config('synchronous_commit', 'off', true),
    idemq.report_worker(%s::uuid, %s, %s,
    program => 'python', version => %s, host => %s, concurrency => %s::int, running => %s::bigint[],
    done => %s::bigint, stopping => %s)"""


def _version() -> str:
    try:
        return metadata.version("idemq")
    except metadata.PackageNotFoundError:
        return "from source"


class Here:
    """What one worker says of itself."""

    def __init__(
        self, link: AsyncLink, name: str, queue: str, concurrency: int, state: Callable[[], tuple[Sequence[int], int]]
    ) -> None:
        """state: the jobs that it runs, and how many it has ended."""
        self._link = link
        self._state = state
        self._said = False
        self._about: list[Any] = [str(uuid4()), name, [queue], _version(), socket.gethostname(), concurrency]

    async def tell(self) -> None:
        """Until it is cancelled."""
        pause = FIRST
        while True:
            await asyncio.sleep(pause)
            pause = await self._say(False)

    async def _say(self, stopping: bool) -> float:
        if not self._link.usable:
            return FIRST
        jobs, done = self._state()
        try:
            # The link outlives whoever tells: an answer is waited for.
            await asyncio.shield(self._link.ask(_REPORT_WORKER, [*self._about, list(jobs), done, stopping]))
            self._said = True
        except (Lost, OSError):
            pass  # who needs the connection says so
        except psycopg.Error:
            return AFTER_REFUSAL
        return EACH

    async def report_stopping(self) -> None:
        """The last report of a worker that has reported before, if the server answers at once."""
        if self._said:
            try:
                await asyncio.wait_for(self._say(True), 1)
            except asyncio.TimeoutError:
                pass
