"""Fields of frozen dataclasses that are command-line options.

A layer declares what its part of the command line looks like; :mod:`bitnet.tasks.declare` makes the
options from it.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["option"]


def option(
    default: Any,
    help: str,
    *,
    choices: Iterable[str] = (),
    synonyms: Iterable[str] = (),
    short: str = "",
    count: bool = False,
    metavar: str = "",
) -> Any:
    """A dataclass field that is a command-line option; read by :mod:`bitnet.tasks.declare`.

    Args:
        default: value when the option is not given; its type is the option's type.
        help: one sentence, with the unit where there is one.
        choices: the only values allowed.
        synonyms: other long names, dashed.
        short: a one-letter name.
        count: the option takes no value and counts how often it is given.
        metavar: what help shows for the value.
    """
    metadata = {
        "help": help,
        "choices": tuple(choices),
        "synonyms": tuple(synonyms),
        "short": short,
        "count": count,
        "metavar": metavar,
    }
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)
