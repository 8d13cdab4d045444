"""Run several downloads at once, in threads; the first failure cancels all."""

from __future__ import annotations

from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar

from bitnet.hub.limits import Limits, Stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["at_once"]

FILES_AT_ONCE = 4

T = TypeVar("T")


def at_once(calls: Sequence[Callable[[], T]], limits: Limits) -> list[T]:
    """Results of *calls*, in their order; several of them run at a time.

    When one fails, or the user interrupts, the others end soon; fetched bytes are kept.

    Raises:
        BitnetError: the first failure.
    """
    if len(calls) < 2:
        return [call() for call in calls]
    running = []
    try:
        with ThreadPoolExecutor(min(FILES_AT_ONCE, limits.connections, len(calls))) as pool:
            running = [pool.submit(call) for call in calls]
            try:
                wait(running, return_when=FIRST_EXCEPTION)
            finally:
                if not all(one.done() and one.exception() is None for one in running):
                    limits.stop()
                    for one in running:
                        one.cancel()
    finally:
        limits.go_on()
    errors = [error for one in running if not one.cancelled() and (error := one.exception())]
    if errors:
        raise min(errors, key=lambda error: isinstance(error, Stopped))
    return [one.result() for one in running]
