"""A case of :mod:`hint_cases`: a hint, the command that prints it, and the expected effect."""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """A command that fails, and the command in its hint.

    Attributes:
        hint: the command as it is written in the source, without the program's name.
        fails: the command that fails.
        then: "works" if the failed command must succeed after the hint was followed, "itself" if
            the hint is the corrected command, "shows" if the hint shows a cause that the user must
            remove.
        ends: allowed exit codes of the hint; other ones than 0 if it reports a problem.
        setup: creates the files and the state in which the command fails.
        fill: replacements of placeholders in the hint that only the user can fill in.
        between: an action of the user before the hint is followed.
        env: environment variables of the command that fails.
        stdin: standard input of the command that fails.
        terminal: run the command that fails on a terminal instead of pipes.
    """

    hint: str
    fails: str
    then: str
    setup: Callable | None = None
    ends: tuple[int, ...] = (0,)
    fill: dict[str, str] = field(default_factory=dict)
    between: Callable | None = None
    env: dict[str, str] = field(default_factory=dict)
    stdin: str = ""
    answer: str = "ab"  # on standard input of the hint
    into: str = ""  # a redirection, or an option, to append to the hint
    terminal: bool = False
    succeeds: bool = False  # the hint belongs to a result
    network: bool = False  # needs the package index, for a real model
    is_before_tasks: bool = False  # `inv` reports the failure before it has read our tasks

    @property
    def name(self):
        """Name of the case in reports."""
        return f"{self.fails} -> {self.hint}"
