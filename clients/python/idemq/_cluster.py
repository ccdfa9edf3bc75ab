"""A worker for all shards of a cluster: the map of shards, and one run per shard.

The worker reads the map from the router at the start, when the router announces a change (NOTIFY
cluster_map), when a shard reports that its jobs are elsewhere (55000), and after each reconnection.
It also reads the map after MAP_MAX_AGE, in case the connection is silent.  While the router is down, the last map is used.

To its run, a shard that moves looks like a failover: the run reconnects at the new place, and every attempt
continues there, because the rows have moved with their tokens.  Refused calls had no effect, and
completed jobs are reported as committed.

A shard that is down delays only its own run, which waits without a slot (_handler_slots.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import replace
from typing import Callable, Collection, Optional

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from . import _signals
from ._handler_slots import ShardSlots, SlotPool
from ._links import ANSWER_TIMEOUT, Address, AnswerLost, AsyncLink
from ._run import Run, Setup
from .errors import sqlstate

log = logging.getLogger("idemq")

_MAP = "SELECT shard, dsn, state, version FROM cluster.map() ORDER BY shard"
_LISTEN = "LISTEN cluster_map"
_LOCATION = ("host", "hostaddr", "port", "dbname")
MAP_MAX_AGE = 60.0
"""Seconds after which the map is read again without an announcement, because the connection may be silent."""
MOVE_WAIT = 1.0
"""Seconds until the next try on a shard that is being moved."""


class Shard(Address):
    """A shard's address, and its entry in the map."""

    def __init__(self, cluster: ShardMap, number: int) -> None:
        super().__init__("")
        self.number = number
        self.state = ""
        self.version = -1
        self._cluster = cluster

    async def has_moved(self, error: Optional[BaseException], version: int) -> bool:
        if sqlstate(error) != "55000":
            return False
        await self._cluster.read_again()
        if self.version == version and self.state == "moving":
            await self._cluster.change(MOVE_WAIT)
        return self.version != version or self.state == "moving"


class ShardMap:
    """The cluster's map, kept up to date."""

    def __init__(self, router: str, shard_options: str, retry_connect: bool) -> None:
        self.shards: dict[int, Shard] = {}
        self._router = conninfo_to_dict(router)
        self._shard_options = conninfo_to_dict(shard_options)
        self._link = AsyncLink("router", router, retry_connect, needs_idemq=False)
        self._wake = asyncio.Event()
        self._asked: list["asyncio.Future[None]"] = []
        self._changed = asyncio.Event()
        self._listening = 0

    def address(self, dsn: str) -> str:
        """The connection string of a shard: the router's settings (user, password, TLS) with the shard's place."""
        params = {name: value for name, value in self._router.items() if name not in _LOCATION}
        return make_conninfo(**{**params, **conninfo_to_dict(dsn), **self._shard_options})

    async def read(self) -> list[Shard]:
        """Reads the map.  Returns the shards that are new or have moved."""
        if await self._link.ready() and self._link.connections != self._listening:
            await self._link.ask(_LISTEN)
            self._listening = self._link.connections
        changed: list[Shard] = []
        for number, dsn, state, version in await self._link.ask(_MAP):
            shard = self.shards.setdefault(number, Shard(self, number))
            address = self.address(dsn)
            if version < shard.version:
                continue  # the router has been restored from a backup
            if shard.dsn not in ("", address):
                log.warning("shard %d has moved: %s", number, dsn)
            if shard.dsn != address or (shard.state == "moving" and state == "up"):
                changed.append(shard)
            shard.dsn, shard.state, shard.version = address, state, version
        return changed

    async def follow(self, moved: Callable[[list[Shard]], None]) -> None:
        """Reads the map whenever there is a reason to, until it is cancelled."""
        while True:
            asked, self._asked = self._asked, []
            try:
                moved(await self.read())
                self._changed.set()
                self._changed = asyncio.Event()
            except AnswerLost:
                self._asked = asked + self._asked
                await asyncio.sleep(0.1)
                continue
            except psycopg.Error as error:
                log.error("router: %s", str(error).strip())
                await asyncio.sleep(5)
            for answer in asked:
                if not answer.done():
                    answer.set_result(None)
            await self._wait_for_reason()

    async def _wait_for_reason(self) -> None:
        """Waits until the router sends a notification, its connection ends, or a shard requests the map."""
        conn = self._link.conn
        if self._asked or conn is None or conn.closed:
            return
        loop = asyncio.get_running_loop()
        fd = conn.fileno()
        loop.add_reader(fd, self._wake.set)
        try:
            await asyncio.wait_for(self._wake.wait(), MAP_MAX_AGE)
            self._wake.clear()
        except asyncio.TimeoutError:
            pass
        finally:
            loop.remove_reader(fd)

    async def read_again(self) -> None:
        """Waits until the map has been read again, if the router answers."""
        answer: "asyncio.Future[None]" = asyncio.get_running_loop().create_future()
        self._asked.append(answer)
        self._wake.set()
        try:
            await asyncio.wait_for(answer, ANSWER_TIMEOUT)
        except asyncio.TimeoutError:
            pass

    async def change(self, seconds: float) -> None:
        """Waits until the map has been read again, at most this many seconds."""
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except asyncio.TimeoutError:
            pass

    async def close(self) -> None:
        await self._link.drop()


class ClusterRun:
    """One call of run(), run_outside() or drain() of a ClusterWorker."""

    def __init__(
        self,
        setup: Setup,
        home: Optional[Collection[int]],
        roam: bool,
        shard_options: str,
        once: bool,
    ) -> None:
        self._setup, options = setup, setup.options
        assert isinstance(options.dsn, str)
        self.loop = asyncio.get_running_loop()
        self._options = options
        self._home = home
        self._roam = roam
        self._once = once
        self._map = ShardMap(options.dsn, shard_options, not once)
        self._pool = SlotPool(options.concurrency)
        self._runs: dict[int, Run] = {}
        self._refusals: set[int] = set()
        self._tasks: dict[int, "asyncio.Task[Counter[str]]"] = {}
        self._stops = 0
        self._woken = asyncio.Event()

    async def main(self) -> Counter[str]:
        """Runs until it is told to stop, or no shard has anything to do.  Returns the number of attempts by outcome."""
        with _signals.stop_on_signals(self.loop, self._options.signals, self.stop):
            return await self._main()

    async def _main(self) -> Counter[str]:
        following: Optional[asyncio.Task[None]] = None
        try:
            await self._first_map()
            following = asyncio.create_task(self._map.follow(self._moved))
            await self._until_all_have_ended()
        finally:
            # A cancellation drains without a grace period.
            while self._stops < 2:
                self.stop()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            await self._map.close()
        counts: Counter[str] = Counter()
        for task in self._tasks.values():
            counts += task.result()
        return counts

    def stop(self) -> None:
        """Starts the drain of all shards.  A second call ends the grace period."""
        self._stops += 1
        self._woken.set()
        for number, run in self._runs.items():
            if not self._tasks[number].done():
                run.stop()

    async def _first_map(self) -> None:
        while not self._stops:
            reading = asyncio.ensure_future(self._map.read())
            woken = asyncio.ensure_future(self._woken.wait())
            try:
                await asyncio.wait({reading, woken}, return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    self._moved(reading.result())
                    if not self._runs:
                        raise RuntimeError("the cluster has no shard for this worker; check cluster.map()")
                    return
            except AnswerLost:
                await asyncio.sleep(0.1)
            finally:
                woken.cancel()
                reading.cancel()
                await asyncio.gather(woken, reading, return_exceptions=True)

    async def _until_all_have_ended(self) -> None:
        while any(not task.done() for task in self._tasks.values()):
            woken = asyncio.ensure_future(self._woken.wait())
            running = [task for task in self._tasks.values() if not task.done()]
            try:
                await asyncio.wait({woken, *running}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                woken.cancel()
            self._woken.clear()
            for task in self._tasks.values():
                if task.done():
                    task.result()  # an error of one shard ends all

    def _moved(self, shards: list[Shard]) -> None:
        """Called with shards that are new or have moved."""
        for shard in shards:
            home = self._home is None or shard.number in self._home
            if shard.number in self._runs:
                self._runs[shard.number].moved()
            elif not self._stops and (home or self._roam):
                self._begin(shard, home)

    def _begin(self, shard: Shard, home: bool) -> None:
        options = replace(self._options, dsn=shard, signals=False, where=f"shard {shard.number}")
        run = Run(
            [self._setup._replace(options=options)],
            self._once,
            ShardSlots(self._pool, home),
            lambda error: self._refused(shard.number, error),
        )
        self._runs[shard.number] = run
        self._tasks[shard.number] = asyncio.create_task(run.main())
        self._woken.set()

    def _refused(self, number: int, error: psycopg.Error) -> bool:
        """Whether a refused first claim is the caller's mistake, which it is if no shard has accepted one."""
        self._refusals.add(number)
        return all(
            number in self._refusals or (run.unreachable and not run.claimed) for number, run in self._runs.items()
        )
