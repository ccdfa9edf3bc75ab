"""python.py work|produce|fill JSON: one process of bench-workers in Python; as node.mjs.  For Celery and RQ it is the module of
their tasks, too: these run in processes of theirs, so what they have done is seen by their queue's length."""

import asyncio
import itertools
import json
import os
import random
import sys
import time

PAYLOAD = json.loads(os.environ["BENCH_PAYLOAD"])
REDIS = os.environ.get("BENCH_REDIS", "")
SAMPLES = os.environ.get("BENCH_SAMPLES", "")
INSERT = "INSERT INTO bench.effects (job) VALUES (%s)"


def nothing(payload):
    """The task of Celery and RQ: with samples, a line in their file."""
    if "t" in payload:
        line = f"sample {time.monotonic_ns() - payload['t']}\n".encode()
        file = os.open(SAMPLES, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, line)
        os.close(file)


if REDIS and os.environ.get("BENCH_SIDE") == "celery":
    import celery

    app = celery.Celery("python", broker=f"redis+socket://{REDIS}")
    app.conf.task_ignore_result = True
    task = app.task(name="bench", ignore_result=True)(nothing)


def say(word):
    os.write(1, f"{word}\n".encode())


def make_begins(spec):
    count = itertools.count(1)

    def begins(payload):
        number = next(count)
        if spec["samples"]:
            say(f"sample {time.monotonic_ns() - payload['t']}")
        elif number == spec["warm"]:
            say("warm")
        elif number == spec["jobs"]:
            say("end")

    return begins


def work(spec):
    """A worker of idemq as its page shows it."""
    import idemq  # pylint: disable=import-outside-toplevel

    begins = make_begins(spec)
    dsn = f"host={spec['socket']} user=postgres dbname=postgres"
    options = {"concurrency": spec["concurrency"]}
    if spec["batch"] > 1:
        options["batch"] = spec["batch"]
    if spec.get("ahead"):
        options["ahead"] = spec["ahead"]
    if spec.get("wait"):
        options["wait_dsn"] = f"host={spec['wait']} user=postgres dbname=postgres"

    def told(job):
        say(f"begun {job.id}")
        job.cancelled.wait(60)
        say(f"told {time.monotonic_ns()}")
        raise RuntimeError("the job is cancelled")

    def told_in_transaction(job, conn):
        conn.execute(INSERT, [job.id])
        told(job)

    def run(job, _):
        begins(job.payload)

    def insert(job, conn):
        begins(job.payload)
        conn.execute(INSERT, [job.id])

    def outside(job):
        begins(job.payload)

    async def outside_async(job):
        begins(job.payload)

    if spec["samples"] == "cancel" and spec["outside"]:
        idemq.Worker(dsn, "bench", **options).run_outside(told)
    elif spec["samples"] == "cancel":
        idemq.Worker(dsn, "bench", **options).run(told_in_transaction)
    elif spec["outside"] == "asyncio":
        asyncio.run(idemq.AsyncWorker(dsn, "bench", **options).run_outside(outside_async))
    elif spec["outside"]:
        idemq.Worker(dsn, "bench", **options).run_outside(outside)
    else:
        idemq.Worker(dsn, "bench", **options).run(insert if spec["insert"] else run)


def putter(spec):
    """A function that enqueues one payload."""
    if spec["side"] == "celery":
        return lambda payload: task.apply_async((payload,))
    if spec["side"] == "rq":
        import redis  # pylint: disable=import-outside-toplevel
        import rq  # pylint: disable=import-outside-toplevel

        queue = rq.Queue("bench", connection=redis.Redis(unix_socket_path=REDIS))
        return lambda payload: queue.enqueue("python.nothing", payload, result_ttl=0)
    import psycopg  # pylint: disable=import-outside-toplevel
    import idemq  # pylint: disable=import-outside-toplevel

    conn = psycopg.connect(f"host={spec['socket']} user=postgres dbname=postgres", autocommit=True)
    return lambda payload: idemq.enqueue(conn, "bench", payload)


def produce(spec):
    put = putter(spec)
    for _ in range(spec["jobs"]):
        time.sleep(random.expovariate(spec["rate"]))
        put({**PAYLOAD, "t": time.monotonic_ns()})


def fill(spec):
    put = putter(spec)
    for _ in range(spec["jobs"]):
        put(PAYLOAD)


if __name__ == "__main__":
    {"work": work, "produce": produce, "fill": fill}[sys.argv[1]](json.loads(sys.argv[2]))
