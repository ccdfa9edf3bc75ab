"""The options of a worker."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Optional, Union

from ._hooks import Hooks
from ._links import Address
from .errors import Delay


@dataclass(frozen=True)
class Options:
    """The options of a worker."""

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
    """Name of its server in the log."""

    @property
    def worker_name(self) -> str:
        """Name of the worker in claims and in idemq.workers."""
        return self.name or f"python {os.getpid()}"
