"""main.py: the measurements of bench-workers, the sides in turn; run says what is set.  Writes what it found as JSON, and a table."""

import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import replace

import psycopg

from proxy import Proxy
from sides import CANCEL, LATENCY, THROUGHPUT, Side, chosen

WORK = pathlib.Path(os.environ["BENCH_WORK"])
GO = WORK / "go/bench/bench"
SERVER, POOLER, PROXIES = WORK / "server", WORK / "pooler", WORK / "proxies"
PAYLOAD = os.environ["BENCH_PAYLOAD"]
REDIS = os.environ.get("BENCH_REDIS", "")
ROUNDS = int(os.environ.get("ROUNDS") or 5)
JOBS = int(os.environ.get("JOBS") or 10000)
SAMPLES = int(os.environ.get("SAMPLES") or 1000)
ONLY = os.environ.get("ONLY", "")
BASE = os.environ.get("BASE", "")
RATE = 10  # a second, of the latencies
WARM = 0.2  # of a side's jobs: until a process has compiled what it runs
UNCOUNTED = 5  # samples of a new process
PATIENCE = 600
HZ = os.sysconf("SC_CLK_TCK")
SOCKET = ".s.PGSQL.5432"

started = time.monotonic()


def say(text):
    print(f"bench-workers {(time.monotonic() - started) / 60:.1f} min: {text}", file=sys.stderr, flush=True)


admin = psycopg.connect(f"host={SERVER} user=postgres dbname=postgres", autocommit=True)


def sql(text, values=None):
    cursor = admin.execute(text, values)
    return cursor.fetchone() if cursor.description else None


def ticks_of(pid):
    """Processor time of a process with its dead children, and its parent; None when it is gone."""
    try:
        its = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
    except OSError:
        return None
    return sum(int(field) for field in its[11:15]), int(its[1])


def processor_time(*roots):
    """Microseconds of these processes and all below them, the living and the dead."""
    found = {int(name): ticks_of(name) for name in os.listdir("/proc") if name.isdigit()}
    found = {pid: its for pid, its in found.items() if its}
    wanted, grown = set(roots), True
    while grown:
        more = {pid for pid, (_, parent) in found.items() if parent in wanted} - wanted
        wanted |= more
        grown = bool(more)
    return sum(found[pid][0] for pid in wanted if pid in found) * 1e6 / HZ


def redis():
    import redis as module  # pylint: disable=import-outside-toplevel

    return module.Redis(unix_socket_path=REDIS)


def server_pid(side):
    if side.side in ("bullmq", "celery", "rq"):
        return redis().info("server")["process_id"]
    return int((SERVER / "data/postmaster.pid").read_text(encoding="utf-8").split("\n", maxsplit=1)[0])


def flushes():
    """Of the WAL so far, by sessions that are gone."""
    if admin.info.server_version >= 180000:
        return sql("SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal'")[0]
    return sql("SELECT wal_sync FROM pg_stat_wal")[0]


class Process:
    """A process of a side, and those that it starts; its lines are read in time."""

    def __init__(self, command, environment=(), cwd=WORK / "workers"):
        # In our process group, which ends with us.
        self.run = subprocess.Popen(command, cwd=cwd, env={**os.environ, **dict(environment)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, question):
        """The words of the answer to a line."""
        self.run.stdin.write(f"{question}\n")
        self.run.stdin.flush()
        return self.until("")

    def until(self, word):
        for line in self.run.stdout:
            if line.startswith(word):
                return line.split()
        raise SystemExit(f"{self.run.args}: has ended before {word}")

    def end(self, how):
        self.run.send_signal(how)
        try:
            self.run.wait(timeout=60)
        except subprocess.TimeoutExpired:
            say(f"does not end: {self.run.args}")
            self.run.kill()
            self.run.wait()


def spec_of(side, jobs, samples, socket=None):
    socket = socket or str(POOLER if side.pooled else SERVER)
    client = "idemq-base" if side.base else "idemq"
    return json.dumps({
        "side": side.side, "client": client, "socket": socket, "wait": str(SERVER) if side.pooled else None,
        "concurrency": side.concurrency, "batch": side.batch, "ahead": 0 if side.base else side.ahead, "outside": side.outside, "insert": side.insert, "shortest": side.shortest,
        "jobs": jobs, "warm": max(1, int(jobs * WARM)), "samples": samples, "rate": RATE,
    })


def node(call, spec):
    return Process(["node", "node.mjs", call, spec], {"BENCH_SOCKET": json.loads(spec)["socket"]}, WORK / "node")


def python(call, spec, side):
    path = f"{WORK / 'python' / ('base' if side.base else 'here')}:{WORK / 'workers'}"
    return Process(["/usr/bin/python3", str(WORK / "workers/python.py"), call, spec], {"PYTHONPATH": path, "BENCH_SIDE": side.side})


def go(call, spec):
    return Process([str(GO), call, spec])


def worker(side, jobs, samples, socket=None):
    """The processes of a side that work."""
    spec = spec_of(side, jobs, samples, socket)
    its = {"PYTHONPATH": str(WORK / "workers"), "BENCH_SIDE": side.side, "BENCH_SAMPLES": str(WORK / "samples")}
    if side.program == "node":
        return [node("work", spec)]
    if side.program == "python":
        return [python("work", spec, side)]
    if side.program == "go":
        return [go("work", spec)]
    if side.program == "celery":
        return [Process(["celery", "-A", "python", "worker", "-c", str(side.concurrency), "-l", "ERROR"], its)]
    if side.program == "work":
        return work(side, socket)
    if side.program == "rq":
        return [Process(["rq", "worker", "-q", "-u", f"unix://{REDIS}", "bench"], its) for _ in range(side.concurrency)]
    sql("SELECT idemq.set_handler('bench', %s, batch => %s)", ["bench.inserts(jsonb)" if side.insert else "bench.nothing(jsonb)", side.batch])
    return []


def work(side, socket):
    """idemq-work, and the endpoint that it has, whose processor time counts as well."""
    command = ["idemq-work", "-d", f"host={socket or SERVER} user=postgres dbname=postgres", "-q", "bench", "-j", str(side.concurrency)]
    if side.outside == "lines":
        return [Process([*command, "--lines", "--", "/usr/bin/python3", "lines.py"])]
    endpoint = Process(["node", "endpoint.mjs"])
    port = endpoint.until("port")[1]
    return [endpoint, Process([*command, f"--http=http://127.0.0.1:{port}/"])]


def waiting(side):
    return redis().llen("celery" if side.side == "celery" else "rq:queue:bench")


def prepare(side, jobs, samples):
    """The side's queue with so many jobs, and nothing else."""
    if side.own:
        sql("SELECT idemq.drop_handler('bench')")
        for attempt in (1, 2):
            # A second time where it met the background worker in the middle of a look at the table.
            try:
                sql("TRUNCATE idemq.jobs RESTART IDENTITY")
                break
            except psycopg.Error:
                if attempt == 2:
                    raise
        for left in range(jobs, 0, -50000):
            sql("SELECT count(*) FROM idemq.enqueue_many('bench', array_fill(%s::jsonb, ARRAY[%s]))", [PAYLOAD, min(left, 50000)])
        # The search for jobs in flight that begins after a TRUNCATE, as after a restart.
        sql("SELECT idemq.reap('bench')")
        sql("VACUUM ANALYZE idemq.jobs")
    elif side.program in ("node", "go"):
        (node if side.program == "node" else go)("prepare", spec_of(side, jobs, samples)).run.wait()
    else:
        redis().flushall()
        python("fill", spec_of(side, jobs, samples), side).run.wait()
    sql("TRUNCATE bench.effects")
    sql("CHECKPOINT")


def soon(what, ask):
    end = time.monotonic() + PATIENCE
    while not ask():
        if time.monotonic() > end:
            raise SystemExit(f"never: {what}")
        time.sleep(0.01)


def mark(side, processes, counted=None):
    return (time.monotonic(), processor_time(*(each.run.pid for each in processes)), processor_time(server_pid(side)),
            counted.messages if counted else 0, counted.turns if counted else 0)


def throughput(side, jobs, counted=None, socket=None):
    """A run; with counted, a proxy at this socket, one in which only messages count."""
    prepare(side, jobs, False)
    flushed, warm = flushes(), int(jobs * WARM)
    if side.program in ("sql", "work"):
        return by_commits(side, jobs, flushed, counted, socket)
    processes = worker(side, jobs, False, socket)
    if side.program in ("node", "python", "go"):
        processes[0].until("warm")
        first = mark(side, processes, counted)
        processes[0].until("end")
    else:
        soon("warm", lambda: waiting(side) <= jobs - warm)
        warm = jobs - waiting(side)
        first = mark(side, processes, counted)
        soon("end", lambda: waiting(side) == 0)
    last = mark(side, processes, counted)
    if side.own:
        soon("all completed", lambda: sql("SELECT count(*) FROM idemq.jobs WHERE status <> 'completed'")[0] == 0)
        if side.insert and sql("SELECT count(*) FROM bench.effects")[0] != jobs:
            raise SystemExit(f"{side.name}: there are not as many effects as jobs")
    for each in processes:
        each.end(signal.SIGTERM if side.own or side.program not in ("node", "go") else signal.SIGKILL)
    soon("sessions end", lambda: sql("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")[0] <= 1)
    seconds, client, server, messages, turns = (after - before for before, after in zip(first, last))
    ran = jobs - warm
    found = {"rate": ran / seconds, "client": client / ran, "server": server / ran}
    if side.side not in ("bullmq", "celery", "rq"):
        found["flushes"] = (flushes() - flushed) / jobs
    if counted:
        return {"messages": messages / ran, "turns": turns / ran}
    return found


def by_commits(side, jobs, flushed, counted, socket):
    """Of what has no handler of ours: the times of commits say how fast it was; processor time and messages are those of the whole run."""
    before = processor_time(server_pid(side))
    processes = worker(side, jobs, False, socket)
    while sql("SELECT count(*) FROM idemq.jobs WHERE status <> 'completed'")[0] > 0:
        time.sleep(0.3)
    client = processor_time(*(each.run.pid for each in processes)) if processes else 0
    server = processor_time(server_pid(side)) - before
    for each in reversed(processes):
        each.end(signal.SIGTERM)
    sql("SELECT idemq.drop_handler('bench')")
    if side.insert and sql("SELECT count(*) FROM bench.effects")[0] != jobs:
        raise SystemExit(f"{side.name}: there are not as many effects as jobs")
    if counted:
        return {"messages": counted.messages / jobs, "turns": counted.turns / jobs}
    rate = sql("""SELECT count(*) FILTER (WHERE finished_at > warm) / extract(epoch FROM max(finished_at) - max(warm)) FROM idemq.jobs,
        (SELECT percentile_disc(%s) WITHIN GROUP (ORDER BY finished_at) AS warm FROM idemq.jobs) w""", [WARM])[0]
    return {"rate": float(rate), "client": client / jobs, "server": server / jobs, "flushes": (flushes() - flushed) / jobs}


def messages(side):
    """A run of its own through the proxy; none for Redis, whose clients send many jobs' commands as one."""
    name = PROXIES / f"{time.monotonic_ns()}"
    name.mkdir()
    listen = name / SOCKET
    proxy = Proxy(str(listen), str((POOLER if side.pooled else SERVER) / SOCKET))
    return throughput(side, max(300, int(JOBS * side.weight / 5)), proxy, str(name))


def latency(side, samples):
    prepare(side, 0, True)
    (WORK / "samples").write_text("", encoding="utf-8")
    processes = worker(side, 0, True)
    found = []
    # The first have waited for the worker to be there.
    for jobs in (UNCOUNTED, samples):
        spec = spec_of(side, jobs, True, str(SERVER))
        producer = node("produce", spec) if side.program == "node" and not side.own else python("produce", spec, side)
        if side.program in ("celery", "rq"):
            soon("samples", lambda: len(samples_of_file()) >= len(found) + jobs)  # pylint: disable=cell-var-from-loop
            found += samples_of_file()[len(found):]
        else:
            found += [int(processes[0].until("sample")[1]) for _ in range(jobs)]
        producer.run.wait()
    for each in processes:
        each.end(signal.SIGTERM if side.own or side.program != "node" else signal.SIGKILL)
    return [ns / 1e6 for ns in found[UNCOUNTED:]]


def cancelling(side, samples):
    """Milliseconds from a call of cancel to the signal in the handler, which has run for up to a tenth of a second."""
    prepare(side, 0, "cancel")
    process = worker(side, 0, "cancel")[0]
    other = None if side.own else node("control", spec_of(side, 0, "cancel"))
    uncounted = UNCOUNTED if side.own else 1
    found = []
    for _ in range(uncounted + max(1, int(samples * side.weight))):
        job = sql("SELECT id FROM idemq.enqueue('bench', %s)", [PAYLOAD])[0] if side.own else other.ask("put")[0]
        process.until("begun")
        time.sleep(random.uniform(0, 0.1))
        begin = time.monotonic_ns()
        if side.own:
            sql("SELECT idemq.cancel(%s)", [job])
        else:
            begin = int(other.ask(f"cancel {job}")[0])
        found.append(int(process.until("told")[1]) - begin)
    if other:
        other.end(signal.SIGKILL)
    process.end(signal.SIGTERM if side.own else signal.SIGKILL)
    return [ns / 1e6 for ns in found[uncounted:]]


def samples_of_file():
    return [int(line.split()[1]) for line in (WORK / "samples").read_text(encoding="utf-8").splitlines()]


def there(side):
    """Whether what it needs could be had."""
    if side.side in ("bullmq", "celery", "rq") and not REDIS:
        return False
    if side.program == "go":
        return GO.exists()
    package = {"graphile": "graphile-worker", "boss": "pg-boss", "bullmq": "bullmq"}.get(side.side)
    if package:
        return (WORK / "node/node_modules" / package).exists()
    return side.program not in ("celery", "rq") or any((pathlib.Path(path) / side.program).exists() for path in os.environ["PATH"].split(":"))


def with_base(sides):
    """Each of ours, and that of BASE before it."""
    for side in sides:
        if BASE and side.own and side.program not in ("sql", "work", "go"):
            yield replace(side, name=f"base-{side.name}", base=True)
        yield side


def main():
    fast = [side for side in with_base(chosen(THROUGHPUT, ONLY)) if there(side)]
    slow = [side for side in with_base(chosen(LATENCY, ONLY, "latency-")) if there(side)]
    cancelled = [side for side in with_base(chosen(CANCEL, ONLY, "cancel-")) if there(side)]
    results = {"throughput": {}, "latency": {}, "cancel": {}, "messages": {}, "settings": {
        "rounds": ROUNDS, "jobs": JOBS, "samples": SAMPLES, "only": ONLY, "base": BASE, "commit": os.environ.get("BENCH_COMMIT", ""),
        "load": os.environ.get("BENCH_LOAD", ""), "date": time.strftime("%Y-%m-%d")}}
    for number in range(1, ROUNDS + 1):
        for side in fast:
            found = throughput(side, max(100, int(JOBS * side.weight)))
            results["throughput"].setdefault(side.name, []).append(found)
            say(f"{number}: {side.name}: " + ", ".join(f"{key} {value:.4g}" for key, value in found.items()))
        for side in slow:
            found = latency(side, max(1, SAMPLES // ROUNDS))
            results["latency"].setdefault(side.name, []).extend(found)
            say(f"{number}: latency-{side.name}: median {statistics.median(found):.3g} ms")
        for side in cancelled:
            found = cancelling(side, max(1, SAMPLES // ROUNDS))
            results["cancel"].setdefault(side.name, []).extend(found)
            say(f"{number}: cancel-{side.name}: median {statistics.median(found):.3g} ms, longest {max(found):.3g} ms")
        # Of a run that is ended early, too.
        (WORK / "results.json").write_text(json.dumps(results), encoding="utf-8")
    for side in fast:
        if side.program != "sql" and side.side not in ("bullmq", "celery", "rq"):
            counted = messages(side)
            results["messages"][side.name] = counted
            say(f"{side.name}: messages {counted['messages']:.3g}, turns {counted['turns']:.3g} a job")
    (WORK / "results.json").write_text(json.dumps(results), encoding="utf-8")


main()
