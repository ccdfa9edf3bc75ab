"""Documents that the application encodes, for example encrypts, before they are stored.

An encoded document is stored as {"idemq_codec": NAME, "key": KEY, "data": BASE64}, which the Node client reads, too.  A codec must encode equal
documents to equal bytes with the same key, because the server compares documents: the payload of a duplicate and the request of a step.

After a rotation, an equal payload is stored with an older key.  So if a codec has several keys, a duplicate is added with
on_duplicate => 'ignore', which never raises, and then compared with the key of its stored payload.  A role that may not see the job tries each key.
"""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from json import encoder
from typing import Any, Callable, Mapping, NamedTuple, Optional, Protocol, Sequence

import psycopg
from psycopg.adapt import PyFormat
from psycopg.types.json import Jsonb

from ._statements import InTransaction, Plan, Savepoint, Statement
from ._values import MAX_DOCUMENT, EncodedLater, NotEncodable, json_loads
from .errors import KeyReused, text_of

_quoted: Callable[[str], str] = getattr(encoder, "encode_basestring")
"""Writes a string as JSON, with the escapes that JSON requires and no others."""
_MEMBERS = {"idemq_codec", "key", "data"}
_KEYS_OF = "SELECT id, payload->>'key' FROM idemq.jobs WHERE id = ANY(%(ids)s::bigint[]) AND payload ? 'idemq_codec' AND payload->>'key' IS NOT NULL"


class Codec(Protocol):
    """Encodes the documents of jobs, for example encrypts them."""

    @property
    def name(self) -> str:
        """Name of the encoding, such as "aes-gcm".  It is stored with each document."""
        ...

    @property
    def keys(self) -> Sequence[str]:
        """Names of the keys, the current one first.  The others decode what was encoded before a rotation."""
        ...

    def encode(self, data: bytes, key: str) -> bytes:
        """Encode a document with the key of this name.  Equal documents must become equal bytes."""
        ...

    def decode(self, data: bytes, key: str) -> bytes:
        """Decode what encode has returned.  Raise an exception if it was changed."""
        ...


def checked_codec(codec: Any) -> Optional[Codec]:
    """The codec, or None.  Raises TypeError for an object that is none."""
    if codec is None:
        return None
    if not (isinstance(getattr(codec, "name", None), str) and callable(getattr(codec, "encode", None)) and callable(getattr(codec, "decode", None))):
        raise TypeError(f"codec must have a name, keys, encode and decode, but {type(codec).__name__} does not")
    _keys(codec)
    return codec  # type: ignore[no-any-return]


def _keys(codec: Codec) -> list[str]:
    keys = getattr(codec, "keys", None)
    names = [] if isinstance(keys, (str, bytes)) or keys is None else list(keys)
    if not names or not all(isinstance(name, str) for name in names):
        raise TypeError("keys of a codec must be the names of its keys, the current one first")
    return names


MOST_DIGITS = 20_000
"""More than a number in PostgreSQL can have after its point."""


class _Number(str):
    """A number of a JSON text, with all its digits."""


def _number(text: str) -> str:
    """A number as the Node client writes it: without a negative exponent, because the languages use one from different numbers on.

    A whole number that is a float, such as 1.0, must remain one.  Node, which has no such difference, writes it as 1."""
    if "e-" not in text.lower():
        return text
    number = Decimal(text)
    return f"{number:f}" if 0 < abs(number) and number.adjusted() > -MOST_DIGITS else text


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not valid JSON")


def _canonical(value: Any) -> str:
    """The JSON text of a value, with sorted members and without spaces, as the Node client writes it."""
    if isinstance(value, _Number):
        return _number(value)
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, dict):
        return "{%s}" % ",".join(f"{_quoted(name)}:{_canonical(value[name])}" for name in sorted(value))
    if isinstance(value, list):
        return "[%s]" % ",".join(map(_canonical, value))
    return {None: "null", True: "true", False: "false"}[value]


def plain_bytes(what: str, value: Any) -> bytes:
    """A document as bytes, which are equal for equal documents.  Uses the encoder set with psycopg's set_json_dumps."""
    try:
        text = bytes(psycopg.adapters.get_dumper(Jsonb, PyFormat.TEXT)(Jsonb).dump(Jsonb(value)) or b"null").decode()
        return _canonical(json.loads(text, parse_float=_Number, parse_int=_Number, parse_constant=_refuse)).encode()
    except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise NotEncodable(what, error) from error


def _called(function: Callable[[bytes, str], bytes], name: str, data: bytes, key: str) -> bytes:
    """What encode or decode returns.  SystemExit would end the worker, because steps are encoded in its event loop."""
    try:
        answer = function(data, key)
    except SystemExit as error:
        raise RuntimeError(f"{name} of a codec raised {text_of(error)}") from error
    if not isinstance(answer, (bytes, bytearray, memoryview)):
        raise TypeError(f"{name} of a codec must return bytes, not {type(answer).__name__}")
    return bytes(answer)


def encoded_text(codec: Codec, data: bytes, key: str) -> str:
    """The JSON text of an encoded document."""
    encoded = _called(codec.encode, "encode", data, key)
    text = json.dumps({"idemq_codec": codec.name, "key": key, "data": base64.b64encode(encoded).decode()})
    if len(text) > MAX_DOCUMENT:
        raise ValueError(f"an encoded document of {len(text):,} bytes is longer than any server accepts; pass a reference to it instead")
    return text


def jsonb_of(text: str) -> Jsonb:
    """A parameter of type jsonb from JSON text."""
    return Jsonb(text, dumps=str)


def encoded(codec: Optional[Codec], what: str, value: Any) -> Jsonb:
    """A document as a parameter of type jsonb, encoded if there is a codec."""
    if codec is None:
        return Jsonb(value)
    return jsonb_of(encoded_text(codec, plain_bytes(what, value), _keys(codec)[0]))


def encoded_json(codec: Codec, what: str, value: Any) -> Optional[str]:
    """A document as JSON text, or None for None."""
    if isinstance(value, EncodedLater):
        value = value.encode(value.value)
    return None if value is None else encoded_text(codec, plain_bytes(what, value), _keys(codec)[0])


def encoded_with_each_key(codec: Codec, what: str, value: Any) -> list[Jsonb]:
    """A document, encoded with the current key and with each of the others."""
    data = plain_bytes(what, value)
    return [jsonb_of(encoded_text(codec, data, key)) for key in _keys(codec)]


def decoded(codec: Optional[Codec], value: Any) -> Any:
    """A stored document.  One that is not encoded is returned as it is, except that encoded ones inside it are decoded, because a dead-letter
    record contains the documents of its job."""
    if codec is None:
        return value
    if isinstance(value, dict):
        if value.keys() == _MEMBERS and all(isinstance(each, str) for each in value.values()):
            return _decoded(codec, value)
        return {name: decoded(codec, each) for name, each in value.items()}
    return [decoded(codec, each) for each in value] if isinstance(value, list) else value


def _decoded(codec: Codec, stored: Mapping[str, str]) -> Any:
    name, key = stored["idemq_codec"], stored["key"]
    if name != codec.name or key not in _keys(codec):
        raise RuntimeError(f"a document is encoded with key {key} of codec {name}, but this program has only {', '.join(_keys(codec))} of codec {codec.name}")
    try:
        data = _called(codec.decode, "decode", base64.b64decode(stored["data"], validate=True), key)
    except Exception as error:  # codecs raise errors of any class, often without a text
        raise RuntimeError(f"a document that is encoded with key {key} cannot be decoded: {text_of(error)}") from error
    try:
        return json_loads()(data.decode())
    except Exception as error:
        kind = type(error).__name__
    # Without the error, which contains the document.
    raise RuntimeError(f"a document that is encoded with key {key} cannot be decoded: the codec's decode returned data that cannot be read as JSON ({kind})")


# Duplicates.


class Duplicates(NamedTuple):
    """How to add documents, and to compare those that are duplicates."""

    documents: Sequence[bytes]
    compared: Sequence[bool]
    """Whether the server compares the payload of a duplicate: the job has a key, and on_duplicate is "keep"."""
    add: Callable[[Sequence[Jsonb], bool], Statement[list[Any]]]
    """Adds all.  Its second argument is whether to ignore the payloads of duplicates instead of comparing them."""
    compare: Callable[[Sequence[int], Sequence[Jsonb]], Statement[list[Any]]]
    """Compares those with these numbers, encoded anew."""


def add_documents(codec: Codec, jobs: Duplicates) -> Plan[Any]:
    """Adds jobs, all or none.  Returns the results."""
    keys = _keys(codec)
    documents = [jsonb_of(encoded_text(codec, data, keys[0])) for data in jobs.documents]
    if len(keys) == 1 or not any(jobs.compared):
        return (yield jobs.add(documents, False))
    if len(documents) == 1:
        return (yield from _add_and_compare(codec, keys, documents, jobs))
    if not (yield InTransaction()):
        # Usually, none is a duplicate that is encoded with another key.
        try:
            return (yield jobs.add(documents, False))
        except KeyReused:
            pass
    return (yield Savepoint(_add_and_compare(codec, keys, documents, jobs)))


def _add_and_compare(codec: Codec, keys: Sequence[str], documents: Sequence[Jsonb], jobs: Duplicates) -> Plan[Any]:
    results = list((yield jobs.add(documents, True)))
    ids = {n: each.id for n, each in enumerate(results) if each.outcome == "duplicate" and jobs.compared[n]}
    if ids:
        rows = yield Statement(_KEYS_OF, {"ids": list(ids.values())}, lambda rows: rows)
        stored = dict(rows)
        for id, key in stored.items():
            if key not in keys:
                raise RuntimeError(f"the payload of job {id}, which has the same idempotency key, is encoded with key {key}, but this program has only {', '.join(keys)}")
        known = {n: stored.get(id) for n, id in ids.items()}
        again = yield from _compare(codec, keys, known, jobs)
        for n, result in zip(ids, again):
            results[n] = result
    return results


def _compare(codec: Codec, keys: Sequence[str], known: Mapping[int, Optional[str]], jobs: Duplicates) -> Plan[Any]:
    """Compares duplicates.  known: the keys of their stored payloads, or None where they may not be seen."""

    def compare(key: str) -> Statement[list[Any]]:
        return jobs.compare(list(known), [jsonb_of(encoded_text(codec, jobs.documents[n], own or key)) for n, own in known.items()])

    if all(known.values()):
        return (yield compare(keys[0]))
    for key in keys[: 1 if len(known) > 1 else -1]:
        try:
            return (yield Savepoint(_only(compare(key))))
        except KeyReused:
            pass
    if len(known) == 1:
        return (yield compare(keys[-1]))
    results: list[Any] = []
    for n, own in known.items():
        results += yield from _compare(codec, keys, {n: own}, jobs)
    return results


def _only(this: Statement[Any]) -> Plan[Any]:
    return (yield this)
