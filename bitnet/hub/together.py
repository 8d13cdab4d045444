"""Run several downloads at once, in threads; the first failure cancels all."""

from __future__ import annotations

from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar

from bitnet.hub.limits import Limits, Stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

FILES_AT_ONCE = 4
TURN_S = 0.5  # after which a signal is seen at the latest

T = TypeVar("T")


def at_once(calls: Sequence[Callable[[], T]], limits: Limits) -> list[T]:
    """Results of *calls*, in their order; several of them run at a time.

    When one fails, or the user interrupts, the others end soon; fetched bytes are kept.

    Raises:
        BitnetError: the first failure.
    """
    if len(calls) < 2:
        return [call() for call in calls]
    try:
        ended = in_threads(calls, min(FILES_AT_ONCE, limits.connections, len(calls)), limits.stop)
    finally:
        limits.go_on()
    if error := first_error(ended):
        raise error
    return [one.result() for one in ended]


def in_threads(
    calls: Iterable[Callable[[], T]], threads: int, stop: Callable[[], object]
) -> list[Future[T]]:
    """Run *calls* in so many *threads*; at the return all have ended, or were cancelled.

    Args:
        calls: what to run.
        threads: at a time.
        stop: ends those that run; called when one fails, or the user interrupts.
    """
    running: list[Future[T]] = []
    done: set[Future[T]] = set()
    all_well = False
    with ThreadPoolExecutor(threads, thread_name_prefix="download") as pool:
        try:
            running += map(pool.submit, calls)
            while len(done) < len(running) and first_error(done) is None:
                # In turns: a signal that comes just before a wait does not end it.
                done, _ = wait(running, TURN_S, FIRST_EXCEPTION)
            all_well = first_error(done) is None
        finally:
            if not all_well:
                stop()
                pool.shutdown(wait=False, cancel_futures=True)
    return running


def first_error(ended: Iterable[Future[T]]) -> BaseException | None:
    """An error that ended one of these calls: the cause, rather than that another was stopped."""
    errors = [error for one in ended if not one.cancelled() and (error := one.exception())]
    return min(errors, key=lambda error: isinstance(error, Stopped), default=None)
