"""``@task``: a command declares its options by the defaults of its parameters.

Invoke derives options from a function's signature; here nothing is positional unless declared so,
no short flags are invented, values are checked with a readable error, and options have synonyms.

    @task(group="Tokenizers")
    def example(
        c,
        source=option("mirror", "where to fetch it from", choices=("mirror", "official")),
        output=Output(),
    ): ...

A parameter whose default is a frozen dataclass, a group, stands for its fields, each declared with
:func:`option` or a group itself, and the body receives one object. Help lists the options of a
group under its heading ``SECTION``; ``SECTIONS`` maps other headings to the names of their fields.
A field ``typed`` of a group receives the names of those of its options that were typed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast, get_origin, get_type_hints

from invoke.exceptions import Exit
from invoke.tasks import Task as InvokeTask

from bitnet.base import settings, terminal
from bitnet.base.errors import BitnetError, UsageError
from bitnet.base.options import option, range_text, types_of, without_none
from bitnet.base.outputs import refuse_inputs
from bitnet.base.tables import show

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from bitnet.base.progress import Mode

#: Headings of commands in the help of the program.
GROUPS = ("Run", "Models", "Tokenizers", "Check", "Cache", "Serve", "CI")
# Section of the options of every download; help of a command lists their names without texts.
NETWORK = "Network"

_SCALARS = (bool, int, float, str)
_METAVARS: dict[type, str] = {int: "INT", float: "NUMBER", str: "TEXT", list: "TEXT"}
# Beginnings of metavars of paths, whose text keeps the file system's bytes undecoded.
_PATHS = ("DIR", "FILE", "PATH")
_OF_A_FILE = re.compile("DIR|FILE|PATH|SOURCE")  # in metavars of values that may be paths
_ADAPTER = re.compile(r"^(?:[^=]*=)?(.+?)(?::[-+.\d]+)?$")  # the path in [NAME=]PATH[:SCALE]
_NUMBERS: dict[type, str] = {int: "a whole number", float: "a number"}  # in messages


@dataclass(frozen=True)
class Output:
    """Options of output; a command has either all of them or none."""

    SECTION: ClassVar = "Output"

    json: bool = option(False, "print the result as JSON on stdout")
    verbose: int = option(0, "print more on stderr; twice for debug output", short="v", count=True)
    no_progress: bool = option(False, "no progress bar and no progress lines", synonyms=("quiet",))
    no_warnings: bool = option(False, "hide warnings")

    @property
    def progress(self) -> Mode:
        """The mode for :class:`bitnet.base.progress.Progress`."""
        if self.no_progress:
            return "none"
        return "json" if self.json else "auto"

    def finish(self, facts: Any, lines: Iterable[str], failure: BitnetError | None = None) -> None:
        """Print *facts* as JSON, or *lines*; then end with *failure*, if there is one.

        With --json, *failure* sets the exit code alone: stdout has its one document already.
        """
        if self.json:
            print(terminal.as_json(facts))
        else:
            show(*lines)
        if failure is not None:
            raise Exit(code=failure.exit_code) if self.json else failure


@dataclass(frozen=True)
class Option:
    """An option of a command."""

    name: str  # of the parameter
    type: type
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    synonyms: tuple[str, ...] = ()
    formerly: tuple[str, ...] = ()  # earlier long names, which help does not show
    short: str = ""
    count: bool = False  # the value is the number of its occurrences
    metavar: str = ""  # placeholder of the value in help
    positional: bool = False
    required: bool = False
    writes: bool = False  # its value names a file that the command writes
    # An empty value is refused: without the option, the command removes, trusts or skips more.
    needs_text: bool = False
    section: str = "Options"
    bounds: tuple[float, float | None] | None = None  # lowest and highest; a group checks its own

    @property
    def long_names(self) -> tuple[str, ...]:
        """Its long names in help; the first one is its name in messages."""
        dashed = self.name.rstrip("_").replace("_", "-")  # with_: a keyword of Python
        return (dashed, *self.synonyms)

    @property
    def names(self) -> tuple[str, ...]:
        """Every name: those in help, earlier ones, and the one-letter name."""
        return (*self.long_names, *self.formerly, *filter(None, [self.short]))

    @property
    def flags(self) -> list[str]:
        """The words that set it on a command line: ``--verbose``, ``-v``."""
        return [f"-{name}" if name == self.short else f"--{name}" for name in self.names]

    @property
    def off_flag(self) -> str:
        """The word that turns it off; empty unless it is a switch that is on by default."""
        return f"--no-{self.long_names[0]}" if self.default is True else ""

    @property
    def takes_value(self) -> bool:
        """True if it is neither a switch nor counted."""
        return self.type is not bool and not self.count

    @property
    def placeholder(self) -> str:
        """Placeholder of its value in help, such as ``FILE`` or ``on|off``; empty for a switch."""
        return self.metavar or "|".join(self.choices) or _METAVARS.get(self.type, "")

    def parse(self, text: str) -> Any:
        """The value that *text* stands for; a ``UsageError`` if it is not valid."""
        if self.type in _NUMBERS:
            return self._number(text)
        if self.choices and text not in self.choices:
            expected = ", ".join(self.choices)
            raise UsageError(f"{self.label()} expects one of {expected}, got {text!r}")
        if self.needs_text and not text:  # the value of an unset variable of the shell
            hint = f"write --{self.long_names[0]} {self.placeholder}, or leave it out"
            raise UsageError(f"{self.label()} is empty", hint=hint)
        # A positional word may be a path or a text.
        is_path = self.positional or self.placeholder.startswith(_PATHS)
        return text if is_path else terminal.argument(text)

    def label(self) -> str:
        """The option as a message calls it."""
        return self.long_names[0].upper() if self.positional else f"--{self.long_names[0]}"

    def _number(self, text: str) -> int | float:
        """The number *text*, checked against the bounds."""
        try:
            number = self.type(text)
        except ValueError:
            number = None
        if number is None or number != number:  # NaN is not a number either
            raise UsageError(f"--{self.long_names[0]} expects {_NUMBERS[self.type]}, got {text!r}")
        if self.bounds is not None:
            low, high = self.bounds
            if number < low or (high is not None and number > high):
                expected = range_text(low, high)
                raise UsageError(f"--{self.long_names[0]} is {number}, expected {expected}")
        return number  # type: ignore[no-any-return]

    def spelling(self) -> str:
        """The option with its synonyms as help shows it: ``-v, --verbose``, ``--seed=INT``."""
        value = f"={self.placeholder}" if self.takes_value else ""
        long = [f"--{name}{value}" for name in self.long_names]
        if self.off_flag:
            long[0] = f"--[no-]{self.long_names[0]}"
        bare = [self.long_names[0].upper()] if self.positional else []
        return ", ".join([*bare, *filter(None, [self.short and f"-{self.short}"]), *long])

    def in_usage(self) -> str:
        """A positional argument in the usage line: ``MODEL``, or ``[MODEL]`` if optional."""
        name = self.long_names[0].upper() + ("..." if self.type is list else "")
        return name if self.required else f"[{name}]"

    def describe(self) -> str:
        """Help text, with the default if it is worth showing."""
        if self.default in (None, "", False) or self.default == [] or self.count:
            return self.help
        return f"{self.help} (default: {'on' if self.default is True else self.default})"


class Task(InvokeTask):  # type: ignore[type-arg]
    """A command; made by :func:`task`."""

    def __init__(
        self,
        body: Callable[..., Any],
        *,
        required: Iterable[str] = (),
        remainder: bool = False,
        checks_settings: bool = True,
        group: str = "",
        example: str = "",
        **rest: Any,
    ) -> None:
        super().__init__(body, positional=(), auto_shortflags=False, **rest)
        self.required = tuple(required)
        self.takes_remainder = remainder
        self.checks_settings = checks_settings
        self.group = group
        self.example = example

    @property
    def command_words(self) -> str:
        """The words that a user types: ``cache clean`` for ``clean-cache`` or ``cache.clean``."""
        dotted = next((name for name in (self.name, *self.aliases) if "." in name), self.name)
        return dotted.replace(".", " ").replace("_", "-")

    @property
    def usage(self) -> str:
        """The command that shows its help."""
        return f"bitnet {self.command_words} --help"

    @cached_property
    def options(self) -> list[Option]:
        """The options in the order of the signature.

        Positional ones come before all others, and of these the required ones first.
        """
        parameters = self.argspec(self.body).parameters.values()
        types = get_type_hints(self.body)
        entries = (
            (each.name, each.default, types.get(each.name), _default_of(each.default))
            for each in parameters
        )
        return sorted(
            _options_of(entries, self.required),
            key=lambda entry: (not entry.positional, entry.positional and not entry.required),
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command: check required options, fill the groups, set up logging."""
        for entry in self.options:
            if entry.name in self.required and kwargs.get(entry.name) in (None, "", []):
                raise UsageError(f"{self.command_words} needs {entry.label()}", hint=self.usage)
        self._refuse_inputs_as_outputs(kwargs)
        for name, parameter in self.argspec(self.body).parameters.items():
            default = _default_of(parameter.default)
            if is_dataclass(default):
                kwargs[name] = _fill(default, kwargs)
            else:
                kwargs.setdefault(name, default)
        # The output options are a parameter, or a field of a group such as Context.
        outputs = (getattr(value, "output", value) for value in kwargs.values())
        output = next((each for each in outputs if isinstance(each, Output)), Output())
        if self.checks_settings:
            settings.check()
        terminal.configure(output.verbose, warnings=not output.no_warnings)
        return super().__call__(*args, **kwargs)

    def _refuse_inputs_as_outputs(self, values: dict[str, Any]) -> None:
        """Refuse *values* that name one file to read and to write, by whatever path."""
        outputs: list[tuple[str, Path]] = []
        inputs: list[Path] = []
        for entry in self.options:
            value = values.get(entry.name)
            if not value or not (entry.positional or _OF_A_FILE.search(entry.placeholder)):
                continue
            if entry.writes:
                outputs.append((entry.label(), Path(value)))
                continue
            texts = value if isinstance(value, list) else [value]
            for text in texts:
                inputs += [Path(text), *map(Path, _ADAPTER.findall(text))]
        if outputs:
            refuse_inputs(outputs, inputs)


def task(**declaration: Any) -> Callable[[Callable[..., Any]], Task]:
    """Turn a function, each of whose parameters is declared by its default, into a command.

    Args:
        declaration: ``group`` (one of :data:`GROUPS`), ``example`` (shell lines that work after
            those of the README), ``required`` (names of options), ``name`` (``cache.list`` makes it
            ``bitnet cache list``), ``aliases``, ``remainder`` (text after `` -- `` is accepted),
            ``checks_settings`` (off: the command itself reports variables with impossible values).
    """
    return lambda body: Task(body, **declaration)


def _options_of(
    entries: Iterable[tuple[str, Any, Any, Any]], required: Collection[str], group: object = None
) -> Iterator[Option]:
    """The options of *entries*: parameters, or fields of the dataclass *group*.

    Each entry has a name, the :func:`option` that declares it, the type or None, and the default.
    """
    sections = getattr(group, "SECTIONS", {}).items()
    for name, entry, hint, default in entries:
        if is_dataclass(default):
            yield from _options_of(_fields_of(default), required, default)
        elif "help" in entry.metadata:
            details = dict(entry.metadata)
            if group is not None:
                del details["bounds"]
            section = details.pop("section") or getattr(group, "SECTION", "Options")
            section = next((title for title, names in sections if name in names), section)
            if isinstance(default, dict):  # given as KEY=VALUE on the command line
                default = [f"{key}={value}" for key, value in default.items()]
            # A positional option without a default, such as ``option(None, ...)``, is required.
            is_required = name in required or (details["positional"] and default is None)
            kind = _type_of(hint, default)
            yield Option(name, kind, default, required=is_required, section=section, **details)


def _fields_of(group: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    """Entries for :func:`_options_of`, one for each field of the dataclass *group*."""
    # An option with choices has the type of its default: the declared one may be imported only for
    # type checkers, and cannot be resolved here.
    options = [entry for entry in fields(group) if "help" in entry.metadata]
    types = types_of(
        group.__class__, *(entry.name for entry in options if not entry.metadata["choices"])
    )
    for entry in fields(group):
        yield entry.name, entry, types.get(entry.name), getattr(group, entry.name)


def _default_of(entry: Any) -> Any:
    """Value of a parameter that is not given: *entry* itself if it is a group of options."""
    if is_dataclass(entry):
        return entry
    return entry.default if entry.default_factory is MISSING else entry.default_factory()


def _fill(group: Any, values: dict[str, Any]) -> Any:
    """Copy of the dataclass *group* with the *values* of its fields, which are removed there.

    Without such values it is *group* itself.
    """
    changed = {}
    for entry in fields(group):
        value = getattr(group, entry.name)
        if is_dataclass(value):
            inner = _fill(value, values)
            if inner is not value:
                changed[entry.name] = inner
        elif "help" in entry.metadata and entry.name in values:
            changed[entry.name] = values.pop(entry.name)
    if not changed:
        return group
    if any(entry.name == "typed" for entry in fields(group)):
        changed["typed"] = frozenset(changed)
    return replace(group, **changed)


def _type_of(hint: Any, default: Any) -> type:
    """Type of an option: its declared type *hint*, else that of its *default*, else ``str``.

    Options with several values are lists; a mapping is a list of KEY=VALUE.
    """
    declared = without_none(hint)
    if declared in _SCALARS:
        return cast("type", declared)
    if get_origin(declared) in (list, Mapping) or isinstance(default, list):
        return list
    return type(default) if type(default) in _SCALARS else str
