"""What a worker was made with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Union

from ._hooks import Hooks
from ._links import Address
from .errors import Delay


@dataclass(frozen=True)
class Options:
    """What a worker was made with."""

    dsn: Union[str, Address]
    queue: str
    name: Optional[str]
    wait_dsn: Optional[str]
    concurrency: int
    batch: int
    lease: Optional[Delay]
    timeout: float
    grace: float
    attach: Optional[bool]
    signals: bool
    hooks: Hooks = Hooks()
    where: str = "server"
    """What its server is called in the log."""
