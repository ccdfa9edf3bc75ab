"""manual.py: what doc/usage/python.md shows; python_manual.py and others run it."""

import asyncio
import contextvars
import logging
import re
import threading

import psycopg
from idemq import AsyncWorker, Dead, HoldBack, Hooks, Inside, JobLogFilter, Kind, Outside, Overflow, Refused, RetryLater, Snooze, Worker, drain, enqueue, enqueue_graph, finished_jobs, send_event, wait_results


def order(dsn):
    with psycopg.connect(dsn) as conn:
        conn.execute("INSERT INTO orders VALUES (42)")
        enqueue(conn, "mail", {"order": 42}, key="order-42")  # commits with the order, or not at all


def confirm(job, conn):
    conn.execute("INSERT INTO confirmations VALUES (%s)", [job.payload["order"]])
    return {"confirmed": job.payload["order"]}  # the job's result


def work(dsn):
    Worker(dsn, "mail").run(confirm)  # until SIGTERM


def test_an_order_is_confirmed(dsn):
    order(dsn)
    assert drain(dsn, "mail", confirm) == {"committed": 1}


def charge(job):
    def call(step):  # step.timeout: seconds left for it
        return provider.post("/charges", step.request, idempotency_key=step.key, timeout=step.timeout)

    def ask(step):  # None: the provider knows nothing of it
        return provider.find(step.key)

    charged = job.step("charge", call, {"amount": job.payload["amount"]}, call_timeout=10, ask=ask)
    job.save_checkpoint({"charged": charged["id"]})  # the next attempt finds it in job.checkpoint
    if job.cancelled.is_set():  # the lease is lost, or the time is over
        raise TimeoutError("no time left")  # the next attempt goes on here
    return charged


async def fetch(job):
    await asyncio.sleep(0.01)  # cancelled when the lease is lost
    return job.payload


async def work_async(dsn):
    await AsyncWorker(dsn, "pages", concurrency=100).run_outside(fetch)


def fetch_page(job):
    return provider.get(job.payload["url"])


KINDS = {
    "charge": Kind(charge, timeout=30, backoff=[1, 10, 60]),  # seconds after the first, second, and each later failure
    None: fetch_page,
}


def visit(job, conn):
    answer = provider.get(job.payload["url"])
    if answer == "busy":
        raise RetryLater("5 min")  # the attempt counts
    if answer == "too many requests":
        raise HoldBack("30 s")  # also holds back the other jobs of the group, or of the queue
    if answer == "closed":
        raise Snooze(3600)  # nothing is counted
    if answer == "gone":
        raise Dead("no such page")


def ship(job, conn):
    paid = job.await_event(f"paid {job.payload['order']}", "3 days")  # sleeps until then, and starts from the top
    if paid.arrived:
        conn.execute("INSERT INTO shipments VALUES (%s)", [job.payload["order"]])
    else:
        conn.execute("INSERT INTO reminders VALUES (%s)", [job.payload["order"]])


def is_paid(conn, order, amount):
    return send_event(conn, "orders", f"paid {order}", {"amount": amount}).outcome


def sales(conn):  # conn is in autocommit mode: the wait runs outside a transaction
    jobs = enqueue_graph(conn, {
        "north": {"queue": "sums", "payload": {"of": "north"}},
        "south": {"queue": "sums", "payload": {"of": "south"}},
        "report": {"queue": "sums", "payload": {}, "kind": "report", "depends_on": ["north", "south"]},
    })
    return wait_results(conn, [jobs["report"].id], timeout=60)[0].result


def add_up(job, conn):
    return conn.execute("SELECT sum(amount)::int FROM sales WHERE area = %s", [job.payload["of"]]).fetchone()[0]


def report(job, conn):
    return sum(parent.result for parent in job.parents())


def work_sums(dsn):
    Worker(dsn, "sums").run({None: add_up, "report": report})  # by kind; jobs of other kinds are released


QUEUES = {
    "mail": Inside(confirm, concurrency=4, batch=100),
    "charges": Outside(charge, concurrency=10),
    "sums": {None: add_up, "report": report},  # Inside, by kind
}


def work_all(dsn):
    Worker(dsn, QUEUES).run()


def test_all(dsn):
    assert drain(dsn, QUEUES) == {"committed": 2}


def log_with_jobs():
    lines = logging.StreamHandler()
    lines.setFormatter(logging.Formatter("%(asctime)s %(levelname)s [%(job)s] %(message)s"))
    lines.addFilter(JobLogFilter())
    logging.basicConfig(level=logging.INFO, handlers=[lines])


def fetch_in_thread(job):
    thread = threading.Thread(target=contextvars.copy_context().run, args=(fetch_page, job))
    thread.start()
    thread.join()


def work_with_logs(dsn):
    Worker(dsn, {"mail": confirm, "charges": Outside(charge, capture_logs="all")}, capture_logs="failed").run()


def without_cards(text):
    return re.sub(r"\b\d{12,19}\b", "(card)", text)


def work_without_cards(dsn):
    Worker(dsn, "mail", capture_logs="failed", redact=without_cards).run(confirm)


def measured(job, call):
    with SECONDS.labels(job.queue).time():  # SECONDS = prometheus_client.Histogram("jobs", "Seconds", ["queue"])
        return call()


def traced(job, call):
    with tracer.start_as_current_span("confirm", attributes={"attempt": job.attempt}):  # of OpenTelemetry
        return call()


def reported(job, failure):
    if not failure.will_retry:
        sentry_sdk.capture_exception(failure.error)


def work_watched(dsn):
    Worker(dsn, "mail", hooks=Hooks(around=measured, failed=reported)).run(confirm)


class Recorder:
    """Stands for prometheus_client, OpenTelemetry and sentry_sdk: what is called of them."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(*args, **options):
            self.calls.append((name, *args))
            return self

        return call

    def __enter__(self):
        self.calls.append("begin")

    def __exit__(self, *_):
        self.calls.append("end")


SECONDS = tracer = sentry_sdk = Recorder()


class provider:
    """Stands for another system."""

    answers = {}

    @classmethod
    def post(cls, path, request, idempotency_key, timeout):
        if request["amount"] < 0:
            raise Refused("no such amount")
        return cls.answers.setdefault(idempotency_key, {"id": len(cls.answers) + 1})

    @classmethod
    def find(cls, key):
        return cls.answers.get(key)

    @classmethod
    def get(cls, url):
        return url


logging.getLogger("idemq").addHandler(logging.NullHandler())


def follow(dsn, page):
    for item in finished_jobs(dsn, ["mail", "invoices"]):
        if isinstance(item, Overflow):  # also the first item of each queue
            page.read_jobs_again(item.queue)
        else:
            page.show(item.queue, item.id, item.status)
