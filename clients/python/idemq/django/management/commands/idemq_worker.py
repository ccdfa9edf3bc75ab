"""manage.py idemq_worker: runs tasks until SIGTERM or SIGINT."""

import threading
from typing import Any

from django.conf import settings
from django.core.checks import Error
from django.core.management.base import BaseCommand, CommandError
from django.db.transaction import TransactionManagementError
from django.utils import autoreload

from ..._backend import IdemqBackend
from ..._tasks import DEFAULT_TASK_BACKEND_ALIAS, task_backends
from ..._worker import drain, make_worker


class Command(BaseCommand):
    help = "Runs the tasks of a backend until SIGTERM or SIGINT, which let the running tasks end."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--backend", default=DEFAULT_TASK_BACKEND_ALIAS, help="its name in TASKS (default: %(default)s)")
        parser.add_argument("--queue", action="append", dest="queues", help="a queue of the backend, can be repeated (default: all)")
        parser.add_argument("--concurrency", type=int, help="number of tasks of a queue that run at once (default: OPTIONS['concurrency'], or 1)")
        parser.add_argument("--drain", action="store_true", help="run the tasks that are ready, then end")
        parser.add_argument("--noreload", action="store_true", help="do not start again when the code changes, which is the default under DEBUG")

    def handle(self, *, backend: str, queues: Any, concurrency: Any, **options: Any) -> None:
        found = task_backends[backend]
        if not isinstance(found, IdemqBackend):
            raise CommandError(f"TASKS[{backend!r}] is not a backend of idemq")
        if not set(queues or ()) <= found.queues:
            raise CommandError(f"QUEUES of TASKS[{backend!r}] are {', '.join(sorted(found.queues))}")
        if options["drain"]:
            try:
                outcomes = drain(backend, queues, concurrency)
            except TransactionManagementError as error:
                raise CommandError(str(error)) from error
            self.stdout.write(", ".join(f"{outcome}: {count}" for outcome, count in outcomes.items()) or "no task was ready")
        elif settings.DEBUG and not options["noreload"]:
            autoreload.run_with_reloader(self._work, found, queues, concurrency)
        else:
            self._work(found, queues, concurrency)

    def _work(self, backend: IdemqBackend, queues: Any, concurrency: Any) -> None:
        problems = [problem for problem in backend.check(databases=[backend.database]) if isinstance(problem, Error)]
        if problems:
            raise CommandError("\n".join(map(str, problems)))
        # Under the reloader, this is not the main thread, and a signal ends the process at once.
        make_worker(backend, queues, concurrency, signals=threading.current_thread() is threading.main_thread()).run()
