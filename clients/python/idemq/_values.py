"""Values for PostgreSQL: connections of psycopg 3, JSON of limited length, and text that PostgreSQL can store."""

from __future__ import annotations

import json
from typing import Any, Callable, NamedTuple, Optional, Union

from psycopg import AsyncConnection, Connection
from psycopg.types.json import Jsonb, JsonbLoader

from .errors import MAX_TEXT, text_of

AnyConnection = Union[Connection[Any], AsyncConnection[Any]]
Row = tuple[Any, ...]

MAX_DOCUMENT = 64 << 20
"""Bytes: the maximum of idemq.max_document."""

_HOW_TO_GET_ONE = {
    "psycopg2": "psycopg 2 is not supported: connect with psycopg 3, or execute what enqueue_statement(…, style='%s') returns",
    "asyncpg": "connect with psycopg 3, or await conn.fetchrow(sql, *params) with what enqueue_statement(…) returns",
    "sqlalchemy": "create_engine('postgresql+psycopg://…'), then connection.connection.driver_connection,"
    " or session.connection().connection.driver_connection",
    "django": "connection.ensure_connection(), then connection.connection, with Django 4.2 or later and psycopg 3",
    "psycopg_pool": "with pool.connection() as conn",
}
"""How to get the psycopg connection, by the package of the object that was given."""


def require_connection(conn: Any, *classes: type[Any]) -> None:
    """Raises TypeError unless conn is a psycopg 3 connection of one of these classes."""
    if not isinstance(conn, classes):
        kind = type(conn)
        recipe = _HOW_TO_GET_ONE.get(kind.__module__.partition(".")[0])
        raise TypeError(
            f"expected a psycopg.{' or '.join(each.__name__ for each in classes)} (psycopg 3), not a "
            f"{kind.__module__}.{kind.__qualname__}" + (f": {recipe}" if recipe else "")
        )


def own_copy(value: Any) -> Any:
    """A copy of a value that was decoded from JSON.  A handler may change it without changing what the handler gets when it runs again."""
    try:
        return _copied(value)
    except RecursionError:
        return value


def _copied(value: Any) -> Any:
    if type(value) is dict:
        return {key: _copied(each) if type(each) in (dict, list) else each for key, each in value.items()}
    if type(value) is list:
        return [_copied(each) if type(each) in (dict, list) else each for each in value]
    return value


class EncodedLater(NamedTuple):
    """A result that is converted when it is encoded.  Then an error is treated as one of the JSON encoder."""

    value: Any
    encode: Callable[[Any], Any]


def _bounded_json(value: Any) -> str:
    """Encodes JSON, and refuses a text that no server would accept.  The limit is 64 MB, and characters outside
    ASCII take at least a third of the space there that they take here."""
    text = json.dumps(value)
    if len(text) > 3 * MAX_DOCUMENT:
        raise ValueError(f"JSON of {len(text):,} bytes is longer than any server accepts; pass a reference to it instead")
    return text


def json_text(value: Any) -> Optional[str]:
    """A value as JSON text, or None for None."""
    if isinstance(value, EncodedLater):
        value = value.encode(value.value)
    return None if value is None else _bounded_json(value)


class NotEncodable(TypeError, ValueError):
    """An argument that cannot be encoded as JSON."""

    def __init__(self, name: str, error: BaseException) -> None:
        super().__init__(f"{name} cannot be encoded as JSON: {text_of(error)}")


def jsonb_parameter(name: str, value: Any) -> Optional[Jsonb]:
    """A value as a parameter of type jsonb, or None for None.  Raises NotEncodable, which contains the name, when it is sent."""

    def dumps(document: Any) -> str:
        try:
            return _bounded_json(document)
        except Exception as error:
            raise NotEncodable(name, error) from error

    return None if value is None else Jsonb(value, dumps=dumps)


def json_loads() -> Callable[[str], Any]:
    """The function that decodes JSON, as set with psycopg's set_json_loads."""
    own: Callable[[Any], Any] = getattr(JsonbLoader(0, None), "loads", json.loads)
    return own


def storable_text(text: str) -> str:
    """Text that PostgreSQL can store: without NUL, and without half of a surrogate pair."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()[:MAX_TEXT]
