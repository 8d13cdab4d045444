"""``@task``: how a command says what options it has.

Invoke derives options from a function's signature. This wrapper keeps that, and closes the gaps a
user would fall into: nothing is positional unless named, no short flags are invented, numbers and
choices are checked with a readable error, and options can have synonyms. What is positional can be
given by its name, too.

    @task(
        help={"source": "where to fetch it from"},
        choices={"source": ("mirror", "official")},
        synonyms={"max_tokens": ("max-new-tokens", "n-predict")},
    )
    def example(c, source="mirror", max_tokens=16, output=Output()): ...

A parameter whose default is an instance of a frozen dataclass stands for its fields: each declared
with :func:`option` becomes an option, a field that is such a dataclass itself stands for its own
fields, and the body receives one object. Help has them below the heading ``SECTION`` of the
dataclass, or below those of ``SECTIONS``, which has the names of fields by heading.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from invoke.exceptions import ParseError
from invoke.parser.argument import Argument
from invoke.tasks import Task as InvokeTask

from bitnet.base import settings, terminal
from bitnet.base.errors import UsageError
from bitnet.base.options import option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from invoke.parser.context import ParserContext

    from bitnet.base.progress import Mode

    Contexts = Mapping[str, ParserContext]

#: The commands of each are together in the help of the program.
GROUPS = ("Run", "Models", "Tokenizers", "Check", "Cache", "Serve", "CI")
NETWORK = "Network"  # the section of options that help only names: every download has them

_TYPES: dict[str, type] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "list[str]": list,
    "Mapping[int, float]": list,  # KEY=VALUE, several times
}
_METAVARS: dict[type, str] = {int: "INT", float: "NUMBER", str: "TEXT", list: "TEXT"}
_PATHS = ("DIR", "FILE", "PATH")  # metavars of what stays the bytes that the file system has
IS_VALUE = "\0"  # before a value that starts with a dash; no argument of a process contains it
_WORDS: dict[type, str] = {int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class Output:
    """Output besides the result; a command has either all of these options or none."""

    SECTION: ClassVar = "Output"

    json: bool = option(False, "print the result as JSON on stdout")
    verbose: int = option(0, "print more on stderr; twice for debug output", short="v", count=True)
    no_progress: bool = option(False, "no progress bar and no progress lines", synonyms=("quiet",))
    no_warnings: bool = option(False, "hide warnings")

    @property
    def progress(self) -> Mode:
        """The mode for :class:`bitnet.base.progress.Progress`."""
        return "none" if self.no_progress else "json" if self.json else "auto"


class Option(Argument):
    """An Invoke argument that knows its type, choices and synonyms, and checks values itself."""

    def __init__(
        self,
        name: str,
        *,
        type: type,
        default: Any,
        help: str,
        choices: tuple[str, ...] = (),
        synonyms: tuple[str, ...] = (),
        formerly: tuple[str, ...] = (),
        short: str = "",
        count: bool = False,
        metavar: str = "",
        positional: bool = False,
        required: bool = False,
        hidden: bool = False,
        section: str = "Options",
    ) -> None:
        dashed = name.rstrip("_").replace("_", "-")  # with_: a keyword of Python
        self.type = type
        self.choices = choices
        self.hidden = hidden
        self.required = required or (positional and default is None)
        self.section = section
        self.shown = (dashed, *synonyms)
        self.metavar = metavar or ("|".join(choices) if choices else _METAVARS.get(type, ""))
        super().__init__(
            names=(*self.shown, *formerly, *((short,) if short else ())),
            kind=int if count else type if type in (bool, list) else str,
            default=default,
            help=help,
            positional=positional,
            incrementable=count,
            attr_name=name if name != dashed else None,
        )

    def set_value(self, value: Any, cast: bool = True) -> None:
        """Check and store *value*."""
        eaten = self.positional and self.default is None  # Invoke gives it whatever comes next
        if isinstance(value, str) and value.startswith(IS_VALUE):
            value = value[len(IS_VALUE) :]
        elif eaten and isinstance(value, str) and value.startswith("-") and value != "-":
            raise ParseError(f"No idea what {value!r} is!")
        if cast and self.takes_value and self.kind is not list and self.raw_value is not None:
            raise UsageError(f"{self.label()} is given twice", hint="leave one of them out")
        if cast and self.type in _WORDS and not self.incrementable:
            value = self._number(value)
            self.raw_value = self._value = value
            return
        if cast and self.choices and value not in self.choices:
            raise UsageError(
                f"{self.label()} expects one of {', '.join(self.choices)}, got {value!r}"
            )
        if isinstance(value, str) and not (self.positional or self.metavar.startswith(_PATHS)):
            value = terminal.argument(value)
        super().set_value(value, cast)

    def label(self) -> str:
        """The option as a message calls it."""
        return self.names[0].upper() if self.positional else f"--{self.names[0]}"

    def _number(self, text: str) -> int | float:
        try:
            number = self.type(text)
        except ValueError:
            number = None
        if number is None or number != number:  # NaN is not a number either
            raise UsageError(f"--{self.names[0]} expects {_WORDS[self.type]}, got {text!r}")
        return number  # type: ignore[no-any-return]

    def spelling(self) -> str:
        """The option with its synonyms as help shows it: ``-v, --verbose``, ``--seed=INT``."""
        value = f"={self.metavar}" if self.takes_value else ""
        long = [f"--{name}{value}" for name in self.shown]
        if self.kind is bool and self.default is True:
            long[0] = f"--[no-]{self.names[0]}"
        bare = [self.names[0].upper()] if self.positional else []
        return ", ".join([*bare, *(f"-{name}" for name in self.names if len(name) == 1), *long])

    def in_usage(self) -> str:
        """A positional argument in the usage line: ``MODEL``, or ``[MODEL]`` if optional."""
        name = self.names[0].upper() + ("..." if self.kind is list else "")
        return name if self.required else f"[{name}]"

    def describe(self) -> str:
        """Help with the default where there is one to speak of."""
        text = self.help or ""
        default = self.default
        if default in (None, "", False) or default == [] or self.incrementable:
            return text
        if self.kind is bool:
            return f"{text} (default: on)"
        return f"{text} (default: {default})"


class Task(InvokeTask):  # type: ignore[type-arg]
    """A command; made by :func:`task`."""

    def __init__(
        self,
        body: Callable[..., Any],
        *,
        choices: Mapping[str, Iterable[str]] | None = None,
        synonyms: Mapping[str, Iterable[str]] | None = None,
        formerly: Mapping[str, Iterable[str]] | None = None,
        metavars: Mapping[str, str] | None = None,
        required: Iterable[str] = (),
        remainder: bool = False,
        checks_settings: bool = True,
        positional: Iterable[str] = (),
        group: str = "",
        example: str = "",
        **rest: Any,
    ) -> None:
        super().__init__(body, positional=tuple(positional), auto_shortflags=False, **rest)
        self.choices = {name: tuple(values) for name, values in (choices or {}).items()}
        self.synonyms = {name: tuple(values) for name, values in (synonyms or {}).items()}
        self.formerly = {name: tuple(values) for name, values in (formerly or {}).items()}
        self.metavars = dict(metavars or {})
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
    def groups(self) -> dict[str, Any]:
        """Parameters that stand for the fields of a dataclass, with their default instance."""
        return {
            name: parameter.default
            for name, parameter in self.argspec(self.body).parameters.items()
            if is_dataclass(parameter.default)
        }

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        """The options of this command, in the order of its signature."""
        options: list[Option] = []
        for name, parameter in self.argspec(self.body).parameters.items():
            if is_dataclass(parameter.default):
                options += _options_of(parameter.default, self.required)
                continue
            default = parameter.default
            if default is inspect.Parameter.empty:
                default = None
            kind = _type_of(parameter.annotation, default)
            options.append(
                Option(
                    name,
                    type=kind,
                    default=[] if kind is list and default is None else default,
                    help=self.help.get(name, ""),
                    choices=self.choices.get(name, ()),
                    synonyms=self.synonyms.get(name, ()),
                    formerly=self.formerly.get(name, ()),
                    metavar=self.metavars.get(name, ""),
                    positional=name in self.positional,
                    required=name in self.required,
                )
            )
        options.sort(
            key=lambda entry: (not entry.positional, entry.positional and not entry.required)
        )
        return [*options]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command: check required options, fold groups, set up logging."""
        for entry in self.get_arguments():
            missing = entry.name in self.required and kwargs.get(entry.name) in (None, "", [])
            if missing and isinstance(entry, Option):
                raise UsageError(
                    f"{self.command_words} needs {entry.label()}",
                    hint=f"bitnet {self.command_words} --help",
                )
        for name, default in self.groups.items():
            given = _fill(default, kwargs)
            if given is not default:
                kwargs[name] = given
        output = next((found for found in map(_output_of, kwargs.values()) if found), Output())
        if self.checks_settings:
            settings.check()
        terminal.configure(output.verbose, warnings=not output.no_warnings)
        return super().__call__(*args, **kwargs)


def task(**declaration: Any) -> Callable[[Callable[..., Any]], Task]:
    """Turn a function into a command.

    Args:
        declaration: ``help`` (text per parameter, required for each), ``choices``,
            ``synonyms`` (other long names per parameter), ``formerly`` (long names that they had,
            which help does not show), ``metavars``, ``required``, ``positional``, ``remainder``
            (text after `` -- `` is accepted), ``checks_settings`` (off: the command itself reports
            variables with impossible values), ``name`` (``cache.list`` puts it into the group
            ``cache``), ``aliases``, ``group`` (one of :data:`GROUPS`), ``example`` (lines for a
            shell, which run where the README ends).
    """
    return lambda body: Task(body, **declaration)


def _options_of(group: Any, required: Iterable[str]) -> Iterator[Option]:
    """The options that the dataclass *group* stands for."""
    for entry in fields(group):
        value = getattr(group, entry.name)
        if is_dataclass(value):
            yield from _options_of(value, required)
        elif "help" in entry.metadata:
            kind = _type_of(entry.type, value)
            details = {name: detail for name, detail in entry.metadata.items() if name != "bounds"}
            sections = getattr(group, "SECTIONS", {}).items()
            section = getattr(group, "SECTION", "Options")
            section = next((name for name, names in sections if entry.name in names), section)
            yield Option(
                entry.name,
                type=kind,
                default=_default_of(value),
                section=section,
                required=entry.name in required,
                **details,
            )


def _fill(group: Any, given: dict[str, Any]) -> Any:
    """*group* with what is *given* for its fields, which is taken out; *group* if nothing is."""
    changed = {}
    for entry in fields(group):
        value = getattr(group, entry.name)
        if is_dataclass(value):
            inner = _fill(value, given)
            if inner is not value:
                changed[entry.name] = inner
        elif "help" in entry.metadata and entry.name in given:
            changed[entry.name] = given.pop(entry.name)
    return replace(group, **changed) if changed else group


def _output_of(value: Any) -> Output | None:
    """The :class:`Output` in an argument, or that it is."""
    found = getattr(value, "output", value)
    return found if isinstance(found, Output) else None


def _default_of(value: Any) -> Any:
    """A default as the command line has it: a table is a list of its entries."""
    return [f"{key}={entry}" for key, entry in value.items()] if isinstance(value, dict) else value


def _type_of(annotation: Any, default: Any) -> type:
    """Type of an option from its annotation, else from its default, else text."""
    if annotation is not inspect.Parameter.empty:
        text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        known = _TYPES.get(text.removesuffix(" | None"))
        if known is not None:
            return known
    return type(default) if type(default) in _TYPES.values() else str


def name_positionals(words: list[str], contexts: Contexts) -> list[str]:
    """*words*, commands and their arguments, with the name of each positional argument.

    Invoke gives a word without a name only to arguments without a default, and takes every other
    one for the beginning of a command. So ``infer tiny.gguf`` becomes ``infer --model=tiny.gguf``.
    """
    commands = _commands(words, contexts)
    return [
        _mark_value(word, _find(contexts, command[0]))
        for command in commands
        for word in _name_words(command, contexts)
    ]


def _mark_value(word: str, context: ParserContext | None) -> str:
    """*word*; in ``--option=-value`` with a mark, or Invoke would parse the value as an option."""
    flag, equals, value = word.partition("=")
    option = _find(context.flags, flag) if context and equals and value.startswith("-") else None
    return f"{flag}={IS_VALUE}{value}" if option and option.takes_value else word


def _find(names: Mapping[str, Any], name: str) -> Any:
    """Entry called *name*, also by an alias: ``get`` of Invoke's mappings knows none."""
    return names[name] if name in names else None  # noqa: SIM401


def _commands(words: list[str], contexts: Contexts) -> Iterator[list[str]]:
    """*words* by command; a text that is called like a command stays a text."""
    begun = 0
    while begun < len(words):
        context = _find(contexts, words[begun])
        rest = words[begun + 1 :]
        taken = _positional(context)
        ends = len(rest)
        if not any(option.required for option in taken):
            ends = next((at for at in _bare(rest, context) if rest[at] in contexts), ends)
        if ends < len(rest) and taken and Path(rest[ends]).exists():
            raise UsageError(
                f"{rest[ends]} is a command, and a file or folder here",
                hint=f"write ./{rest[ends]} for what is here",
            )
        yield words[begun : begun + 1 + ends]
        begun += 1 + ends


def _name_words(words: list[str], contexts: Contexts) -> Iterator[str]:
    """*words*, one command, with the names of its positional arguments."""
    context = _find(contexts, words[0])
    taken = _positional(context)
    named_values = _values_by_name(words, taken)
    free = [
        option for option in taken if option.kind is list or option.names[0] not in named_values
    ]
    bare = {at + 1 for at in _bare(words[1:], context)}
    for at, word in enumerate(words):
        fitting = [one for one in free if _fits(word, one, context)] if at in bare else []
        if fitting:
            if fitting[0].kind is not list:
                free.remove(fitting[0])
            yield f"--{fitting[0].names[0]}={word}"
        elif at in bare and not free and word in named_values.values():
            continue  # the same once more
        elif at in bare and not free and named_values:
            name, value = next(iter(named_values.items()))
            raise UsageError(
                f"{words[0]} got {word!r} and --{name} {value}", hint="leave one of them out"
            )
        else:
            yield word


def _positional(context: ParserContext | None) -> list[Option]:
    arguments = context.positional_args if context else []
    return [argument for argument in arguments if isinstance(argument, Option)]


def _bare(words: list[str], context: ParserContext | None) -> Iterator[int]:
    """Places of *words* that are neither options nor values, up to an option that there is not."""
    flags = context.flags if context else {}
    switches = context.inverse_flags if context else {}
    is_value = False
    for at, word in enumerate(words):
        if is_value:
            is_value = False
        elif word.startswith("-"):
            name = word.partition("=")[0]
            if name.startswith("--") and name not in flags and name not in switches:
                return
            is_value = word in flags and flags[word].takes_value
        else:
            yield at


def _values_by_name(words: list[str], options: list[Option]) -> dict[str, str]:
    """Values that *words* have for *options* by their names."""
    values = {}
    for entry in options:
        flags = [f"--{name}" for name in entry.names]
        for word, following in zip(words, [*words[1:], ""], strict=True):
            flag, equals, value = word.partition("=")
            if flag in flags and entry.kind is not list:
                values[entry.names[0]] = value if equals else following
    return values


def _fits(word: str, option: Option, context: ParserContext | None) -> bool:
    """True if *word* can be a value of *option*; a text or a table is not an optional model."""
    if option.choices:
        return word in option.choices
    if option.required or option.names[0] != "model" or context is None or Path(word).exists():
        return True
    is_text = "--prompt" in context.flags and len(word.split()) > 1 and ".gguf" not in word
    return not (is_text or ("--input" in context.flags and word.endswith((".jsonl", ".txt"))))
