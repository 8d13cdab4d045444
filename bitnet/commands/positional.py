"""Words without a name on a command line, and whose values they are.

Invoke gives such words only to arguments without a default, and takes every other one for the
beginning of a command. Here ``infer tiny.gguf`` becomes ``infer --model=tiny.gguf``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError
from bitnet.commands.declare import IS_VALUE, Option

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from invoke.parser.context import ParserContext

    Contexts = Mapping[str, ParserContext]


def name_positionals(words: list[str], contexts: Contexts) -> list[str]:
    """*words*, commands and their arguments, with the name of each positional argument.

    Raises:
        UsageError: an argument has two values, or a word is both a command and a file.
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
    for option in options:
        flags = [f"--{name}" for name in option.names]
        for word, following in zip(words, [*words[1:], ""], strict=True):
            flag, equals, value = word.partition("=")
            if flag in flags and option.kind is not list:
                values[option.names[0]] = value if equals else following
    return values


def _fits(word: str, option: Option, context: ParserContext | None) -> bool:
    """True if *word* can be a value of *option*; a text or a table is not an optional model."""
    if option.choices:
        return word in option.choices
    if option.required or option.names[0] != "model" or context is None or Path(word).exists():
        return True
    is_text = "--prompt" in context.flags and len(word.split()) > 1 and ".gguf" not in word
    return not (is_text or ("--input" in context.flags and word.endswith((".jsonl", ".txt"))))
