#!/usr/bin/python3
"""driver.py BENCH SIDE SAMPLES CONNINFO PAYLOAD: microseconds, one line a sample.

Through psycopg 3 as anybody would use it: synchronous, autocommit, no tuning.
Processes of one machine share CLOCK_MONOTONIC.

latency: from the return of an enqueue to the answer of the claim in another
process, which waited for it: idemq by idemq.wait, skip by LISTEN.

recovery: until the job of a lost worker is in the hand of another one, which
waits in idemq.wait.  idemq-lease: from the deadline that the lost one was told;
idemq-client, idemq-backend: from just before the kill -9 of the client, or the
call of pg_terminate_backend, of an attached lease.

admit: one call of idemq.admit, of one bucket or of many in turn, or one SELECT 1.
"""

import multiprocessing
import os
import random
import signal
import sys
import time

import psycopg

TIMEOUT = "10 s"
CLAIM_SKIP = """
UPDATE bench.skip SET status = 'running', attempt = attempt + 1, claimed_at = now(),
    deadline = now() + interval '30 s'
WHERE id = (SELECT id FROM bench.skip WHERE queue_id = 1 AND status = 'pending' AND run_at <= now()
            ORDER BY priority, run_at, id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, attempt
"""
ENQUEUE = {
    "idemq": "SELECT id FROM idemq.enqueue('bench', %s)",
    # one transaction, and the id as the answer, as idemq gives it
    "skip": """
WITH job AS (
    INSERT INTO bench.skip (queue_id, enqueued_at, priority, max_attempts, status, run_at, payload)
    VALUES (1, now(), 4, 20, 'pending', now(), %s) RETURNING id)
SELECT id, pg_notify('bench', '') FROM job
""",
}

spawn = multiprocessing.get_context("spawn")


class Idemq:
    """A worker of the queue bench."""

    def __init__(self, conninfo):
        self.conn = psycopg.connect(conninfo, autocommit=True)

    def next_job(self):
        """(id, token, attempt) of the next job, and when it was claimed; waits for it."""
        while True:
            self.conn.execute("CALL idemq.wait('bench', %s)", [TIMEOUT])
            job = self.conn.execute("SELECT id, token, attempt FROM idemq.claim('bench')").fetchone()
            if job:
                return job, time.monotonic_ns()

    def complete(self, job):
        self.conn.execute("""SELECT idemq.commit(%s, %s, '{"ok": true}')""", job[:2])


class Skip:
    """A worker of the queue with SKIP LOCKED, woken by LISTEN."""

    def __init__(self, conninfo):
        self.conn = psycopg.connect(conninfo, autocommit=True)
        self.conn.add_notify_handler(self.on_notify)
        self.heard = False
        self.conn.execute("LISTEN bench")

    def on_notify(self, _):
        """Called for what arrives beside the answer of a statement."""
        self.heard = True

    def next_job(self):
        while True:
            self.heard = False
            job = self.conn.execute(CLAIM_SKIP).fetchone()
            if job:
                return job, time.monotonic_ns()
            if not self.heard:
                next(self.conn.notifies())

    def complete(self, job):
        self.conn.execute(
            """UPDATE bench.skip SET status = 'completed', finished_at = now(), result = '{"ok": true}'
            WHERE id = %s AND status = 'running'""", job[:1])


WORKERS = {"idemq": Idemq, "skip": Skip}


def take_all(side, conninfo, count, pipe):
    """Process: takes count jobs; at the end sends when it had each."""
    worker = WORKERS[side](conninfo)
    pipe.send("here")
    taken = {}
    for _ in range(count):
        job, at = worker.next_job()
        taken[job[0]] = at
        worker.complete(job)
    pipe.send(taken)


def latency(side, count, conninfo, payload):
    pipe, theirs = spawn.Pipe()
    spawn.Process(target=take_all, args=(side, conninfo, count, theirs), daemon=True).start()
    theirs.close()  # so that its end is an error here, not a wait
    pipe.recv()
    gaps = random.Random(1)
    enqueued = {}
    with psycopg.connect(conninfo, autocommit=True) as conn:
        for _ in range(count):
            time.sleep(gaps.uniform(0.002, 0.020))
            (job_id, *_) = conn.execute(ENQUEUE[side], [payload]).fetchone()
            enqueued[job_id] = time.monotonic_ns()
    taken = pipe.recv()
    return [(taken[job_id] - at) / 1000 for job_id, at in enqueued.items()]


def rescue(conninfo, pipe):
    """Process: told an id, waits for that job, says when it has it, completes it; ends at None."""
    worker = Idemq(conninfo)
    pipe.send("here")
    while expected := pipe.recv():
        (job_id, token, attempt), at = worker.next_job()
        wall = time.time_ns()
        if (job_id, attempt) != (expected, 2):
            raise RuntimeError(f"attempt {attempt} of job {job_id}, not 2 of {expected}")
        worker.complete((job_id, token))
        pipe.send((at, wall))


def claim_and_hang(conninfo, pipe):
    """Process: claims a job for its session, says which, and does no more."""
    with psycopg.connect(conninfo, autocommit=True) as conn:
        (job_id,) = conn.execute(
            "SELECT id FROM idemq.claim('bench', lease => '10 min', attach => true)").fetchone()
        pipe.send((job_id, conn.info.backend_pid))
        time.sleep(3600)


def lose_lease(conn, rescuer, _):
    job_id, deadline = conn.execute(
        """SELECT id, (extract(epoch FROM deadline) * 1000000)::bigint
        FROM idemq.claim('bench', lease => '500 ms')""").fetchone()
    rescuer.send(job_id)
    _, wall = rescuer.recv()
    return wall / 1000 - deadline


def lose_session(conn, rescuer, conninfo, end):
    pipe, theirs = spawn.Pipe()
    lost = spawn.Process(target=claim_and_hang, args=(conninfo, theirs), daemon=True)
    lost.start()
    theirs.close()
    job_id, backend = pipe.recv()
    rescuer.send(job_id)
    time.sleep(0.1)  # until the rescuer sleeps
    began = time.monotonic_ns()
    end(conn, lost.pid, backend)
    at, _ = rescuer.recv()
    lost.kill()
    lost.join()
    return (at - began) / 1000


def lose_client(conn, rescuer, conninfo):
    return lose_session(conn, rescuer, conninfo, lambda _, pid, __: os.kill(pid, signal.SIGKILL))


def lose_backend(conn, rescuer, conninfo):
    return lose_session(conn, rescuer, conninfo, lambda on, _, backend: on.execute(
        "SELECT pg_terminate_backend(%s)", [backend]))


LOSSES = {"idemq-lease": lose_lease, "idemq-client": lose_client, "idemq-backend": lose_backend}


def recovery(side, count, conninfo, payload):
    rescuer, theirs = spawn.Pipe()
    spawn.Process(target=rescue, args=(conninfo, theirs), daemon=True).start()
    theirs.close()
    rescuer.recv()
    found = []
    with psycopg.connect(conninfo, autocommit=True) as conn:
        for _ in range(count):
            conn.execute(ENQUEUE["idemq"], [payload])
            found.append(LOSSES[side](conn, rescuer, conninfo))
    rescuer.send(None)
    return found


def admit(side, count, conninfo, _):
    """The same statement again and again, as a web server's request would."""
    buckets = {"idemq-one": ["bench"], "idemq-many": [str(n) for n in range(1, 1001)], "one": []}[side]
    statement = "SELECT * FROM idemq.admit(%s, 2000000000, '1 s')" if buckets else "SELECT 1"
    found = []
    with psycopg.connect(conninfo, autocommit=True) as conn:
        for n in range(count):
            arguments = [buckets[n % len(buckets)]] if buckets else None
            began = time.monotonic_ns()
            (answer, *_) = conn.execute(statement, arguments).fetchone()
            found.append((time.monotonic_ns() - began) / 1000)
            if not answer:
                raise RuntimeError("refused")
    return found


def main():
    bench, side, count, conninfo, payload = sys.argv[1:6]
    measure = {"latency": latency, "recovery": recovery, "admit": admit}[bench]
    for sample in measure(side, int(count), conninfo, payload):
        print(f"{sample:.1f}")


if __name__ == "__main__":
    main()
