"""traffic.py: producers and workers under way, and the account of what they were told.

The account compares what was acknowledged (the logs of producer.py and worker.py) with the rows
of the server that takes writes in the end.
"""

import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from processes import SLOW, WORK, Failure, end, log, start, until
from producer import ENQUEUE

HERE = Path(__file__).parent
PRODUCERS, WORKERS = 2, 3
WARM = int(os.environ.get("FAILOVER_WARM", 150))  # jobs done before something happens, and again after it
REFUSALS = ("IQ001", "IQ002")

SCHEMA = f"""
CREATE EXTENSION idemq;
SELECT idemq.create_queue('work', lease => '{3 * SLOW} s', max_attempts => 1000, retry_base => '10 ms');
SELECT idemq.create_queue('held', lease => '1 h', max_attempts => 1000);
CREATE TABLE orders (key text NOT NULL);
CREATE TABLE effects (key text NOT NULL, job bigint NOT NULL, token bigint NOT NULL);
"""


@dataclass
class Account:
    """What was told, and what of it was not so; the keys of what was lost."""

    enqueued: int = 0
    committed: int = 0
    lost_jobs: list = field(default_factory=list)  # (key, id)
    lost_commits: int = 0
    effects_twice: int = 0
    refused: dict = field(default_factory=dict)
    gave_up: int = 0
    no_enqueue: float = 0
    no_commit: float = 0


class Log:
    """The lines of a producer's or a worker's log, read as they come."""

    def __init__(self, path):
        self.path = path
        self.lines = []
        self._at = 0

    def read(self):
        if self.path.exists():
            with open(self.path, "rb") as file:
                file.seek(self._at)
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._at += len(whole)
            self.lines += [line.split() for line in whole.decode().splitlines()]
        return self.lines


class Traffic:
    """Producers and workers of one event; their keys begin with its name."""

    count_of_all = 0

    def __init__(self, dsn):
        Traffic.count_of_all += 1
        self.name, self.dsn = f"t{Traffic.count_of_all}", dsn
        self.dir = WORK / f"traffic-{self.name}"
        self.dir.mkdir()
        self.producers, self.workers = [], []
        self.logs = []
        self.begun = self.over = None

    def _start(self, program, name):
        path = self.dir / f"{name}.log"
        self.logs.append(Log(path))
        return start([sys.executable, HERE / program, self.dsn, f"{self.name}-{name}", path, str(4 * SLOW)], self.dir / f"{name}.err")

    def start(self):
        self.producers = [self._start("producer.py", f"p{n}") for n in range(PRODUCERS)]
        self.workers = [self._start("worker.py", f"w{n}") for n in range(WORKERS)]

    def lines(self, *kinds):
        return [line for one in self.logs for line in one.read() if line[0] in kinds]

    def count(self, kind, since=0.0):
        return sum(float(line[1]) >= since for line in self.lines(kind))

    def check_alive(self):
        for process in self.producers + self.workers:
            if process.poll() is not None:
                said = "".join(path.read_text(errors="replace") for path in sorted(self.dir.glob("*.err")))
                raise Failure(f"a client ended by itself: {said[-2000:]}")
        return True

    def wait_for(self, count, what="traffic"):
        """Waits until so many more are acknowledged, of jobs and of commits, from now on."""
        since = time.monotonic()
        until(lambda: self.check_alive() and all(self.count(kind, since) >= count for kind in ("ack", "done")), what)

    def happens(self, event):
        """Runs an event once traffic flows, and until it flows again."""
        self.wait_for(WARM, "jobs flow")
        self.begun = time.monotonic()
        event()
        self.wait_for(WARM, "jobs flow again")
        self.over = time.monotonic()

    def finish(self, server, before_the_end):
        """Lets all jobs that there are come to their end, on the server that takes writes now.

        before_the_end is called when producers have ended, and workers have not.
        """
        for process in self.producers:
            process.send_signal(signal.SIGTERM)
        for process in self.producers:
            process.wait(60 * SLOW)
        before_the_end()
        until(lambda: server.says("SELECT count(*) FROM idemq.jobs j JOIN idemq.queues q USING (queue_id)"
                                  " WHERE q.name = 'work' AND j.finished_at IS NULL") == 0, "the end of all jobs")
        for process in self.workers:
            process.send_signal(signal.SIGTERM)
        for process in self.workers:
            process.wait(60 * SLOW)
        said = "".join(path.read_text(errors="replace") for path in sorted(self.dir.glob("*.err")))
        if said or any(process.returncode for process in self.producers + self.workers):
            raise Failure(f"a client failed: {said[-2000:]}")

    def abandon(self):
        for process in self.producers + self.workers:
            process.kill()
            end(process)

    def longest_gap(self, kind):
        """Seconds in which nothing of a kind was acknowledged, at the longest, around the event."""
        times = sorted(float(line[1]) for line in self.lines(kind))
        times = [at for at in times if self.begun - 1 <= at <= self.over + 1]
        return max(later - sooner for sooner, later in zip(times, times[1:]))


def _counts(server, table, prefix):
    return dict(server.sql(f"SELECT key, count(*) FROM {table} WHERE starts_with(key, %s) GROUP BY 1", (prefix,)))


def tokens_grow(traffic):
    """Each server's tokens are greater than all of the one before it, and those of a job grow."""
    claims = sorted((float(at), int(job), int(token), port) for _, at, job, token, _, port in traffic.lines("claim"))
    latest = {}
    servers = {}
    for at, job, token, port in claims:
        first, least, greatest = servers.get(port, (at, token, token))
        servers[port] = (first, min(least, token), max(greatest, token))
        if token < latest.get(job, 0):
            raise Failure(f"job {job} got token {token} after {latest[job]}")
        latest[job] = token
    inorder = sorted(servers.values())
    for (_, _, before), (_, after, _) in zip(inorder, inorder[1:]):
        if after <= before:
            raise Failure(f"a server gave token {after}, the one before it {before}")
    return len(inorder)


def account(traffic, server, may_lose):
    """What the server has of what was acknowledged; raises what must not be, whatever was lost."""
    prefix = f"{traffic.name}-"
    acks = [(line[4], int(line[2]), line[3]) for line in traffic.lines("ack")]
    done = [(line[4], int(line[2]), int(line[3])) for line in traffic.lines("done")]
    result = Account(len(acks), len(done), gave_up=len(traffic.lines("gave-up")))
    result.refused = {state: len(traffic.lines(state)) for state in REFUSALS}
    result.no_enqueue, result.no_commit = traffic.longest_gap("ack"), traffic.longest_gap("done")

    jobs = dict(server.sql("SELECT key, id FROM idemq.jobs WHERE starts_with(key, %s)", (prefix,)))
    orders, effects = _counts(server, "orders", prefix), _counts(server, "effects", prefix)
    has = set(server.sql("SELECT key, job, token FROM effects WHERE starts_with(key, %s)", (prefix,)))
    result.lost_jobs = [(key, job) for key, job, _ in acks if jobs.get(key) != job]
    result.lost_commits = sum(one not in has for one in done)
    result.effects_twice = sum(count > 1 for count in effects.values()) + sum(count > 1 for count in orders.values())

    given = [job for _, job, outcome in acks if outcome == "accepted"]
    wrong = {
        "ids given twice": len(given) - len(set(given)),
        "jobs without their order, or orders without their job": len(jobs.keys() ^ orders.keys()),
        "jobs without their effect, or effects without their job": len(jobs.keys() ^ effects.keys()),
        "effects twice": result.effects_twice,
        "jobs lost that were acknowledged": 0 if may_lose else len(result.lost_jobs),
        "commits lost that were acknowledged": 0 if may_lose else result.lost_commits,
        "jobs not completed": server.value("SELECT count(*) FROM idemq.jobs WHERE status <> 'completed' AND starts_with(key, %s)", (prefix,)),
        "errors of check()": server.value("SELECT count(*) FROM idemq.check() WHERE severity = 'error'"),
    }
    if not may_lose:
        wrong["refused as lost (IQ002)"] = result.refused["IQ002"]
    found = [f"{count} {what}" for what, count in wrong.items() if count]
    if found:
        raise Failure("; ".join(found))
    tokens_grow(traffic)
    return result


def lost_do_no_harm(traffic, server):
    """Shows it of jobs that were acknowledged and that a promotion forgot.

    Their ids are nobody's: a worker that still holds one, with its token, is refused.  Their keys
    are free: enqueued again, each is a new job, with an id above all; the account then wants its
    effect once, as of any other.
    """
    there = dict(server.sql("SELECT id, key FROM idemq.jobs WHERE starts_with(key, %s)", (f"{traffic.name}-",)))
    acks = [(line[4], int(line[2])) for line in traffic.lines("ack")]
    lost = [(key, job) for key, job in acks if job not in there]
    held = {int(line[2]): int(line[3]) for line in traffic.lines("claim")}
    highest = max(job for _, job in acks)
    if not lost:
        raise Failure("no acknowledged job was lost, so there is nothing to show")
    with psycopg.connect(server.conninfo(), autocommit=True) as conn:
        for key, job in lost:
            for call in ("try_commit", "validate", "heartbeat"):
                says, = conn.execute(f"SELECT idemq.{call}(%s, %s)::text", (job, held.get(job, 1))).fetchone()
                if says != "not_found":
                    raise Failure(f"{call} of lost job {job}: {says}")
            job_id, outcome = conn.execute(ENQUEUE, {"key": key}).fetchone()
            if outcome != "accepted" or job_id <= highest:
                raise Failure(f"key {key} of a lost job, enqueued again: {outcome}, {job_id}")
    log(f"{len(lost)} lost ids refused, {sum(job in held for _, job in lost)} of them with the token of a worker;"
        " their keys enqueued again")
