"""Handler slots: the handlers that a worker can run at once, on all shards that it serves.

A shard acquires a slot before it claims, and releases it after the attempt.  A free slot goes to the shard
that asked first, where a home shard counts as asking HOME_HEAD_START seconds earlier.  So home shards come
first, and the others are not starved if the home shards are always busy.

An executor continues with the next job of its shard, which is claimed while the last one is completed, until
another shard waits for the slot.  The executor then releases it after TIME_SLICE, so that not every job needs a separate
claim, or at once if a home shard is waiting for a slot of another shard.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from typing import Any, Coroutine, TypeVar

T = TypeVar("T")

HOME_HEAD_START = 5.0
"""Seconds by which a home shard comes before the others."""
TIME_SLICE = 0.1
"""Seconds for which an executor keeps its slot while other shards wait."""
LEND_AFTER = 1.0
"""Seconds of waiting for the server after which another shard may use the slot."""


class HandlerSlots:
    """The slots of one server.  There are as many as executors, so none has to wait."""

    shared = False

    async def acquire(self, most: int) -> int:
        """Acquires at least one slot, waiting for the first."""
        return most

    def release(self, count: int) -> None:
        """Releases slots."""

    def should_yield(self) -> bool:
        """Whether a slot must be released instead of continuing with the next job."""
        return False

    async def lend_while(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits work that only waits for the server.  If that takes long, another shard can use the slot meanwhile.

        Afterwards this shard continues, so for a while there can be more handlers than slots.
        """
        return await work


class SlotPool:
    """The slots that shards share."""

    def __init__(self, count: int) -> None:
        self.free = count
        self._order = itertools.count()
        self._queue: list[tuple[float, int, bool, "asyncio.Future[None]"]] = []

    async def acquire(self, most: int, home: bool) -> int:
        self._grant()
        if self.free <= 0:
            granted: "asyncio.Future[None]" = asyncio.get_running_loop().create_future()
            asked_at = time.monotonic() - (HOME_HEAD_START if home else 0)
            heapq.heappush(self._queue, (asked_at, next(self._order), home, granted))
            try:
                await granted
            except asyncio.CancelledError:
                if granted.done() and not granted.cancelled():
                    self.release(1)
                raise
            taken = 1
        else:
            self.free -= 1
            taken = 1
        more = max(min(most - taken, self.free), 0)
        self.free -= more
        return taken + more

    def release(self, count: int) -> None:
        self.free += count
        self._grant()

    def _grant(self) -> None:
        while self._queue and (self.free > 0 or self._queue[0][3].done()):
            granted = heapq.heappop(self._queue)[3]
            if not granted.done():  # it is done if it was cancelled
                self.free -= 1
                granted.set_result(None)

    def should_yield(self, home: bool, since: float) -> bool:
        """Whether a shard is waiting that would come before one that asks now.  since: when the slot was taken into use.

        Threads of handlers call it as well, so it changes nothing.
        """
        first = self._queue[:1]
        if not first or first[0][3].done():
            return False
        now = time.monotonic()
        asked_at, _, other, _ = first[0]
        return (now - since >= TIME_SLICE or (other and not home)) and asked_at <= now - (HOME_HEAD_START if home else 0)


class ShardSlots(HandlerSlots):
    """One shard's view of the pool."""

    shared = True

    def __init__(self, pool: SlotPool, home: bool) -> None:
        self._pool = pool
        self._home = home
        self._since = 0.0

    async def acquire(self, most: int) -> int:
        taken = await self._pool.acquire(most, self._home)
        self._since = time.monotonic()
        return taken

    def release(self, count: int) -> None:
        self._pool.release(count)

    def should_yield(self) -> bool:
        return self._pool.should_yield(self._home, self._since)

    async def lend_while(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task}, timeout=LEND_AFTER)
            if task.done():
                return task.result()
            self._pool.release(1)
            try:
                return await task
            finally:
                self._pool.free -= 1
        finally:
            task.cancel()
