"""The director of the cluster's demo: makes the cluster, starts producers and workers, kills a worker and
a server, moves a shard, shows what each server does meanwhile, and proves by numbers that every key had
one effect.
"""

import collections
import json
import os
import signal
import subprocess
import sys
import threading
import time

import psycopg

HERE = os.path.dirname(os.path.abspath(__file__))
WORK = os.environ["WORK"]
JOBS = int(os.environ.get("JOBS", "12000"))
SHARDS = 16
SERVERS = "abcd"
TIME_LIMIT = 150  # seconds, on a machine that is busy
MOVED, TO = 4, "b"  # from a
ROUTER = os.environ["ROUTER"] = f"host={WORK}/a dbname=router"

SETUP_ROUTER = f"""
CREATE EXTENSION plproxy;
CREATE EXTENSION idemq_cluster;
SELECT cluster.init({SHARDS});
CREATE USER MAPPING FOR postgres SERVER idemq_cluster OPTIONS (user 'postgres');
"""
# No unique key: an effect that happens twice would show.
SETUP_SHARD = """
CREATE EXTENSION idemq;
SELECT idemq.set_shard(%d, %d);
CREATE TABLE effects (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), key text, done_by text);
"""
EFFECTS = "SELECT key, done_by FROM effects"
JOBS_OF = "SELECT status::text, count(*) FROM idemq.jobs GROUP BY 1"


def place(shard):
    """A shard's address; those of c have a standby, and whichever takes writes is it."""
    server = SERVERS[shard % 4]
    host = f"{WORK}/c,{WORK}/c2" if server == "c" else f"{WORK}/{server}"
    more = " target_session_attrs=read-write" if server == "c" else ""
    return f"host={host} dbname=s{shard}{more}"


class Show:
    def __init__(self, router):
        self.router = router
        self.start = time.monotonic()
        self.producers = []
        self.workers = {}
        self.moving = None
        self.pause = "?"
        self.server_back_after = None
        self.killed_server_at = None

    def elapsed(self):
        return time.monotonic() - self.start

    def say(self, text):
        print(f"{self.elapsed():5.1f} s  {text}", flush=True)

    def set_up(self):
        for shard in range(SHARDS):
            with psycopg.connect(place(shard), autocommit=True) as conn:
                conn.execute(SETUP_SHARD % (shard, SHARDS))
        self.router.execute(SETUP_ROUTER)
        for shard in range(SHARDS):
            self.router.execute("SELECT cluster.set_shard_dsn(%s, %s)", [shard, place(shard)])
        errors = self.router.execute("SELECT error FROM cluster.create_queue('orders', lease => '5 s') WHERE error IS NOT NULL").fetchall()
        if errors:
            raise SystemExit(f"could not create the queue: {errors}")

    def spawn(self, script, *args, **more):
        return subprocess.Popen([sys.executable, f"{HERE}/{script}", *map(str, args)], text=True, **more)

    def start_worker(self, name, *home):
        self.workers[name] = self.spawn("worker.py", name, *home)

    def kill_worker(self):
        self.workers.pop("worker-3").kill()
        self.say("worker-3 is killed (kill -9)")
        self.start_worker("worker-4", 2, 3, 6, 7, 10, 11, 14, 15)

    def kill_server(self):
        with open(f"{WORK}/c/data/postmaster.pid", encoding="ascii") as file:
            pid = int(file.readline())
        self.killed_server_at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        self.say("server c is killed (kill -9), with 4 shards")
        subprocess.run(["pg_ctl", "-D", f"{WORK}/c2/data", "-s", "-w", "promote"], check=True)
        self.say("its standby c2 is promoted")

    def move_shard(self):
        target = f"host={WORK}/{TO} dbname=moved"
        subprocess.run(["createdb", "-h", f"{WORK}/{TO}", "moved"], check=True)
        self.say(f"shard {MOVED} starts to move from a to {TO}")

        def wait():
            command = ["idemq-move-shard", "--router", ROUTER, "--shard", str(MOVED), "--to", target]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            self.pause = done.stdout.strip().rpartition("; ")[2] if done.returncode == 0 else f"FAILED {done.stderr}"
            self.say(f"shard {MOVED} has moved: {self.pause}")

        self.moving = threading.Thread(target=wait)
        self.moving.start()

    def look(self):
        """What each server's shards have done; '?' for those that do not answer."""
        done, down = collections.Counter(), collections.Counter()
        servers = {shard: dsn.split()[0].split(",")[0].split("/")[-1] for shard, dsn in self.router.execute("SELECT shard, dsn FROM cluster.map()")}
        for shard, completed, error in self.router.execute("SELECT shard, completed, error FROM cluster.metrics()"):
            done[servers[shard]] += completed or 0
            down[servers[shard]] += error is not None
        parts = [f"{name} {done[name]:5}" if not down[name] else f"{name}  down" for name in sorted(set(servers.values()))]
        if self.killed_server_at and self.server_back_after is None and not down["c"] and done["c"]:
            self.server_back_after = time.monotonic() - self.killed_server_at
        total = sum(done.values())
        self.say(f"completed on {'   '.join(parts)}   of {JOBS}: {total}")
        return total, sum(down.values())

    def run(self):
        """Until every job is finished and all has happened."""
        halves = list(range(0, SHARDS, 4)) + list(range(1, SHARDS, 4)), list(range(2, SHARDS, 4)) + list(range(3, SHARDS, 4))
        self.start_worker("worker-1", *halves[0])
        self.start_worker("worker-2", *halves[1])
        self.start_worker("worker-3", *halves[1])
        self.producers = [self.spawn("producer.py", JOBS, stdout=subprocess.PIPE) for _ in range(2)]
        acts = [(JOBS // 8, self.kill_worker), (JOBS // 4, self.kill_server), (JOBS // 2, self.move_shard)]
        while True:
            if self.elapsed() > TIME_LIMIT:
                raise SystemExit(f"the demo did not finish within {TIME_LIMIT} s")
            for name, process in self.workers.items():
                if process.poll() is not None:
                    raise SystemExit(f"{name} exited unexpectedly")
            total, down = self.look()
            if acts and total >= acts[0][0] and not down:
                acts.pop(0)[1]()
            produced = all(producer.poll() is not None for producer in self.producers)
            if not acts and produced and not down and total >= JOBS and not self.moving.is_alive():
                return
            time.sleep(0.5)

    def end(self):
        for process in [*self.workers.values(), *self.producers]:
            if process.poll() is None:
                process.terminate()
        for process in self.workers.values():
            process.wait(20)

    def prove(self):
        """Prints the numbers; returns whether they are what they must be."""
        outcomes = collections.Counter()
        for producer in self.producers:
            outcomes.update(json.loads(producer.stdout.read()))
        keys, by, statuses = collections.Counter(), collections.Counter(), collections.Counter()
        places = dict(self.router.execute("SELECT shard, dsn FROM cluster.map()").fetchall())
        for dsn in places.values():
            with psycopg.connect(dsn, autocommit=True) as conn:
                for key, worker in conn.execute(EFFECTS):
                    keys[key] += 1
                    by[worker] += 1
                statuses.update(dict(conn.execute(JOBS_OF).fetchall()))
        findings = self.router.execute("SELECT * FROM cluster.check() WHERE error IS NOT NULL OR severity = 'error'").fetchall()
        strays = self.router.execute("SELECT count(*) FROM cluster.identities() WHERE is_shard IS DISTINCT FROM shard").fetchone()[0]
        jobs = sum(statuses.values())
        rows = [
            ("keys, enqueued by two producers", JOBS, len(self.producers) == 2),
            ("  jobs accepted", outcomes["accepted"], outcomes["accepted"] <= JOBS),
            ("  duplicates answered", outcomes["duplicate"], outcomes["accepted"] + outcomes["duplicate"] == 2 * JOBS),
            ("  refused, and enqueued again", outcomes["refused, and enqueued again"], True),
            ("jobs, on 16 shards", jobs, jobs == JOBS),
            ("jobs completed", statuses["completed"], statuses["completed"] == JOBS),
            ("effects (rows in effects)", sum(keys.values()), sum(keys.values()) == JOBS),
            ("  distinct keys", len(keys), len(keys) == JOBS),
            ("  keys with more than one", sum(n > 1 for n in keys.values()), max(keys.values()) == 1),
            ("shards that are not at the address in the map", strays, strays == 0),
            ("findings of cluster.check()", len(findings), not findings),
        ]
        print()
        for name, value, right in rows:
            print(f"  {name:40}{value:7}  {'ok' if right else 'WRONG'}")
        print(f"\n  by worker: {', '.join(f'{name} {count}' for name, count in sorted(by.items()))}")
        print(f"  server c: its shards responded again {self.server_back_after or 0:.1f} s after kill -9; shard {MOVED}: {self.pause}")
        return all(right for _, _, right in rows) and "FAILED" not in self.pause


def main():
    with psycopg.connect(ROUTER, autocommit=True) as router:
        show = Show(router)
        show.set_up()
        show.start = time.monotonic()
        print(f"\n4 servers, {SHARDS} shards.  Two producers each enqueue the same {JOBS} keys, and three workers run the jobs.\n")
        try:
            show.run()
        finally:
            show.end()
        right = show.prove()
    if not right:
        raise SystemExit("\nThe demo failed, because an effect is missing or happened twice.")
    print("\nEvery key had exactly one effect.")


main()
