"""Fields of frozen dataclasses that are command-line options.

A layer declares what its part of the command line looks like; :mod:`bitnet.tasks.declare` makes the
options from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet import settings

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CacheOptions", "option"]


def option(
    default: Any,
    help: str,
    *,
    choices: Iterable[str] = (),
    synonyms: Iterable[str] = (),
    short: str = "",
    count: bool = False,
    metavar: str = "",
    hidden: bool = False,
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
        hidden: accepted and not shown, since a setting says the same.
    """
    metadata = {
        "help": help,
        "choices": tuple(choices),
        "synonyms": tuple(synonyms),
        "short": short,
        "count": count,
        "metavar": metavar,
        "hidden": hidden,
    }
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class CacheOptions:
    """Which cache folder a command works on."""

    cache_dir: str = option(
        "", "cache folder, instead of BITNET_CACHE_DIR or ~/.cache/bitnet", metavar="DIR"
    )

    @property
    def root(self) -> Path:
        """The cache folder that holds now; it need not exist."""
        if self.cache_dir:
            return settings.expanded(Path(self.cache_dir)).absolute()
        return settings.cache_dir()
