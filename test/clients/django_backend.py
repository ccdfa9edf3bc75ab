"""The backend of idemq.django: tasks as jobs, their results, the checks, the commands and the admin."""

import asyncio
import contextlib
import datetime
import io
import logging
import os
import subprocess
import sys

from django_common import Shop, drain, tasks
# After django.setup().
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, connections, transaction
from django.test import Client, override_settings
from django.utils import timezone
from django_settings import TASKS
from django_shop.tasks import add, always_fails, call
from tap import main

import idemq
from idemq.django import IdemqQueue, _tasks
from idemq.django._backend import django_priority, idemq_priority

logging.getLogger("idemq").setLevel(logging.CRITICAL)
for name in ("django.tasks", "django_tasks", "django.request"):
    logging.getLogger(name).setLevel(logging.CRITICAL + 1)


class Enqueue(Shop):
    def jobs(self):
        return self.sql("SELECT count(*) FROM idemq.jobs")[0][0]

    def test_autocommit_takes_effect_at_once(self):
        add.enqueue(1)
        self.assertEqual(self.jobs(), 1)

    def test_atomic(self):
        with transaction.atomic():
            add.enqueue(1)
            self.assertEqual(self.jobs(), 0)
        self.assertEqual(self.jobs(), 1)
        with self.assertRaises(LookupError), transaction.atomic():
            add.enqueue(2)
            raise LookupError
        self.assertEqual(self.jobs(), 1)

    def test_a_savepoint_that_is_rolled_back(self):
        with transaction.atomic():
            add.enqueue(1)
            with contextlib.suppress(LookupError), transaction.atomic():
                add.enqueue(2)
                raise LookupError
            add.enqueue(3)
        self.assertEqual(drain(), {"committed": 2})
        self.assertEqual(self.orders(), [1, 3])

    def test_atomic_requests(self):
        client = Client(raise_request_exception=False)
        for atomic, jobs in ((True, [1, 1]), (False, [2, 3])):
            settings = connection.settings_dict
            before = settings["ATOMIC_REQUESTS"]
            settings["ATOMIC_REQUESTS"] = atomic
            try:
                self.assertEqual(client.get("/order/1").status_code, 200)
                self.assertEqual(self.jobs(), jobs[0])
                self.assertEqual(client.get("/order/-1").status_code, 500)
                self.assertEqual(self.jobs(), jobs[1])
            finally:
                settings["ATOMIC_REQUESTS"] = before

    def test_payload(self):
        add.enqueue(number=[1, {"two": None}])
        ((payload, kind, queue),) = self.sql("SELECT payload, kind, queue FROM idemq.job_list")
        self.assertEqual(payload, {"task": "django_shop.tasks.add", "args": [], "kwargs": {"number": [1, {"two": None}]}})
        self.assertEqual((kind, queue), ("django_shop.tasks.add", "mail"))
        with self.assertRaises(TypeError):
            add.enqueue(object())
        with self.assertRaises(DatabaseError):
            add.enqueue("a NUL: \0")

    def test_asynchronous_calls(self):
        async def enqueue():
            result = await add.aenqueue(1)
            found = await add.aget_result(result.id)
            await found.arefresh()
            return found.status

        self.assertEqual(asyncio.run(enqueue()), "READY")
        self.assertEqual(self.jobs(), 1)

    def test_run_after(self):
        at = timezone.now() + datetime.timedelta(hours=1)
        result = add.using(run_after=at).enqueue(1)
        self.assertEqual(self.sql("SELECT ready_at FROM idemq.jobs"), [(at,)])
        self.assertEqual(add.get_result(result.id).task.run_after, at)
        self.assertEqual(drain(), {})
        with override_settings(USE_TZ=False):
            add.using(run_after=datetime.datetime(2040, 1, 1)).enqueue(2)
        self.assertEqual(self.sql("SELECT max(ready_at) FROM idemq.jobs")[0][0], datetime.datetime(2040, 1, 1, tzinfo=timezone.get_default_timezone()))

    def test_priority(self):
        table = {100: 0, 76: 0, 75: 1, 51: 1, 50: 2, 26: 2, 25: 3, 1: 3, 0: 4, -1: 5, -20: 5, -21: 6, -40: 6, -41: 7, -60: 7, -61: 8, -80: 8, -81: 9, -100: 9}
        self.assertEqual({priority: idemq_priority(priority) for priority in table}, table)
        mapped = [idemq_priority(priority) for priority in range(-100, 101)]
        self.assertEqual(mapped, sorted(mapped, reverse=True))
        self.assertEqual([idemq_priority(django_priority(priority)) for priority in range(10)], list(range(10)))
        for priority in (-100, 0, 100, 1):
            add.using(priority=priority).enqueue(priority)
        drain()
        self.assertEqual(self.orders(), [100, 1, 0, -100])

    def test_options_of_idemq(self):
        first = add.using(key="order-1", group_key="alice", max_attempts=3, kind="orders").enqueue(1)
        self.assertEqual(self.sql("SELECT key, group_key, max_attempts, kind FROM idemq.jobs"), [("order-1", "alice", 3, "orders")])
        child = add.using(depends_on=[first.id]).enqueue(2)
        self.assertEqual(self.sql("SELECT status::text FROM idemq.jobs WHERE id = %s", int(child.id)), [("blocked",)])
        self.assertEqual(drain(), {"committed": 2})
        self.assertEqual(self.orders(), [1, 2])

    def test_a_duplicate_returns_the_first_result(self):
        seen = []
        _tasks.task_enqueued.connect(lambda **_: seen.append(1), weak=False, dispatch_uid="seen")
        self.addCleanup(_tasks.task_enqueued.disconnect, dispatch_uid="seen")
        first = add.using(key="order-1").enqueue(1)
        drain()
        again = add.using(key="order-1").enqueue(1)
        self.assertEqual((again.id, again.status, again.return_value, len(seen)), (first.id, "SUCCESSFUL", {"number": 1}, 1))
        with self.assertRaises(idemq.KeyReused), transaction.atomic():
            add.using(key="order-1").enqueue(2)
        with self.assertRaises(idemq.DuplicateKey):
            add.using(key="order-1", on_duplicate="error").enqueue(1)
        self.assertEqual(self.orders(), [1])

    def test_a_task_of_another_backend(self):
        immediate = f"{_tasks.BaseTaskBackend.__module__.rpartition('.')[0]}.immediate.ImmediateBackend"
        with override_settings(TASKS={**TASKS, "immediate": {"BACKEND": immediate, "QUEUES": ["mail"]}}):
            plain = _tasks.Task(func=add.func, priority=0, backend="immediate", queue_name="mail", run_after=None, takes_context=False)
            plain.using(backend="default").enqueue(1)
        drain()
        self.assertEqual(self.orders(), [1])

    def test_using_keeps_the_options(self):
        task = add.using(key="order-1").using(priority=5).using(group_key="alice")
        self.assertEqual((task.key, task.priority, task.group_key, task.queue_name), ("order-1", 5, "alice", "mail"))
        with self.assertRaises(TypeError):
            add.using(nonsense=1)

    def test_a_role_that_may_only_enqueue(self):
        role = f"web_of_{connection.settings_dict['NAME']}"  # roles belong to all databases
        self.sql(f"DO $$ BEGIN CREATE ROLE {role}; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
        self.sql("SELECT idemq.grant_queue('mail', %s::text::regrole, 'enqueue')", role)
        first = add.using(key="order-1").enqueue(1)
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL ROLE {role}")
            again = add.using(key="order-1").enqueue(1)
            with self.assertRaises(_tasks.TaskResultDoesNotExist):
                add.get_result(first.id)
        self.assertEqual((again.id, again.status), (first.id, "READY"))


class Results(Shop):
    def test_a_result_from_its_beginning_to_its_end(self):
        result = always_fails.using(max_attempts=2).enqueue(1)
        self.assertEqual((result.status, result.attempts, result.started_at), ("READY", 0, None))
        drain(queues=["mail"])
        result.refresh()
        self.assertEqual((result.status, result.attempts, result.finished_at), ("READY", 1, None))
        self.drain_until_finished(result)
        self.assertEqual((result.status, result.attempts, len(result.errors)), ("FAILED", 2, 2))
        self.assertEqual(result.errors[0].exception_class, LookupError)
        self.assertIn("LookupError: never", result.errors[0].traceback)
        self.assertIn("in always_fails", result.errors[0].traceback)
        self.assertLess(result.enqueued_at, result.started_at)
        self.assertLess(result.started_at, result.last_attempted_at)
        self.assertLess(result.last_attempted_at, result.finished_at)
        with self.assertRaises(ValueError):
            result.return_value

    def test_the_first_attempt_counts_although_it_has_no_row(self):
        result = add.enqueue(1)
        drain()
        result.refresh()
        self.assertEqual(self.sql("SELECT count(*) FROM idemq.attempts")[0][0], 0)
        self.assertEqual(len(result.worker_ids), 1)
        self.assertTrue(result.worker_ids[0].startswith("python"), result.worker_ids)
        self.assertEqual(result.started_at, result.last_attempted_at)

    def test_while_it_runs(self):
        seen = []
        tasks.calls["it"] = lambda: seen.append(call.get_result(self.sql("SELECT id FROM idemq.jobs")[0][0]))
        call.enqueue("it")
        drain()
        self.assertEqual((seen[0].status, seen[0].attempts), ("RUNNING", 1))

    def test_a_job_that_was_cancelled(self):
        result = add.enqueue(1)
        self.sql("SELECT idemq.cancel(%s)", int(result.id))
        result.refresh()
        self.assertEqual((result.status, result.errors), ("FAILED", []))

    def test_a_lost_lease_and_an_error_of_another_program(self):
        for end, expected in (("SELECT idemq.revoke_lease(%s)", None), ("SELECT idemq.fail(%s, c.token, 'no') FROM idemq.jobs c", RuntimeError)):
            self.sql("DELETE FROM idemq.jobs")
            result = add.enqueue(1)
            self.sql("SELECT idemq.claim('mail', worker => 'other')")
            self.sql(end, int(result.id))
            result.refresh()
            self.assertEqual([error.exception_class for error in result.errors], [expected] if expected else [])

    def test_results_that_do_not_exist(self):
        result = add.enqueue(1)
        drain()
        other = _tasks.task_backends["other"]
        self.sql("SELECT idemq.enqueue('slow', '42')")
        no_task = self.sql("SELECT id FROM idemq.jobs WHERE payload = '42'")[0][0]
        for backend, id in ((other, result.id), (other, str(no_task)), (other, "1"), (other, "x"), (other, "9" * 30), (other, "")):
            with self.subTest(id), self.assertRaises(_tasks.TaskResultDoesNotExist):
                backend.get_result(id)
        self.sql("DELETE FROM idemq.jobs")
        with self.assertRaises(_tasks.TaskResultDoesNotExist):
            result.refresh()

    def test_a_result_of_another_task(self):
        with self.assertRaises(Exception) as raised:
            always_fails.get_result(add.enqueue(1).id)
        self.assertEqual(type(raised.exception).__name__, "TaskResultMismatch")

    def test_no_queue(self):
        with override_settings(TASKS={"default": {**TASKS["default"], "QUEUES": []}}):
            with self.assertRaises(idemq.NoSuchQueue):
                add.using(queue_name="gone").enqueue(1)


class Checks(Shop):
    def found(self, **options):
        changed = {**TASKS["default"], **options}
        with override_settings(TASKS={"default": changed}):
            return [message.id for message in _tasks.task_backends["default"].check(databases=["default"])]

    def found_after(self, *statements):
        """What is found after these statements, which are rolled back."""
        with transaction.atomic():
            with connection.cursor() as cursor:
                for sql in statements:
                    cursor.execute(sql)
            found = self.found()
            transaction.set_rollback(True)
        return found

    def with_database(self, **settings):
        changed = {**connection.settings_dict, **settings}
        connections.databases["changed"] = changed
        try:
            return self.found(OPTIONS={"database": "changed", **TASKS["default"]["OPTIONS"]})
        finally:
            if "changed" in connections.databases:
                del connections.databases["changed"]
            del connections["changed"]

    def test_nothing_is_wrong(self):
        self.assertEqual(self.found(), [])
        call_command("check", "--database", "default", stdout=io.StringIO())

    def test_e001(self):
        self.assertEqual(self.found(OPTIONS={"database": "gone"}), ["idemq.E001"])
        self.assertEqual(self.with_database(ENGINE="django.db.backends.sqlite3", NAME=":memory:", OPTIONS={}), ["idemq.E001"])

    def test_e002(self):
        self.assertEqual(self.found_after("DROP EXTENSION idemq CASCADE"), ["idemq.E002"])
        self.assertEqual(self.found_after("UPDATE pg_catalog.pg_extension SET extversion = '0.9.9' WHERE extname = 'idemq'"), ["idemq.E002"])

    def test_e003(self):
        self.assertEqual(self.found(QUEUES=["mail", "gone"]), ["idemq.E003"])
        with override_settings(TASKS={"default": {**TASKS["default"], "QUEUES": ["gone"]}}), self.assertRaisesRegex(CommandError, "idemq.E003"):
            call_command("idemq_worker")

    def test_e004(self):
        self.sql("DROP ROLE IF EXISTS stranger")
        self.sql("CREATE ROLE stranger; GRANT SELECT ON django_migrations TO stranger")
        self.addCleanup(self.sql, "DROP OWNED BY stranger; DROP ROLE stranger")
        self.assertEqual(self.found_after("SET LOCAL ROLE stranger"), ["idemq.E004"])
        self.assertEqual(self.found_after("GRANT USAGE ON SCHEMA idemq TO stranger", "SET LOCAL ROLE stranger"), ["idemq.E003"] * 2)
        revoked = "REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA idemq FROM PUBLIC"
        self.assertEqual(self.found_after("GRANT USAGE ON SCHEMA idemq TO stranger", revoked, "SET LOCAL ROLE stranger"), ["idemq.E004"])

    def test_e005(self):
        self.assertEqual(self.with_database(AUTOCOMMIT=False), ["idemq.E005"])
        self.assertEqual(self.with_database(OPTIONS={"isolation_level": 3}), ["idemq.E005"])
        self.assertEqual(self.with_database(OPTIONS={"isolation_level": 2}), [])
        self.assertEqual(self.with_database(OPTIONS={"pool": {"max_size": 1}}), ["idemq.E005"])
        self.assertEqual(self.with_database(OPTIONS={"pool": True}, CONN_MAX_AGE=5), ["idemq.E005"])

    def test_before_migrate(self):
        """The extension may be missing, because a migration creates it."""
        self.assertEqual(self.found_after("DELETE FROM django_migrations WHERE app = 'django_shop'", "DROP EXTENSION idemq CASCADE"), [])
        self.assertEqual([message for message in _tasks.task_backends["default"].check()], [])


class Management(Shop):
    def test_idemq_queues(self):
        call_command("idemq_queues", stdout=io.StringIO())
        out = io.StringIO()
        call_command("idemq_queues", stdout=out)
        self.assertEqual(out.getvalue().split("\n"), ["mail: unchanged", "slow: unchanged", "slow: unchanged", ""])
        self.assertEqual(self.sql("SELECT lease::text, job_timeout::text FROM idemq.queues WHERE name = 'slow'"), [("01:00:00", "00:30:00")])
        with override_settings(TASKS={"default": {**TASKS["default"], "QUEUES": ["made"], "OPTIONS": {"queues": {"made": {"lease": "7 min"}}}}}):
            call_command("idemq_queues", stdout=(out := io.StringIO()))
            self.assertEqual(out.getvalue(), "made: created\n")
        self.assertEqual(self.sql("SELECT lease::text FROM idemq.queues WHERE name = 'made'"), [("00:07:00",)])
        self.sql("SELECT idemq.drop_queue('made')")

    def test_idemq_queue(self):
        self.assertEqual(self.sql("SELECT lease::text, notify_finished FROM idemq.queues WHERE name = 'mail'"), [("01:00:00", True)])
        operation = IdemqQueue("mail", lease="1 h")
        name, args, kwargs = operation.deconstruct()
        self.assertEqual((name, args, kwargs, operation.describe()), ("IdemqQueue", ["mail"], {"lease": "1 h"}, "Declares the queue mail of idemq"))
        with connection.schema_editor() as editor:
            IdemqQueue("mail", lease="2 h").database_forwards("django_shop", editor, None, None)
            operation.database_backwards("django_shop", editor, None, None)
        self.assertEqual(self.sql("SELECT lease::text FROM idemq.queues WHERE name = 'mail'"), [("02:00:00",)])
        with connection.schema_editor() as editor:
            operation.database_forwards("django_shop", editor, None, None)
        self.assertEqual(self.sql("SELECT count(*) FROM idemq.queues WHERE name = 'mail'"), [(1,)])

    def test_no_migrations_are_missing(self):
        out = io.StringIO()
        with contextlib.suppress(SystemExit):
            call_command("makemigrations", "--check", "--dry-run", stdout=out)
        self.assertEqual(out.getvalue(), "No changes detected\n")

    def test_the_admin_only_reads(self):
        result = add.enqueue(1)
        User.objects.filter(username="admin").delete()
        client = Client()
        client.force_login(User.objects.create_superuser("admin"))
        page = client.get("/admin/idemq/job/")
        self.assertContains(self, page, "django_shop.tasks.add")
        page = client.get(f"/admin/idemq/job/{result.id}/change/")
        self.assertContains(self, page, f"https://ui.example/job/{result.id}")
        self.assertContains(self, page, self.sql("SELECT idemq.why(%s)", int(result.id))[0][0].split(".")[0][:20])
        for path in ("add/", f"{result.id}/delete/"):
            self.assertEqual(client.get(f"/admin/idemq/job/{path}").status_code, 403)
        self.assertEqual(client.post(f"/admin/idemq/job/{result.id}/change/", {"queue": "x"}).status_code, 403)

    @staticmethod
    def assertContains(case, page, text):
        case.assertEqual(page.status_code, 200)
        case.assertIn(text, page.content.decode())

    def test_without_django(self):
        program = "import sys, idemq; sys.exit(any(name.partition('.')[0] == 'django' for name in sys.modules))"
        self.assertEqual(subprocess.call([os.environ.get("IDEMQ_PYTHON", sys.executable), "-c", program]), 0)

    def test_another_backend(self):
        name = f"{_tasks.BaseTaskBackend.__module__.rpartition('.')[0]}.immediate.ImmediateBackend"
        with override_settings(TASKS={"default": {"BACKEND": name, "QUEUES": ["mail"]}}):
            self.assertEqual(add.enqueue(1).status, "SUCCESSFUL")
            with self.assertRaises(CommandError):
                call_command("idemq_worker")
        self.assertEqual(self.orders(), [1])


if __name__ == "__main__":
    main()
