"""flat_worker.py threads|asyncio JSON: workers of all kinds in one process, until SIGTERM, for flat.pl; as flat_worker.mjs.
The heap is what tracemalloc would cost too much to know: the blocks that Python has allocated, in place of its kB."""

import asyncio
import gc
import json
import logging
import os
import re
import signal
import sys
import threading

import idemq

KIND, SETTINGS = sys.argv[1], json.loads(sys.argv[2])
DSN, WAITERS = SETTINGS["connection"], SETTINGS["waiters"]
INSERT = "INSERT INTO effects (job) VALUES (%s)"
logging.disable(logging.WARNING)


def end(job):
    if job.payload % 97 == 0 and job.attempt == 1:
        raise RuntimeError("planned")


def half(job, conn):
    if job.payload % 2 == 0:
        conn.execute(INSERT, [job.id])
    end(job)


async def half_async(job, conn):
    if job.payload % 2 == 0:
        await conn.execute(INSERT, [job.id])
    end(job)


async def outside_async(job):
    end(job)


def nothing(_job, _conn):
    pass


def nothing_outside(_job):
    pass


async def nothing_async(_job, _conn):
    pass


async def nothing_outside_async(_job):
    pass


def say():
    gc.collect()
    with open("/proc/self/smaps_rollup", encoding="ascii") as lines:
        own = re.search(r"^Anonymous: +(\d+)", lines.read(), re.M).group(1)
    os.write(1, f"{sys.getallocatedblocks()} {own} {len(os.listdir('/proc/self/fd'))}\n".encode())


def make(kind, run, outside, no_run, no_outside):
    """Pairs of a worker's method and its handler, and the workers."""
    options = {"signals": False}
    few = [kind(DSN, "run", concurrency=4, **options), kind(DSN, "batch", batch=50, **options), kind(DSN, "outside", concurrency=20, **options)]
    calls = [(few[0].run, run), (few[1].run, run), (few[2].run_outside, outside)]
    for n in range(WAITERS):
        few.append(kind(DSN, f"wait{n}", **options))
        calls.append((few[-1].run, no_run) if n % 2 else (few[-1].run_outside, no_outside))
    return few, calls


def in_threads():
    workers, calls = make(idemq.Worker, half, end, nothing, nothing_outside)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR2])
    threads = [threading.Thread(target=call, args=(handler,)) for call, handler in calls]
    for thread in threads:
        thread.start()
    while signal.sigwait([signal.SIGTERM, signal.SIGUSR2]) == signal.SIGUSR2:
        say()
    for worker in workers:
        worker.stop()
    for thread in threads:
        thread.join()


async def in_a_loop():
    workers, calls = make(idemq.AsyncWorker, half_async, outside_async, nothing_async, nothing_outside_async)

    def stop():
        for worker in workers:
            worker.stop()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGUSR2, say)
    await asyncio.gather(*(call(handler) for call, handler in calls))


if KIND == "threads":
    in_threads()
else:
    asyncio.run(in_a_loop())
