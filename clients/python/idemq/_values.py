"""What is given to PostgreSQL: connections of psycopg 3, JSON of a bounded length, text that it can store."""

from __future__ import annotations

import json
from typing import Any, Optional, Union

from psycopg import AsyncConnection, Connection
from psycopg.types.json import Jsonb

from .errors import MAX_TEXT, text_of

AnyConnection = Union[Connection[Any], AsyncConnection[Any]]
Row = tuple[Any, ...]

MAX_DOCUMENT = 64 << 20
"""Bytes: the most that idemq.max_document can be."""

_HOW_TO_GET_ONE = {
    "psycopg2": "psycopg 2 is not supported: connect with psycopg 3, or call the SQL functions",
    "sqlalchemy": "create_engine('postgresql+psycopg://…'), then connection.connection.driver_connection,"
    " or session.connection().connection.driver_connection",
    "django": "connection.ensure_connection(), then connection.connection, with Django 4.2 or later and psycopg 3",
    "psycopg_pool": "with pool.connection() as conn",
}
"""How to come to psycopg's connection, by the package whose object was given."""


def require_connection(conn: Any, *classes: type[Any]) -> None:
    """Raises for what is no connection of psycopg 3, of these classes."""
    if not isinstance(conn, classes):
        kind = type(conn)
        recipe = _HOW_TO_GET_ONE.get(kind.__module__.partition(".")[0])
        raise TypeError(
            f"expected a psycopg.{' or '.join(each.__name__ for each in classes)} (psycopg 3), not a "
            f"{kind.__module__}.{kind.__qualname__}" + (f": {recipe}" if recipe else "")
        )


def _bounded_json(value: Any) -> str:
    """JSON that is not sent where no server would take it: of 64 MB at most, in which what is no ASCII
    takes a third of what it takes here, or more."""
    text = json.dumps(value)
    if len(text) > 3 * MAX_DOCUMENT:
        raise ValueError(f"JSON of {len(text):,} bytes is longer than any server accepts; pass a reference to it instead")
    return text


def json_text(value: Any) -> Optional[str]:
    """A value as JSON; None is no document."""
    return None if value is None else _bounded_json(value)


class NotEncodable(TypeError, ValueError):
    """An argument that cannot be encoded as JSON."""

    def __init__(self, name: str, error: BaseException) -> None:
        super().__init__(f"{name} cannot be encoded as JSON: {text_of(error)}")


def jsonb_parameter(name: str, value: Any) -> Optional[Jsonb]:
    """A value as a parameter of type jsonb; None is no document.  Raises NotEncodable, with the name, when it is sent."""

    def dumps(document: Any) -> str:
        try:
            return _bounded_json(document)
        except Exception as error:
            raise NotEncodable(name, error) from error

    return None if value is None else Jsonb(value, dumps=dumps)


def storable_text(text: str) -> str:
    """What PostgreSQL's text can hold: no NUL, no half of a surrogate pair."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()[:MAX_TEXT]
