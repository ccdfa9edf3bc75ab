"""The director of the demo: starts producers and workers, kills one, stops one,
shows the queue while it drains, and proves by numbers that every effect happened once.
"""

import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time

import psycopg

HERE = os.path.dirname(os.path.abspath(__file__))
PLACES = ("/usr/share/common-licenses", "/usr/share/doc")
MAX_FILES = 6000
TIME_LIMIT = 50  # seconds

COUNTS = """
SELECT count(*) FILTER (WHERE status IN ('pending', 'retrying')),
       count(*) FILTER (WHERE status = 'running'),
       count(*) FILTER (WHERE status = 'completed'),
       (SELECT count(*) FROM results)
FROM idemq.jobs
"""

METRICS = """
SELECT enqueued_total, duplicates_total, committed_total, expired_total, wait_p99, run_p99
FROM idemq.metrics
"""

PROOF = """
SELECT (SELECT count(*) FROM idemq.jobs),
       (SELECT count(*) FROM idemq.jobs WHERE status = 'completed'),
       (SELECT count(*) FROM results),
       (SELECT count(DISTINCT path) FROM results),
       (SELECT count(*) FROM (SELECT FROM results GROUP BY path HAVING count(*) > 1) twice),
       (SELECT count(*) FROM idemq.attempts),
       (SELECT array_agg(job_id) FROM idemq.attempts WHERE outcome = 'expired')
"""


def find_files():
    found = []
    for place in PLACES:
        for folder, _, names in os.walk(place):
            paths = [os.path.join(folder, name) for name in names]
            found += [p for p in paths if os.path.isfile(p) and not os.path.islink(p)]
    readable = [p for p in found if p.isprintable() and os.access(p, os.R_OK)]
    return sorted(readable)[:MAX_FILES]


def in_ms(interval):
    return f"{interval.total_seconds() * 1000:.0f} ms"


def source(function):
    """The lines of a function of worker.py."""
    with open(os.path.join(HERE, "worker.py"), encoding="utf-8") as file:
        lines = file.read().splitlines()
    begin = next(n for n, line in enumerate(lines) if line.startswith(f"def {function}("))
    end = next(n for n, line in enumerate(lines) if n > begin and line and not line.startswith(" "))
    return "\n".join(f"    {line}".rstrip() for line in lines[begin:end]).rstrip()


class Show:
    def __init__(self, connection, files):
        self.connection = connection
        self.files = files
        self.start = time.monotonic()
        self.events = queue.Queue()
        self.producers = []
        self.workers = {}
        self.stopped = None  # (worker, job, since)
        self.tricked_at = {}  # job -> when its worker was killed or stopped
        self.back_after = {}  # job -> seconds from then until it was taken back
        self.seen = {}  # event -> jobs

    def ask(self, question, *values):
        return self.connection.execute(question, values).fetchone()

    def elapsed(self):
        return time.monotonic() - self.start

    def say(self, text):
        print(f"{self.elapsed():5.1f} s  {text}", flush=True)

    def spawn(self, script, *args, **kwargs):
        return subprocess.Popen(
            [sys.executable, os.path.join(HERE, script), *args],
            stdout=subprocess.PIPE, text=True, **kwargs)

    def start_producer(self, paths):
        producer = self.spawn("producer.py", stdin=subprocess.PIPE)
        producer.stdin.write("\n".join(paths))
        producer.stdin.close()
        self.producers.append(producer)

    def start_worker(self, name, *trick):
        worker = self.spawn("worker.py", name, *trick)
        self.workers[name] = worker

        def listen():
            for line in worker.stdout:
                self.events.put(json.loads(line))

        threading.Thread(target=listen, daemon=True).start()

    def listen_to_idemq(self):
        """Has the background worker's NOTIFYs of lost attempts among the events."""
        connection = psycopg.connect("dbname=postgres user=app", autocommit=True)
        connection.execute("LISTEN idemq_hash")

        def listen():
            for notify in connection.notifies():
                event = json.loads(notify.payload)
                if event["event"] in ("worker_lost", "lease_expired"):
                    self.events.put({"worker": "idemq", "event": event["event"],
                                     "job": event["id"], "at": time.monotonic()})

        threading.Thread(target=listen, daemon=True).start()

    def follow(self, event):
        """What the director does, and tells, about one event of a worker, or of idemq."""
        worker, what, job = event["worker"], event["event"], event["job"]
        self.seen.setdefault(what, []).append(job)
        if what in ("hangs", "stops"):
            self.tricked_at[job] = time.monotonic()
        if what == "hangs":
            self.workers.pop(worker).kill()
            self.say(f"{worker} holds job {job} and is killed (kill -9)")
        elif what == "stops":
            self.stopped = (worker, job, time.monotonic())
            self.say(f"{worker} holds job {job} and is stopped (kill -STOP); its lease is 5 s")
        elif what in ("worker_lost", "lease_expired"):
            self.back_after[job] = event["at"] - self.tricked_at.get(job, event["at"])
            self.say(f"NOTIFY {what}: job {job} was reclaimed after {self.back_after[job]:.3f} s")
        elif what == "IQ001":
            self.say(f"{worker} tries to commit job {job}: refused (IQ001, lease lost), and its effect is rolled back")
        elif what == "IQ006":
            self.say(f"{worker} lost the answer to its commit of job {job} and repeats it: refused (IQ006, already "
                "committed), and the second effect is rolled back")

    def wake_the_stopped(self):
        """Continues the stopped worker when another one has done its job."""
        worker, job, since = self.stopped
        if self.ask("SELECT status FROM idemq.jobs WHERE id = %s", job) == ("completed",):
            self.stopped = None
            slept = time.monotonic() - since
            self.say(f"another worker has finished job {job}; {worker} continues after {slept:.1f} s")
            self.workers[worker].send_signal(signal.SIGCONT)

    def run(self):
        """Until every job is finished and every trick was played."""
        turn = max(2, len(self.files) // 16)
        self.listen_to_idemq()
        self.start_worker("worker-1")
        self.start_worker("worker-2", "hang", str(turn))
        self.start_worker("worker-3", "stop", str(turn))
        self.start_worker("worker-4", "repeat", str(turn))
        self.start_producer(self.files)
        self.start_producer(random.sample(self.files, len(self.files)))

        next_line = 0.5
        while True:
            try:
                self.follow(self.events.get(timeout=0.05))
            except queue.Empty:
                pass
            if self.elapsed() > TIME_LIMIT:
                raise SystemExit(f"the demo did not finish within {TIME_LIMIT} s")
            for name, process in self.workers.items():
                if process.poll() is not None:
                    raise SystemExit(f"{name} exited unexpectedly")
            if self.elapsed() < next_line:
                continue
            next_line += 0.5
            if self.stopped:
                self.wake_the_stopped()
            pending, running, completed, results = self.ask(COUNTS)
            self.say(f"pending {pending:5}   running {running:2}"
                     f"   completed {completed:5}   results {results:5}")
            produced = all(producer.poll() is not None for producer in self.producers)
            played = {"hangs", "worker_lost", "IQ001", "IQ006"} <= self.seen.keys()
            if produced and played and pending + running == 0:
                return

    def end(self):
        for process in [*self.workers.values(), *self.producers]:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.workers.values():
            process.wait(5)

    def prove(self):
        """Prints the numbers; returns whether they are what they must be."""
        outcomes = [json.loads(producer.stdout.read()) for producer in self.producers]
        accepted = sum(o.get("accepted", 0) for o in outcomes)
        duplicates = sum(o.get("duplicate", 0) for o in outcomes)
        jobs, completed, effects, paths, twice, lost, lost_jobs = self.ask(PROOF)
        tricked = {*self.seen["hangs"], *self.seen["stops"]}
        zombies, repeated = self.seen["IQ001"], self.seen["IQ006"]
        back_after = self.back_after[self.seen["hangs"][0]]
        findings = self.connection.execute("SELECT * FROM idemq.check()").fetchall()
        *totals, wait_p99, run_p99 = self.ask(METRICS)
        count, calls = len(self.files), accepted + duplicates
        rows = [
            ("files found", count, count > 0),
            ("enqueue calls by two producers", calls, calls == 2 * count),
            ("  jobs accepted", accepted, accepted == count == jobs),
            ("  duplicates answered", duplicates, duplicates == count),
            ("jobs completed", completed, completed == count),
            ("effects (rows in results)", effects, effects == count),
            ("  distinct paths", paths, paths == count),
            ("  effects that happened more than once", twice, twice == 0),
            ("attempts lost (idemq.attempts)", lost, tricked <= set(lost_jobs or ())),
            ("zombie commits refused (IQ001)", len(zombies), set(self.seen["stops"]) <= set(zombies)),
            ("repeated commits refused (IQ006)", len(repeated), len(repeated) == 1),
            ("ms from kill -9 until the job was reclaimed", round(1000 * back_after), back_after < 1),
            ("jobs committed (idemq.metrics)", totals[2], totals == [count, count, count, lost]),
            ("findings of idemq.check()", len(findings), findings == []),
        ]
        print()
        for name, value, right in rows:
            print(f"  {name:34}{value:7}  {'ok' if right else 'WRONG'}")
        print(f"\n  99 % of the jobs took at most {in_ms(run_p99)} from claim to commit (idemq.metrics).\n  The "
            f"producers were faster than the workers, so jobs waited up to {in_ms(wait_p99)} for earlier jobs.\n  "
            "This is the length of the backlog: an idle worker gets a new job within milliseconds.")
        return all(right for _, _, right in rows)


def main():
    files = find_files()
    with psycopg.connect("dbname=postgres user=postgres", autocommit=True) as connection:
        with open(os.path.join(HERE, "setup.sql"), encoding="utf-8") as setup:
            connection.execute(setup.read())
        print(f"\nHow a worker runs a job (demo/worker.py):\n\n{source('claim')}\n\n{source('finish')}")
        print(f"\n{len(files)} files to hash.  Two producers each enqueue every file, four workers hash them, and "
            "failures are injected:\n")
        show = Show(connection, files)
        try:
            show.run()
        finally:
            show.end()
        right = show.prove()
    if not right:
        raise SystemExit("\nThe demo failed, because an effect is missing or happened twice.")
    print("\nEvery job's effect happened exactly once.")


main()
