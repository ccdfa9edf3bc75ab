"""outbox.py: forwards the jobs of a local queue to a cluster, each once."""
import os
import idemq, psycopg
from psycopg.types.json import Jsonb

ENQUEUE = "SELECT outcome FROM cluster.enqueue('mail', %s, key => %s)"

def forward(job):
    key = job.key or f"shop-{job.id}"  # shop: a name for this database, unique among all that forward
    with psycopg.connect(os.environ["ROUTER"], autocommit=True) as router:
        (outcome,) = router.execute(ENQUEUE, [Jsonb(job.payload), key]).fetchone()
    return outcome  # duplicate: an earlier attempt has forwarded it

idemq.Worker(os.environ["DSN"], "outbox").run_outside(forward)
