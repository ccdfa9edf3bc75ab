"""What the tests of idemq.django share: an application in the test server's database, whose tables migrate has made."""

import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

os.environ["DJANGO_SETTINGS_MODULE"] = "django_settings"
import django
import psycopg
from django.core.management import call_command

django.setup()
call_command("migrate", verbosity=0)
call_command("idemq_queues", verbosity=0, stdout=open(os.devnull, "w"))

from django_shop import tasks
from django_shop.models import Order

from idemq.django import drain

DSN = os.environ["IDEMQ_DSN"]


class Shop(unittest.TestCase):
    def setUp(self):
        self.sql("DELETE FROM idemq.jobs")
        self.sql("DELETE FROM idemq.attempts")
        Order.objects.all().delete()
        tasks.events.clear()
        tasks.calls.clear()
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    @staticmethod
    def sql(sql, *values):
        """Executes a statement in a session of its own, which sees only what is committed."""
        with psycopg.connect(DSN, autocommit=True) as conn:
            cursor = conn.execute(sql, values)
            return cursor.fetchall() if cursor.description else None

    def orders(self):
        """The numbers of the committed orders."""
        return [number for (number,) in self.sql("SELECT number FROM django_shop_order ORDER BY id")]

    def run_task(self, function):
        """Runs a function as a task, and returns its result after one attempt."""
        tasks.calls["it"] = function
        result = tasks.call.enqueue("it")
        drain(queues=["mail"])
        result.refresh()
        return result

    def succeeds(self, function):
        result = self.run_task(function)
        self.assertEqual(result.status, "SUCCESSFUL", result.errors and result.errors[0].traceback)

    def drain_until_finished(self, result):
        """Runs all attempts of a task.  The test of a retry does not depend on its backoff."""
        while not result.is_finished:
            self.sql("SELECT idemq.retry(%s)", int(result.id))
            drain()
            result.refresh()

    def worker(self, *arguments):
        """A worker in a process of its own."""
        self.log = self.folder / "log"
        process = subprocess.Popen([os.environ.get("IDEMQ_PYTHON", sys.executable), "-m", "django", "idemq_worker", *arguments], env={**os.environ, "WORKER_LOG": str(self.log)})
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def wait_for(self, condition, process=None):
        while not condition():
            if process is not None and process.poll() is not None:
                self.fail(f"the worker has ended with {process.returncode}")
            time.sleep(0.01)
