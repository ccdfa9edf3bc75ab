"""Calls that may block, in threads that keep neither the event loop nor the process.

asyncio.to_thread is not used: at its end asyncio.run() waits for all threads of the loop's pool.  A cancel request
or a connection attempt that hangs, as over a network that drops packets, would keep the process for as long.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any, Callable, Optional, TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """What a function returns or raises, called in a daemon thread of its own, in a copy of this context.

    If the caller is cancelled the thread goes on, and its answer is dropped.
    """
    loop = asyncio.get_running_loop()
    answer: "asyncio.Future[T]" = loop.create_future()
    context = contextvars.copy_context()

    def call() -> None:
        value: Any = None
        failure: Optional[BaseException] = None
        try:
            value = context.run(function, *args)
        except StopIteration as error:  # which no future takes
            failure = RuntimeError(f"the function raised {type(error).__name__}")
        except BaseException as error:
            failure = error
        try:
            loop.call_soon_threadsafe(_resolve, answer, value, failure)
        except RuntimeError:
            pass  # the loop has ended

    threading.Thread(target=call, name="idemq call", daemon=True).start()
    return await answer


def _resolve(answer: "asyncio.Future[Any]", value: Any, failure: Optional[BaseException]) -> None:
    if answer.done():
        return
    if failure is not None:
        answer.set_exception(failure)
    else:
        answer.set_result(value)
