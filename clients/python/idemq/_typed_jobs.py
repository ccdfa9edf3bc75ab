"""How a worker decodes the payloads of its jobs, and encodes their results, if they have types (Queue)."""

from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple, Optional, Union

from ._job import BaseJob
from ._payload_types import Converter
from .errors import TypeMismatch


class QueueTypes(NamedTuple):
    """The types of a queue or of a kind.  None means that the values are not checked."""

    payload: Optional[Converter]
    result: Optional[Converter]
    has_result: bool
    """Whether there are results.  If not, those that another handler has stored are ignored."""

    def decode_payload(self, value: Any) -> Any:
        return value if self.payload is None else _named("payload", self.payload.decode, value, True)

    def encode_payload(self, value: Any, name: str = "payload") -> Any:
        return value if self.payload is None else _named(name, self.payload.encode, value)

    def decode_result(self, value: Any) -> Any:
        if value is None or not self.has_result:
            return None
        return value if self.result is None else _named("result", self.result.decode, value, False)

    def encode_result(self, value: Any) -> Any:
        return value if self.result is None else _named("result", self.result.encode, value)


def _named(name: str, convert: Callable[..., Any], *args: Any) -> Any:
    try:
        return convert(*args)
    except TypeMismatch as error:
        error.path = name + error.path
        raise
    except RecursionError:
        raise TypeMismatch("it contains itself, or is nested too deeply", name) from None


JobTypes = Union[QueueTypes, Mapping[Optional[str], QueueTypes]]
"""The types of a queue's jobs, or a dict of them by kind."""


def decode_payload(types: Optional[JobTypes], job: BaseJob) -> Optional[Callable[[Any], Any]]:
    """Decodes the payload of a job before its handler is called, possibly again.  Returns the function that encodes its result, or None."""
    if types is None:
        return None
    own = types if isinstance(types, QueueTypes) else types.get(job.kind)
    if own is None:
        return None  # there is no handler for this kind
    job.payload = own.decode_payload(job.stored_payload)
    return own.encode_result
