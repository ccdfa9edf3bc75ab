"""What several scenarios do."""

from datetime import datetime, timezone


def arrive_equal(s, *payloads):
    """Each payload (JSON text) arrives equal, or the attempt fails with a reason."""
    s.worker("outside")
    for payload in payloads:
        job = s.add(payload, max_attempts=1)
        h = s.attempt(job, or_end=True)
        if h:
            h.call("return", echo=True)
        s.until(lambda: s.status(job) in ("completed", "dead"), "the end of the attempt")
        if s.status(job) == "completed":
            s.true(s.value("SELECT coalesce(result, 'null') = payload FROM idemq.jobs WHERE id = %s", job), f"the payload {payload[:50]} arrives equal")
        else:
            s.true(s.value("SELECT last_error FROM idemq.jobs WHERE id = %s", job), f"the reason why {payload[:50]} has failed is stored")


def role(s, name, *privileges, settings=()):
    """A role that may do nothing but this with the queue, and its connection string."""
    name = f"{s.queue}_{name}"
    s.sql(f"CREATE ROLE {name} LOGIN; GRANT USAGE ON SCHEMA conformance TO {name}; GRANT INSERT ON conformance.effects TO {name}")
    for privilege in privileges:
        s.sql("SELECT idemq.grant_queue(%s, %s, %s)", s.queue, name, privilege)
    for setting, value in settings:
        s.sql(f"ALTER ROLE {name} SET {setting} = '{value}'")
    return s.as_role(name)


def does_everything(s, producer, worker):
    """A job with each kind of time and value, and an effect, a failure and a retry, through both kinds of handlers."""
    made = []
    if producer:
        run_at = datetime(2031, 2, 3, 4, 5, 6, 789000, tzinfo=timezone.utc)
        job = producer.enqueue({"n": 0.5, "t": "ü\\"}, run_at=run_at.isoformat(), expires_in=86400 * 40, headers={"h": "ü"})["id"]
        s.is_job(job, ready_at=run_at, payload={"n": 0.5, "t": "ü\\"}, status="pending")
        s.equal(s.value("SELECT expires_at - enqueued_at = '40 days' FROM idemq.jobs WHERE id = %s", job), True, "expires_in")
        s.sql("SELECT idemq.reschedule(%s, run_at => now()), idemq.retry(%s)", job, job)
        made.append(int(job))
    made = made or [s.add('{"n": 0.5, "t": "ü\\\\"}', headers='{"h": "ü"}')]
    for mode in ("run", "outside"):
        w = worker(mode)
        job = made.pop() if made else s.add('{"n": 0.5, "t": "ü\\\\"}', headers='{"h": "ü"}')
        h = s.attempt(job)
        s.equal((h.payload, h.headers["h"]), ({"n": 0.5, "t": "ü\\"}, "ü"), "payload and headers")
        h.effect("undone")
        h.fails("planned ü", "retry_later", delay=3600)
        s.settles(job, status="retrying", attempt=1)
        s.equal(s.value("SELECT ready_at BETWEEN now() + '50 min' AND now() + '70 min' FROM idemq.jobs WHERE id = %s", job), True, "time of the retry")
        s.sql("SELECT idemq.retry(%s)", job)
        h = s.attempt(job)
        h.does("done", {"text": "ü\\"})
        s.settles(job, status="completed", result={"text": "ü\\"})
        s.has_effects(job, *(["undone"] if mode == "outside" else []), "done")
        w.end()
