"""The words of a command line, bound to the options of a command."""

from __future__ import annotations

import difflib
import shlex
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bitnet.base.errors import UsageError
from bitnet.commands.elsewhere import OPTIONS_OF_OTHERS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from bitnet.commands.declare import Option, Task


class _BareWord(NamedTuple):
    """A word of a command line that is neither an option nor the value of one."""

    text: str
    before: str  # the word before it; empty if it is the first
    position: int  # among the words of the command


class Words:
    """The words of a command line for *command*, bound to its options.

    A bare word is the value of the first positional option that it fits.

    Attributes:
        values: value of each option that the words set, by the option's name.
    """

    def __init__(self, command: Task, words: list[str]) -> None:
        self.values: dict[str, Any] = {}
        self._command = command
        self._typed = words
        self._rest = deque(words)  # not bound yet
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
            # Without a next word, *flag* stands for it, and is refused as a value as well.
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
        """Set *option* to the value *text*, or add it to the values of a list."""
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
        """Error for a *bare* word that fits no option.

        *taken* are the positional options if all have values, else it is empty.
        """
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
        """Error for *flag*, which the command does not have, with the likely one as its hint."""
        flags = [*self._flags, *self._off]
        likely = OPTIONS_OF_OTHERS.get(flag, "")
        near = f"did you mean {likely}?" if likely in flags else nearest(flag, flags)
        text = f"{self._command.command_words} has no option {flag}"
        return UsageError(text, hint=near or self._command.usage)


def _takes_no_value(option: Option, flag: str, value: str) -> UsageError:
    """Error for the switch *option*, typed as *flag* with a *value*."""
    off = f", or {option.off_flag}" if option.off_flag else ""
    text = f"{flag} takes no value, got {value!r}"
    return UsageError(text, hint=f"write {flag} or leave it out{off}")


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Hint with the *candidates* that are close to *word*; empty if none is."""
    # By their text without dashes, which do not make two flags similar.
    names = {name.lstrip("-"): name for name in candidates}
    close = difflib.get_close_matches(word.lstrip("-"), names, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(names[name] for name in close)}?" if close else ""


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
