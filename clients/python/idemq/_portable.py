"""enqueue_statement: enqueue as SQL and parameters, for drivers, ORMs and query builders other than psycopg.

Every parameter is text or None, and the SQL casts it, because drivers disagree about all other types: one sends a dict as JSON and
another as hstore, one requires a timedelta for an interval and another a text.  The SQL contains no "::", because SQLAlchemy and others
would read ":" as the start of a parameter's name.
"""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from typing import Any, Callable, Optional, Sequence

import psycopg
from psycopg.adapt import PyFormat
from psycopg.types.json import Jsonb

from ._arguments import delay_text, text_argument, time_text
from ._producer import enqueue
from ._values import NotEncodable
from .errors import Delay, Key

_STYLES: dict[str, Callable[[int, str], str]] = {
    "$1": lambda number, name: f"${number}",
    "%s": lambda number, name: "%s",
    "%(name)s": lambda number, name: f"%({name})s",
    ":name": lambda number, name: f":{name}",
    "?": lambda number, name: "?",
}
"""For each style, how it writes a parameter."""

_PARAMETER = re.compile(r"%\((\w+)\)s::([a-z]+(?:\[\])?)")
_COLUMNS = "SELECT id, CAST(outcome AS text) AS outcome, CAST(status AS text) AS status, CAST(result AS text) AS result"


def _text(name: str, value: Any) -> Optional[str]:
    """The value of a parameter as text that PostgreSQL reads as the same value with any settings."""
    if value is None:
        return None
    if isinstance(value, Jsonb):
        return _json(name, value)
    if isinstance(value, timedelta):
        return delay_text(name, value)
    if isinstance(value, date):
        return time_text(name, value)
    if isinstance(value, list):
        return "{" + ",".join(map(str, value)) + "}"
    text = str(value)
    # Some drivers would end the text there, or leave the character out.
    if "\0" in text:
        raise ValueError(f"{name} contains a NUL character, which PostgreSQL cannot store")
    return text


def _json(name: str, value: Jsonb) -> str:
    """JSON as text, by the encoder that psycopg.types.json.set_json_dumps() has set for all connections, as in enqueue."""
    try:
        encoded = psycopg.adapters.get_dumper(Jsonb, PyFormat.TEXT)(Jsonb).dump(value)
    except NotEncodable:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise NotEncodable(name, error) from error
    return bytes(encoded or b"").decode()


def enqueue_statement(
    queue: str,
    payload: Any,
    *,
    style: str = "$1",
    key: Optional[Key] = None,
    delay: Optional[Delay] = None,
    run_at: Optional[datetime] = None,
    priority: int = 4,
    group_key: Optional[str] = None,
    max_attempts: Optional[int] = None,
    headers: Optional[dict[str, Any]] = None,
    expires_in: Optional[Delay] = None,
    key_ttl: Optional[Delay] = None,
    on_duplicate: str = "keep",
    nowait: bool = False,
    kind: Optional[str] = None,
    max_wait: Optional[Delay] = None,
    depends_on: Optional[Sequence[int]] = None,
    on_parent_failure: str = "cancel",
) -> tuple[str, Any]:
    """Return enqueue as SQL and parameters, to be executed with any driver, ORM or query builder.

    The statement returns one row: id, outcome, status, and result as JSON text, or None.

    style: how the SQL writes its parameters: "$1" (asyncpg), "%s" or "%(name)s" (Django and other drivers of Python), ":name" (SQLAlchemy's
        text()) or "?".  With "%(name)s" and ":name", the parameters are a dict, otherwise a list.
    The other arguments are those of enqueue.
    """
    arguments = locals()
    del arguments["style"]
    if text_argument("style", style) not in _STYLES:
        raise ValueError(f"style must be one of {', '.join(_STYLES)}, not {style!r}")
    # enqueue itself, without its connection.
    statement = getattr(enqueue, "__wrapped__")(**arguments)
    values = {name: _text(name, value) for name, value in statement.values.items()}
    order: list[str] = []

    def parameter(match: re.Match[str]) -> str:
        name, type = match.groups()
        order.append(name)
        text = f"CAST({_STYLES[style](len(order), name)} AS text)"
        return text if type == "text" else f"CAST({text} AS {type})"

    call = " ".join(statement.sql[statement.sql.index("FROM") :].split())
    sql = f"{_COLUMNS} {_PARAMETER.sub(parameter, call)}"
    return sql, {name: values[name] for name in order} if "name" in style else [values[name] for name in order]
