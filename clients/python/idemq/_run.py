"""A run of a worker: lanes that claim, call the handler and settle; heartbeats; the drain.

All of it is one asyncio loop, also of a worker whose handlers are functions: those run in threads, so a
handler that hangs holds up neither heartbeats nor the drain.

Connections: `control` renews leases and settles what has no transaction; `waiter` sleeps in CALL
idemq.wait; each lane with a transaction has one more, and claims with it, so that an attached lease
ends with the session that the transaction is in.  Without transactions `control` claims, and commits;
where many coroutines end together, `second` does so beside it.  Each is opened when it is first needed.

One lane at a time looks for jobs, and waits for them; the others queue behind it.  So a wake-up sets
one lane going, which lets the next look when it has found something.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from datetime import timedelta
from typing import Any, Callable, Coroutine, Optional, Sequence, TypeVar

import psycopg

from . import _attempts, _server, _signals, _talk
from ._attempts import Attempts, Options
from ._here import Here
from ._job import BaseJob
from ._lanes import Lane
from ._places import Places
from ._server import AsyncLink, Link, Lost
from .errors import interval

log = logging.getLogger("idemq")
T = TypeVar("T")

WAIT = 30.0
"""Seconds that the server sleeps in one CALL; less, where its statements may not take as long."""
ERROR_PAUSE = 5.0
"""Seconds after a claim or a wait that was refused."""
SETTINGS_AGE = 60.0

_HEARTBEAT = "SELECT token, outcome::text FROM idemq.heartbeat_many(%s, %s, %s::interval)"
_WAIT = "CALL idemq.wait(%s, %s)"
_SETTINGS = "SELECT extract(epoch FROM job_timeout)::float8 FROM idemq.queues WHERE name = %s"


class Run(Attempts):
    """One call of run(), run_outside() or drain()."""

    def __init__(
        self,
        options: Options,
        lanes: Sequence[Lane],
        handler: Callable[..., Any],
        once: bool = False,
        places: Optional[Places] = None,
        refused: Callable[[psycopg.Error], bool] = lambda error: True,
    ) -> None:
        """refused: whether an error of the first claim ends the run."""
        super().__init__(options, lanes, handler, not once, places or Places())
        self._once = once
        self._refused = refused
        self._waiter = AsyncLink(f"{options.where}, to wait", options.wait_dsn or options.dsn)
        self._looking = asyncio.Lock()
        self._idle = 0
        self._busy = 0
        self._claimed = False
        self._ended_one = asyncio.Event()
        self._settings_at = -SETTINGS_AGE

    def _let_look(self) -> None:
        if self._once and self._idle > 0:
            self.call_loop(self._ended_one.set)

    # The run, and its end.

    async def main(self) -> Counter[str]:
        """Runs until it is told to end, or once there is nothing to do; answers how attempts ended."""
        with _signals.heard(self._loop, self.options.signals, self.stop):
            return await self._main()

    async def _main(self) -> Counter[str]:
        beats = asyncio.create_task(self._beats())
        watch = asyncio.create_task(self._watch())
        here = Here(
            self._control,
            self.options.name or f"python {os.getpid()}",
            self.options.queue,
            self.options.concurrency * self.at_once,
            lambda: ([job.id for job in list(self._held.values())], sum(self.counts.values())),
        )
        tasks = [beats, watch]
        if not self._once:
            tasks.append(asyncio.create_task(here.tell()))
        lanes = [asyncio.create_task(self._serve(lane)) for lane in self._lanes]
        try:
            # A cancellation drains, without grace.
            await asyncio.shield(asyncio.gather(*lanes))
        finally:
            self._ending.set()
            self._end_grace()
            # An error of one lane does not leave the others in the middle of a job.
            await asyncio.wait(lanes, timeout=2 * _attempts.KILL_AFTER + _attempts.LAST_WORDS)
            while self._committing and all(lane.done() for lane in lanes):
                await asyncio.wait(self._committing.values())
            for task in (*lanes, *tasks):
                task.cancel()
            await asyncio.gather(*lanes, *tasks, return_exceptions=True)
            await here.report_stopping()
            for lane in self._lanes:
                await lane.close()
            if self.desk is not None:
                if left := self.desk.left():
                    await self.give_back(left)
                await self.desk.link.drop()
            await asyncio.gather(*self._telling)
            if self._opening is not None:
                self._opening.cancel()
            for link in (self._control, self._second, self._waiter):
                await link.drop()
        return self.counts

    def stop(self) -> None:
        """Begins the drain; called again, ends its grace."""
        if self._ending.is_set():
            self._end_grace()
            return
        self._ending.set()
        if self._busy:
            log.info("ending: %d handlers have %g s", len(self._units), self.options.grace)
        self._loop.call_later(self.options.grace, self._end_grace)

    def _end_grace(self) -> None:
        for unit in list(self._units):
            unit.end("drain")

    async def _while_running(self, link: Link[Any], work: Coroutine[Any, Any, T], asks: bool = True) -> Optional[T]:
        """What work answers; None when the drain begins first, and it is soon ended: at once, unless the
        link is asked."""
        task = asyncio.ensure_future(work)
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait({task, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and asks and link.conn is not None:
                # A claim that is on its way is heard, and given back; a wait ends now.
                if link is self._waiter:
                    await _server.interrupt(link.conn)
                await asyncio.wait({task}, timeout=_server.ANSWER)
            return await task if task.done() else None
        finally:
            ending.cancel()
            task.cancel()

    async def _pause(self, seconds: float) -> None:
        """Sleeps, but not in a drain."""
        try:
            await asyncio.wait_for(self._ending.wait(), seconds)
        except asyncio.TimeoutError:
            pass

    # Looking for jobs.

    async def _serve(self, lane: Lane) -> None:
        while True:
            jobs = await self._next(lane)
            if not jobs:
                return
            if self._ending.is_set():
                await self.give_back(jobs)
                return
            self._busy += 1
            lane.pending.extend(self.units(jobs, lane))
            try:
                await self._work(lane)
            finally:
                self._busy -= 1
                self._places.leave(1)
                self._ended_one.set()

    async def _work(self, lane: Lane) -> None:
        """Has a lane run what it has, and what it claims with that, until there is nothing."""
        while lane.pending:
            unit = lane.pending[0]
            if self._ending.is_set() and not unit.begun:
                await self.give_back([job for each in lane.pending for job in each.jobs])
                lane.pending.clear()
                return
            if not await self.connected(lane, unit):
                lane.pending.popleft()
                self._units.discard(unit)
                for job in unit.jobs:
                    await self._places.lent(self._after(job, unit, psycopg.OperationalError("the connection was lost")))
                continue
            stop = await lane.start(self)
            if stop is not None:
                await self.stopped(lane, stop)

    async def _next(self, lane: Lane) -> list[BaseJob]:
        """Jobs for a lane; none when it is to end."""
        self._idle += 1
        try:
            async with self._looking:
                while not self._ending.is_set():
                    if self._spare:
                        return [self._spare.popleft() for _ in range(min(self.at_once, len(self._spare)))]
                    self._ended_one.clear()
                    if self._once and self._busy == 0 and self._committing:
                        await asyncio.wait(self._committing.values())  # it may make the last ones ready
                    jobs = await self._claim(lane)
                    if lane.link is not None and jobs:
                        return jobs
                    if jobs:
                        self._spare.extend(jobs)
                    elif jobs is not None and self._once:
                        if self._busy == 0:
                            return []
                        # The end of one may let another begin: of its group, or one that it has added.
                        await self._ended_one.wait()
                    elif jobs is not None:
                        await self._sleep()
            if self._spare:
                await self.give_back(list(self._spare))
                self._spare.clear()
            return []
        finally:
            self._idle -= 1

    async def _claim(self, lane: Lane) -> Optional[list[BaseJob]]:
        """Ready jobs; None: it could not be asked."""
        link = lane.link or self._control
        most = self._idle if lane.link is None else 1
        claimed: Optional[list[BaseJob]] = None
        if (pause := self._claims_at - time.monotonic()) > 0:
            await self._pause(pause)
            return None
        try:
            if self._places.shared:
                # No place is kept by a shard that is down.
                await self._while_running(link, link.ready())
            taken = await self._while_running(link, self._places.take(most), False) or 0
            try:
                if taken > 0 and not self._ending.is_set():
                    claimed = await self._while_running(link, self._ask_claim(link, lane, taken))
            finally:
                self._places.leave(taken - (len(claimed or ()) if lane.link is None else min(len(claimed or ()), 1)))
        except Lost:
            await self._pause(0.1)
            return None
        except psycopg.Error as error:
            if self._once or (not self._claimed and self._refused(error)):
                raise
            log.error("%s: claim: %s", self.options.where, str(error).strip())
            await self._pause(ERROR_PAUSE)
            return None
        self._claimed = self._claimed or claimed is not None
        return claimed

    async def _ask_claim(self, link: Link[Any], lane: Lane, places: int) -> list[BaseJob]:
        if time.monotonic() - self._settings_at >= SETTINGS_AGE:
            rows = await link.ask(_SETTINGS, (self.options.queue,))
            self._job_timeout = rows[0][0] if rows else None
            self._settings_at = time.monotonic()
        await link.ready()
        asked_at = time.monotonic()
        most = places if lane.link is None else self.options.batch
        options = self.options
        rows = await link.ask(_talk.CLAIM, (options.queue, most, self._lease, options.name, self._attach(link)))
        return self.take([row[0] for row in rows], asked_at, link)

    async def _sleep(self) -> None:
        """Until the queue has work, or a while."""
        try:
            await self._while_running(self._waiter, self._wait_for_work())
        except Lost:
            await self._pause(0.1)
        except psycopg.Error as error:
            if not self._ending.is_set():
                log.error("%s: wait: %s", self.options.where, str(error).strip())
                await self._pause(ERROR_PAUSE)

    async def _wait_for_work(self) -> None:
        await self._waiter.ready()
        limit = self._waiter.statement_timeout
        seconds = min(WAIT, 0.8 * limit) if limit > 0 else WAIT
        await self._waiter.ask(_WAIT, (self.options.queue, timedelta(seconds=seconds)), seconds + _server.ANSWER)

    # Leases.

    async def _beats(self) -> None:
        """Heartbeats for all as soon as one is due, and by each new connection: a server that was
        started again gives attached leases a grace only."""
        seen = 0
        while True:
            now = time.monotonic()
            self._next_beat = min((job._beat_at for job in list(self._held.values())), default=now + 3600)
            if self._next_beat > now and (self._control.connections == seen or not self._held):
                self._beat_now.clear()
                try:
                    await asyncio.wait_for(self._beat_now.wait(), self._next_beat - now)
                except asyncio.TimeoutError:
                    pass
                continue
            try:
                await self._control.ready()
                seen = self._control.connections
                await self._beat()
            except Lost:
                await asyncio.sleep(0.1)
            except psycopg.Error as error:
                log.error("heartbeat: %s", str(error).strip())
                for job in list(self._held.values()):
                    job._beat_at = time.monotonic() + job._lease / 3

    async def _beat(self) -> None:
        jobs = list(self._held.values())
        if not jobs:
            return
        asked_at = time.monotonic()
        values = [job.id for job in jobs], [job.token for job in jobs], interval(self.options.lease)
        for token, outcome in await self._control.ask(_HEARTBEAT, values):
            job = self._held.get(token)
            if job is None:
                continue  # it has ended meanwhile
            if outcome == "current":
                job._heard(asked_at)
            else:
                self._lose(job, "time" if outcome == "expired" else "lost")

    def _lose(self, job: BaseJob, why: str) -> None:
        self._held.pop(job.token, None)
        unit = job._unit
        # Its COMMIT may be why: the transaction itself finds that out.
        if unit is not None and unit.commit_at is None and not unit.commit_unknown:
            # The server may have taken it back for that already.
            unit.end("time" if self.time_is_over(unit, time.monotonic()) else why)
        if job in self._spare:
            self._spare.remove(job)
            self._places.leave(1)

    # Of a cluster's shard.

    @property
    def unreachable(self) -> bool:
        """Whether its server is down, as far as is known."""
        return self._control.lost or self._waiter.lost or any(lane.link is not None and lane.link.lost for lane in self._lanes)

    @property
    def claimed(self) -> bool:
        """Whether a claim has been answered."""
        return self._claimed

    def moved(self) -> None:
        """Its address has changed: who sleeps there wakes up.  What else is connected finds out by itself."""
        if self._waiter.conn is not None:
            _server.sever(self._waiter.conn)
