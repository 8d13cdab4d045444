"""The program behind ``bitnet``, ``python -m bitnet`` and, through ``tasks.py``, ``inv``.

Invoke parses its own options and runs tasks; this subclass binds the words of each command, and
turns every failure into one readable error and the exit code of :mod:`bitnet.base.errors`.
"""

from __future__ import annotations

import codecs
import inspect
import os
import re
import shlex
import shutil
import signal
import sys
import textwrap
import traceback
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from invoke.config import Config, merge_dicts
from invoke.exceptions import Exit, ParseError, UnexpectedExit, UnknownFileType
from invoke.program import Program as InvokeProgram

from bitnet import __version__
from bitnet.base import settings, terminal
from bitnet.base.bars import BARS
from bitnet.base.errors import (
    BitnetError,
    InferenceError,
    Interrupted,
    InvalidFormat,
    UsageError,
    from_os_error,
)
from bitnet.base.invocation import as_started, harmless
from bitnet.commands import elsewhere, load
from bitnet.commands.command_line import Words, nearest
from bitnet.commands.declare import GROUPS, NETWORK, Option, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from collections.abc import Collection as Names
    from os import PathLike

    from invoke.collection import Collection
    from invoke.parser.argument import Argument

COLUMN = 28  # where the help of an option starts
NAMES = 22  # and that of a command
NARROWEST = 40  # columns of help, in characters
WIDEST = 100
_TOO_NARROW = 60  # for a column of names beside their texts

_ABOUT = "Run language models locally, and verify their results."
_EXAMPLE = 'bitnet run smollm2-135m "Why is the sky blue?"'
_PLAIN = re.compile(r"[\w.:/@+-]+")  # a shell may expand anything else
_HELP = ("--help", "-h")


class _Config(Config):
    """Invoke's configuration, whose files are refused with their names if they are wrong."""

    def _load_yaml(self, path: PathLike[str]) -> Any:
        return _read_settings(super()._load_yaml, path)

    _load_yml = _load_yaml

    def _load_json(self, path: PathLike[str]) -> Any:
        return _read_settings(super()._load_json, path)

    def _load_py(self, path: str) -> Any:
        return _read_settings(super()._load_py, path)


def _read_settings(read: Callable[[Any], Any], path: str | PathLike[str]) -> Any:
    """The settings of Invoke that *read* returns for the file at *path*, which must have some."""
    try:
        content = read(path)
        merge_dicts(Config.global_defaults(), content)
    except OSError:  # Invoke tries names of files that need not exist
        raise
    except Exception as error:
        raise InvalidFormat(
            f"{path} has no settings of Invoke: {type(error).__name__}: {error}",
            hint="correct this file, or give it another name",
        ) from error
    return content


class Program(InvokeProgram):
    """The command line: Invoke's tasks, our options, errors and exit codes."""

    def __init__(self, namespace: Collection, binary: str) -> None:
        super().__init__(
            version=__version__,
            namespace=namespace,
            name="bitnet",
            binary=binary,
            config_class=_Config,
        )

    def run(self, argv: list[str] | None = None, exit: bool = True) -> None:
        """Run the command line in *argv* and exit with its exit code (unless *exit* is false)."""
        code = self._run_and_report(sys.argv if argv is None else argv)
        if exit:
            terminal.flush_or_discard(sys.stderr)
            sys.exit(code)

    def _run_and_report(self, argv: list[str]) -> int:
        """Exit code of *argv*; all errors are reported here."""
        self.argv = argv
        terminal.prepare()
        try:
            try:
                self._run_steps(argv)
            finally:
                sys.stdout.flush()
        except Exit as stop:
            if stop.message and stop.message.startswith("Sub-collection "):  # after --list
                return self._report(UsageError(stop.message, hint="bitnet --list"))
            if stop.message:
                print(stop.message, file=sys.stderr)
            return int(stop.code)
        except UnexpectedExit as error:  # a developer task's command failed
            return int(error.result.exited)
        except BrokenPipeError:
            # The reader has gone (``| head``): there is nothing left to report.
            terminal.discard_output(sys.stdout)
        except (Exception, KeyboardInterrupt, _Terminated) as error:  # noqa: BLE001 - last resort
            if isinstance(error, OSError):
                terminal.flush_or_discard(sys.stdout)
            return self._report(_translate(error))
        return 0

    def _run_steps(self, argv: list[str]) -> None:
        """Parse *argv* and run its commands: the steps of Invoke's ``Program.run``."""
        bytecode_is_off = sys.dont_write_bytecode
        self.create_config()
        try:
            self.parse_core(argv)
        except ValueError as error:  # Invoke converts its own numbers unguarded
            raise UsageError(f"bad value for a core option: {error}") from None
        sys.dont_write_bytecode = bytecode_is_off  # Invoke switches it off; imports need it on
        self.parse_collection()
        self.parse_tasks()
        self.parse_cleanup()
        self.update_config()
        self.execute()

    def _report(self, error: BitnetError) -> int:
        """Print *error* with its hint, with --json also as JSON on stdout; return its exit code."""
        BARS.end()
        hint = as_started(error.hint)
        hint_line = f"\nhint: {hint}" if hint else ""
        message = error.message
        if isinstance(error, UsageError) and error.field:  # a field is an option here
            message = message.replace(error.field, f"--{error.field.replace('_', '-')}", 1)
        text = harmless(f"Error: {as_started(message)}{hint_line}")
        terminal.print_if_possible(text, sys.stderr)
        if "--json" in self.argv:
            kind = type(error).__name__
            code = error.exit_code
            facts = {"type": kind, "message": message, "hint": hint, "exit_code": code}
            terminal.print_if_possible(terminal.as_json({"error": facts}), sys.stdout)
        return error.exit_code

    # --- parsing -----------------------------------------------------------------------------

    def core_args(self) -> list[Argument]:
        """Invoke's own options; those that find files of tasks belong to ``inv`` alone."""
        listing = [
            arg for arg in self.task_args() if arg.name in ("list", "list-depth", "list-format")
        ]
        return [*super().core_args(), *(self.task_args() if self.binary == "inv" else listing)]

    def parse_tasks(self) -> None:
        """Parse the words after the core options; ``--help`` wins, ``_`` in a name means ``-``."""
        if self.args.complete.value:
            _, *typed = self.core.remainder.split() or [""]
            print(*candidates(typed, self.collection), sep="\n")
            raise Exit
        self.tasks = []  # type: ignore[assignment]  # the executor takes tuples, too
        words: list[str] = self.core.unparsed
        if isinstance(self.args.help.value, str):  # --help COMMAND
            words = [self.args.help.value, "--help", *words]
        words = words[: words.index("--")] if "--" in words else words
        if not words:
            return
        name, *words = self._with_full_name(words)
        command: Task = self.collection[name]
        if any(word in _HELP for word in words):
            raise _end_with(command_help(command))
        if self.core.remainder and not command.takes_remainder:
            text = f"{command.command_words} takes nothing after ' -- '"
            hint = "write every option before the ' -- ', or leave it out"
            raise UsageError(f"{text}, got {self.core.remainder!r}", hint=hint)
        self.tasks = [(name, Words(command, words).values)]  # type: ignore[assignment]

    def _with_full_name(self, words: list[str]) -> list[str]:
        """*words* with the full name of their command in the collection.

        ``help`` and ``version`` print their text and end the program.
        """
        by_name = self.collection.task_names.items()
        names = {name: full for full, aliases in by_name for name in (full, *aliases)}
        if words == ["help", "network"]:
            raise _end_with(network_help(self.collection))
        if words[0] == "help" and words[1:]:
            words = [*words[1:], "--help"]
        first = words[0].replace("_", "-")
        # A command is one word, or two: its group and its name.
        for name, arguments in ((first, words[1:]), (".".join(words[:2]), words[2:])):
            if name in names:
                return [names[name], *arguments]
        if words == ["help"]:
            raise _end_with(program_help(self.collection))
        if words == ["version"]:
            self.print_version()
            raise Exit
        if members := sorted(name for name in names if name.startswith(f"{first}.")):
            if any(word in _HELP for word in words):
                raise _end_with(program_help(self.collection, first))
            own_names = [name.partition(".")[2] for name in members]
            near = nearest(words[1], own_names) if words[1:] else ""
            hint = near or f"bitnet {first} --help"
            raise UsageError(f"{first} needs one of {', '.join(own_names)}", hint=hint)
        if first in elsewhere.COMMANDS and any(word in _HELP for word in words):
            return [names[elsewhere.COMMANDS[first]], *words[1:]]
        raise self._unknown_command(words, names)

    def _unknown_command(self, words: list[str], names: Names[str]) -> UsageError:
        """The error for *words*, whose first is not one of *names*, with the likely command."""
        first = words[0].replace("_", "-")
        meant = elsewhere.translate(words, names)
        if first.startswith("-"):
            flags = self.initial_context.flags
            message = f"no such option: {words[0]}"
            alternatives = [*flags, *flags.aliases]
        else:
            message = f"no command {first!r}{elsewhere.explain(first)}"
            alternatives = [name.replace(".", " ") for name in names]
        if meant:
            return UsageError(message, hint=f"bitnet {meant}")
        if _is_model(words[0]):
            return UsageError(message, hint=f"bitnet run {shlex.join(words)}")
        return UsageError(message, hint=nearest(words[0], alternatives) or "bitnet --list")

    # --- texts -------------------------------------------------------------------------------

    def list_tasks(self) -> None:
        """The commands, in one of Invoke's formats."""
        if self.list_format not in ("flat", "nested", "json"):
            expected = "expects one of flat, nested, json"
            raise UsageError(f"--list-format {expected}, got {self.list_format!r}")
        super().list_tasks()

    def print_version(self) -> None:
        """``bitnet 0.1.0 (native (avx2), Python 3.11.7)``."""
        from bitnet.base.native import backend_name, problem

        python = ".".join(map(str, sys.version_info[:3]))
        print(f"bitnet {self.version} ({backend_name()}, Python {python})")
        reason, hint = problem()
        if reason:
            text = f"the compiled module is missing: {reason}\nhint: {hint}"
            terminal.print_if_possible(text, sys.stderr)

    def print_help(self) -> None:
        """Print a summary, an example, and the commands by group."""
        _end_with(program_help(self.collection))


def _is_model(word: str) -> bool:
    """True if *word*, which was typed as a command, can only be the name of a model."""
    from bitnet.hub.ref import names

    return word in names() or word.startswith("hf:") or word.lower().endswith(".gguf")


def _end_with(lines: Iterable[str]) -> Exit:
    """Print *lines*; return the exception that then ends the program."""
    print(as_started("\n".join(lines)))
    return Exit()


class _Terminated(BaseException):
    """SIGTERM or SIGHUP as an exception, so that cleanup code runs."""


def _translate(error: BaseException) -> BitnetError:
    """*error* as the error that the program reports, with its exit code."""
    if isinstance(error, BitnetError):
        return error
    if isinstance(error, KeyboardInterrupt | _Terminated):
        terminated = isinstance(error, _Terminated)
        return Interrupted("terminated" if terminated else "interrupted")
    if isinstance(error, ParseError | UnknownFileType):  # in Invoke's options before the command
        flag = r"Flag <Argument: ([\w-]+).*?> needed value.*"
        return UsageError(re.sub(flag, r"--\1 needs a value", str(error)), hint="bitnet --help")
    if isinstance(error, OSError):
        return from_os_error(error, error.filename or "output")
    if isinstance(error, MemoryError):
        text = f"not enough memory{f': {error}' if str(error) else ''}"
        return InferenceError(text, hint="free some memory, or choose a smaller model")
    # A name that the file system's encoding cannot write is the user's; other texts are our bug.
    if isinstance(error, UnicodeEncodeError):
        name_codec, error_codec = map(codecs.lookup, (sys.getfilesystemencoding(), error.encoding))
        if name_codec.name == error_codec.name != "utf-8":
            return UsageError(
                f"this locale ({error.encoding}) has no way to write {error.object!a}",
                hint="set PYTHONUTF8=1, or a UTF-8 locale such as LC_ALL=C.UTF-8",
            )
    if settings.debug():
        traceback.print_exception(error)
    return BitnetError(
        f"internal error: {type(error).__name__}: {error}",
        hint="run again with BITNET_DEBUG=1 and report it with: bitnet doctor --report",
    )


def _terminate(_signal: int, _frame: object) -> None:
    """Handle a signal by raising the exception that stands for it."""
    raise _Terminated


def is_run_by_invoke() -> bool:
    """True if this process is ``inv``, ``invoke`` or ``python -m invoke``."""
    head, tail = os.path.split(sys.argv[0])
    name = tail.removesuffix(".exe")
    return name in ("inv", "invoke") or (name == "__main__.py" and head.endswith("invoke"))


def main(namespace: Collection | None = None, **options: Any) -> None:
    """Run this process's command line and exit."""
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _terminate)
    Program(namespace or load(), options.get("binary", "bitnet")).run()


# --- help, and the words that the tab key offers ------------------------------------------------


def program_help(collection: Collection, word: str = "") -> Iterator[str]:
    """Lines about the program, or its commands that begin with *word*, such as ``cache``."""
    if word:
        yield f"Usage: bitnet {word} COMMAND [--options]"
    else:
        yield from (_ABOUT, "", "Usage: bitnet COMMAND [--options]", f"Example: {_EXAMPLE}")
    groups: dict[str, list[Task]] = {group: [] for group in [*GROUPS, "This checkout"]}
    for command in _commands(collection):
        if not word or command.command_words.startswith(f"{word} "):
            groups[command.group or "This checkout"].append(command)
    for group, commands in groups.items():
        if commands:
            yield from ("", f"{group}:")
        for command in commands:
            yield from _entry(command.command_words, summary(command), NAMES)
    yield from ("", "For the options of a command: bitnet COMMAND --help")
    if not word:
        yield "For completion in your shell: bitnet completion --help"


def command_help(command: Task) -> Iterator[str]:
    """Lines about *command*: its use, what it does, an example, its options by section."""
    options = command.options
    words = ["[--options]", *(option.in_usage() for option in options if option.positional)]
    yield from (" ".join([f"Usage: bitnet {command.command_words}", *words]), "")
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    for at, paragraph in enumerate(paragraphs):
        if at > 0:
            yield ""
        yield from _wrap(" ".join(paragraph.splitlines()), 0)
    if command.example:
        yield from ("", "Example:", *(f"  {line}" for line in command.example.splitlines()))
    by_section: dict[str, list[Option]] = {}
    for option in options:
        by_section.setdefault(option.section, []).append(option)
    network = by_section.pop(NETWORK, [])
    for section, entries in by_section.items():
        yield from ("", f"{section}:")
        yield from _options(entries)
    if network:
        option_names = " ".join(f"--{entry.long_names[0]}" for entry in network)
        yield from ("", f"{NETWORK}, explained by `bitnet help network`:")
        yield from _wrap(option_names, 2)


def network_help(collection: Collection) -> Iterator[str]:
    """Lines about the options that every command of *collection* that fetches has."""
    options = (option for command in _commands(collection) for option in command.options)
    shared = {option.name: option for option in options if option.section == NETWORK}
    yield from ("Every command that fetches something takes these:", "")
    yield from _options(shared.values())


def _options(options: Iterable[Option]) -> Iterator[str]:
    """Lines of help about *options*."""
    for entry in options:
        yield from _entry(entry.spelling(), entry.describe(), COLUMN)


def _commands(collection: Collection) -> list[Task]:
    """The commands of *collection* in the order of the names that are typed."""
    tasks = (collection[name] for name in collection.task_names)
    return sorted(
        (task for task in tasks if isinstance(task, Task)), key=attrgetter("command_words")
    )


def summary(command: object) -> str:
    """The first line of the docstring of *command*."""
    return (command.__doc__ or "").strip().partition("\n")[0]


def _entry(name: str, text: str, column: int) -> Iterator[str]:
    """Lines of a name and its text; a name that is too long for *column* has its own line."""
    if _width() < _TOO_NARROW:
        column = 6  # the text stands below its name, indented
    lines = _wrap(text, column)
    if len(name) + 4 > column:
        yield f"  {name}"
    else:
        first = next(lines, "").strip()
        yield f"  {name:<{column - 2}}{first}".rstrip()
    yield from lines


def _wrap(text: str, indent: int) -> Iterator[str]:
    """Lines of *text*, each behind *indent* spaces."""
    margin = " " * indent
    yield from textwrap.wrap(
        text,
        _width(),
        initial_indent=margin,
        subsequent_indent=margin,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _width() -> int:
    """Columns of a line of help."""
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size().columns))


def candidates(words: list[str], collection: Collection) -> list[str]:
    """Words that can follow, or complete, the last of *words*; the shell picks those that fit.

    Files are left to the shell.
    """
    tasks = (collection[name] for name in collection.task_names)
    by_name = {tuple(getattr(task, "command_words", task.name).split()): task for task in tasks}
    name = next((name for name in by_name if tuple(words[: len(name)]) == name), None)
    if name is None:
        members = [name[1] for name in by_name if [name[0]] == words[:1] and name[1:]]
        return members or sorted({name[0] for name in by_name})
    arguments = words[len(name) :]
    options = by_name[name].options
    by_flag = {f"--{name}": option for option in options for name in option.long_names}
    last = arguments[-1] if arguments else ""
    for flag in reversed(arguments[-2:]):
        if flag in by_flag and by_flag[flag].takes_value:
            return _values(by_flag[flag])
    if last.startswith("-"):
        off = [option.off_flag for option in options if option.off_flag]
        return [*by_flag, *off, "--help"]
    return [value for option in options if option.positional for value in _values(option)]


def _values(option: Option) -> list[str]:
    """Possible values of *option*, as far as they are known without looking into a file."""
    if option.name != "model":
        return list(filter(_PLAIN.fullmatch, option.choices))
    from bitnet.hub.ref import names

    cached = (settings.cache_dir() / "models/hf").glob("*/*@*")
    names_of_files = (f"hf:{path.parent.name}/{path.name.removesuffix('@main')}" for path in cached)
    return [*names(), *filter(_PLAIN.fullmatch, names_of_files)]
