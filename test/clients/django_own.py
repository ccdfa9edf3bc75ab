"""Django's own tests of its Tasks (tests/tasks in Django's source), run against idemq's backend.

The tests are written for two backends of Django, which keep results in memory.  Here they get subclasses of IdemqBackend that also have what the tests
use of those: the list of results, and, for the tests of ImmediateBackend, the run of the task at once.  NOT_APPLICABLE names the tests that do not apply.
"""

import importlib
import os

os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # because some tests read results in coroutines, which DummyBackend has in memory
from django_common import Shop, drain

# After django.setup().
from django.db import connections
from django.test import override_settings
from tap import main

from idemq.django import IdemqBackend

NOT_APPLICABLE = {
    "it asserts the class of another backend": [
        "TaskTestCase.test_using_correct_backend", "TaskTestCase.test_get_backend", "DummyBackendTestCase.test_using_correct_backend",
        "ImmediateBackendTestCase.test_using_correct_backend",
    ],
    "it asserts that the backend cannot do what idemq's backend can": [
        "ImmediateBackendTestCase.test_cannot_get_result", "ImmediateBackendTestCase.test_cannot_refresh_result",
        "ImmediateBackendTestCase.test_cannot_pass_run_after", "DummyBackendTestCase.test_validate_disallowed_async_task",
    ],
    "it asserts how the other backend keeps results in memory": [
        "DummyBackendTestCase.test_clear", "DummyBackendTestCase.test_check", "DummyBackendTestCase.test_refresh_result",
        "DummyBackendTestCase.test_refresh_result_async",
    ],
    "its task takes effect before the caller's transaction ends, which this backend prevents (django_backend.py)": [
        "DummyBackendTransactionTestCase.test_doesnt_wait_until_transaction_commit_by_default",
        "ImmediateBackendTransactionTestCase.test_doesnt_wait_until_transaction_commit_by_default",
    ],
    "it asserts that a KeyboardInterrupt in the task ends the caller, which is another process": ["ImmediateBackendTestCase.test_throws_keyboard_interrupt"],
    "it replaces methods of the other backend": [
        "DummyBackendTestCase.test_validate_on_enqueue", "DummyBackendTestCase.test_validate_on_aenqueue",
        "ImmediateBackendTestCase.test_validate_on_enqueue", "ImmediateBackendTestCase.test_validate_on_aenqueue",
    ],
}  # fmt: skip
EXCLUDED = {name for names in NOT_APPLICABLE.values() for name in names}


class Keeping(IdemqBackend):
    """Has the list of results of DummyBackend, from the database."""

    def enqueue(self, task, args, kwargs):
        result = super().enqueue(task, args, kwargs)
        # The time of the server's clock, as in each later result.
        object.__setattr__(result, "enqueued_at", self.get_result(result.id).enqueued_at)
        return result

    @property
    def results(self):
        return [self.get_result(str(id)) for (id,) in Shop.sql("SELECT id FROM idemq.jobs ORDER BY id")]

    def clear(self):
        Shop.sql("DELETE FROM idemq.jobs")


class Draining(IdemqBackend):
    """Runs a task at once, as ImmediateBackend does, with a worker."""

    def enqueue(self, task, args, kwargs):
        result = super().enqueue(task, args, kwargs)
        drain(self.alias, ["default"])
        result.refresh()
        return result


BACKENDS = {"DummyBackend": "django_own.Keeping", "ImmediateBackend": "django_own.Draining"}


def against_idemq(case):
    """The class of tests with idemq's backend as its default."""
    backends = dict(case._overridden_settings["TASKS"])
    backends["default"] = {**backends["default"], "BACKEND": BACKENDS[backends["default"]["BACKEND"].rpartition(".")[2]]}
    names = [name for name in dir(case) if name.startswith("test_") and f"{case.__name__}.{name}" in EXCLUDED]
    members = {"databases": {"default"}, **dict.fromkeys(names), "setUp": lambda self: Shop.sql("DELETE FROM idemq.jobs"), "tearDown": lambda self: connections.close_all()}
    return override_settings(TASKS=backends)(type(case.__name__, (case,), {**members, "__module__": __name__}))


for queue in ("default", "queue_1"):
    Shop.sql("SELECT idemq.ensure_queue(%s, max_attempts => 1)", queue)
seen = set()
for module in ("test_tasks", "test_dummy_backend", "test_immediate_backend"):
    with override_settings(TASKS={"default": {"BACKEND": "idemq.django.IdemqBackend", "QUEUES": []}}):
        names = vars(importlib.import_module(f"tasks.{module}"))
    for name, value in list(names.items()):
        if isinstance(value, type) and value.__module__ == f"tasks.{module}" and value.__name__.endswith("TestCase"):
            seen |= {f"{name}.{test}" for test in dir(value) if test.startswith("test_")}
            if value._overridden_settings:
                globals()[name] = against_idemq(value)
assert EXCLUDED <= seen, EXCLUDED - seen

if __name__ == "__main__":
    main()
