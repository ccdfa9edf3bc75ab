"""once_worker.py threads|asyncio JSON: workers for once.pl in one process, until SIGTERM; once_worker.mjs says what they do."""

import asyncio
import json
import logging
import os
import random
import signal
import sys
import threading
import time

import idemq

KIND, SETTINGS = sys.argv[1], json.loads(sys.argv[2])
DSN, SENT = SETTINGS["connection"], SETTINGS["sent"]
LOG = os.open(SETTINGS["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
INSERT = "INSERT INTO effects (queue, n, token) VALUES (%s, %s, %s)"
PREFIX = {"threads": "python", "asyncio": "asyncio"}[KIND]

logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")


def append(file, line):
    """A line at once, so that it outlives the process."""
    where = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644) if isinstance(file, str) else file
    os.write(where, f"{line}\n".encode())
    if where is not file:
        os.close(where)


def called(queue, job):
    append(LOG, f"{queue} {job.payload['n']} {job.token} {job.attempt}")


def moment():
    """Seconds in which trouble may come."""
    return random.random() * 0.004


def end(job):
    n = job.payload["n"]
    if n % 97 == 0 and job.attempt == 1:
        raise RuntimeError("planned")
    return {"n": n}


def copied(values):
    return "\t".join(str(value) for value in values) + "\n"


COPY = "COPY effects (queue, n, token) FROM STDIN"


def insert(conn, way, values):
    """The effect, by one of the driver's ways."""
    if way == 0:
        conn.execute(INSERT, values)
    elif way == 1:
        with conn.cursor() as cursor:
            cursor.executemany(INSERT, [values])
    elif way == 2:
        with conn.transaction():
            conn.execute(INSERT, values)
    elif way == 3:
        with conn.cursor() as cursor, cursor.copy(COPY) as copy:
            copy.write(copied(values))
    else:
        with conn.pipeline():
            conn.execute(INSERT, values)


async def insert_async(conn, way, values):
    if way == 0:
        await conn.execute(INSERT, values)
    elif way == 1:
        async with conn.cursor() as cursor:
            await cursor.executemany(INSERT, [values])
    elif way == 2:
        async with conn.transaction():
            await conn.execute(INSERT, values)
    elif way == 3:
        async with conn.cursor() as cursor:
            async with cursor.copy(COPY) as copy:
                await copy.write(copied(values))
    else:
        async with conn.pipeline():
            await conn.execute(INSERT, values)


def transact(queue):
    def handler(job, conn):
        n = job.payload["n"]
        called(queue, job)
        if n % 3 == 0:
            time.sleep(moment())
        if n % 2 == 0:
            insert(conn, n // 2 % 5, (queue, n, job.token))
            if n % 4 == 0:
                time.sleep(moment())
        return end(job)

    return handler


def transact_async(queue):
    async def handler(job, conn):
        n = job.payload["n"]
        called(queue, job)
        if n % 3 == 0:
            await asyncio.sleep(moment())
        if n % 2 == 0:
            await insert_async(conn, n // 2 % 5, (queue, n, job.token))
            if n % 4 == 0:
                await asyncio.sleep(moment())
        return end(job)

    return handler


def send(step):
    if step.timeout <= 0:
        raise RuntimeError("too late")
    append(SENT, step.key)
    return {}


def ask(step):
    with open(SENT, encoding="utf-8") as sent:
        return {} if step.key in sent.read().split("\n") else None


async def send_async(step):
    return send(step)


async def ask_async(step):
    return ask(step)


def outside(job):
    called("python_outside", job)
    if job.payload["n"] % 2 == 0:
        time.sleep(moment())
    if job.payload["n"] % 20 == 0:
        job.step("send", send, call_timeout=4, ask=ask)
    return end(job)


async def outside_async(job):
    called("asyncio_outside", job)
    if job.payload["n"] % 2 == 0:
        await asyncio.sleep(moment())
    if job.payload["n"] % 20 == 0:
        await job.step("send", send_async, call_timeout=4, ask=ask_async)
    return end(job)


def make(kind):
    options = {"signals": False, **({"wait_dsn": SETTINGS["wait"]} if SETTINGS["wait"] else {})}
    return [
        kind(DSN, f"{PREFIX}_run", concurrency=3, **options),
        kind(DSN, f"{PREFIX}_batch", batch=8, **options),
        kind(DSN, f"{PREFIX}_outside", concurrency=6, **options),
    ]


def stop_at_sigterm(workers):
    for each in workers:
        each.stop()


def in_threads():
    workers = make(idemq.Worker)
    failed = []

    def run(call, handler):
        try:
            call(handler)
        except BaseException:
            logging.exception("a worker has ended")
            failed.append(call)
            os._exit(1)

    threads = [
        threading.Thread(target=run, args=each)
        for each in (
            (workers[0].run, transact("python_run")),
            (workers[1].run, transact("python_batch")),
            (workers[2].run_outside, outside),
        )
    ]
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    logging.info("hears signals")
    for thread in threads:
        thread.start()
    signal.sigwait([signal.SIGTERM])
    stop_at_sigterm(workers)
    for thread in threads:
        thread.join()


async def in_a_loop():
    workers = make(idemq.AsyncWorker)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop_at_sigterm, workers)
    logging.info("hears signals")
    await asyncio.gather(
        workers[0].run(transact_async("asyncio_run")),
        workers[1].run(transact_async("asyncio_batch")),
        workers[2].run_outside(outside_async),
    )


if KIND == "threads":
    in_threads()
else:
    asyncio.run(in_a_loop())
