"""A hint, and how it is followed."""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """A command that fails, and the command in its hint.

    Attributes:
        hint: the command as the source has it, without the program's name.
        fails: the command that fails.
        then: "works" if the failed command must work once the hint was followed, "itself" if the
            hint is that command, corrected, "shows" if it shows a cause for a person to remove.
        ends: exit codes that the hint may end with; 0 unless it reports that something is wrong.
        setup: makes the files and state in which the command fails.
        fill: words in capitals that only the reader knows.
        between: what a person does before or after, such as leaving an editor.
        env: environment variables.
        stdin: standard input of the command that fails.
        terminal: run on a terminal instead of pipes.
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
    into: str = ""  # a redirection that follows the hint
    terminal: bool = False
    succeeds: bool = False  # the hint belongs to a result
    network: bool = False  # needs the package index, for a real model
    is_before_tasks: bool = False  # `inv` reports the failure before it has read our tasks

    @property
    def name(self):
        return f"{self.fails} -> {self.hint}"
