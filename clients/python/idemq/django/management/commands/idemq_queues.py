"""manage.py idemq_queues: declares the queues of the settings."""

from typing import Any

from django.core.management.base import BaseCommand
from django.db import connections

from ..._backend import IdemqBackend
from ..._migrations import declare_queue
from ..._tasks import task_backends


class Command(BaseCommand):
    help = "Creates the queues of TASKS that are missing, and changes the settings that OPTIONS['queues'] names."

    def handle(self, **options: Any) -> None:
        for backend in task_backends.all():
            if isinstance(backend, IdemqBackend):
                for name in sorted(backend.queues):
                    declared = declare_queue(connections[backend.database], name, backend.options.get("queues", {}).get(name, {}))
                    self.stdout.write(f"{name}: {declared.outcome}")
