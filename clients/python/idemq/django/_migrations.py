"""A queue as an operation of a migration, and the command's way to the same."""

import json
from typing import Any

from django.db.migrations.operations.base import Operation

from .. import Ensured, ensure_queue


def declare_queue(connection: Any, name: str, settings: dict[str, Any]) -> Ensured:
    """Creates a queue, or changes the settings that are named, in Django's transaction."""
    connection.ensure_connection()
    with connection.wrap_database_errors:
        outcome, changes = ensure_queue(connection.connection, name, **settings)
    # Django's connections do not decode JSON.
    return Ensured(outcome, json.loads(changes) if isinstance(changes, str) else changes)


class IdemqQueue(Operation):
    """Declare a queue in a migration, with the settings of ensure_queue.  The reverse does nothing, because a queue may have jobs."""

    reduces_to_sql = False
    reversible = True

    def __init__(self, name: str, **settings: Any) -> None:
        self.name = name
        self.settings = settings

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        return self.__class__.__name__, [self.name], self.settings

    def state_forwards(self, app_label: str, state: Any) -> None:
        """A queue belongs to no model."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if schema_editor.connection.vendor == "postgresql":
            declare_queue(schema_editor.connection, self.name, self.settings)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """The queue remains."""

    def describe(self) -> str:
        return f"Declares the queue {self.name} of idemq"
