"""Tasks that the tests enqueue."""

import asyncio
import pathlib
import threading

from django.db import OperationalError, connection, transaction

from idemq.django._tasks import task_backends

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

from .models import Order

events = []


@task(queue_name="mail")
def add(number):
    Order.objects.create(number=number)
    return {"number": number}


@task(queue_name="mail", takes_context=True)
def add_then_hang(context, number, ready):
    Order.objects.create(number=number)
    if context.attempt == 1:
        pathlib.Path(ready).touch()
        threading.Event().wait()


@task(queue_name="mail")
def add_then_wait(number, ready, go):
    Order.objects.create(number=number)
    pathlib.Path(ready).touch()
    while not pathlib.Path(go).exists():
        threading.Event().wait(0.01)


@task(queue_name="mail", takes_context=True)
def add_fails_once(context, number):
    Order.objects.create(number=number)
    transaction.on_commit(lambda: events.append(("committed", number)))
    if context.attempt == 1:
        raise LookupError("not today")


@task(queue_name="mail")
def always_fails(number):
    Order.objects.create(number=number)
    raise LookupError("never")


@task(queue_name="mail")
def call(name):
    """Calls what a test has put there."""
    return calls[name]()


calls = {}


def _outside(context, number):
    Order.objects.create(number=number)
    answer = context.job.step("charge", lambda step: events.append("charged") or {"charged": number})
    if context.attempt == 1:
        raise LookupError("not today")
    return answer


outside = task(queue_name="mail", takes_context=True)(_outside)
_outside = outside = outside.using(outside=True)


@task(queue_name="mail")
async def add_later(number, fails=False):
    await Order.objects.acreate(number=number)
    await asyncio.sleep(0)
    if fails:
        raise LookupError("never")
    return await Order.objects.acount()


@task(queue_name="mail")
def deadlocks(number):
    Order.objects.create(number=number)
    events.append("called")
    if len(events) == 1:
        with connection.cursor() as cursor:
            cursor.execute("DO $$ BEGIN RAISE 'a deadlock' USING ERRCODE = '40P01'; END $$")
    return len(events)


@task(queue_name="mail")
def enqueues(fails):
    add.enqueue(7)
    if fails:
        raise LookupError("never")


def no_task(*args):
    raise AssertionError("it is not a task")


assert OperationalError and task_backends
