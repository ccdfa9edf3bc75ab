"""What all queues of a run share: connections, leases, time limits, and the end of the run."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections import Counter
from typing import Any, Callable, Coroutine, Optional, TypeVar
from uuid import uuid4

import psycopg

from ._execution import SESSION_CHECK_INTERVAL, Execution
from ._forks import must_be_in
from ._job import BaseJob
from ._links import AnswerLost, AsyncLink, Link, ThreadLink
from ._options import Options
from ._silence import Silence
from ._values import Row
from .errors import AlreadyCommitted, NoSuchJob, StaleToken

T = TypeVar("T")

DRAIN_SETTLE_TIMEOUT = 10.0
"""Seconds within which the outcome of an attempt must be reported in a drain."""
LOCK_PAUSE = 0.2
"""Seconds until a request of a handler that has waited for a lock for too long is repeated."""


class Shared:
    """Connections: `control` renews leases, claims the first jobs of a queue, makes the requests of handlers before they use a
    connection of their own, and reports outcomes.  `commits` serves the threads that complete jobs without a transaction, and
    `second` helps if many coroutines end together.  `waiter` sleeps until there is work or an attempt has been cancelled or taken back.
    Each is opened when it is first needed."""

    def __init__(self, options: Options, retry_connect: bool) -> None:
        self.control = AsyncLink(options.where, options.dsn, retry_connect)
        self.second = AsyncLink(f"{options.where}, for committing", options.dsn)
        self.commits = ThreadLink(options.where, options.dsn, retry_connect)
        self.commits_lock = threading.Lock()
        """Held by the thread that uses `commits`."""
        self.waiter = AsyncLink(f"{options.where}, for waiting", options.wait_dsn or options.dsn)
        self.silence = Silence(options.where, self.control)
        self.counts: Counter[str] = Counter()
        """Number of attempts by outcome."""
        # The threads of executors also record claims and ends.  Each such step is a single operation of the dict or set, and counts have a lock.
        self.leased: dict[int, BaseJob] = {}
        """Jobs whose leases are renewed, by token, which is unique among attempts."""
        self.executions: set[Execution] = set()
        self.lock = threading.Lock()
        self.ending = asyncio.Event()
        """Set when the drain begins."""
        self.over = asyncio.Event()
        """Set shortly before the time limit of a drain.  Then nothing is awaited any more."""
        self._over_at = math.inf
        self._over_timer: Optional[asyncio.TimerHandle] = None
        self.heartbeat_now = asyncio.Event()
        self.next_heartbeat = 0.0
        self.changed = asyncio.Event()
        """Set when the dispatcher must look again: an executor has become idle or, in a run that ends with the last job, an attempt has ended."""
        self.watch_now = asyncio.Event()
        self.watch_at = 0.0
        self.has_begun_handlers = False
        """Whether a handler has begun since the last check."""
        self.has_claimed: Callable[[], None] = lambda: None
        """Called when jobs have been claimed."""
        self.hook_tasks: set["asyncio.Task[None]"] = set()
        self.process = os.getpid()
        self.loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        worker = str(uuid4())
        for link in self.links:
            self.adopt(link, worker)
        self.worker = worker
        self.control.limits_locks = True

    def adopt(self, link: Link[Any], worker: str) -> None:
        """Makes a link one of this run."""
        link.on_silent = self.silence.note
        link.worker = worker

    @property
    def links(self) -> tuple[Link[Any], ...]:
        return self.control, self.second, self.commits, self.waiter

    def call_loop(self, function: Callable[..., Any], *args: Any) -> None:
        """Makes the event loop call a function soon.  Any thread may call it."""
        if os.getpid() != self.process:
            return
        if threading.get_ident() == self._thread:
            function(*args)
            return
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            pass  # it has ended

    def from_thread(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs work in the event loop for a thread."""
        try:
            must_be_in(self.process)
        except RuntimeError:
            work.close()
            raise
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def begin_hook_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.hook_tasks.add(task)
        task.add_done_callback(self.hook_tasks.discard)

    async def within(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """The result of work.  Raises TimeoutError if it takes longer than this many seconds, or beyond the time limit of a drain."""
        task = asyncio.ensure_future(work)
        over = asyncio.ensure_future(self.over.wait())
        try:
            await asyncio.wait({task, over}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return await task
            raise asyncio.TimeoutError
        finally:
            over.cancel()
            task.cancel()

    def end_within(self, seconds: float) -> None:
        """Stops all waiting after this many seconds."""
        if time.monotonic() + seconds < self._over_at:
            self._over_at = time.monotonic() + seconds
            if self._over_timer is not None:
                self._over_timer.cancel()
            self._over_timer = self.loop.call_later(seconds, self.over.set)

    async def ask_about_job(self, job: BaseJob, sql: str, values: Any, anyway: bool = False) -> list[Row]:
        """The rows of a statement about a job, which is repeated if its answer is lost or if it waits for a lock for long.

        It is repeated until the attempt is told to end, or with `anyway` for a while longer, because the report is still true.
        """
        execution = job._execution
        assert execution is not None
        must_be_in(self.process)
        while True:
            task = asyncio.ensure_future(self.control.ask(sql, values))
            either: set["asyncio.Future[Any]"] = {task, execution.end_requested}
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not task.done():
                    await asyncio.wait({task}, timeout=DRAIN_SETTLE_TIMEOUT if anyway else 1)
                if not task.done():
                    raise StaleToken(f"the attempt was stopped ({execution.end_text}), and the server is not responding")
                return await task
            except (AnswerLost, psycopg.errors.LockNotAvailable) as error:
                if execution.end_requested.done() and not anyway:
                    raise StaleToken(f"the attempt was stopped ({execution.end_text}), and the server is not responding") from None
                if isinstance(error, psycopg.errors.LockNotAvailable):
                    await asyncio.sleep(LOCK_PAUSE)
            except (StaleToken, NoSuchJob, AlreadyCommitted):
                execution.request_end("lost")
                raise
            finally:
                task.cancel()

    async def watch(self) -> None:
        """Ends handlers whose time or lease is over, and checks the sessions to which leases are attached."""
        while True:
            now = time.monotonic()
            self.silence.look(list(self.executions), now)
            # While handlers start and end often, it checks regularly, so that not every handler wakes the event loop.
            self.watch_at = now + (SESSION_CHECK_INTERVAL if self.executions or self.has_begun_handlers else 3600)
            self.has_begun_handlers = False
            for execution in list(self.executions):
                if execution.end_reason is not None or execution.ended:
                    continue
                # In a transaction, the job's row is locked, so the handler may take longer than the lease.
                until = execution.ends_at if execution.locked else min(execution.ends_at, execution.lease_until)
                if until <= now:
                    execution.request_end("time" if until == execution.ends_at or execution.time_is_over(now) else "cut off")
                    continue
                if not execution.locked and execution.jobs[0]._link is not None:
                    if execution.session_check_at <= now:
                        self._check_sessions(execution)
                        execution.session_check_at = now + SESSION_CHECK_INTERVAL
                    until = min(until, execution.session_check_at)
                self.watch_at = min(self.watch_at, until)
            self.watch_now.clear()
            try:
                await asyncio.wait_for(self.watch_now.wait(), max(self.watch_at - time.monotonic(), 0))
            except asyncio.TimeoutError:
                pass

    def _check_sessions(self, execution: Execution) -> None:
        """Sends heartbeats for leases whose session seems to have ended."""
        for job in execution.jobs:
            link = job._link
            if link is not None and (link.connections != job._session or link.has_ended()):
                job._heartbeat_at = time.monotonic()
                self.heartbeat_now.set()

    async def close(self) -> None:
        """Closes the connections, even if the server does not answer."""
        for link in self.links:
            link.on_silent = lambda process: None
            await link.end()


