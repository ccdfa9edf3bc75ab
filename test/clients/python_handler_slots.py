"""python_handler_slots.py: the handler slots that the shards of a cluster share; needs no server.

For python.pl.
"""

import asyncio
import time
import unittest
import unittest.mock

import idemq
import idemq._handler_slots
import tap
from idemq import _handler_slots


class ShardSlots(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        self.pool = _handler_slots.SlotPool(2)
        self.home, self.away = _handler_slots.ShardSlots(self.pool, True), _handler_slots.ShardSlots(self.pool, False)
        self.order = []

    def waits(self, name, slots):
        async def wait():
            self.assertEqual(await slots.acquire(1), 1)
            self.order.append(name)

        return asyncio.create_task(wait())

    async def test_home_comes_first_and_nobody_twice(self):
        self.assertEqual(await self.away.acquire(5), 2)  # as many as there are
        tasks = [self.waits("away", self.away), self.waits("gone", self.away), self.waits("home", self.home)]
        await asyncio.sleep(0)
        self.assertTrue(self.away.should_yield())
        tasks[1].cancel()
        await asyncio.sleep(0)
        self.away.release(1)
        await tasks[2]
        self.assertEqual(self.order, ["home"])
        self.away.release(1)
        await tasks[0]
        self.assertEqual(self.pool.free, 0)

    async def test_a_slot_that_was_given_to_who_was_cancelled_is_not_lost(self):
        await self.home.acquire(2)
        task = self.waits("late", self.home)
        await asyncio.sleep(0)
        self.home.release(1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self.assertEqual((self.order, self.pool.free), ([], 1))

    async def test_a_turn_ends_and_away_is_not_forgotten(self):
        await self.home.acquire(2)
        task = self.waits("away", self.away)
        await asyncio.sleep(0)
        with unittest.mock.patch("idemq._handler_slots.time.monotonic", lambda at=time.monotonic(): at + _handler_slots.HOME_HEAD_START - 1):
            self.assertFalse(self.home.should_yield())
        with unittest.mock.patch("idemq._handler_slots.time.monotonic", lambda at=time.monotonic(): at + _handler_slots.HOME_HEAD_START + 1):
            self.assertTrue(self.home.should_yield())
        self.home.release(1)
        await task

    async def test_a_slot_is_lent_while_its_server_is_waited_for(self):
        await self.home.acquire(2)
        end = asyncio.Event()

        async def work():
            await end.wait()
            return "done"

        lent = asyncio.create_task(self.home.lend_while(work()))
        self.assertEqual(await asyncio.wait_for(self.away.acquire(1), 60), 1)
        end.set()
        self.assertEqual(await lent, "done")
        self.assertEqual(self.pool.free, -1)
        self.home.release(3)
        self.assertEqual(self.pool.free, 2)


if __name__ == "__main__":
    tap.main()
