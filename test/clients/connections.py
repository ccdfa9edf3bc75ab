"""connections.py METHOD CONCURRENCY GATE: a worker for connections.pl.  Its handlers run until the file GATE exists.  DSN is a connection string."""

import asyncio
import os
import sys
import time

from idemq import AsyncWorker, Inside, Outside, Worker

method, concurrency, gate = sys.argv[1:]
dsn = os.environ["DSN"]
options = {"concurrency": int(concurrency)}


def opened(job):
    while not os.path.exists(gate):
        time.sleep(0.02)


def uses(job, conn):
    conn.execute("SELECT set_config('idemq_test.uses', 'yes', false)")
    opened(job)


async def opened_async(job):
    while not os.path.exists(gate):
        await asyncio.sleep(0.02)


async def uses_async(job, conn):
    await conn.execute("SELECT set_config('idemq_test.uses', 'yes', false)")
    await opened_async(job)


if method == "run":
    Worker(dsn, "q", **options).run(uses)
elif method == "run_outside":
    Worker(dsn, "q", **options).run_outside(opened)
elif method == "several":
    Worker(dsn, {"q": Inside(uses, **options), "other": Inside(uses, **options), "calls": Outside(opened, **options)}).run()
elif method == "async_run":
    asyncio.run(AsyncWorker(dsn, "q", **options).run(uses_async))
else:
    asyncio.run(AsyncWorker(dsn, "q", **options).run_outside(opened_async))
