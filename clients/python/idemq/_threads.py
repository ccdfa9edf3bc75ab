"""Blocking calls, in threads that block neither the event loop nor the end of the process.

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
    """Calls a function in a new daemon thread, in a copy of this context.  Returns or raises what the function does.

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
        except StopIteration as error:  # a future cannot hold a StopIteration
            failure = RuntimeError(f"the function raised {type(error).__name__}")
        except BaseException as error:
            failure = error
        try:
            loop.call_soon_threadsafe(_resolve, answer, value, failure)
        except RuntimeError:
            pass  # the event loop has ended

    threading.Thread(target=call, name="idemq call", daemon=True).start()
    return await answer


def _resolve(answer: "asyncio.Future[Any]", value: Any, failure: Optional[BaseException]) -> None:
    if answer.done():
        return
    if failure is not None:
        answer.set_exception(failure)
    else:
        answer.set_result(value)
