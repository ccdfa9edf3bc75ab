"""surroundings.py DSN ROLE...: until SIGTERM, workers as each role: of its queues ROLE_run and ROLE_outside by
coroutines, of ROLE_thread by a function.  Their log goes to stderr.

As role late, of queue late_python alone: its handlers block the event loop for longer than a lease, in their first attempts."""

import asyncio
import logging
import signal
import sys
import threading
import time

from idemq import AsyncWorker, Worker

logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
PAUSE = 1.5  # longer than some of these sessions may be idle in a transaction, or at all


def answer(job):
    return {"said": job.payload["said"], "year": job.enqueued_at.year}


async def transact(job, conn):
    await asyncio.sleep(PAUSE)
    await conn.execute("INSERT INTO effects (job, said) VALUES (%s, %s)", [job.id, job.payload["said"]])
    return answer(job)


def transact_in_thread(job, conn):
    time.sleep(PAUSE)
    conn.execute("INSERT INTO effects (job, said) VALUES (%s, %s)", [job.id, job.payload["said"]])
    return answer(job)


async def outside(job):
    await asyncio.sleep(PAUSE)
    await job.save_checkpoint({"said": job.payload["said"]})
    return answer(job)


async def late(job):
    if job.attempt == 1:
        time.sleep(3)


async def main(dsn, roles):
    workers, ends = [], []
    if roles == ["late"]:
        workers = [AsyncWorker(f"{dsn} user=late", "late_python", concurrency=2, signals=False)]
        ends, roles = [workers[0].run_outside(late)], []
    for role in roles:
        of = f"{dsn} user={role}"
        run, out = AsyncWorker(of, f"{role}_run", signals=False), AsyncWorker(of, f"{role}_outside", signals=False)
        thread = Worker(of, f"{role}_thread", signals=False)
        workers += [run, out, thread]
        ends += [run.run(transact), out.run_outside(outside), asyncio.to_thread(thread.run, transact_in_thread)]
    tasks = [asyncio.ensure_future(end) for end in ends]
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await told.wait()
    for worker in workers:
        worker.stop()
    for end in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(end, dict):
            logging.error("a worker has ended: %r", end)


asyncio.run(main(sys.argv[1], sys.argv[2:]))
