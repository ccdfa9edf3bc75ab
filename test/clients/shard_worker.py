"""shard_worker.py sync|async|outside|outside_async: a worker over shards for shards.pl.

ROUTER is the router's connection string, OPTIONS JSON; files are in the folder T.  A handler writes its
job's key and its shard, into the table effects of the shard or the file effects, and waits for the file
that the payload names as gate.
"""

import asyncio
import json
import logging
import os
import sys
import time

from idemq import AsyncClusterWorker, ClusterWorker

T = os.environ["T"]
kind = sys.argv[1]
options = json.loads(os.environ.get("OPTIONS", "{}"))
logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO)
INSERT = "INSERT INTO effects (key, at) VALUES (%s, current_database())"


def write(job):
    with open(f"{T}/effects", "a", encoding="utf-8") as file:
        file.write(f"{job.key}\n")


def begin(job):
    with open(f"{T}/began", "a", encoding="utf-8") as file:
        file.write(f"{job.key} {job.attempt}\n")
    gate = job.payload.get("gate")
    return lambda: gate is None or os.path.exists(f"{T}/{gate}")


def handler(job, conn=None):
    is_open = begin(job)
    while not is_open():
        time.sleep(0.02)
    if conn is None:
        write(job)
    else:
        conn.execute(INSERT, [job.key])
    return {"attempt": job.attempt}


async def handler_async(job, conn=None):
    is_open = begin(job)
    while not is_open():
        await asyncio.sleep(0.02)
    if conn is None:
        write(job)
    else:
        await conn.execute(INSERT, [job.key])
    return {"attempt": job.attempt}


if kind.endswith("async"):
    worker = AsyncClusterWorker(os.environ["ROUTER"], "q", **options)
    ended = asyncio.run((worker.run if kind == "async" else worker.run_outside)(handler_async))
else:
    worker = ClusterWorker(os.environ["ROUTER"], "q", **options)
    ended = (worker.run if kind == "sync" else worker.run_outside)(handler)
print(json.dumps(ended, sort_keys=True))
