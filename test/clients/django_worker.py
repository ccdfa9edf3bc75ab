"""Tasks in the transaction that completes their job, and the other things that a worker of idemq.django does."""

import asyncio
import logging
import signal

from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, connections, transaction
from django.db.utils import ProgrammingError
from django.test import TestCase, TransactionTestCase
from django_common import Order, Shop, drain, tasks
from django_shop.tasks import add, add_fails_once, add_later, add_then_hang, add_then_wait, always_fails, deadlocks, enqueues, outside
from tap import main

import idemq
from idemq.django import _tasks

logging.getLogger("idemq").setLevel(logging.CRITICAL)
for name in ("django.tasks", "django_tasks"):
    logging.getLogger(name).setLevel(logging.CRITICAL + 1)


class Transaction(Shop):
    def test_rows_are_committed_with_the_job(self):
        result = add.enqueue(1)
        self.assertEqual(drain(), {"committed": 1})
        self.assertEqual(self.orders(), [1])
        result.refresh()
        self.assertEqual((result.status, result.return_value), ("SUCCESSFUL", {"number": 1}))

    def test_the_rows_and_the_end_of_the_job_have_the_same_transaction(self):
        result = add.enqueue(1)
        drain()
        ((order, job),) = self.sql("SELECT o.xmin::text, j.xmin::text FROM django_shop_order o, idemq.jobs j WHERE j.id = %s", int(result.id))
        self.assertEqual(order, job)

    def test_kill_before_the_commit(self):
        result = add_then_hang.enqueue(1, str(self.folder / "ready"))
        process = self.worker()
        self.wait_for((self.folder / "ready").exists, process)
        process.kill()
        process.wait()
        self.wait_for(lambda: self.sql("SELECT status FROM idemq.jobs")[0][0] != "running")
        self.assertEqual(self.orders(), [])
        self.drain_until_finished(result)
        self.assertEqual((result.status, result.attempts, len(result.errors)), ("SUCCESSFUL", 2, 1))
        self.assertEqual(self.orders(), [1])

    def test_a_failure_rolls_back_and_a_retry_runs_again(self):
        result = add_fails_once.enqueue(1)
        self.assertEqual(drain(queues=["mail"]).get("retrying"), 1)
        self.assertEqual((self.orders(), tasks.events), ([], []))
        self.drain_until_finished(result)
        self.assertEqual((self.orders(), tasks.events), ([1], [("committed", 1)]))

    def test_on_commit_is_called_after_the_commit_of_the_job(self):
        seen = []

        def task():
            def committed():
                status = self.sql("SELECT status::text FROM idemq.jobs")[0][0]
                seen.append((status, self.orders(), connection.in_atomic_block))
                Order.objects.create(number=2)
                raise LookupError("does not stop the others")

            transaction.on_commit(committed)
            transaction.on_commit(lambda: seen.append("another"))
            Order.objects.create(number=1)

        self.run_task(task)
        self.assertEqual(seen, [("completed", [1], False), "another"])
        self.assertEqual(self.orders(), [1, 2])

    def test_on_commit_of_a_task_that_does_not_use_the_database(self):
        seen = []
        self.run_task(lambda: transaction.on_commit(lambda: seen.append(self.sql("SELECT status::text FROM idemq.jobs"))))
        self.assertEqual(seen, [[("completed",)]])

    def test_on_commit_of_a_savepoint_that_was_rolled_back(self):
        def task():
            try:
                with transaction.atomic():
                    transaction.on_commit(lambda: tasks.events.append("no"))
                    raise LookupError
            except LookupError:
                transaction.on_commit(lambda: tasks.events.append("yes"))

        self.succeeds(task)
        self.assertEqual(tasks.events, ["yes"])

    def test_atomic_is_a_savepoint(self):
        def task():
            Order.objects.create(number=1)
            try:
                with transaction.atomic():
                    Order.objects.create(number=2)
                    with connection.cursor() as cursor:
                        cursor.execute("SELECT 1 / 0")
            except DatabaseError:
                Order.objects.create(number=3)
            with transaction.atomic(savepoint=False):
                Order.objects.create(number=4)

        self.succeeds(task)
        self.assertEqual(self.orders(), [1, 3, 4])

    def test_atomic_without_a_savepoint_comes_first(self):
        def task():
            with transaction.atomic(savepoint=False):
                Order.objects.create(number=1)
            Order.objects.create(number=2)

        self.succeeds(task)
        self.assertEqual(self.orders(), [1, 2])

    def test_the_transaction_cannot_be_ended(self):
        def raw(sql):
            with connection.cursor() as cursor:
                cursor.execute(sql)

        def durable():
            with transaction.atomic(durable=True):
                pass

        ends = {
            "commit": (transaction.commit, transaction.TransactionManagementError),
            "rollback": (transaction.rollback, transaction.TransactionManagementError),
            "autocommit": (lambda: transaction.set_autocommit(True), transaction.TransactionManagementError),
            "close": (lambda: connection.close(), transaction.TransactionManagementError),
            "close_all": (lambda: connections.close_all(), transaction.TransactionManagementError),
            "durable": (durable, RuntimeError),
            "raw commit": (lambda: raw("COMMIT"), ProgrammingError),
            "raw rollback": (lambda: raw("/* */ rollback"), ProgrammingError),
            "driver": (lambda: connection.connection.commit(), ProgrammingError.__mro__[-2]),
        }
        for name, (end, error) in ends.items():
            with self.subTest(name):

                def task():
                    Order.objects.create(number=1)
                    with self.assertRaises(error):
                        end()
                    Order.objects.create(number=2)
                    return "done"

                result = self.run_task(task)
                self.assertEqual((result.status, self.orders()), ("SUCCESSFUL", [1, 2]), result.errors and result.errors[0].traceback)
                self.sql("DELETE FROM django_shop_order")

    def test_a_transaction_that_is_marked_for_rollback_fails(self):
        def task():
            Order.objects.create(number=1)
            transaction.set_rollback(True)

        result = self.run_task(task)
        self.assertEqual((result.status, result.errors[0].exception_class), ("READY", transaction.TransactionManagementError))
        self.assertEqual(self.orders(), [])

    def test_an_error_that_the_task_catches_without_a_savepoint_fails(self):
        def task():
            Order.objects.create(number=1)
            try:
                Order.objects.raw("SELECT nonsense")[0]
            except DatabaseError:
                pass

        result = self.run_task(task)
        self.assertEqual((result.status, self.orders()), ("READY", []))

    def test_a_deadlock_runs_the_task_again_at_once(self):
        result = deadlocks.enqueue(1)
        self.assertEqual(drain(), {"committed": 1})
        result.refresh()
        self.assertEqual((result.return_value, result.attempts, self.orders()), (2, 1, [1]))

    def test_iterator_and_time_zone(self):
        for number in range(5):
            Order.objects.create(number=number)

        def task():
            zone = connection.cursor().execute("SHOW TimeZone").fetchone()[0]
            return [order.number for order in Order.objects.order_by("id").iterator(chunk_size=2)], zone

        self.assertEqual(self.run_task(task).return_value, [[0, 1, 2, 3, 4], "UTC"])

    def test_a_connection_that_outlives_its_task_is_refused(self):
        kept = []
        self.run_task(lambda: kept.append(connections["default"]) or Order.objects.create(number=1).number)
        with self.assertRaises(ProgrammingError):
            kept[0].cursor()
        self.assertEqual(self.orders(), [1])

    def test_a_task_that_enqueues(self):
        enqueues.enqueue(fails=True)
        drain(queues=["mail"])
        self.assertEqual(self.sql("SELECT count(*) FROM idemq.jobs")[0][0], 1)
        enqueues.enqueue(fails=False)
        drain(queues=["mail"])
        self.assertEqual(self.orders(), [7])

    def test_outside(self):
        result = outside.enqueue(1)
        drain()
        self.assertEqual(self.orders(), [1])  # autocommit: the row remains although the attempt has failed
        self.drain_until_finished(result)
        self.assertEqual((result.return_value, tasks.events, self.orders()), ({"charged": 1}, ["charged"], [1, 1]))
        self.assertEqual(result.attempts, 2)

    def test_outside_for_one_call(self):
        add_fails_once.using(outside=True).enqueue(1)
        drain()
        self.assertEqual((self.orders(), tasks.events), ([1], [("committed", 1)]))

    def test_async_tasks(self):
        result = add_later.enqueue(1)
        failed = add_later.enqueue(2, fails=True)
        drain(queues=["mail"])
        result.refresh()
        failed.refresh()
        self.assertEqual((result.return_value, failed.errors[0].exception_class, self.orders()), (1, LookupError, [1]))


class Worker(Shop):
    def test_signals(self):
        seen = []

        def receive(signal, sender, task_result, **_):
            names = {_tasks.task_enqueued: "enqueued", _tasks.task_started: "started", _tasks.task_finished: "finished"}
            seen.append((names[signal], task_result.status, task_result.attempts, sender.__name__, self.orders()))

        for each in (_tasks.task_enqueued, _tasks.task_started, _tasks.task_finished):
            each.connect(receive)
            self.addCleanup(each.disconnect, receive)
        add.enqueue(1)
        drain()
        by = "IdemqBackend"
        self.assertEqual(seen, [("enqueued", "READY", 0, by, []), ("started", "RUNNING", 1, by, []), ("finished", "SUCCESSFUL", 1, by, [1])])
        seen.clear()
        result = always_fails.using(max_attempts=2).enqueue(2)
        self.drain_until_finished(result)
        self.assertEqual([each[:3] for each in seen], [("enqueued", "READY", 0), ("started", "RUNNING", 1), ("started", "RUNNING", 2), ("finished", "FAILED", 2)])

    def test_a_task_that_no_longer_exists_is_given_back(self):
        paths = ("django_shop.tasks.gone", "django_shop.gone.task", "django_shop.tasks.no_task", "os.system", "gone")
        for path in paths:
            self.sql("SELECT idemq.enqueue('mail', jsonb_build_object('task', %s::text, 'args', '[\"true\"]'::jsonb))", path)
        self.sql("SELECT idemq.enqueue('mail', '42')")
        self.assertEqual(drain(), {"released": 6})
        self.assertEqual(self.sql("SELECT DISTINCT attempt, status::text, ready_at > now() FROM idemq.jobs"), [(0, "pending", True)])

    def test_sigterm_lets_the_running_task_end(self):
        ready, go = self.folder / "ready", self.folder / "go"
        first = add_then_wait.enqueue(1, str(ready), str(go))
        process = self.worker()
        self.wait_for(ready.exists, process)
        process.send_signal(signal.SIGTERM)
        second = add.enqueue(2)
        self.wait_for(lambda: "stopping: 1 jobs" in self.log.read_text(), process)
        go.touch()
        self.assertEqual(process.wait(), 0)
        first.refresh()
        second.refresh()
        self.assertEqual((first.status, second.status, self.orders()), ("SUCCESSFUL", "READY", [1]))

    def test_command(self):
        add.enqueue(1)
        call_command("idemq_worker", "--drain", "--queue", "mail", "--concurrency", "2", stdout=open("/dev/null", "w"))
        self.assertEqual(self.orders(), [1])
        with self.assertRaises(CommandError):
            call_command("idemq_worker", "--drain", "--queue", "unknown")

    def test_many_tasks_at_once(self):
        for number in range(200):
            add.enqueue(number)
        self.assertEqual(drain(concurrency=8), {"committed": 200})
        self.assertEqual(sorted(self.orders()), list(range(200)))

    def test_no_connection_is_left(self):
        outside.enqueue(1)
        drain()
        left = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        connection.close()
        self.wait_for(lambda: self.sql(left)[0][0] == 0)

    def test_exceptions_of_idemq(self):
        def snooze():
            raise idemq.Snooze("1 h")

        def dead():
            raise idemq.Dead("no such customer")

        snoozed = self.run_task(snooze)
        self.assertEqual((snoozed.status, snoozed.attempts), ("READY", 0))
        result = self.run_task(dead)
        self.assertEqual((result.status, result.errors[0].exception_class), ("FAILED", idemq.Dead))


class InTestCase(TestCase):
    def test_enqueue_works_and_drain_is_refused(self):
        result = add.enqueue(1)
        self.assertEqual(add.get_result(result.id).status, "READY")
        with self.assertRaisesRegex(transaction.TransactionManagementError, "TransactionTestCase"):
            drain()
        with self.assertRaisesRegex(CommandError, "TransactionTestCase"):
            call_command("idemq_worker", "--drain")

    def test_a_task_can_be_called(self):
        self.assertEqual(asyncio.run(_call_later()), 1)
        self.assertEqual(add.call(1), {"number": 1})


async def _call_later():
    return 1


class InTransactionTestCase(TransactionTestCase):
    def setUp(self):
        Shop.sql("DELETE FROM idemq.jobs")  # which TransactionTestCase does not do

    def test_drain(self):
        add.enqueue(1)
        self.assertEqual(drain()["committed"], 1)
        self.assertEqual([order.number for order in Order.objects.all()], [1])


if __name__ == "__main__":
    main()
