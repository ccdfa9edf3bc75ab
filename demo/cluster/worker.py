"""A worker over all shards: worker.py NAME HOME...; the effect is in the shard, in the job's transaction."""
import logging
import os
import sys

from idemq import ClusterWorker

name, *home = sys.argv[1:]
logging.basicConfig(format=f"{name}: %(message)s", level=logging.ERROR)


def work(job, conn):
    conn.execute("INSERT INTO effects (key, done_by) VALUES (%s, %s)", [job.key, name])


home = [int(shard) for shard in home]
ClusterWorker(os.environ["ROUTER"], "orders", name=name, concurrency=4, batch=10, home=home).run(work)
