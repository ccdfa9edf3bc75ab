"""three.py: the workers of the webhook, the mailer and the report in one process, with asyncio."""
import asyncio, json, os, urllib.request
from idemq import AsyncWorker

async def book(job, conn):
    await conn.execute("UPDATE accounts SET balance = balance + %(amount)s WHERE account = %(account)s", job.payload)

def post(step):
    headers = {"Idempotency-Key": step.key, "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["PROVIDER"], json.dumps(step.request).encode(), headers)
    with urllib.request.urlopen(request, timeout=step.timeout) as response:
        return json.load(response)

async def send(job):
    return await job.step("send", lambda step: asyncio.to_thread(post, step), request=job.payload, call_timeout=2)

async def report(job, conn):
    await conn.execute("INSERT INTO reports SELECT %s, sum(total) FROM sales", [job.headers["tick"]])

async def main(dsn):
    mailer = AsyncWorker(dsn, "mail", concurrency=4).run_outside(send)
    await asyncio.gather(AsyncWorker(dsn, "events").run(book), mailer, AsyncWorker(dsn, "reports").run(report))

asyncio.run(main(os.environ["DSN"]))
