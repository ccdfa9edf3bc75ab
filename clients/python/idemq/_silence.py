"""Silent connections: no data arrives, and the connection does not end, for example because the network drops packets.

The worker's own statements have a time limit (_links.py).  A handler's statement may take long.  So if no data has arrived from
a session for a while, the worker asks the server over another connection whether that session is busy.  If it is not, the request
or its answer was lost.  The worker also ends the session that it has given up.  Otherwise the server, which does not
know that the connection is broken, would keep the locks of its transaction and the leases attached to it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Optional, Sequence

import psycopg

from . import _links
from ._execution import SESSION_CHECK_INTERVAL, Execution
from ._handler_connection import give_up
from ._links import AnswerLost, AsyncLink, Process
from .errors import said

log = logging.getLogger("idemq")

_SESSIONS = """SELECT a.pid, extract(epoch FROM a.backend_start)::text, a.state, a.wait_event_type
    FROM pg_catalog.unnest(%s::int[]) AS asked (pid), pg_catalog.pg_stat_get_activity(asked.pid) AS a"""
_AT_WORK = ("active", "fastpath function call", "disabled")  # "disabled" means that track_activities is off, so the state is unknown


class Silence:
    """The silent connections of one run.  Only the event loop uses it."""

    def __init__(self, where: str, control: AsyncLink) -> None:
        self._where = where
        self._control = control
        self._given_up: list[Process] = []
        """Sessions that may still exist."""
        self._suspects: dict[Any, float] = {}
        """Connections on which the server seemed to be idle, with the time at which data last arrived."""
        self._looked_at = 0.0
        self.task: Optional["asyncio.Task[None]"] = None

    def note(self, process: Process) -> None:
        """Called when a connection was given up, so that its session is ended."""
        self._given_up.append(process)
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._end_sessions())

    async def _end_sessions(self) -> None:
        while self._given_up:
            try:
                await self._control.ask(_links.END_SESSION, self._given_up[0])
            except AnswerLost:
                await asyncio.sleep(0.1)
                continue
            except psycopg.Error as error:
                log.warning("%s: could not terminate a session whose connection was lost: %s", self._where, said(error).strip())
            del self._given_up[0]

    def look(self, executions: Sequence[Execution], now: float) -> None:
        """Checks the connections of handlers, at most once a second."""
        if now < self._looked_at + SESSION_CHECK_INTERVAL or (self.task is not None and not self.task.done()):
            return
        self._looked_at = now
        waiting: dict[Process, tuple[Any, float]] = {}
        for execution in executions:
            link = execution.executor.link
            conn = link.conn if link is not None else None
            at = getattr(conn, "progress_at", None)
            if link is not None and link.process is not None and at is not None and now - at > min(execution.lease / 3, _links.ANSWER_TIMEOUT):
                waiting[link.process] = conn, at
        self._suspects = {conn: at for conn, at in waiting.values() if self._suspects.get(conn) == at}
        if waiting:
            self.task = asyncio.create_task(self._find(waiting))

    async def _find(self, waiting: dict[Process, tuple[Any, float]]) -> None:
        try:
            rows = await self._control.ask(_SESSIONS, ([process.pid for process in waiting],))
        except (AnswerLost, psycopg.Error):
            return
        # If server and client are waiting for each other, the server is not busy.
        at_work = {(pid, started) for pid, started, state, waits_for in rows if waits_for != "Client" and (state or "active") in _AT_WORK}
        for process, (conn, at) in waiting.items():
            if process in at_work or conn.progress_at != at:
                continue
            if conn not in self._suspects:
                self._suspects[conn] = at  # the server's answer may be under way
            elif self._suspects.pop(conn) == at:
                log.warning("%s: no data from a session that the server is not working on; closing it", self._where)
                give_up(conn)
        # A connection was given up during this request, and nothing else would end its session.
        await self._end_sessions()
