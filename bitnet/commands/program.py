"""The program behind ``bitnet``, ``python -m bitnet`` and, through ``tasks.py``, ``inv``.

Invoke parses its own options and runs tasks; this subclass binds the words of each command, and
turns every failure into one readable error and the exit code of :mod:`bitnet.base.errors`.
"""

from __future__ import annotations

import codecs
import inspect
import os
import re
import shutil
import signal
import sys
import textwrap
import traceback
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from invoke.exceptions import Exit, ParseError, UnexpectedExit, UnknownFileType
from invoke.program import Program as InvokeProgram

from bitnet import __version__
from bitnet.base import settings, terminal
from bitnet.base.errors import BitnetError, InferenceError, Interrupted, UsageError, from_os_error
from bitnet.base.invocation import as_started, harmless, word
from bitnet.base.tables import wrap_lines
from bitnet.commands import load
from bitnet.commands.declare import GROUPS, NETWORK, Option, Task, Unexpected, Words, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from invoke.collection import Collection
    from invoke.parser.argument import Argument

COLUMN = 28  # where the help of an option starts
NAMES = 22  # and that of a command
NARROWEST, WIDEST = 40, 100  # columns

_ABOUT = "Local language models that just work, and prove it."
_EXAMPLE = 'bitnet run smollm2-135m "Why is the sky blue?"'
_PLAIN = re.compile(r"[\w.:/@+-]+")  # a shell may expand anything else
_HELP = ("--help", "-h")


class Program(InvokeProgram):
    """The command line: Invoke's tasks, our options, errors and exit codes."""

    def __init__(self, namespace: Collection, binary: str) -> None:
        super().__init__(version=__version__, namespace=namespace, name="bitnet", binary=binary)

    def run(self, argv: list[str] | None = None, exit: bool = True) -> None:
        """Run the command line in *argv* and exit with its exit code (unless *exit* is false)."""
        code = self._run_and_report(sys.argv if argv is None else argv)
        if exit:
            terminal.settle(sys.stderr)
            sys.exit(code)

    def _run_and_report(self, argv: list[str]) -> int:
        """Exit code of *argv*; all errors are reported here."""
        terminal.prepare()
        try:
            try:
                self._run_steps(argv)
            finally:
                sys.stdout.flush()
        except BitnetError as error:
            return self._report(error)
        except ParseError as error:  # of the options before the command
            text = re.sub(
                r"Flag <Argument: ([\w-]+).*?> needed value.*", r"--\1 needs a value", str(error)
            )
            return self._report(UsageError(text, hint="bitnet --help"))
        except UnknownFileType as error:
            return self._report(UsageError(str(error), hint="leave --config out"))
        except Exit as stop:
            if stop.message and stop.message.startswith("Sub-collection "):  # after --list
                return self._report(UsageError(stop.message, hint="bitnet --list"))
            if stop.message:
                print(stop.message, file=sys.stderr)
            return int(stop.code)
        except UnexpectedExit as error:  # a developer task's command failed
            return int(error.result.exited)
        except KeyboardInterrupt:
            return self._report(Interrupted("interrupted"))
        except _Terminated:
            return self._report(Interrupted("terminated"))
        except BrokenPipeError:
            # The reader has gone (``| head``): there is nothing left to report.
            terminal.let_go(sys.stdout)
            return 0
        except OSError as error:
            terminal.settle(sys.stdout)
            return self._report(from_os_error(error, error.filename or "output"))
        except UnicodeEncodeError as error:
            return self._report(_unspeakable(error)) if _of_a_name(error) else self._internal(error)
        except MemoryError as error:
            return self._report(_out_of_memory(error))
        except Exception as error:  # noqa: BLE001 - the last line of defence
            return self._internal(error)
        return 0

    def _run_steps(self, argv: list[str]) -> None:
        writes_bytecode = sys.dont_write_bytecode
        self.create_config()
        try:
            self.parse_core(argv)
        except ValueError as error:  # Invoke converts its own numbers unguarded
            raise UsageError(f"bad value for a core option: {error}") from None
        sys.dont_write_bytecode = writes_bytecode  # Invoke switches it off; imports need it on
        self.parse_collection()
        self.parse_tasks()
        self.parse_cleanup()
        self.update_config()
        self.execute()

    def _report(self, error: BitnetError) -> int:
        hint = as_started(error.hint)
        shown = f"\nhint: {hint}" if hint else ""
        message = error.message
        if isinstance(error, UsageError) and error.field:  # a field is an option here
            message = message.replace(error.field, f"--{error.field.replace('_', '-')}", 1)
        text = harmless(f"Error: {as_started(message)}{shown}")
        terminal.print_if_possible("\n".join(wrap_lines([text], sys.stderr)), sys.stderr)
        if "--json" in self.argv:
            facts = {
                "type": type(error).__name__,
                "message": message,
                "hint": hint,
                "exit_code": error.exit_code,
            }
            terminal.print_if_possible(terminal.as_json({"error": facts}), sys.stdout)
        return error.exit_code

    def _internal(self, error: Exception) -> int:
        if settings.debug():
            traceback.print_exception(error)
        return self._report(
            BitnetError(
                f"internal error: {type(error).__name__}: {error}",
                hint="run again with BITNET_DEBUG=1 and report it with: bitnet doctor --report",
            )
        )

    # --- parsing -----------------------------------------------------------------------------

    def core_args(self) -> list[Argument]:
        """Invoke's own options; those that find task files only where there are any."""
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
        names = self._names()
        words: list[str] = self.core.unparsed
        if isinstance(self.args.help.value, str):  # --help COMMAND
            words = [self.args.help.value, "--help", *words]
        words = words[: words.index("--")] if "--" in words else words
        if words:
            words[0] = words[0].replace("_", "-")
        words, typed = self._obey_plain_words(words, names), list(words)
        calls: list[tuple[str, dict[str, Any]]] = []
        while words:
            command = self._find(words[0], names)
            if any(word in _HELP for word in words):
                _show(command_help(command))
                raise Exit
            try:
                bound = Words(command, words[1:], names.__contains__)
            except Unexpected as error:
                raise _suggest(error, typed) from None
            calls.append((names[words[0]], bound.values))
            words = [*bound.rest]
            if self.core.remainder and not command.takes_remainder:
                raise UsageError(
                    f"{command.command_words} takes nothing after ' -- ', "
                    f"got {self.core.remainder!r}",
                    hint="write every option before the ' -- ', or leave it out",
                )
        self.tasks = calls  # type: ignore[assignment]  # the executor takes these, too

    def _names(self) -> dict[str, str]:
        """Every name of a command, and the one that the collection has."""
        names: dict[str, str] = {}
        for name, aliases in self.collection.task_names.items():
            names |= dict.fromkeys([name, *aliases], name)
        return names

    def _find(self, word: str, names: dict[str, str]) -> Task:
        if word in names:
            command: Task = self.collection[names[word]]
            return command
        if word.startswith("-"):
            flags = [*self.initial_context.flags, *self.initial_context.flags.aliases]
            hint = nearest(word, flags) or "bitnet --list"
            raise UsageError(f"no such option: {word}", hint=hint)
        hint = nearest(word, [name.replace(".", " ") for name in names]) or "bitnet --list"
        raise UsageError(f"no command {word!r}", hint=hint)

    def _obey_plain_words(self, words: list[str], names: dict[str, str]) -> list[str]:
        """*words* with the full name of their command; those such as ``help`` are obeyed."""
        if not words or words[0] in names:
            return words
        if words == ["help", "network"]:
            _show(network_help(self.collection))
            raise Exit
        if words[0] == "help" and words[1:]:
            words = [*words[1:], "--help"]  # what is not a command is said not to be one
        if ".".join(words[:2]) in names:
            return [".".join(words[:2]), *words[2:]]
        if len(words) == 1 and words[0] in ("help", "version"):
            show = {"help": self.print_help, "version": self.print_version}
            show[words[0]]()
            raise Exit
        if members := sorted(name for name in names if name.startswith(f"{words[0]}.")):
            if any(word in _HELP for word in words):
                _show(commands_help(words[0], self.collection))
                raise Exit
            listed = ", ".join(name.partition(".")[2] for name in members)
            raise UsageError(f"{words[0]} needs one of {listed}", hint=f"bitnet {words[0]} --help")
        return words

    # --- texts -------------------------------------------------------------------------------

    def list_tasks(self) -> None:
        """The commands, in one of Invoke's formats."""
        formats = ("flat", "nested", "json")
        if self.list_format not in formats:
            raise UsageError(
                f"--list-format expects one of {', '.join(formats)}, got {self.list_format!r}"
            )
        super().list_tasks()

    def print_version(self) -> None:
        """``bitnet 0.1.0 (native (avx2), Python 3.11.7)``."""
        from bitnet.base.native import backend_name, problem

        python = ".".join(map(str, sys.version_info[:3]))
        print(f"bitnet {self.version} ({backend_name()}, Python {python})")
        reason, hint = problem()
        if reason:
            text = f"the compiled module is missing: {reason}\nhint: {hint}"
            terminal.print_if_possible("\n".join(wrap_lines([text], sys.stderr)), sys.stderr)

    def print_help(self) -> None:
        """Print a summary, an example, and the commands by group."""
        _show(program_help(self.collection))

    def task_list_opener(self, extra: str = "") -> str:
        """Heading of the list of commands."""
        return f"Commands{f' ({extra})' if extra else ''}"


def _show(lines: Iterable[str]) -> None:
    print(as_started("\n".join(lines)))


def _suggest(error: Unexpected, typed: list[str]) -> UsageError:
    """*error* with the command line *typed*, and the flag that its word lacks."""
    if error.flag and error.word in typed:
        at = typed.index(error.word)
        line = " ".join([*map(word, typed[:at]), error.flag, *map(word, typed[at:])])
        error.hint = f"bitnet {line}"
    return error


def _out_of_memory(error: MemoryError) -> InferenceError:
    said = f": {error}" if str(error) else ""
    return InferenceError(
        f"not enough memory{said}", hint="free some memory, or choose a smaller model"
    )


def _of_a_name(error: UnicodeEncodeError) -> bool:
    """True if *error* is about a file name that this locale cannot encode."""
    spoken = codecs.lookup(sys.getfilesystemencoding()).name
    return spoken != "utf-8" and codecs.lookup(error.encoding).name == spoken


def _unspeakable(error: UnicodeEncodeError) -> UsageError:
    return UsageError(
        f"this locale ({error.encoding}) has no way to write {error.object!a}",
        hint="set PYTHONUTF8=1, or a UTF-8 locale such as LC_ALL=C.UTF-8",
    )


class _Terminated(BaseException):
    """SIGTERM or SIGHUP as an exception, so that cleanup code runs."""


def _terminate(_signal: int, _frame: object) -> None:
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


def program_help(collection: Collection) -> Iterator[str]:
    """Lines about the program: an example, then the commands by group."""
    yield from (_ABOUT, "", "Usage: bitnet COMMAND [--options]", f"Example: {_EXAMPLE}")
    groups: dict[str, list[Task]] = {group: [] for group in [*GROUPS, "This checkout"]}
    for command in _commands(collection):
        groups[command.group or "This checkout"].append(command)
    for group, commands in groups.items():
        if commands:
            yield from ("", f"{group}:")
        for command in commands:
            yield from _entry(command.command_words, summary(command), NAMES)
    yield ""
    yield "What a command does and takes: bitnet COMMAND --help"
    yield "Completion by the tab key: bitnet completion bash (or zsh, fish), see its --help"


def commands_help(word: str, collection: Collection) -> Iterator[str]:
    """Lines about the commands of *collection* that begin with *word*, such as ``cache``."""
    yield from (f"Usage: bitnet {word} COMMAND [--options]", "")
    for command in _commands(collection):
        if command.command_words.startswith(f"{word} "):
            yield from _entry(command.command_words, summary(command), NAMES)
    yield from ("", f"What a command does and takes: bitnet {word} COMMAND --help")


def command_help(command: Task) -> Iterator[str]:
    """Lines about *command*: its use, what it does, an example, its options by section."""
    options = command.options
    words = ["[--options]", *(option.in_usage() for option in options if option.positional)]
    yield from (" ".join([f"Usage: bitnet {command.command_words}", *words]), "")
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    for at, paragraph in enumerate(paragraphs):
        yield from ("",) * bool(at)
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
        shown = " ".join(f"--{entry.long_names[0]}" for entry in network)
        yield from ("", f"{NETWORK}, explained by `bitnet help network`:")
        yield from _wrap(shown, 2)


def network_help(collection: Collection) -> Iterator[str]:
    """Lines about the options that every command of *collection* that fetches has."""
    shared = {
        option.name: option
        for command in _commands(collection)
        for option in command.options
        if option.section == NETWORK
    }
    yield from ("Every command that fetches something takes these:", "")
    yield from _options(shared.values())


def _commands(collection: Collection) -> list[Task]:
    """The commands of *collection* in the order of the names that are typed."""
    found = (collection[name] for name in collection.task_names)
    return sorted((one for one in found if isinstance(one, Task)), key=attrgetter("command_words"))


def summary(command: object) -> str:
    """The first line of the text of *command*."""
    return (command.__doc__ or "").strip().partition("\n")[0]


def _options(options: Iterable[Option]) -> Iterator[str]:
    for entry in options:
        yield from _entry(entry.spelling(), entry.describe(), COLUMN)


def _entry(name: str, text: str, column: int) -> Iterator[str]:
    """A name and its text; a long name has a line of its own."""
    lines = _wrap(text, column)
    if len(name) + 4 > column:
        yield f"  {name}"
    else:
        first = next(lines, "").strip()
        yield f"  {name:<{column - 2}}{first}".rstrip()
    yield from lines


def _wrap(text: str, indent: int) -> Iterator[str]:
    width = max(NARROWEST, min(WIDEST, shutil.get_terminal_size().columns))
    margin = " " * indent
    yield from textwrap.wrap(
        text, width, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False
    )


def candidates(words: list[str], collection: Collection) -> list[str]:
    """Words that can follow, or complete, the last of *words*; the shell picks those that fit.

    Files are left to the shell.
    """
    tasks = [collection[name] for name in collection.task_names]
    by_name = {getattr(task, "command_words", task.name): task for task in tasks}
    names = list(by_name)
    command = next((name for name in names if words[: name.count(" ") + 1] == name.split()), "")
    if not command:
        first = words[0] if words else ""
        members = [name.split()[1] for name in names if name.startswith(f"{first} ")]
        return members or sorted({name.split()[0] for name in names})
    rest = words[command.count(" ") + 1 :]
    options = by_name[command].options
    by_flag = {f"--{name}": option for option in options for name in option.long_names}
    last = rest[-1] if rest else ""
    for flag in reversed(rest[-2:]):
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
    from bitnet.base import settings
    from bitnet.hub.ref import names

    cached = (settings.cache_dir() / "models/hf").glob("*/*@*")
    found = (f"hf:{path.parent.name}/{path.name.removesuffix('@main')}" for path in cached)
    return [*names(), *filter(_PLAIN.fullmatch, found)]
