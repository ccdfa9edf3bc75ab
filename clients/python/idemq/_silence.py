"""Connections that are silent: nothing comes, and no end either, as over a network that drops packets.

What the worker asks has a limit in time (_links.py).  A handler's statement may take long, so the worker asks the server, by
another connection, about a session from which nothing has come for a while: whether it is at work.  If it is not, the question
was lost, or its answer was.  A session that was given up is ended, since the server does not know that there is no way to it
any more, and would keep what it holds: the locks of a transaction, and leases that are attached to it.
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
_AT_WORK = ("active", "fastpath function call", "disabled")  # the last one: of track_activities off, which says nothing


class Silence:
    """What one run knows of silent connections; used by its loop alone."""

    def __init__(self, where: str, control: AsyncLink) -> None:
        self._where = where
        self._control = control
        self._given_up: list[Process] = []
        """Sessions that may be there still."""
        self._suspects: dict[Any, float] = {}
        """Connections on which the server did not seem to be at work, by when it was that anything came."""
        self._looked_at = 0.0
        self.task: Optional["asyncio.Task[None]"] = None

    def note(self, process: Process) -> None:
        """A connection was given up: its session is to be ended."""
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
        """Looks after the connections of handlers, once a second at most."""
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
        # A server that waits for its client, while that waits for it, is not at work.
        at_work = {(pid, started) for pid, started, state, waits_for in rows if waits_for != "Client" and (state or "active") in _AT_WORK}
        for process, (conn, at) in waiting.items():
            if process in at_work or conn.progress_at != at:
                continue
            if conn not in self._suspects:
                self._suspects[conn] = at  # what the server has said may be on its way
            elif self._suspects.pop(conn) == at:
                log.warning("%s: no data from a session that the server is not working on; closing it", self._where)
                give_up(conn)
        # A connection was given up while this was asked: nobody else ends its session.
        await self._end_sessions()
