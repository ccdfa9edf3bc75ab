"""python_manual.py: what doc/usage/python.md shows (manual.py).

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import asyncio
import threading

import psycopg

import idemq
import manual
import tap
from python_common import DSN, Client


class Manual(Client):
    """What doc/usage/python.md shows."""

    def setUp(self):
        super().setUp()
        for queue in ("mail", "pages"):
            self.sql("SELECT idemq.drop_queue(name, force => true) FROM idemq.queues WHERE name = %s", queue)
            self.sql("SELECT idemq.create_queue(%s, lease => '1 h')", queue)
        self.sql("DROP TABLE IF EXISTS orders, confirmations; CREATE TABLE orders (id int);"
                 " CREATE TABLE confirmations (order_id int)")

    def in_thread(self, function, *args):
        thread = threading.Thread(target=function, args=args)
        thread.start()
        return thread

    def test_orders(self):
        manual.test_an_order_is_confirmed(DSN)
        self.assertEqual(self.sql("SELECT * FROM orders, confirmations"), [(42, 42)])
        self.assertEqual(self.sql("SELECT result FROM idemq.job_by_key('mail', 'order-42')"), [({"confirmed": 42},)])

    def test_several_queues(self):
        for queue in ("charges", "sums"):
            self.sql("SELECT idemq.drop_queue(name, force => true) FROM idemq.queues WHERE name = %s", queue)
            self.sql("SELECT idemq.create_queue(%s, lease => '1 h')", queue)
            self.addCleanup(self.sql, "SELECT idemq.drop_queue(%s, force => true)", queue)
        manual.order(DSN)
        idemq.enqueue(self.conn, "charges", {"amount": 5})
        manual.test_all(DSN)
        self.assertEqual(self.sql("SELECT * FROM confirmations"), [(42,)])

    def test_kinds(self):
        (job,) = self.add({"amount": 5}, kind="charge")
        self.add({"url": "there"})
        self.assertEqual(self.drain(manual.KINDS, outside=True), {"committed": 2})
        self.assertEqual(self.job(job)[0], "completed")

    def test_pages(self):
        async def run():
            task = asyncio.create_task(manual.work_async(DSN))
            while (await (await conn.execute("SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id('pages')"
                                             " AND status = 'completed'")).fetchone())[0] < 300:
                await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.wait({task})

        for n in range(300):
            idemq.enqueue(self.conn, "pages", n)

        async def main():
            nonlocal conn
            conn = await psycopg.AsyncConnection.connect(DSN, autocommit=True)
            async with conn:
                await asyncio.wait_for(run(), 120)

        conn = None
        asyncio.run(main())

    def test_visits(self):
        jobs = self.add({"url": "busy"}, {"url": "closed"}, {"url": "gone"}, {"url": "there"})
        self.assertEqual(self.drain(manual.visit), {"retrying": 1, "released": 1, "dead": 1, "committed": 1})
        self.assertEqual([self.job(job)[0] for job in jobs], ["retrying", "pending", "dead", "completed"])


if __name__ == "__main__":
    tap.main()
