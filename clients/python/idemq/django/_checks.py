"""The checks of a backend.  Those that need the database run where Django says which one: manage.py check --database ALIAS, and the worker."""

from typing import Any, Iterable, Optional

from django.core.checks import CheckMessage, Error
from django.db import connections
from django.db.migrations.executor import MigrationExecutor

OLDEST = (1, 0, 0)
"""The oldest version of the extension with which this package works."""
_EXTENSION = "SELECT extversion FROM pg_catalog.pg_extension WHERE extname = 'idemq'"
_EXECUTE = """SELECT has_schema_privilege('idemq', 'USAGE') AND
    (SELECT bool_and(has_function_privilege(oid, 'EXECUTE')) FROM pg_catalog.pg_proc WHERE pronamespace = to_regnamespace('idemq') AND proname IN ('enqueue', 'claim'))"""


def check_backend(backend: Any, databases: Optional[Iterable[str]]) -> list[CheckMessage]:
    """What is wrong with a backend.  databases: aliases of the databases that may be used; None means none."""
    alias = backend.database
    where = f'TASKS["{backend.alias}"]'
    if alias not in connections:
        return [Error(f"{where}: there is no database {alias!r}.", hint="Name one of DATABASES in OPTIONS['database'].", id="idemq.E001")]
    connection = connections[alias]
    if connection.vendor != "postgresql" or not hasattr(connection.Database, "AsyncConnection"):
        hint = "Use the engine django.db.backends.postgresql and install psycopg 3 (pip install 'idemq[django]')."
        return [Error(f"{where}: database {alias!r} is not PostgreSQL through psycopg 3.", hint=hint, id="idemq.E001")]
    found = [Error(f"{where}: {text}", hint=hint, id="idemq.E005") for text, hint in _wrong_settings(backend, connection)]
    # Before migrate, the extension and the queues may still be missing, because a migration creates them.
    if databases is None or alias not in databases or found or _has_migrations_to_apply(connection):
        return found
    return _check_database(backend, connection, where)


def _wrong_settings(backend: Any, connection: Any) -> Iterable[tuple[str, str]]:
    settings, options = connection.settings_dict, connection.settings_dict["OPTIONS"]
    name = f"DATABASES[{connection.alias!r}]"
    if not settings["AUTOCOMMIT"]:
        yield f"{name} has AUTOCOMMIT off, so a task that is enqueued outside of atomic() is never committed.", "Remove AUTOCOMMIT."
    level = options.get("isolation_level")
    if level is not None and getattr(level, "name", level) not in ("READ_COMMITTED", 2):
        yield f"{name} has an isolation_level, which the transaction of a task does not have.", "Remove isolation_level, or use another database alias for tasks."
    pool = options.get("pool")
    if pool and settings["CONN_MAX_AGE"] != 0:
        yield f"{name} has a pool and CONN_MAX_AGE, which Django refuses.", "Set CONN_MAX_AGE to 0."
    most = (pool.get("max_size") or pool.get("min_size", 4)) if isinstance(pool, dict) else 4
    threads = backend.options.get("concurrency", 1) * len(backend.queues)
    if pool and most < threads:
        yield f"the pool of {name} has {most} connections, but {threads} tasks can run at once.", f"Set max_size of the pool to at least {threads}."


def _has_migrations_to_apply(connection: Any) -> bool:
    executor = MigrationExecutor(connection)
    return bool(executor.migration_plan(executor.loader.graph.leaf_nodes()))


def _check_database(backend: Any, connection: Any, where: str) -> list[CheckMessage]:
    with connection.cursor() as cursor:
        cursor.execute(_EXTENSION)
        row = cursor.fetchone()
        if row is None or tuple(int(part) for part in row[0].split(".")) < OLDEST:
            has = "does not have the extension idemq" if row is None else f"has idemq {row[0]}, which is too old"
            hint = "Run CREATE EXTENSION idemq in it." if row is None else "Install the new version, and run ALTER EXTENSION idemq UPDATE."
            return [Error(f"{where}: database {connection.alias!r} {has}.", hint=hint, id="idemq.E002")]
        cursor.execute(_EXECUTE)
        if not cursor.fetchone()[0]:
            hint = "GRANT USAGE ON SCHEMA idemq, and EXECUTE on its functions, to the role of DATABASES."
            return [Error(f"{where}: the role may not call idemq.enqueue and idemq.claim.", hint=hint, id="idemq.E004")]
        cursor.execute("SELECT name FROM idemq.queues")
        queues = {name for (name,) in cursor.fetchall()}
    return [
        Error(f"{where}: there is no queue {name!r}, or the role has no privilege on it.", hint="Run manage.py idemq_queues, or migrate with IdemqQueue.", id="idemq.E003")
        for name in sorted(backend.queues - queues)
    ]
