"""The adapter of the Python client: see protocol.md.  --mutant NAME breaks it."""

import argparse
import asyncio
import json
import os
import queue
import signal
import sys
import threading
import time
from datetime import datetime

import idemq
import psycopg

parser = argparse.ArgumentParser()
parser.add_argument("--mutant", default="")
MUTANT = parser.parse_args().mutant
DSN = os.environ["IDEMQ_DSN"]
writing = threading.Lock()
inboxes = {}


def emit(event, **members):
    with writing:
        sys.stdout.write(json.dumps({"event": event, **members}) + "\n")
        sys.stdout.flush()


def ended(command, **members):
    emit("ended", command=command["id"], **members)


def failed(command, error):
    ended(command, error={"sqlstate": getattr(error, "sqlstate", None), "text": f"{type(error).__name__}: {error}"})


class Unsupported(Exception):
    pass


# The producer.


def options_of(options):
    if MUTANT == "drops headers":
        options.pop("headers", None)
    if MUTANT == "drops key":
        options.pop("key", None)
    if MUTANT == "ignores nowait":
        options.pop("nowait", None)
    if "depends_on" in options:
        options["depends_on"] = [int(id) for id in options["depends_on"]]
    if "run_at" in options:
        options["run_at"] = datetime.fromisoformat(options["run_at"])
    return options


def enqueued(one):
    return {"id": one.id and str(one.id), "outcome": one.outcome, "status": one.status, "result": one.result}


def produce(conn, command):
    do = command["do"]
    if do == "sql":
        conn.execute(command["sql"])
        return None
    if MUTANT == "own transaction" and do == "enqueue":
        conn = psycopg.connect(DSN, autocommit=True)
    if do == "enqueue":
        payload = command["payload"]
        if MUTANT == "floats" and isinstance(payload, int):
            payload = float(payload)
        return enqueued(idemq.enqueue(conn, command["queue"], payload, **options_of(command.get("options", {}))))
    if do == "enqueue_many":
        jobs = [{"payload": job["payload"], **options_of(job.get("options", {}))} for job in command["jobs"]]
        if MUTANT == "one by one":
            return [enqueued(idemq.enqueue(conn, command["queue"], **job)) for job in jobs]
        return [enqueued(one) for one in idemq.enqueue_many(conn, command["queue"], jobs)]
    if do == "cancel":
        return idemq.cancel(conn, int(command["job"]))
    if do == "retry":
        return idemq.retry(conn, int(command["job"]))
    if do == "send_event":
        return idemq.send_event(conn, command["queue"], command["name"], command.get("payload")).outcome
    if do == "graph":
        graph = command["jobs"]
        if MUTANT == "no edges":
            graph = {name: {k: v for k, v in job.items() if k != "depends_on"} for name, job in graph.items()}
        return {name: str(job.id) for name, job in idemq.enqueue_graph(conn, graph).items()}
    raise Unsupported


# The worker.


class Returned(BaseException):
    """Leaves the loop of a handler with a value."""

    def __init__(self, value):
        self.value = value


def error_of(command, kinds):
    text, delay = command.get("text", ""), command.get("delay", 0)
    error = command["error"]
    if MUTANT == "plain errors" and error != "refused":
        error = "plain"
    if error not in kinds:
        raise Unsupported
    if error == "panic":
        return SystemExit(text)
    if error == "plain":
        raised = RuntimeError(text)
        if MUTANT != "no cause":
            raised.__cause__ = ValueError(f"cause of {text}")
        return raised
    if error == "hold_back":
        return idemq.HoldBack(delay, command.get("scope"), text)
    if error in ("dead", "refused"):
        return {"dead": idemq.Dead, "refused": idemq.Refused}[error](text)
    return {"retry_later": idemq.RetryLater, "snooze": idemq.Snooze}[error](delay, text)


def own(sql, values=None):
    """Breaks the promise of run: the effect is in a transaction of its own."""
    with psycopg.connect(DSN, autocommit=True) as conn:
        conn.execute(sql, values)


def execute(job, conn, command, inbox):
    """One command of a handler; its value."""
    do = command["do"]
    token = str(job.token)
    if do == "effect":
        if conn is None:
            emit("effect", token=token, name=command["name"])
            return None
        values = (job.id, job.token, command["name"])
        sql = "INSERT INTO conformance.effects (job, token, name) VALUES (%s, %s, %s)"
        if MUTANT == "effect apart":
            own(sql, values)
        else:
            conn.execute(sql, values)
        return None
    if do == "query":
        try:
            conn.execute(command["sql"])
        except psycopg.Error as error:
            if MUTANT == "no repetition":
                raise RuntimeError(error) from None
            raise
        return None
    if do == "checkpoint":
        if MUTANT != "forgets checkpoints":
            job.save_checkpoint(command["data"], *([conn] if command.get("in_transaction") and MUTANT != "checkpoint apart" else []))
        return None
    if do == "await_event" and MUTANT == "no events":
        return {"arrived": True, "payload": None}
    if do == "await_event":
        event = job.await_event(command["name"], command["timeout"])
        return {"arrived": event.arrived, "payload": event.payload}
    if do == "parents":
        parents = job.parents()
        if MUTANT == "no results":
            parents = [each._replace(result=None) for each in parents]
        return [{"id": str(each.id), "status": each.status, "result": each.result} for each in parents]
    if do == "step":
        functions = {"ask": step_function(job, command, inbox, True)} if command.get("ask") else {}
        if "call_timeout" in command:
            functions["call_timeout"] = command["call_timeout"]
        call = step_function(job, command, inbox, False)
        if MUTANT == "no steps":
            return call(idemq.StepCall(token, command.get("request"), None, None, None))
        name = command["name"]
        if MUTANT == "step names":
            name = f"{name} {job.attempt}"
        return job.step(name, call, command.get("request"), **functions)
    raise Unsupported


def step_function(job, step, inbox, ask):
    def called(call):
        emit("started", token=str(job.token), step=step["name"], ask=ask, key=call.key, request=call.request)
        while True:
            command = inbox.get()
            if command["do"] == "answer":
                ended(command)
                return command.get("value")
            if command["do"] == "raise":
                ended(command)
                raise error_of(command, ("plain", "refused", "dead"))
            ended(command, unsupported=True)

    return called


def obey(job, conn, inbox):
    told = False
    while True:
        try:
            command = inbox.get(timeout=0.02)
        except queue.Empty:
            if job.cancelled.is_set() and not told and MUTANT != "deaf":
                told = True
                emit("ended", token=str(job.token), told=True)
            continue
        if command["do"] == "return":
            ended(command)
            if command.get("unencodable") and MUTANT != "swallows errors":
                return object()
            if command.get("echo") and MUTANT == "floats" and isinstance(job.payload, int):
                return float(job.payload) if abs(job.payload) < 1e300 else 0
            return job.payload if command.get("echo") else command.get("value")
        if command["do"] == "raise":
            try:
                error = error_of(command, ("plain", "retry_later", "snooze", "dead", "hold_back", "panic"))
            except Unsupported:
                ended(command, unsupported=True)
                continue
            ended(command)
            if MUTANT == "swallows errors":
                return None
            raise error
        try:
            value = execute(job, conn, command, inbox)
        except Unsupported:
            ended(command, unsupported=True)
        except BaseException as error:
            failed(command, error)
            if not command.get("catch"):
                raise
        else:
            ended(command, value=value)


def handle(job, conn=None):
    token = str(job.token)
    inbox = inboxes[token] = queue.Queue()
    headers = job.headers
    if MUTANT == "commits early":
        own("SELECT idemq.commit(%s, %s)", (job.id, job.token))
    emit(
        "started", token=token, job=str(job.id), queue=job.queue, kind=job.kind, key=job.key, group=job.group_key, attempt=job.attempt,
        max_attempts=job.max_attempts, headers=headers, payload=job.payload, checkpoint=job.checkpoint,
    )  # fmt: skip
    try:
        return obey(job, conn, inbox)
    finally:
        if inboxes.get(token) is inbox:
            del inboxes[token]
        emit("ended", token=token)
        while not inbox.empty():
            ended(inbox.get(), error={"gone": True})


def ignore_limits(queue_name):
    """Breaks the promise of claims: it begins every job that it sees, the last one first."""
    seen = set()
    with psycopg.connect(DSN, autocommit=True) as conn:
        while True:
            for (job,) in conn.execute(
                "SELECT id FROM idemq.jobs WHERE status = 'pending' AND queue_id = (SELECT queue_id FROM idemq.queues WHERE name = %s) ORDER BY id DESC",
                (queue_name,),
            ).fetchall():
                if job not in seen:
                    seen.add(job)
                    emit("started", token=str(-job), job=str(job), queue=queue_name)
            time.sleep(0.02)


def hooks():
    def around(job, proceed):
        emit("effect", token=None, name=f"around {job.id}")
        return proceed()

    def failed_hook(job, failure):
        emit("effect", token=None, name=f"failed {job.id} {failure.outcome} {str(failure.will_retry).lower()}")

    def stopped(worker, outcomes):
        if MUTANT != "no stopped":
            emit("effect", token=None, name="stopped")

    return {
        "started": lambda worker: emit("effect", token=None, name="started"), "around": around, "failed": failed_hook, "stopped": stopped,
    }  # fmt: skip


def work(command):
    options = dict(command.get("options", {}))
    kinds = options.pop("kinds", None)
    handler = handle if kinds is None or MUTANT == "any kind" else {kind: handle for kind in kinds}
    if MUTANT == "serial":
        options["concurrency"] = 1
    if options.pop("hooks", False):
        options["hooks"] = hooks()
    if MUTANT == "no grace":
        options["grace"] = 0.001
    if command["mode"] == "outside":
        options.pop("batch", None)
    if MUTANT == "ignores limits":
        threading.Thread(target=ignore_limits, args=(command["queue"],), daemon=True).start()
    if MUTANT == "leaves in silence":
        options["signals"] = False
        signal.signal(signal.SIGTERM, lambda *_: (ended(command, value={}), os._exit(0)))
    worker = idemq.Worker(DSN, command["queue"], **options)
    outcomes = (worker.run if command["mode"] == "run" else worker.run_outside)(handler)
    if MUTANT == "wrong outcomes":
        outcomes = {}
    return dict(outcomes)


def forward():
    """Passes commands on to the handlers."""
    for line in sys.stdin:
        command = json.loads(line)
        inbox = inboxes.get(command.get("token"))
        if inbox is None:
            ended(command, error={"gone": True})
        else:
            inbox.put(command)
    os._exit(0)


def main():
    conn = None
    for line in iter(sys.stdin.readline, ""):
        command = json.loads(line)
        try:
            if command["do"] == "work":
                threading.Thread(target=forward, daemon=True).start()
                ended(command, value=work(command))
                sys.stdout.flush()
                os._exit(0)
            if conn is None:
                conn = psycopg.connect(DSN, autocommit=True)
            ended(command, value=produce(conn, command))
        except Unsupported:
            ended(command, unsupported=True)
        except Exception as error:
            failed(command, error)


main()
