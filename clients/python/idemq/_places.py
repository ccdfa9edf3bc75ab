"""Places for handlers: those of one worker, over all the shards that it works for.

A shard takes a place before it claims, and leaves it after the attempt; a place goes to who has asked
first, where a home shard counts as asking HOME_FIRST seconds earlier.  So home shards come first, the
others get what they leave over, and are not forgotten when home is always busy.

A lane goes on with the next job of its own shard, which is claimed with the commit of the last, until
somebody else wants the place: after TURN, so that not each job costs a claim of its own; at once, when
a home shard waits for one that is not home.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from typing import Any, Coroutine, TypeVar

T = TypeVar("T")

HOME_FIRST = 5.0
TURN = 0.1
LONG = 1.0


class Places:
    """Those of one server: as many as there are lanes, so that nobody need wait."""

    shared = False

    async def take(self, most: int) -> int:
        """One place or more; waits for the first."""
        return most

    def leave(self, count: int) -> None:
        """Gives places back."""

    def wanted(self) -> bool:
        """Whether a place is to be left instead of going on."""
        return False

    async def lent(self, work: Coroutine[Any, Any, T]) -> T:
        """What work answers, which only asks the server: if that takes long, the place is another's meanwhile.

        After that it goes on, and for a while there may be more handlers than places.
        """
        return await work


class Pool:
    """The places that shards share."""

    def __init__(self, count: int) -> None:
        self.free = count
        self._order = itertools.count()
        self._queue: list[tuple[float, int, bool, "asyncio.Future[None]"]] = []

    async def take(self, most: int, home: bool) -> int:
        self._grant()
        if self.free <= 0:
            turn: "asyncio.Future[None]" = asyncio.get_running_loop().create_future()
            asked_at = time.monotonic() - (HOME_FIRST if home else 0)
            heapq.heappush(self._queue, (asked_at, next(self._order), home, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.leave(1)
                raise
            taken = 1
        else:
            self.free -= 1
            taken = 1
        more = max(min(most - taken, self.free), 0)
        self.free -= more
        return taken + more

    def leave(self, count: int) -> None:
        self.free += count
        self._grant()

    def _grant(self) -> None:
        while self._queue and (self.free > 0 or self._queue[0][3].done()):
            turn = heapq.heappop(self._queue)[3]
            if not turn.done():  # it is, when it was cancelled
                self.free -= 1
                turn.set_result(None)

    def wanted(self, home: bool, since: float) -> bool:
        """By somebody who would come before a shard that asks now, and has been going on since then.

        Asked in the threads of handlers, too: it looks, and changes nothing.
        """
        first = self._queue[:1]
        if not first or first[0][3].done():
            return False
        now = time.monotonic()
        asked_at, _, other, _ = first[0]
        return (now - since >= TURN or (other and not home)) and asked_at <= now - (HOME_FIRST if home else 0)


class OfShard(Places):
    """What one shard sees of them."""

    shared = True

    def __init__(self, pool: Pool, home: bool) -> None:
        self._pool = pool
        self._home = home
        self._since = 0.0

    async def take(self, most: int) -> int:
        taken = await self._pool.take(most, self._home)
        self._since = time.monotonic()
        return taken

    def leave(self, count: int) -> None:
        self._pool.leave(count)

    def wanted(self) -> bool:
        return self._pool.wanted(self._home, self._since)

    async def lent(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task}, timeout=LONG)
            if task.done():
                return task.result()
            self._pool.leave(1)
            try:
                return await task
            finally:
                self._pool.free -= 1
        finally:
            task.cancel()
