"""The program behind ``bitnet``, ``python -m bitnet`` and, through ``tasks.py``, ``inv``.

Invoke parses; this subclass turns every failure into one readable error and the exit code of
:mod:`bitnet.base.errors`.
"""

from __future__ import annotations

import ast
import codecs
import difflib
import os
import signal
import sys
import traceback
from functools import cached_property
from typing import TYPE_CHECKING, Any

from invoke.exceptions import Exit, ParseError, UnexpectedExit, UnknownFileType
from invoke.parser.context import ParserContext
from invoke.parser.parser import Parser
from invoke.program import Program as InvokeProgram
from invoke.util import Lexicon  # type: ignore[attr-defined]

from bitnet import __version__
from bitnet.base import settings, terminal
from bitnet.base.errors import BitnetError, InferenceError, Interrupted, UsageError, from_os_error
from bitnet.base.invocation import as_started, harmless, word
from bitnet.base.tables import wrap_lines
from bitnet.commands import declare, load
from bitnet.commands.declare import Task
from bitnet.commands.usage import (
    candidates,
    command_help,
    commands_help,
    network_help,
    program_help,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from invoke.collection import Collection
    from invoke.parser.argument import Argument

_HELP = ("--help", "-h")
# Short options of other engines' programs.
_LETTERS = {"-m": "--model", "-p": "--prompt", "-n": "--max-tokens", "-o": "--output"}


class Program(InvokeProgram):
    """The command line: Invoke's grammar, our errors and exit codes."""

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
        except ParseError as error:
            return self._report(self._explain(error))
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

    def _make_parser(self) -> Parser:
        """Options of Invoke come before the command: behind it they are not its options."""
        parser = Parser(initial=ParserContext())
        parser.contexts = self._commands
        return parser

    @cached_property
    def _commands(self) -> _Commands:
        return _Commands(self.collection)

    def parse_tasks(self) -> None:
        """Parse the words after the core options; ``--help`` wins, ``_`` in a name means ``-``."""
        if self.args.complete.value:
            _, *typed = self.core.remainder.split() or [""]
            print(*candidates(typed, self.collection), sep="\n")
            raise Exit
        words: list[str] = self.core.unparsed
        before = words[: words.index("--")] if "--" in words else words
        if before:
            before[0] = words[0] = before[0].replace("_", "-")
        self.parser = self._make_parser()
        self._obey_plain_words(words)
        before = words[: words.index("--")] if "--" in words else words
        if any(word in _HELP for word in before) and before[0] in self.parser.contexts:
            self.print_task_help(self.parser.contexts[before[0]].name)
            raise Exit
        self.typed = [*words]
        words[: len(before)] = declare.name_positionals(before, self.parser.contexts)
        super().parse_tasks()
        if self.core.remainder:
            for context in self.tasks:
                if not getattr(self.collection[context.name], "takes_remainder", False):
                    name, given = self._name_of(context), self.core.remainder
                    raise UsageError(
                        f"{name} takes nothing after ' -- ', got {given!r}",
                        hint="write every option before the ' -- ', or leave it out",
                    )

    def _obey_plain_words(self, words: list[str]) -> None:
        """Handle words that Invoke would take for commands, such as ``help`` and ``cache list``."""
        contexts = self.parser.contexts
        names = [*contexts, *contexts.aliases]
        if not words or words[0] in contexts:
            return
        if words == ["help", "network"]:
            _show(network_help(self.collection))
            raise Exit
        if words[0] == "help" and words[1:]:
            words[:] = [*words[1:], "--help"]  # what is not a command is said not to be one
        if ".".join(words[:2]) in contexts:
            words[:2] = [".".join(words[:2])]
        elif len(words) == 1 and words[0] in ("help", "version"):
            show = {"help": self.print_help, "version": self.print_version}
            show[words[0]]()
            raise Exit
        elif members := sorted(name for name in names if name.startswith(f"{words[0]}.")):
            if any(word in _HELP for word in words):
                _show(commands_help(words[0], self.collection))
                raise Exit
            listed = ", ".join(name.partition(".")[2] for name in members)
            raise UsageError(f"{words[0]} needs one of {listed}", hint=f"bitnet {words[0]} --help")

    def _explain(self, error: ParseError) -> UsageError:
        """The user's mistake in words, with the nearest correct command."""
        text = str(error)
        words = list(self.core.unparsed) if hasattr(self, "core") else list(self.argv[1:])
        context = error.context or self._context_of(words)
        name = self._name_of(context)
        usage = f"bitnet {name} --help" if name else "bitnet --list"
        if text.startswith("No idea what "):
            token = ast.literal_eval(text[len("No idea what ") : -len(" is!")])
            return self._unknown(token, context, words, usage)
        if "needed value" in text and context is not None:
            flag = _flag_without_value(words, context)
            return UsageError(
                f"{flag} needs a value",
                hint=f"a value that starts with a dash is written {flag}=-value; see: {usage}",
            )
        if "did not receive required positional" in text and context is not None:
            missing = ", ".join(arg.names[0].upper() for arg in context.missing_positional_args)
            return UsageError(f"{name} needs {missing}", hint=usage)
        return UsageError(text, hint=usage)

    def _name_of(self, context: ParserContext | None) -> str:
        """The command of *context* as it is typed; nothing for the options before a command."""
        name = context.name if context is not None else None
        return getattr(self.collection[name], "command_words", name) if name else ""

    def _context_of(self, words: list[str]) -> ParserContext | None:
        contexts = self.parser.contexts if hasattr(self, "parser") else {}
        return next((contexts[word] for word in words if word in contexts), None)

    def _unknown(
        self, token: str, context: ParserContext | None, words: list[str], usage: str
    ) -> UsageError:
        named = context is not None and context.name is not None
        parts = (word.partition("=") for word in words)
        again = next((flag for flag, _, value in parts if value == token), None)
        if named and context is not None and again is not None and again in context.flags:
            return _twice(again, words, context, usage)
        if token.startswith("-"):
            flags = [*self.initial_context.flags, *self.initial_context.flags.aliases]
            if named and context is not None:
                flags = [*context.flags, *context.flags.aliases, *context.inverse_flags]
            where = f"{self._name_of(context)} has no option" if named else "no such option:"
            likely = _LETTERS.get(token.partition("=")[0], "")
            near = f"did you mean {likely}?" if likely in flags else _nearest(token, flags)
            return UsageError(f"{where} {token}", hint=near or usage)
        if not named or context is None:
            names = [name.replace(".", " ") for name in self.collection.task_names]
            return UsageError(
                f"no command {token!r}",
                hint=_nearest(token, names) or usage,
            )
        before = words[words.index(token) - 1] if token in words[1:] else ""
        flag, inline_value, _ = before.partition("=")
        if flag in context.flags and not context.flags[flag].takes_value:
            off = f", or --no-{flag[2:]}" if context.flags[flag].default is True else ""
            return UsageError(
                f"{flag} takes no value, got {token!r}", hint=f"write {flag} or leave it out{off}"
            )
        if flag in context.flags and not inline_value:
            return _twice(flag, words, context, usage)
        return UsageError(
            f"{self._name_of(context)}: unexpected argument {token!r}",
            hint=_suggest(token, context, words, self.typed)
            or f"a value with spaces needs quotes; see: {usage}",
        )

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
        from bitnet.native import backend_name, problem

        python = ".".join(map(str, sys.version_info[:3]))
        print(f"bitnet {self.version} ({backend_name()}, Python {python})")
        reason, hint = problem()
        if reason:
            text = f"the compiled module is missing: {reason}\nhint: {hint}"
            terminal.print_if_possible("\n".join(wrap_lines([text], sys.stderr)), sys.stderr)

    def print_help(self) -> None:
        """Print a summary, an example, and the commands by group."""
        _show(program_help(self.collection))

    def print_task_help(self, name: str) -> None:
        """Print usage, description, an example, and every option with its default."""
        command = self.collection[name]
        if isinstance(command, Task):
            _show(command_help(command))
        else:
            super().print_task_help(name)

    def task_list_opener(self, extra: str = "") -> str:
        """Heading of the list of commands."""
        return f"Commands{f' ({extra})' if extra else ''}"


class _Commands(Lexicon):
    """The parser's commands by name.

    The options of a command are made when it is looked up: those of all were a tenth of a start.
    The parser copies the command it meets, so it need not copy them all.
    """

    def __init__(self, collection: Collection) -> None:
        super().__init__()
        dict.__setattr__(self, "collection", collection)  # Lexicon makes entries of attributes
        for name, aliases in collection.task_names.items():
            dict.__setitem__(self, name, None)
            self.aliases.update(dict.fromkeys(aliases, name))

    def __getitem__(self, name: str) -> ParserContext:
        name = self.aliases.get(name, name)
        if dict.__getitem__(self, name) is None:
            options = self.collection[name].get_arguments()
            context = ParserContext(name, self.aliases_of(name), options)
            dict.__setitem__(self, name, context)
        command: ParserContext = dict.__getitem__(self, name)
        return command

    def __deepcopy__(self, _copies: object) -> _Commands:
        return self

    def __repr__(self) -> str:
        return f"{len(self)} commands"  # the parser formats it on every start


def _show(lines: Iterable[str]) -> None:
    print(as_started("\n".join(lines)))


def _twice(flag: str, words: list[str], context: ParserContext, usage: str) -> UsageError:
    """Error: *flag* has a value already, perhaps by another of its names."""
    given = {name for each in words if (name := each.partition("=")[0]) in context.flags}
    same = [name for name in given if context.flags[name] is context.flags[flag]]
    if len(same) > 1:
        return UsageError(f"{' and '.join(sorted(same))} are one option, given twice", hint=usage)
    return UsageError(f"{flag} is given twice", hint=usage)


def _suggest(token: str, context: ParserContext, words: list[str], typed: list[str]) -> str:
    """The command line *typed*, understood as *words*, with the name that *token* lacks."""
    free = [name for name in context.flags if not any(each.startswith(name) for each in words)]
    likely = ["--input"] if token.endswith((".jsonl", ".txt")) else []
    likely += ["--prompt", "--model-dir", "--output"]
    flag = next((name for name in likely if name in free), "")
    if not flag or token not in typed:
        return ""
    at = typed.index(token)
    line = " ".join([*map(word, typed[:at]), flag, *map(word, typed[at:])])
    return f"bitnet {line}"


def _nearest(given: str, known: list[str]) -> str:
    bare = {name.lstrip("-"): name for name in known}  # ignore the dashes that all have
    close = difflib.get_close_matches(given.lstrip("-"), bare, n=3, cutoff=0.6)
    found = [bare[name] for name in close]
    return f"did you mean {' or '.join(found)}?" if found else ""


def _flag_without_value(words: list[str], context: ParserContext) -> str:
    """The option in *words* that lacks its value."""
    for each, following in zip(words, [*words[1:], None], strict=True):
        if (
            each in context.flags
            and context.flags[each].takes_value
            and (
                following is None
                or following in context.flags
                or following in context.inverse_flags
            )
        ):
            return each
    return "an option"


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
