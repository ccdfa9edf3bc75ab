"""settings.py DSN SUPERUSER ROLE...: as settings.mjs, with the Python client."""

import json
import sys
from datetime import datetime, timedelta, timezone

import psycopg
from idemq import drain, enqueue, enqueue_graph, flow, cancel_matching, wait_results

dsn, superuser, *roles = sys.argv[1:]
admin = psycopg.connect(f"{dsn} user={superuser}", autocommit=True)
text = "1 € für ü"


def one(sql, *values):
    return list(admin.execute(sql, values).fetchone())


def is_now(date):
    return abs(date - datetime.now(timezone.utc)) < timedelta(minutes=10)


for role in roles:
    own = f"{dsn} user={role}"
    said = {}
    with psycopg.connect(own, autocommit=True, client_encoding="UTF8") as conn:
        job = enqueue(conn, f"{role}_node", text, delay=timedelta(hours=1), key_ttl=timedelta(days=2), key="p", expires_in=7200, headers={"text": text})
        said["enqueue"] = one(
            "SELECT ready_at BETWEEN now() + '50 min' AND now() + '70 min', key_expires_at BETWEEN now() + '47 h' AND now() + '49 h',"
            " expires_at BETWEEN now() + '110 min' AND now() + '130 min', payload, headers FROM idemq.jobs WHERE id = %s", job.id)
        late = enqueue(conn, f"{role}_node", text, run_at=datetime.now(timezone.utc) + timedelta(hours=1))
        said["run_at"] = one("SELECT ready_at BETWEEN now() + '50 min' AND now() + '70 min' FROM idemq.jobs WHERE id = %s", late.id)

        step = enqueue(conn, f"{role}_step", {})
        id, token = one("SELECT id, token FROM idemq.claim(%s)", f"{role}_step")
        admin.execute("CALL idemq.begin_step(%s, %s, 'call', 'null', '1 h')", [id, token])
        admin.execute("SELECT idemq.fail(%s, %s, 'lost', retry_in => '0')", [id, token])
        calls = []
        said["step"] = drain(own, f"{role}_step", lambda job: job.step("call", lambda call: calls.append(call)), outside=True)
        said["calls"] = len(calls)
        said["step_ready"] = one("SELECT ready_at BETWEEN now() + '50 min' AND now() + '70 min' FROM idemq.jobs WHERE id = %s", step.id)

        def handler(job, db):
            found = db.execute("SELECT %s::text", [text]).fetchone()[0]
            left = (job.deadline - datetime.now(timezone.utc)).total_seconds()
            return {"text": found, "payload": job.payload, "left": 30 < left <= 75, "year": is_now(job.enqueued_at)}

        job = enqueue(conn, f"{role}_run", text)
        said["run"] = drain(own, f"{role}_run", handler)
        said["result"] = one("SELECT result FROM idemq.jobs WHERE id = %s", job.id)
        said["waited"] = [list(each) for each in wait_results(conn, [job.id], timeout=5)]

        graph = {f"n{n}": {"queue": f"{role}_graph", "payload": n, "depends_on": ["n0"] if n else []} for n in range(12)}
        n0 = enqueue_graph(conn, graph)["n0"]
        while (found := flow(conn, n0.id)).done < 12:
            drain(own, f"{role}_graph", lambda job, db: None)
        said["flow"] = [
            found.jobs, found.completed, found.done, found.progress, found.cut, len(found.roots),
            is_now(found.begun_at), is_now(found.ended_at), timedelta() <= found.slowest_for < timedelta(minutes=10), str(found.eta),
        ]  # fmt: skip
        for n in range(12):
            enqueue(conn, f"{role}_many", n, kind="k")
        said["cancelled"] = list(cancel_matching(conn, f"{role}_many", kind="k"))
    print(json.dumps(said))
