"""Converts typed values to JSON and back, and checks them: the payloads and results of a Queue.

converter(type) reads a type once, and returns a Converter.  Its types are those that JSON can hold without a loss:

    None, bool, int, float, str                 as they are; a float may be an int in JSON
    datetime (with a time zone), date           text of ISO 8601; a datetime is in UTC, so that equal ones have the same text
    UUID, Decimal (finite)                      text
    Enum                                        text: the value if all values of the class are texts, otherwise the name
    Literal, Optional, list[X], dict[str, X]
    dataclasses, TypedDict, pydantic models     objects
    Any                                         any value that JSON can hold

A field of a dataclass whose default is None is left out while it is None.  So a new optional field changes neither the payload
that a repeated call sends (its key would be refused otherwise), nor what an older worker can read.

A payload with an unknown field is refused, because an older worker that ignored a new field could do the wrong thing.  In a result,
an unknown field is ignored.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import math
import re
import sys
import types
import typing
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any, Callable, Mapping, NoReturn, Optional
from uuid import UUID

from .errors import TypeMismatch, said

_SUPPORTED = (
    "a payload or result consists of dataclasses, TypedDicts, pydantic models, str, int, float, bool, None, datetime, date, UUID, "
    "Decimal, Enum, Literal, Optional[X], list[X] and dict[str, X]"
)
_DATETIME = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d)(:\d\d)?(?:\.(\d{1,9}))?(?:Z|([+-]\d\d)(?::?(\d\d))?)", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DECIMAL = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_UNION_TYPES = (typing.Union, getattr(types, "UnionType", typing.Union))  # X | Y has a type of its own since Python 3.10


class Converter:
    """Converts the values of one type."""

    name = ""
    """Name of the type in messages."""

    def encode(self, value: Any) -> Any:
        """A value as what json.dumps accepts.  Raises TypeMismatch."""
        raise NotImplementedError

    def decode(self, value: Any, strict: bool) -> Any:
        """A value from what json.loads returns.  strict: whether unknown fields are refused.  Raises TypeMismatch."""
        raise NotImplementedError

    def refuse(self, value: Any, got: str = "") -> NoReturn:
        raise TypeMismatch(f"expected {self.name}, got {got or type(value).__name__}")


class _Json(Converter):
    """Any value that JSON can hold."""

    name = "a value that JSON can hold"

    def encode(self, value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            self.refuse(value, f"the float {value}")
        if isinstance(value, dict):
            return {_key(key): _inside(key, self.encode, each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [_inside(n, self.encode, each) for n, each in enumerate(value)]
        if value is not None and not isinstance(value, (str, int, float)):
            self.refuse(value)
        return value

    def decode(self, value: Any, strict: bool) -> Any:
        return value


class _Plain(Converter):
    """A type of JSON."""

    def __init__(self, of: type[Any], name: str) -> None:
        self.of, self.name = of, name

    def encode(self, value: Any) -> Any:
        if not isinstance(value, self.of) or (self.of is int and isinstance(value, bool)):
            self.refuse(value)
        if self.of is str:
            return str.__str__(value)
        return int(value) if self.of is int else value

    def decode(self, value: Any, strict: bool) -> Any:
        if type(value) is not self.of:
            self.refuse(value)
        return value


class _Float(Converter):
    name = "float"

    def encode(self, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.refuse(value)
        return self._finite(value)

    def decode(self, value: Any, strict: bool) -> Any:
        if type(value) not in (int, float):
            self.refuse(value)
        return self._finite(value)

    def _finite(self, value: Any) -> float:
        try:
            number = float(value)
        except OverflowError:
            self.refuse(value, "an int that is out of the range of float")
        if not math.isfinite(number):
            self.refuse(value, str(number))
        return number


class _Text(Converter):
    """A type that is text in JSON."""

    def __init__(self, of: type[Any], name: str, dump: Callable[[Any], Optional[str]], load: Callable[[str], Any]) -> None:
        """dump: returns None for a value that is refused.  load: returns None or raises ValueError or ArithmeticError for such a text."""
        self.of, self.name, self._dump, self._load = of, name, dump, load

    def encode(self, value: Any) -> Any:
        if not isinstance(value, self.of) or (self.of is date and isinstance(value, datetime)):
            self.refuse(value)
        try:
            text = self._dump(value)
        except (ValueError, OverflowError):
            text = None
        if text is None:
            self.refuse(value, f"another {type(value).__name__}")
        return text

    def decode(self, value: Any, strict: bool) -> Any:
        if type(value) is not str:
            self.refuse(value)
        try:
            loaded = self._load(value)
        except (ValueError, ArithmeticError):
            loaded = None
        if loaded is None:
            self.refuse(value, "another text")
        return loaded


def _dump_datetime(value: datetime) -> Optional[str]:
    return None if value.utcoffset() is None else value.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def _load_datetime(text: str) -> Optional[datetime]:
    """Python's own function refuses "Z" before Python 3.11."""
    read = _DATETIME.fullmatch(text)
    if read is None:
        return None
    day, minutes, seconds, fraction, zone_hours, zone_minutes = read.groups()
    zone = f"{zone_hours or '+00'}:{zone_minutes or '00'}"
    return datetime.fromisoformat(f"{day}T{minutes}{seconds or ':00'}.{(fraction or '')[:6]:0<6}{zone}")


def _dump_decimal(value: Decimal) -> Optional[str]:
    return str(value) if value.is_finite() else None


_PLAIN: dict[Any, Converter] = {
    Any: _Json(),
    None: _Plain(type(None), "None"),
    type(None): _Plain(type(None), "None"),
    bool: _Plain(bool, "bool"),
    int: _Plain(int, "int"),
    str: _Plain(str, "str"),
    float: _Float(),
    datetime: _Text(datetime, "datetime with a time zone", _dump_datetime, _load_datetime),
    date: _Text(date, "date", date.isoformat, lambda text: date.fromisoformat(text) if _DATE.fullmatch(text) else None),
    UUID: _Text(UUID, "UUID", str, lambda text: UUID(text) if _UUID.fullmatch(text) else None),
    Decimal: _Text(Decimal, "finite Decimal", _dump_decimal, lambda text: Decimal(text) if _DECIMAL.fullmatch(text) else None),
}


class _Member(Converter):
    """A member of an Enum."""

    def __init__(self, of: type[enum.Enum]) -> None:
        by_value = all(isinstance(member.value, str) for member in of)
        self.of, self.name = of, of.__name__
        self._text = {member: str.__str__(member.value) if by_value else member.name for member in of}
        self._member = {text: member for member, text in self._text.items()}

    def encode(self, value: Any) -> Any:
        if not isinstance(value, self.of):
            self.refuse(value)
        return self._text[value]

    def decode(self, value: Any, strict: bool) -> Any:
        if type(value) is not str:
            self.refuse(value)
        if value not in self._member:
            self.refuse(value, "another text")
        return self._member[value]


class _Literal(Converter):
    def __init__(self, values: tuple[Any, ...], of: Callable[[type[Any]], Converter]) -> None:
        self.name = f"one of {', '.join(map(repr, values[:10]))}{', ...' if len(values) > 10 else ''}"
        self._values = values
        self._converters = {type(value): of(type(value)) for value in values}

    def encode(self, value: Any) -> Any:
        if not any(type(value) is type(each) and value == each for each in self._values):
            self.refuse(value, f"another {type(value).__name__}")
        return self._converters[type(value)].encode(value)

    def decode(self, value: Any, strict: bool) -> Any:
        for each in self._values:
            encoded = self._converters[type(each)].encode(each)
            if type(value) is type(encoded) and value == encoded:
                return each
        self.refuse(value, f"another {type(value).__name__}")


class _Optional(Converter):
    def __init__(self, of: Converter) -> None:
        self._of, self.name = of, f"{of.name} or None"

    def encode(self, value: Any) -> Any:
        return None if value is None else self._of.encode(value)

    def decode(self, value: Any, strict: bool) -> Any:
        return None if value is None else self._of.decode(value, strict)


class _List(Converter):
    name = "list"

    def __init__(self, of: Converter) -> None:
        self._of = of

    def encode(self, value: Any) -> Any:
        if not isinstance(value, list):
            self.refuse(value)
        return [_inside(n, self._of.encode, each) for n, each in enumerate(value)]

    def decode(self, value: Any, strict: bool) -> Any:
        if not isinstance(value, list):
            self.refuse(value)
        return [_inside(n, self._of.decode, each, strict) for n, each in enumerate(value)]


class _Dict(Converter):
    name = "dict"

    def __init__(self, of: Converter) -> None:
        self._of = of

    def encode(self, value: Any) -> Any:
        if not isinstance(value, dict):
            self.refuse(value)
        return {_key(key): _inside(key, self._of.encode, each) for key, each in value.items()}

    def decode(self, value: Any, strict: bool) -> Any:
        if not isinstance(value, dict):
            self.refuse(value)
        return {key: _inside(key, self._of.decode, each, strict) for key, each in value.items()}


class _Object(Converter):
    """A class with fields.  Its fields are set after it exists, because they may contain the class."""

    def __init__(self, of: type[Any]) -> None:
        self.of, self.name = of, of.__name__
        self._fields: dict[str, Converter] = {}
        self._required: set[str] = set()

    def set_fields(self, fields: dict[str, Converter], required: set[str]) -> None:
        self._fields, self._required = fields, required

    def _decode_fields(self, value: Any, strict: bool) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.refuse(value)
        self._check_names(value, strict)
        return {name: _inside(name, field.decode, value[name], strict) for name, field in self._fields.items() if name in value}

    def _check_names(self, value: Mapping[Any, Any], strict: bool) -> None:
        for name in self._fields:
            if name in self._required and name not in value:
                raise TypeMismatch(f"{self.name} requires this field", f".{name}")
        for name in value if strict else ():
            if name not in self._fields:
                raise TypeMismatch(f"{self.name} does not have this field", _step(name))


class _Dataclass(_Object):
    def __init__(self, of: type[Any]) -> None:
        super().__init__(of)
        self._stored = [field for field in dataclasses.fields(of) if field.init]

    def encode(self, value: Any) -> Any:
        if type(value) is not self.of:  # a subclass may have fields that would be lost
            self.refuse(value)
        encoded = {}
        for field in self._stored:
            each = getattr(value, field.name)
            if each is not None or field.default is not None:
                encoded[field.name] = _inside(field.name, self._fields[field.name].encode, each)
        return encoded

    def decode(self, value: Any, strict: bool) -> Any:
        fields = self._decode_fields(value, strict)
        try:
            return self.of(**fields)
        except Exception as error:  # __post_init__ may check the fields
            raise TypeMismatch(f"{self.name} raised {type(error).__name__}: {said(error)}") from error


class _TypedDict(_Object):
    def encode(self, value: Any) -> Any:
        if not isinstance(value, dict):
            self.refuse(value)
        self._check_names(value, True)
        return {name: _inside(name, field.encode, value[name]) for name, field in self._fields.items() if name in value}

    def decode(self, value: Any, strict: bool) -> Any:
        return self._decode_fields(value, strict)


class _Model(Converter):
    """A pydantic model, which decides itself what it accepts."""

    def __init__(self, of: Any) -> None:
        self.of, self.name = of, of.__name__

    def encode(self, value: Any) -> Any:
        if type(value) is not self.of:
            self.refuse(value)
        return _PLAIN[Any].encode(value.model_dump(mode="json", by_alias=True, round_trip=True))

    def decode(self, value: Any, strict: bool) -> Any:
        try:
            return self.of.model_validate_json(json.dumps(value))
        except ValueError as error:
            # The error of pydantic contains the value, which may be personal.
            for each in getattr(error, "errors", list)():
                raise TypeMismatch(each["msg"], "".join(map(_step, each["loc"]))) from None
            raise


def _step(name: Any) -> str:
    """The part of a path that leads to a member or an element."""
    if isinstance(name, int):
        return f"[{name}]"
    return f".{name}" if isinstance(name, str) and name.isidentifier() else f"[{str(name)[:100]!r}]"


def _inside(name: Any, convert: Callable[..., Any], *args: Any) -> Any:
    """Converts a member or an element.  An error says where it is."""
    try:
        return convert(*args)
    except TypeMismatch as error:
        error.path = _step(name) + error.path
        raise


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeMismatch(f"expected str as a key, got {type(key).__name__}")
    return str.__str__(key)


class _Reader:
    """Makes the converter of a type and those of its parts.  A class that contains itself has one converter."""

    def __init__(self) -> None:
        self._made: dict[Any, _Object] = {}

    def converter(self, of: Any, path: str) -> Converter:
        of = _stripped(of)
        origin, args = typing.get_origin(of), typing.get_args(of)
        try:
            plain = _PLAIN.get(of) if origin is None else None
        except TypeError:  # it cannot be hashed
            raise TypeError(f"{path}: {_name(of)} is not supported; {_SUPPORTED}") from None
        if plain is not None:
            return plain
        if origin in _UNION_TYPES:
            others = [each for each in args if each is not type(None)]
            if len(others) == 1 and len(args) == 2:
                return _Optional(self.converter(others[0], path))
            raise TypeError(f"{path}: a union of several types is not supported; {_SUPPORTED}")
        if getattr(origin, "_name", None) == "Literal":
            return _Literal(args, lambda each: self.converter(each, path))
        if origin is list and len(args) == 1:
            return _List(self.converter(args[0], f"{path}[]"))
        if origin is dict and len(args) == 2:
            if _stripped(args[0]) is not str:
                raise TypeError(f"{path}: the keys of a dict must be str, not {_name(args[0])}; {_SUPPORTED}")
            return _Dict(self.converter(args[1], f"{path}[]"))
        if isinstance(of, type) and origin is None:
            made = self._class(of, path)
            if made is not None:
                return made
        raise TypeError(f"{path}: {_name(of)} is not supported; {_SUPPORTED}")

    def _class(self, of: type[Any], path: str) -> Optional[Converter]:
        if of in self._made:
            return self._made[of]
        if issubclass(of, enum.Enum):
            return None if issubclass(of, enum.Flag) else _Member(of)
        if _is_model(of):
            return _Model(of)
        if issubclass(of, dict) and hasattr(of, "__required_keys__"):
            self._made[of] = _TypedDict(of)
            hints = _hints(of, path)
            self._set_fields(of, hints, {name for name in hints if _is_required(of, name, hints[name])}, path)
        elif dataclasses.is_dataclass(of):
            self._made[of] = _Dataclass(of)
            hints, required = _hints(of, path), set()
            stored = [field for field in dataclasses.fields(of) if field.init]
            for field in stored:
                if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                    required.add(field.name)
            _check_init(of, {field.name for field in stored}, path)
            self._set_fields(of, {field.name: hints[field.name] for field in stored}, required, path)
        return self._made.get(of)

    def _set_fields(self, of: type[Any], hints: dict[str, Any], required: set[str], path: str) -> None:
        fields = {name: self.converter(hint, f"{path}.{name}") for name, hint in hints.items()}
        self._made[of].set_fields(fields, required)


def _name(of: Any) -> str:
    return of.__qualname__ if isinstance(of, type) and typing.get_origin(of) is None else str(of)


def _stripped(of: Any) -> Any:
    """A type without what says nothing about its values: Annotated, NewType, an alias, Required, Final."""
    while True:
        origin = typing.get_origin(of)
        if hasattr(of, "__metadata__"):
            of = of.__origin__
        elif hasattr(of, "__supertype__"):
            of = of.__supertype__
        elif type(of).__name__ == "TypeAliasType":
            of = of.__value__
        elif _is_named(origin, "Required", "NotRequired", "ReadOnly", "Final"):
            of = typing.get_args(of)[0]
        else:
            return of


def _is_named(origin: Any, *names: str) -> bool:
    """Whether it is one of these names of typing or typing_extensions, not all of which exist in Python 3.9."""
    return getattr(origin, "_name", None) in names and type(origin).__module__ in ("typing", "typing_extensions")


def _is_required(of: Any, name: str, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    return _is_named(origin, "Required") or (name in of.__required_keys__ and not _is_named(origin, "NotRequired"))


def _is_model(of: type[Any]) -> bool:
    pydantic: Any = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(of, pydantic.BaseModel) and hasattr(of, "model_validate_json")


def _hints(of: type[Any], path: str) -> dict[str, Any]:
    """The types of a class's fields.  Raises TypeError if one cannot be evaluated."""
    hints = _evaluated(of)
    if hints is not None:
        return hints
    for base in reversed(of.__mro__):
        for name, hint in vars(base).get("__annotations__", {}).items():
            try:
                holder = types.SimpleNamespace(__annotations__={name: hint})
                typing.get_type_hints(holder, vars(sys.modules[base.__module__]), {of.__name__: of})
            except Exception as error:
                raise TypeError(f"{path}.{name}: its type {hint!r} cannot be evaluated: {type(error).__name__}: {error}") from error
    raise TypeError(f"{path}: the types of the fields of {of.__name__} cannot be evaluated")


def _evaluated(of: type[Any]) -> Optional[dict[str, Any]]:
    for names in (None, {of.__name__: of}):  # a class in a function may contain itself
        try:
            return typing.get_type_hints(of, None, names, include_extras=True)
        except Exception:
            pass
    return None


def _check_init(of: type[Any], stored: set[str], path: str) -> None:
    """Raises TypeError if an instance cannot be made from its stored fields."""
    for name, parameter in inspect.signature(of).parameters.items():
        if name not in stored and parameter.default is parameter.empty and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"{path}.{name}: {of.__name__} requires this argument, which is not a field, so it cannot be stored")


def converter(of: Any, path: str) -> Converter:
    """The converter of a type.  path: name of its values.  Raises TypeError, with the path of the field, for a type that is not supported."""
    try:
        return _Reader().converter(of, path)
    except RecursionError:
        raise TypeError(f"{path}: the alias {_name(of)} contains itself; {_SUPPORTED}") from None
