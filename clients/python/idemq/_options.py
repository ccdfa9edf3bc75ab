"""The options of a worker and of its queues."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Optional, Union

from ._codec import Codec
from ._hooks import Hooks
from ._links import Address
from ._logs import Redact
from .errors import Delay


@dataclass(frozen=True)
class QueueOptions:
    """The options of one queue."""

    concurrency: int = 1
    batch: int = 1
    lease: Optional[Delay] = None
    timeout: float = 3600
    attach: Optional[bool] = None
    unknown_kind: Delay = 60
    never_retry: tuple[type[BaseException], ...] = ()
    own_capture_logs: Optional[str] = None
    """None means the worker's."""
    codec: Optional[Codec] = None
    ahead: int = 0
    ahead_wait: float = 1


@dataclass(frozen=True)
class WorkerOptions:
    """The options that all queues of a worker have in common."""

    dsn: Union[str, Address] = ""
    name: Optional[str] = None
    wait_dsn: Optional[str] = None
    grace: float = 30
    signals: bool = True
    give_up_after: Optional[float] = None
    hooks: Hooks = Hooks()
    capture_logs: str = "off"
    redact: Redact = None
    where: str = "server"
    """Name of its server in the log."""

    @property
    def worker_name(self) -> str:
        """Name of the worker in claims and in idemq.workers."""
        return self.name or f"python {os.getpid()}"


@dataclass(frozen=True)
class Options(WorkerOptions, QueueOptions):
    """The options of a queue, with those of its worker."""

    queue: str = ""

    @property
    def captures(self) -> str:
        """Whose logs are stored: off, failed or all."""
        return self.own_capture_logs or self.capture_logs


def options_of(worker: WorkerOptions, queue: str, own: QueueOptions) -> Options:
    """The options of a queue of this worker."""
    return Options(**vars(worker), **vars(own), queue=queue)
