"""``@task``: a command declares its options by the defaults of its parameters.

Invoke derives options from a function's signature; here nothing is positional unless named, no
short flags are invented, values are checked with a readable error, and options have synonyms.

    @task(group="Tokenizers")
    def example(
        c,
        source=option("mirror", "where to fetch it from", choices=("mirror", "official")),
        output=Output(),
    ): ...

A parameter whose default is a frozen dataclass, a group, stands for its fields, each declared with
:func:`option` or a group itself, and the body receives one object. Help lists the options of a
group under its heading ``SECTION``; ``SECTIONS`` maps other headings to the names of their fields.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections import deque
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast, get_origin, get_type_hints

from invoke.exceptions import Exit
from invoke.tasks import Task as InvokeTask

from bitnet.base import settings, terminal
from bitnet.base.errors import BitnetError, UsageError
from bitnet.base.options import option, types_of, without_none
from bitnet.base.outputs import refuse_inputs
from bitnet.base.tables import show
from bitnet.commands.elsewhere import OPTIONS

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
    section: str = "Options"

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
        is_path = self.positional or self.placeholder.startswith(_PATHS)
        return text if is_path else terminal.argument(text)

    def label(self) -> str:
        """The option as a message calls it."""
        return self.long_names[0].upper() if self.positional else f"--{self.long_names[0]}"

    def _number(self, text: str) -> int | float:
        try:
            number = self.type(text)
        except ValueError:
            number = None
        if number is None or number != number:  # NaN is not a number either
            raise UsageError(f"--{self.long_names[0]} expects {_NUMBERS[self.type]}, got {text!r}")
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
        """The options in the order of the signature; positional and required ones come first."""
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
    return replace(group, **changed) if changed else group


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


# --- the words of a command ----------------------------------------------------------------------


class _BareWord(NamedTuple):
    """A word of a command line that is neither an option nor the value of one."""

    text: str
    before: str  # the word before it; empty if it is the first
    position: int  # among the words of the command


class Words:
    """The words of a command line for *command*, bound to its options.

    A bare word is the value of the first positional option that it fits.
    """

    def __init__(self, command: Task, words: list[str]) -> None:
        self.values: dict[str, Any] = {}
        self._command = command
        self._typed = words
        self._rest = deque(words)
        self._flags = {flag: option for option in command.options for flag in option.flags}
        self._off = {option.off_flag: option for option in command.options if option.off_flag}
        # For each option that was set with a value, by its name: the flag as it was typed.
        self._spelled: dict[str, str] = {}
        positional = [option for option in command.options if option.positional]
        self._bind_bare(self._bind_options(), positional)
        missing = [o for o in positional if o.default is None and o.name not in self.values]
        if missing:
            names = ", ".join(option.label() for option in missing)
            raise UsageError(f"{command.command_words} needs {names}", hint=command.usage)

    def _bind_options(self) -> list[_BareWord]:
        """Bind the options with a flag; return the bare words."""
        bare = []
        before = ""
        while self._rest:
            position = len(self._typed) - len(self._rest)
            word = self._rest.popleft()
            flag, equals, text = word.partition("=")
            letter = word[:2] if not word.startswith("--") else ""
            if word in self._off:
                self.values[self._off[word].name] = False
            elif flag in self._flags:
                self._take(flag, text if equals else None)
            elif letter in self._flags and self._flags[letter].takes_value:  # -n5
                self._take(letter, word[2:])
            elif letter in self._flags:  # -vv
                self._take(letter, None)
                self._rest.appendleft(f"-{word[2:]}")
            elif word.startswith("-") and word != "-":
                raise self._option_refusal(flag)
            else:
                bare.append(_BareWord(word, before, position))
            before = word
        return bare

    def _take(self, flag: str, text: str | None) -> None:
        """Set the option *flag* to the value *text*, or to the next word."""
        option = self._flags[flag]
        name = option.name
        if not option.takes_value:
            if text is not None:
                raise _takes_no_value(option, flag, text)
            self.values[name] = self.values.get(name, 0) + 1 if option.count else True
            return
        if text is None:
            following = self._rest[0].partition("=")[0] if self._rest else flag
            if following in self._flags or following in self._off:
                hint = f"a value that starts with a dash is written {flag}=-value; see: "
                raise UsageError(f"{flag} needs a value", hint=hint + self._command.usage)
            text = self._rest.popleft()
        if name in self.values and option.type is not list:
            flags = sorted({flag, self._spelled[name]})
            text = f"{flag} is given twice"
            if len(flags) > 1:
                text = f"{' and '.join(flags)} are one option, given twice"
            raise UsageError(text, hint=self._command.usage)
        self._spelled[name] = flag
        self._set(option, text)

    def _set(self, option: Option, text: str) -> None:
        value = option.parse(text)
        if option.type is list:
            self.values.setdefault(option.name, []).append(value)
        else:
            self.values[option.name] = value

    def _bind_bare(self, words: list[_BareWord], positional: list[Option]) -> None:
        """Bind each bare word to the first free option that it fits, else to a required one."""
        for word in words:
            free = [o for o in positional if o.type is list or o.name not in self.values]
            fitting = [o for o in free if _fits(word.text, o, self._flags)]
            candidates = fitting or [o for o in free if o.required]
            if not candidates:
                raise self._word_refusal(word, [] if free else positional)
            self._set(candidates[0], word.text)

    def _word_refusal(self, bare: _BareWord, taken: list[Option]) -> UsageError:
        """Error for a *bare* word that fits no option; *taken* have their values."""
        command = self._command.command_words
        word = bare.text
        if bare.before in self._flags and not self._flags[bare.before].takes_value:
            return _takes_no_value(self._flags[bare.before], bare.before, word)
        if taken and taken[0].name in self._spelled:
            text = f"{command} got {word!r} and --{taken[0].long_names[0]} "
            return UsageError(text + self.values[taken[0].name], hint="leave one of them out")
        likely = ["--input"] if word.endswith((".jsonl", ".txt")) else []
        likely += ["--prompt", "--model-dir", "--output"]
        flags = [f for f in likely if f in self._flags and self._flags[f].name not in self.values]
        hint = f"a value with spaces needs quotes; see: {self._command.usage}"
        if flags:
            quoted = [shlex.quote(each) for each in self._typed]
            quoted.insert(bare.position, flags[0])
            hint = " ".join(["bitnet", command, *quoted])
        return UsageError(f"{command}: unexpected argument {word!r}", hint=hint)

    def _option_refusal(self, flag: str) -> UsageError:
        flags = [*self._flags, *self._off]
        likely = OPTIONS.get(flag, "")
        near = f"did you mean {likely}?" if likely in flags else nearest(flag, flags)
        text = f"{self._command.command_words} has no option {flag}"
        return UsageError(text, hint=near or self._command.usage)


def _takes_no_value(option: Option, flag: str, value: str) -> UsageError:
    off = f", or {option.off_flag}" if option.off_flag else ""
    text = f"{flag} takes no value, got {value!r}"
    return UsageError(text, hint=f"write {flag} or leave it out{off}")


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Hint with the *candidates* that are close to *word*; empty if none is."""
    bare = {name.lstrip("-"): name for name in candidates}  # dashes do not make two flags similar
    close = difflib.get_close_matches(word.lstrip("-"), bare, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(bare[name] for name in close)}?" if close else ""


def _fits(word: str, option: Option, flags: Collection[str]) -> bool:
    """True if *word* can be a value of *option*.

    An optional ``model`` takes neither a prompt nor an input file of a command that has these
    *flags*.
    """
    if option.choices:
        return word in option.choices
    if option.required or option.name != "model" or Path(word).exists():
        return True
    is_text = "--prompt" in flags and len(word.split()) > 1 and ".gguf" not in word
    return not (is_text or ("--input" in flags and word.endswith((".jsonl", ".txt"))))
