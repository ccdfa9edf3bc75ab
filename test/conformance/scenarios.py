"""The scenarios that every client passes.

Each function is one scenario.  s is a kit.Scenario: its queue is new, and it starts producers and workers.  Handlers do nothing
by themselves; the scenario tells each of them what to do, so it decides in which order things happen.  A scenario asserts rows,
outcomes and effects, never the wording of a client.
"""

import json
from datetime import datetime, timedelta, timezone

from shared import arrive_equal, does_everything, role

ALL = []
NO_PRODUCER = "it does not enqueue jobs"


class scenario:
    """Declares a scenario.  may_omit: reasons by client.  mutants: broken clients that must fail.  for_two: it has two workers, which
    are of different languages if the clients are mixed."""

    def __init__(self, number, title, mutants, may_omit=None, for_two=False):
        self.number = number
        self.title = f"{number} {title}"
        self.mutants = mutants
        self.may_omit = may_omit or {}
        self.for_two = for_two

    def __call__(self, function):
        self.function = function
        ALL.append(self)
        return function


@scenario("1", "enqueue commits with the caller's transaction, and rolls back with it or with a savepoint", ["own transaction"],
          may_omit={"idemq-work": NO_PRODUCER})
def caller_transaction(s):
    p = s.producer()
    p.call("sql", sql="BEGIN")
    kept = p.enqueue({"n": 1})["id"]
    p.call("sql", sql="SAVEPOINT here")
    p.enqueue({"n": 2})
    p.call("sql", sql="ROLLBACK TO SAVEPOINT here")
    p.enqueue({"n": 3})
    s.equal(s.count(), 0, "jobs that others see before COMMIT")
    p.call("sql", sql="COMMIT")
    s.is_job(kept, status="pending", payload={"n": 1}, attempt=0)
    s.equal([row["n"] for row in s.sql("SELECT payload->'n' AS n FROM idemq.jobs WHERE queue_id = (SELECT queue_id FROM idemq.queues WHERE name = %s) ORDER BY id", s.queue)],
            [1, 3], "jobs")
    p.call("sql", sql="BEGIN")
    p.enqueue({"n": 4})
    p.call("sql", sql="ROLLBACK")
    s.equal(s.count(), 2, "jobs after ROLLBACK")


@scenario("2", "a key makes one job; a repeated call gets its outcome, status and result; a concurrent one waits or gets locked",
          ["drops key", "ignores nowait"], may_omit={"idemq-work": NO_PRODUCER})
def keys(s):
    p, other, w = s.producer(), s.producer(), s.worker()
    first = p.enqueue({"n": 1}, key="k")
    s.equal((first["outcome"], first["status"]), ("accepted", "pending"), "first call")
    again = p.enqueue({"n": 1}, key="k")
    s.equal((again["id"], again["outcome"]), (first["id"], "duplicate"), "second call")
    s.attempt(first["id"]).does(value={"sent": True})
    s.settles(first["id"], status="completed")
    s.equal(p.enqueue({"n": 1}, key="k"), {"id": first["id"], "outcome": "duplicate", "status": "completed", "result": {"sent": True}}, "third call")
    s.refused("IQ003", lambda: p.enqueue({"n": 2}, key="k"))
    s.refused("IQ004", lambda: p.enqueue({"n": 1}, key="k", on_duplicate="error"))
    s.refused("IQ005", lambda: p.enqueue({"n": 1}, queue=f"{s.queue} that does not exist"))
    s.equal(s.count(), 1, "jobs")
    w.end()
    other.call("sql", sql=f"SET application_name = '{s.queue}'")
    blocked = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = %s"
    for end, outcome in (("COMMIT", "duplicate"), ("ROLLBACK", "accepted")):
        p.call("sql", sql="BEGIN")
        first = p.enqueue({"n": 3}, key=end)
        locked = other.send("enqueue", queue=s.queue, payload={"n": 3}, options={"key": end, "nowait": True})
        s.until(lambda: not locked.pending() or s.value(blocked, s.queue), "the end of the call with nowait")
        s.true(not s.value(blocked, s.queue), "the call with nowait does not wait")
        s.equal(locked()["outcome"], "locked", "outcome with nowait")
        waits = other.send("enqueue", queue=s.queue, payload={"n": 3}, options={"key": end})
        s.until(lambda: s.value(blocked, s.queue), "a call that waits")
        s.true(waits.pending(), "the second call waits for the first one's transaction")
        p.call("sql", sql=end)
        second = waits()
        s.equal(second["outcome"], outcome, f"outcome of the second call after {end}")
        s.equal(second["id"] == first["id"], outcome == "duplicate", "the id is the first one's")


@scenario("3", "each option of enqueue reaches the row and the handler as sent", ["drops headers"], may_omit={"idemq-work": NO_PRODUCER})
def options(s):
    p = s.producer()
    run_at = datetime(2031, 2, 3, 4, 5, 6, 789000, tzinfo=timezone.utc)
    headers = {"trace": "ü☃", "n": 1, "deep": {"list": [1, None, True]}}
    sent = p.enqueue({"n": 1}, key="ключ", priority=0, max_attempts=3, headers=headers, kind="mail", group_key="g 1", run_at=run_at.isoformat())["id"]
    s.is_job(sent, priority=0, max_attempts=3, kind="mail", group_key="g 1", run_at=run_at, key="ключ")
    stored = s.job(sent)["headers"] or {}
    s.equal({name: stored.get(name) for name in headers}, headers, "headers")
    parent = p.enqueue({"n": 2}, delay=3600)["id"]
    left = s.value("SELECT ready_at - enqueued_at FROM idemq.jobs WHERE id = %s", parent)
    s.equal(left, timedelta(hours=1), "delay")
    child = p.enqueue({"n": 3}, depends_on=[parent], on_parent_failure="run")["id"]
    s.is_job(child, status="blocked")
    expires = p.enqueue({"n": 4}, delay=60, expires_in=7200, key="e", key_ttl=86400)["id"]
    s.true(s.value("SELECT expires_at - enqueued_at = '2 h' FROM idemq.jobs WHERE id = %s", expires), "expires_in")
    later = p.enqueue({"n": 5}, key="r", delay=60)
    s.equal(p.enqueue({"n": 6}, key="r", on_duplicate="replace", delay=60), {**later, "outcome": "duplicate"}, "replace")
    s.is_job(later["id"], payload={"n": 6})
    s.equal(p.enqueue({"n": 7}, key="r", on_duplicate="ignore")["id"], later["id"], "ignore")
    s.is_job(later["id"], payload={"n": 6})
    s.sql("SELECT idemq.reschedule(%s, run_at => now()), idemq.retry(%s)", sent, sent)
    s.worker()
    h = s.attempt(sent)
    s.equal((h.kind, h.key, h.group, h.attempt, h.max_attempts, h.payload), ("mail", "ключ", "g 1", 1, 3, {"n": 1}), "what the handler gets")
    s.equal({name: (h.headers or {}).get(name) for name in headers}, headers, "headers of the handler")
    h.does()
    s.settles(sent, status="completed")


@scenario("6", "run: the effect and the job commit together; an error rolls back both", ["effect apart", "swallows errors"])
def together(s):
    job = s.add('{"n": 1}')
    w = s.worker()
    first = s.attempt(job)
    first.effect("first")
    s.equal(s.ledger(job), [], "effects before COMMIT")
    s.is_job(job, status="running", attempt=1)
    first.fails("planned")
    s.settles(job, status="retrying")
    s.has_effects(job)
    s.sql("SELECT idemq.retry(%s)", job)
    second = s.attempt(job)
    s.equal((second.attempt, second.token != first.token), (2, True), "second attempt")
    second.does("second", {"ok": [1, "ü"]})
    s.settles(job, status="completed")
    s.is_job(job, attempt=2, result={"ok": [1, "ü"]})
    s.has_effects(job, "second")
    w.end()
    s.equal(s.calls(), 2, "calls of the handler")


@scenario("14", "each error decides status, attempt, next time, last error and details", ["plain errors", "swallows errors"])
def errors(s):
    w = s.worker("outside", concurrency=5)
    jobs = {error: s.add(f'{{"as": "{error}"}}', max_attempts=3) for error in ("plain", "retry_later", "snooze", "dead")}
    for error, job in jobs.items():
        s.attempt(job).fails(f"text of {error}", error, delay=7200)
    s.settles(jobs["plain"], status="retrying", attempt=1)
    s.settles(jobs["retry_later"], status="retrying", attempt=1)
    s.settles(jobs["dead"], status="dead", attempt=1)
    s.settles(jobs["snooze"], status="pending", attempt=0)
    for error in ("plain", "retry_later", "dead"):
        s.true(f"text of {error}" in s.job(jobs[error])["last_error"], f"the text of {error} is stored")
        s.true(f"text of {error}" in s.attempts(jobs[error])[0]["error"], f"the attempt has the text of {error}")
    for error in ("retry_later", "snooze"):
        s.true(s.value("SELECT ready_at > now() + '100 min' FROM idemq.jobs WHERE id = %s", jobs[error]), f"delay of {error}")
    w.end()


@scenario("14.2", "the details of a failed attempt have the error's type, SQLSTATE, stack and cause", ["no cause"],
          may_omit={"idemq-work": "a program reports a text, not an error"})
def details(s):
    s.worker()
    plain, database = s.add('{"n": 1}', max_attempts=1), s.add('{"n": 2}', max_attempts=1)
    s.attempt(plain).fails("planned")
    s.settles(plain, status="dead")
    found = s.attempts(plain)[0]["details"]
    s.true(found and len(found.get("type") or found.get("name") or "") > 1, f"type in {found}")
    s.true("cause of planned" in json.dumps(found), f"the cause in {found}")
    h = s.attempt(database)
    s.refused("22012", lambda: h.query("SELECT 1 / 0"))
    s.settles(database, status="dead")
    s.equal(s.attempts(database)[0]["details"].get("sqlstate"), "22012", "SQLSTATE in the details")


@scenario("14.3", "hold back: no further job of the queue starts, and the attempt does not count", ["plain errors"],
          may_omit={"idemq-work": "a program of --lines cannot ask for it"})
def hold_back(s):
    s.worker("outside")
    first = s.add()
    s.attempt(first).fails("too many", "hold_back", delay=3600, scope="queue")
    s.settles(first, status="pending", attempt=0)
    held = s.add()
    s.equal(s.sql("SELECT id FROM idemq.claim(%s)", s.queue), [], "jobs that can be claimed while the queue is held")
    s.sql("SELECT idemq.resume(%s)", s.queue)
    s.attempt(held).returns()
    s.settles(held, status="completed", attempt=1)
    s.equal(s.calls(first), 1, "calls for the job that is held")


@scenario("4", "enqueue_many adds 10,000 jobs in order; with one bad member it adds none", ["one by one"], may_omit={"idemq-work": NO_PRODUCER})
def many(s):
    p = s.producer()
    made = p.call("enqueue_many", queue=s.queue, jobs=[{"payload": {"n": n}, "options": {"key": f"k{n}"}} for n in range(10000)])
    s.equal(len(made), 10000, "results")
    s.equal({each["outcome"] for each in made}, {"accepted"}, "outcomes")
    wrong = s.sql("SELECT id, payload FROM idemq.jobs WHERE id = ANY (%s) AND payload->>'n' <> (array_position(%s, id) - 1)::text", *[[int(each["id"]) for each in made]] * 2)
    s.equal(wrong, [], "jobs in another order than the results")
    s.equal(s.count(), 10000, "jobs")
    s.equal(s.count("key = 'k' || (payload->>'n')"), 10000, "jobs with their keys")
    bad = [{"payload": {"n": n}, "options": {"key": f"b{n}"}} for n in range(100)] + [{"payload": "another", "options": {"key": "k7"}}]
    s.refused("IQ003", lambda: p.call("enqueue_many", queue=s.queue, jobs=bad))
    s.equal(s.count(), 10000, "jobs after a call with a bad member")


@scenario("5", "each payload arrives equal, or the attempt fails with a reason", ["floats"])
def payloads(s):
    arrive_equal(s, "null", '""', "0", "false", "9007199254740991", "0.1", '"😀 \\u2028 \\\\ \\" ü"', "[" * 1500 + "]" * 1500,
                 '{"": {"__proto__": 1, "a b": [null]}}', json.dumps("x" * 10_000_000))


DOUBLES = "it reads numbers as doubles, as the language does"


@scenario("5.3", "integers beyond doubles arrive equal, or the attempt fails with a reason", ["floats"], may_omit={"node": DOUBLES})
def integers(s):
    arrive_equal(s, "9007199254740993", "1" + "0" * 400, "9" * 5000)


@scenario("5.4", "fractions beyond doubles arrive equal, or the attempt fails with a reason", ["idemq-work: floats"], may_omit={"node": DOUBLES, "python": DOUBLES})
def fractions(s):
    arrive_equal(s, "1e-400", "0.12345678901234567890123456789")


@scenario("5.2", "payloads are stored equal; text with \\u0000 is refused and adds nothing", ["floats"], may_omit={"idemq-work": NO_PRODUCER})
def stored_payloads(s):
    p = s.producer()
    for payload in (None, "", 0, False, 12345678901, "😀 \u2028 \\ \" ü", [[[]]], {"": {"a b": [None]}}, "x" * 1_000_000):
        job = p.enqueue(payload)["id"]
        s.true(s.value("SELECT payload = %s::text::jsonb FROM idemq.jobs WHERE id = %s", json.dumps(payload), job), f"{json.dumps(payload)[:50]} is stored")
    count = s.count()
    for payload in ("a\0b", {"a\0": 1}):
        s.refuses(lambda: p.enqueue(payload))
    s.equal(s.count(), count, "jobs")


@scenario("7", "run: the connection breaks in COMMIT; the effect happens once, as reported, whatever the server does", ["effect apart", "wrong outcomes"],
          may_omit={"idemq-work": "the transaction belongs to its program"})
def lost_commit(s):
    for server in ("commits, and the answer is lost", "commits later", "rolls back"):
        proxy = s.proxy()
        w = s.worker(dsn=s.through(proxy))
        job = s.add()
        h = s.attempt(job)
        h.effect("gated")
        at_gate = s.close_gate(job)
        h.send("return", value="value")
        sessions = at_gate()
        if server == "rolls back":
            s.sql("SELECT pg_terminate_backend(pid) FROM unnest(%s) AS pid", sessions)
        if server == "commits, and the answer is lost":
            proxy.hold_answers()
            s.open_gate(job)
            s.becomes(job, status="completed")
        s.autopilot(lambda again: again.does("gated", "value"), job)
        proxy.cut()
        if server != "commits, and the answer is lost":
            s.open_gate(job)
        s.becomes(job, status="completed", result="value")
        s.has_effects(job, "gated")
        outcomes = w.end()
        if outcomes is not None:
            s.equal(outcomes.get("committed"), 1, f"reported as committed if the server {server}")


@scenario("8", "run: kill -9 at the beginning, after the effect or in COMMIT; the effect happens once", ["effect apart"], for_two=True)
def killed(s):
    for point in ("beginning", "effect", "COMMIT that fails", "COMMIT"):
        w = s.worker()
        job = s.add()
        first = s.attempt(job)
        if point != "beginning":
            first.effect("gated")
        at_gate = s.close_gate(job)
        if point.startswith("COMMIT"):
            first.send("return", value="first")
            sessions = at_gate()
        w.kill()
        if point == "COMMIT that fails":
            s.sql("SELECT pg_terminate_backend(pid) FROM unnest(%s) AS pid", sessions)
        s.open_gate(job)
        other = s.worker(second=True)
        if point == "COMMIT":
            s.becomes(job, status="completed", result="first")
            following = s.add()
            s.attempt(following).does()
            s.settles(following, status="completed")
            s.equal((s.calls(job), s.ledger(job)), (1, ["gated"]), "calls and effects")
        else:
            second = s.attempt(job)
            s.true(second.token != first.token, "another token")
            second.does("second", "second")
            s.settles(job, status="completed", result="second")
            s.has_effects(job, "second")
        other.end()


@scenario("8.2", "outside: kill -9 of the worker; the job runs again when its lease has ended", ["commits early"], for_two=True)
def killed_outside(s):
    s.alter_queue(lease="2 s")
    w = s.worker("outside")
    job = s.add()
    first = s.attempt(job)
    first.effect("first")
    w.kill()
    s.autopilot(lambda again: again.does("again", "again"))
    other = s.worker("outside", second=True)
    s.becomes(job, status="completed", result="again")
    ledger = s.ledger(job)
    s.equal((ledger[0], set(ledger[1:])), ("first", {"again"}), "effects")
    outcomes = other.end()
    if outcomes is not None:
        s.equal(outcomes.get("committed"), 1, "reported as committed")


@scenario("9", "the lease is taken away while the handler runs: it is told and cannot commit; another attempt can", ["deaf", "effect apart"], for_two=True)
def lost_lease(s):
    workers = s.workers()
    job = s.add()
    first = s.attempt(job)
    s.equal(s.value("SELECT idemq.revoke_lease(%s)::text", job), "released", "revoke_lease")
    first.is_told()
    second = s.attempt(job)
    s.equal((second.attempt, second.token != first.token), (1, True), "attempt and token")
    first.cannot("effect")
    second.does("second", "second")
    s.settles(job, status="completed", attempt=1, result="second")
    s.has_effects(job, "second")
    outcomes = [w.end() for w in workers]
    if None not in outcomes:
        s.equal(sum(each.get("committed", 0) for each in outcomes), 1, "attempts reported as committed")
        s.equal(sum(each.get("dead", 0) + each.get("retrying", 0) for each in outcomes), 0, "attempts reported as failed")


@scenario("9.2", "outside: what a handler returns after its lease was taken away does not complete the job", ["deaf"], for_two=True)
def lost_lease_outside(s):
    workers = s.workers("outside")
    job = s.add()
    first = s.attempt(job)
    s.sql("SELECT idemq.revoke_lease(%s)", job)
    first.is_told()
    second = s.attempt(job)
    first.tries("return", value="first")
    first.is_over()
    s.is_job(job, status="running", result=None)
    second.does("second", "second")
    s.settles(job, status="completed", attempt=1, result="second")
    for w in workers:
        w.end()


@scenario("10", "a cancelled job never begins; a running one is told at once, cannot commit and stays cancelled", ["deaf", "effect apart"])
def cancelled(s):
    for mode in ("run", "outside"):
        pending = s.add()
        s.equal(s.value("SELECT idemq.cancel(%s)::text", pending), "cancelled", "cancel")
        w = s.worker(mode)
        job = s.add()
        h = s.attempt(job)
        s.equal(s.value("SELECT idemq.cancel(%s)::text", job), "cancelled", "cancel")
        h.is_told()
        if mode == "run":
            h.cannot("effect")
        else:
            h.tries("return", value="late")
        h.is_over()
        after = s.add()
        s.attempt(after).does()
        s.settles(after, status="completed")
        s.is_job(job, status="cancelled", result=None)
        s.has_effects(job)
        s.equal(s.calls(pending), 0, "calls for the job that was cancelled before")
        w.end()


@scenario("11", "job_timeout: the handler is told, the attempt fails as reported, the worker continues with other jobs", ["deaf", "wrong outcomes"])
def timeout(s):
    for mode in ("run", "outside"):
        s.alter_queue(job_timeout="2 s")
        w = s.worker(mode, concurrency=2)
        slow = s.add(max_attempts=1)
        h = s.attempt(slow)
        s.alter_queue(job_timeout="1 h")
        other = s.add()
        s.attempt(other).does()
        s.settles(other, status="completed")
        h.is_told()
        h.tries("raise", error="plain", text="told")
        s.becomes(slow, status="dead", attempt=1)
        s.true(s.job(slow)["last_error"], "the reason is stored")
        after = s.add()
        s.attempt(after).does()
        s.settles(after, status="completed")
        outcomes = w.end()
        if outcomes is not None:
            s.equal(outcomes.get("committed"), 2, "attempts reported as committed")
            s.equal(sum(outcomes.values()), 3, "attempts in the report")


@scenario("12", "SIGTERM: running jobs get the grace, the others are given back uncounted, and the worker ends well", ["no grace"])
def drain(s):
    for mode in ("run", "outside"):
        w = s.worker(mode, concurrency=2, grace=3600)
        jobs = [s.add() for _ in range(5)]
        running = [s.attempt(), s.attempt()]
        w.stop()
        running[0].does()
        s.settles(running[0].job, status="completed")
        running[1].does()
        s.settles(running[1].job, status="completed")
        outcomes = w.outcomes()
        for job in jobs:
            if job not in (running[0].job, running[1].job):
                s.is_job(job, status="pending", attempt=0)
                s.equal(s.calls(job), 0, "calls for a job that has not begun")
        if outcomes is not None:
            s.equal(outcomes.get("committed"), 2, "attempts reported as committed")
        s.sql("SELECT idemq.cancel(id) FROM unnest(%s) AS id", jobs)


@scenario("12.2", "SIGTERM: when the grace is over, a running job is given back uncounted", ["swallows errors"])
def grace(s):
    for mode in ("run", "outside"):
        w = s.worker(mode, grace=0.1)
        job = s.add()
        h = s.attempt(job)
        w.stop()
        h.is_told()
        h.tries("raise", error="plain", text="told")
        outcomes = w.outcomes()
        s.is_job(job, status="pending", attempt=0)
        if outcomes is not None:
            s.equal(outcomes.get("released"), 1, "attempts reported as released")
        s.sql("SELECT idemq.cancel(%s)", job)


@scenario("12.3", "SIGTERM: an idle worker ends, and says so to the server", ["leaves in silence"])
def idle(s):
    for mode in ("run", "outside"):
        w = s.worker(mode)
        s.is_idle()
        outcomes = w.end()
        s.until(lambda: s.value("SELECT bool_and(state = 'gone') FROM idemq.workers WHERE queues @> ARRAY[%s]", s.queue), "the worker has said that it stops")
        if outcomes is not None:
            s.equal({each for each in outcomes.values()} - {0}, set(), "attempts in the report")


@scenario("13", "a handler that panics fails its attempt with a reason, and the worker continues", ["swallows errors"])
def panic(s):
    for mode in ("run", "outside"):
        w = s.worker(mode)
        job = s.add()
        s.attempt(job).fails("panicked", "panic")
        s.settles(job, status="retrying", attempt=1)
        s.true(s.job(job)["last_error"], "the reason is stored")
        after = s.add()
        s.attempt(after).does()
        s.settles(after, status="completed")
        w.end()


@scenario("13.2", "a result that cannot be encoded fails the attempt and rolls its effect back", ["swallows errors"])
def poison_result(s):
    w = s.worker()
    job = s.add()
    h = s.attempt(job)
    h.effect()
    h.call("return", unencodable=True)
    s.settles(job, status="retrying", attempt=1)
    s.true(s.job(job)["last_error"], "the reason is stored")
    s.has_effects(job)
    after = s.add()
    s.attempt(after).does()
    s.settles(after, status="completed")
    w.end()


@scenario("15", "run: SQLSTATE 40001 or 40P01 repeats the handler three times at once; then the attempt counts", ["no repetition"],
          may_omit={"idemq-work": "the program owns its transaction"})
def serialization(s):
    w = s.worker()
    for state in ("40001", "40P01"):
        job = s.add()
        for _ in range(4):
            h = s.attempt(job, or_end=True)
            s.true(h, "the handler is called again")
            h.effect("undone")
            s.refused(state, lambda: h.query(f"SELECT conformance.raise('{state}')"))
        s.settles(job, status="retrying", attempt=1)
        s.equal((s.calls(job), s.ledger(job)), (4, []), "calls and effects")
        s.equal(len(s.attempts(job)), 1, "attempts that are counted")
        s.sql("SELECT idemq.retry(%s)", job)
        again = s.attempt(job)
        s.refused(state, lambda: again.query(f"SELECT conformance.raise('{state}')"))
        s.attempt(job).does("done")
        s.settles(job, status="completed", attempt=2)
        s.has_effects(job, "done")
    w.end()


NO_STEPS = "a program of --lines calls SQL for steps and events"


@scenario("16", "step: the answer is stored; a later attempt gets it without a call; another request is refused", ["no steps", "step names"],
          may_omit={"idemq-work": NO_STEPS})
def steps(s):
    for mode in ("run", "outside"):
        w = s.worker(mode)
        job = s.add()
        h = s.attempt(job)
        answer = h.send("step", name="charge", request={"amount": 5})
        call = s.attempt(job, step="charge")
        s.equal((call.ask, call.request), (False, {"amount": 5}), "the call")
        call.call("answer", value={"id": "ch_1"})
        s.equal(answer(), {"id": "ch_1"}, "the answer")
        h.fails()
        s.settles(job, status="retrying")
        s.sql("SELECT idemq.retry(%s)", job)
        again = s.attempt(job)
        answer = again.send("step", name="charge", request={"amount": 5})
        s.until(lambda: not answer.pending() or s.steps("charge") > 1, "the stored answer")
        s.equal(s.steps("charge"), 1, "calls of the step")
        s.equal(answer(), {"id": "ch_1"}, "the stored answer")
        s.refused("IQ003", lambda: again.call("step", name="charge", request={"amount": 6}))
        s.settles(job, status="retrying", attempt=2)
        s.sql("SELECT idemq.cancel(%s)", job)
        w.end()
        s.started.clear()


@scenario("16.2", "step: an answer that is lost is asked for with the same key; a refused call gets another key", ["no steps"],
          may_omit={"idemq-work": NO_STEPS})
def lost_steps(s):
    w = s.worker()
    job = s.add()
    h = s.attempt(job)
    h.send("step", name="charge", ask=True, call_timeout=1)
    call = s.attempt(job, step="charge")
    w.kill()
    w = s.worker()
    s.autopilot(lambda again: again.returns(again.call("step", name="charge", ask=True, call_timeout=1)))
    asked = s.attempt(job, step="charge")
    s.equal((asked.ask, asked.key), (True, call.key), "the question")
    asked.call("answer", value="found")
    s.becomes(job, status="completed", result="found")
    refused = s.add()
    first = s.attempt(refused, step="charge")
    first.fails("no", "refused")
    s.becomes(refused, status="retrying")
    s.sql("SELECT idemq.retry(%s)", refused)
    second = s.attempt(refused, step="charge")
    s.equal((second.ask, second.key != first.key), (False, True), "the call after a refusal")
    second.call("answer", value="done")
    s.becomes(refused, status="completed", result="done")
    w.end()


@scenario("16.3", "run: a step after the first use of the transaction fails the attempt, even if the handler catches the error", ["no steps"],
          may_omit={"idemq-work": NO_STEPS})
def late_step(s):
    s.worker()
    job = s.add()
    h = s.attempt(job)
    h.effect()
    s.refuses(lambda: h.call("step", name="charge", catch=True))
    h.tries("return")
    s.settles(job, status="retrying", attempt=1)
    s.has_effects(job)
    s.equal(s.steps("charge"), 0, "calls of the step")


@scenario("17", "a checkpoint reaches the next attempt", ["forgets checkpoints"])
def checkpoint(s):
    s.worker("outside")
    job = s.add()
    h = s.attempt(job)
    s.equal(h.checkpoint, None, "checkpoint of the first attempt")
    h.call("checkpoint", data={"n": [1, "ü"]})
    h.fails()
    s.settles(job, status="retrying")
    s.sql("SELECT idemq.retry(%s)", job)
    h = s.attempt(job)
    s.equal(h.checkpoint, {"n": [1, "ü"]}, "checkpoint of the second attempt")
    h.returns()
    s.settles(job, status="completed")


@scenario("17.2", "run: a checkpoint in the transaction commits or rolls back with it", ["checkpoint apart"],
          may_omit={"idemq-work": "a program sends its checkpoint with its reply"})
def checkpoint_inside(s):
    s.worker()
    job = s.add()
    h = s.attempt(job)
    h.call("checkpoint", data=1)
    h.effect()
    h.call("checkpoint", data=2, in_transaction=True)
    h.fails()
    s.settles(job, status="retrying", checkpoint=1)
    s.sql("SELECT idemq.retry(%s)", job)
    h = s.attempt(job)
    s.equal(h.checkpoint, 1, "checkpoint of the second attempt")
    h.effect("second")
    h.call("checkpoint", data=3, in_transaction=True)
    h.returns()
    s.settles(job, status="completed", checkpoint=3)
    s.has_effects(job, "second")


@scenario("18", "await_event: an event sent before or after, or none within the time", ["no events"], may_omit={"idemq-work": NO_STEPS})
def events(s):
    p = s.producer()
    s.worker()
    s.equal(p.call("send_event", queue=s.queue, name="early", payload={"n": 1}), "accepted", "outcome of send_event")
    job = s.add()
    h = s.attempt(job)
    s.equal(h.call("await_event", name="early", timeout=3600), {"arrived": True, "payload": {"n": 1}}, "an event sent before")
    h.tries("await_event", name="late", timeout=3600)
    h.is_over()
    s.until(lambda: s.value("SELECT count(*) > 0 FROM idemq.steps WHERE job_id = %s AND name = 'late' AND state = 'waiting'", job), "the job waits")
    s.settles(job, status="pending", attempt=0)
    p.call("send_event", queue=s.queue, name="late", payload="x")
    h = s.attempt(job)
    s.equal(h.call("await_event", name="early", timeout=3600), {"arrived": True, "payload": {"n": 1}}, "the same event again")
    s.equal(h.call("await_event", name="late", timeout=3600), {"arrived": True, "payload": "x"}, "an event sent later")
    h.tries("await_event", name="never", timeout=0.5)
    h = s.attempt(job)
    s.equal(h.call("await_event", name="never", timeout=0.5)["arrived"], False, "no event within the time")
    h.returns()
    s.settles(job, status="completed", attempt=1)


@scenario("18.2", "a graph of five: each job runs after its parents, and gets their results", ["no edges", "no results"],
          may_omit={"idemq-work": NO_PRODUCER})
def graph(s):
    p = s.producer()
    s.worker(concurrency=5)
    edges = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"], "e": ["d"]}
    ids = p.call("graph", jobs={name: {"queue": s.queue, "payload": name, "depends_on": after} for name, after in edges.items()})
    names = {int(id): name for name, id in ids.items()}
    for ready in (("a",), ("b", "c"), ("d",), ("e",)):
        for name in edges:
            if name in ready:
                continue
            s.true(s.status(ids[name]) in ("blocked", "completed"), f"{name} does not run with {ready}")
        for h in [s.attempt(ids[name]) for name in ready]:
            name = names[h.job]
            parents = h.call("parents")
            s.equal({names[int(each["id"])]: each["result"] for each in parents}, {each: f"result of {each}" for each in edges[name]}, f"parents of {name}")
            h.does(name, f"result of {name}")
            s.settles(h.job, status="completed")


@scenario("19", "a group runs one job at a time, in order, through retries and a dead job", ["ignores limits"], for_two=True)
def groups(s):
    s.alter_queue(retry_base="1 ms", retry_max="1 ms")
    workers = s.workers(concurrency=2)
    jobs = [s.add(f'{{"n": {n}}}', group_key="g", max_attempts=2) for n in range(6)]
    done = []
    for n in (0, 1, 1, 2, 2, 3, 4, 5):
        h = s.attempt()
        s.equal(h.job, jobs[n], "the job that runs")
        s.equal(s.value("SELECT count(*) FROM idemq.running_jobs WHERE queue = %s", s.queue), 1, "running jobs")
        s.equal(s.sql("SELECT id FROM idemq.claim(%s)", s.queue), [], "jobs that can be claimed meanwhile")
        if n == 2 or (n == 1 and done.count(1) == 0):
            h.fails()
        else:
            h.does(str(n))
        done.append(n)
    s.becomes(jobs[5], status="completed")
    s.equal([row["name"] for row in s.sql("SELECT name FROM conformance.effects WHERE job = ANY (%s) ORDER BY n", jobs)], ["0", "1", "3", "4", "5"], "effects")
    s.is_job(jobs[2], status="dead", attempt=2)
    for w in workers:
        w.end()


@scenario("20", "max_running and rate_limit are never exceeded", ["ignores limits"], for_two=True)
def limits(s):
    s.alter_queue(max_running=3)
    workers = s.workers("outside", concurrency=5)
    jobs = [s.add() for _ in range(9)]
    running = [s.attempt() for _ in range(3)]
    for ended in range(9):
        s.equal(s.value("SELECT count(*) FROM idemq.running_jobs WHERE queue = %s", s.queue), len(running), "running jobs")
        s.equal(s.sql("SELECT id FROM idemq.claim(%s)", s.queue), [], "jobs that can be claimed meanwhile")
        s.equal(s.calls(), ended + len(running), "calls of the handler")
        h = running.pop(0)
        h.does()
        s.settles(h.job, status="completed")
        if ended < 6:
            running.append(s.attempt())
    for w in workers:
        w.end()
    s.alter_queue(max_running=None, rate_limit=2, rate_period="1 day")
    more = [s.add() for _ in range(4)]
    workers = s.workers("outside", concurrency=5)
    for _ in range(2):
        h = s.attempt()
        s.true(h.job in more, "a job of the second half")
        h.does()
        s.settles(h.job, status="completed")
    s.equal(s.sql("SELECT id FROM idemq.claim(%s)", s.queue), [], "jobs that can be claimed over the rate")
    s.equal(s.count("status = 'pending'"), 2, "jobs that wait")
    for w in workers:
        w.end()
    s.equal(s.calls(), len(jobs) + 2, "calls of the handler")


@scenario("21", "a job of an unknown kind is given back uncounted, and a worker that knows it does it", ["any kind"],
          may_omit={"idemq-work": "its program gets every kind", "go": "it gives such a job back for a minute"}, for_two=True)
def kinds(s):
    first, second = s.worker(kinds=["a"], unknown_kind=0.1), s.worker(second=True, kinds=["b"], unknown_kind=0.1)
    jobs = {s.add(kind=kind): kind for kind in "ababab"}
    s.autopilot(lambda h: h.does(h.kind))
    for job, kind in jobs.items():
        s.becomes(job, status="completed", attempt=1)
        s.has_effects(job, kind)
    for each in s.started:
        s.equal(each.adapter is first, each.kind == "a", "the worker that knows the kind runs the job")
    second.end()


@scenario("22", "each hook is called once, in order, with the server's outcome", ["no stopped"],
          may_omit={"idemq-work": "a program has no hooks"})
def hooks(s):
    w = s.worker(hooks=True)
    good, bad = s.add(), s.add(max_attempts=1)
    s.attempt(good).does()
    s.settles(good, status="completed")
    s.attempt(bad).fails()
    s.settles(bad, status="dead")
    w.end()
    s.equal([name for token, name in w.effects if token is None],
            ["started", f"around {good}", f"around {bad}", f"failed {bad} dead false", "stopped"], "hooks")


SETTINGS = [
    [("DateStyle", "SQL, DMY"), ("IntervalStyle", "sql_standard"), ("TimeZone", "Asia/Kathmandu"), ("bytea_output", "escape"), ("extra_float_digits", "-5")],
    [("search_path", ""), ("default_transaction_isolation", "serializable"), ("standard_conforming_strings", "off"), ("IntervalStyle", "iso_8601")],
    [("default_transaction_isolation", "repeatable read"), ("default_transaction_deferrable", "on"), ("statement_timeout", "20 min"), ("DateStyle", "German")],
    [("default_transaction_isolation", "read uncommitted"), ("client_encoding", "LATIN1"), ("lock_timeout", "10 min"), ("client_min_messages", "debug1")],
]


@scenario("26", "settings of the role change nothing: styles of dates and intervals, time zone, isolation, encoding, search_path", ["swallows errors"])
def settings(s):
    for n, chosen in enumerate(SETTINGS):
        dsn = role(s, f"set{n}", "enqueue", "claim", settings=chosen)
        producer = s.producer(dsn=dsn) if s.clients[0].name != "idemq-work" else None
        does_everything(s, producer, lambda mode: s.worker(mode, dsn=dsn))


@scenario("27", "the privilege enqueue is enough for a producer, and claim for a worker", ["swallows errors"])
def privileges(s):
    producer = s.producer(dsn=role(s, "producer", "enqueue")) if s.clients[0].name != "idemq-work" else None
    worker = role(s, "worker", "claim")
    does_everything(s, producer, lambda mode: s.worker(mode, dsn=worker))
    if producer:
        other = s.producer(dsn=role(s, "other", "claim"))
        s.refused("42501", lambda: other.enqueue({"n": 1}))
    nobody = s.worker(dsn=role(s, "nobody", "enqueue"))
    s.wait(lambda: nobody.work_id in nobody.replies, "the end of a worker that may not claim")
    s.true("error" in nobody.replies[nobody.work_id], "a worker that may not claim ends with an error")
