"""python_silence_worker.py WAY DSN QUEUE GRACE SECONDS: a worker for python_silence.py, whose effects are rows.

WAY: run, outside, async_run, async_outside.  A handler takes SECONDS.  It says when the
worker has returned, since the end of Python itself takes seconds on a busy machine.  IDEMQ_DSN leads to the server past the proxy.
"""

import asyncio
import logging
import os
import sys
import time

import psycopg

import idemq

WAY, DSN, QUEUE, GRACE, SECONDS = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), float(sys.argv[5])
EFFECT = "INSERT INTO effects (queue, n) VALUES (%s, %s)"
logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(message)s")


def run(job, conn):
    time.sleep(SECONDS)
    conn.execute(EFFECT, (job.queue, job.payload))


async def run_async(job, conn):
    await asyncio.sleep(SECONDS)
    await conn.execute(EFFECT, (job.queue, job.payload))


def outside(job):
    time.sleep(SECONDS)
    with psycopg.connect(os.environ["IDEMQ_DSN"], autocommit=True) as own:
        own.execute(EFFECT, (job.queue, job.payload))


async def outside_async(job):
    await asyncio.sleep(SECONDS)
    async with await psycopg.AsyncConnection.connect(os.environ["IDEMQ_DSN"], autocommit=True) as own:
        await own.execute(EFFECT, (job.queue, job.payload))


options = {"grace": GRACE, "timeout": 600}
if WAY == "run":
    idemq.Worker(DSN, QUEUE, **options).run(run)
elif WAY == "outside":
    idemq.Worker(DSN, QUEUE, **options).run_outside(outside)
elif WAY == "async_run":
    asyncio.run(idemq.AsyncWorker(DSN, QUEUE, **options).run(run_async))
else:
    asyncio.run(idemq.AsyncWorker(DSN, QUEUE, **options).run_outside(outside_async))
print(f"returned at {time.monotonic()}", file=sys.stderr, flush=True)
