"""Presets: a model and its options under a name, in a TOML file.

A table ``[NAME]`` is the preset NAME. Its key ``model`` is what commands take as MODEL; ``system``
has instructions, ``messages`` the first messages of every conversation; ``chat_template``,
``context`` and ``lora`` are the command-line options of these names. Any other key is an option of
an answer, such as ``temperature``.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InvalidFormat, UsageError
from bitnet.base.files import read_bytes
from bitnet.runtime.request import SAMPLING, Request
from bitnet.runtime.request_checks import check_messages, check_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Name of a preset, which has no ``/`` or ``:``, unlike a path, an address or a tag.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
#: Options of an answer that a preset may set.
OPTIONS = (*SAMPLING, *Request.SECTIONS["Answer"])
MOST_BYTES = 1 << 20  # of a file
_SYSTEM = ("system", "developer")  # roles of instructions
_KINDS = {str: "a text", int: "a whole number"}  # in errors


@dataclass(frozen=True)
class Preset:
    """A model and its options."""

    name: str
    model: str  # as a command takes it
    system: str = ""  # instructions for conversations that have none
    messages: tuple[Mapping[str, str], ...] = ()  # the first ones of every conversation
    chat_template: str = ""  # file with the template to use instead of the model's
    context: int | None = None
    lora: tuple[str, ...] = ()  # adapters, as --lora
    options: Mapping[str, Any] = field(default_factory=dict)  # those of :data:`OPTIONS`, by name

    def __post_init__(self) -> None:
        where = f"preset {self.name!r}"
        if not NAME.fullmatch(self.name):
            raise UsageError(
                f"{self.name!r} is not a name of a preset",
                hint="use letters, digits and . _ -, at most 64",
            )
        if not self.model:
            raise UsageError(f"{where}: it has no model", hint="name one: --from MODEL")
        for name in self.options:
            if name not in OPTIONS:
                raise UsageError(f"{where}: {name} is not an option of an answer", field=name)
        if self.context is not None and self.context < 1:
            raise UsageError(f"{where}: context is {self.context}, expected at least 1")
        try:
            check_value("system", self.system)
            if self.messages:
                check_messages(list(self.messages))
                check_value("messages", [dict(message) for message in self.messages])
            request = Request(**self.options)  # checks their types and bounds
        except UsageError as error:  # without its field, which is not an option of a command here
            raise UsageError(f"{where}: {error.message}", hint=error.hint) from error
        options = {name: getattr(request, name) for name in self.options}
        object.__setattr__(self, "options", options)

    def fill(self, request: Request) -> Request:
        """*request* with this preset's options, except for those that the request sets."""
        changes = {name: value for name, value in self.options.items() if not request.sets(name)}
        origins = {**request.origins, **dict.fromkeys(changes, f"preset {self.name}")}
        return replace(request, **changes, origins=origins)

    def begin(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The instructions and messages of this preset, followed by the conversation *messages*.

        If *messages* begin with instructions, these replace the ones of this preset.
        """
        return [message for message, _ in self._number(messages)]

    def list_numbers(self, messages: Sequence[Mapping[str, Any]]) -> list[int | None]:
        """For each message of :meth:`begin`, its number in *messages*; ``None``: this preset's."""
        return [number for _, number in self._number(messages)]

    def _number(
        self, messages: Sequence[Mapping[str, Any]]
    ) -> Iterator[tuple[Mapping[str, Any], int | None]]:
        """The messages of :meth:`begin`, each with its number in *messages*."""
        instructions = [message for message in messages[:1] if message.get("role") in _SYSTEM]
        for message in instructions:
            yield message, 0
        if not instructions and self.system:
            yield {"role": "system", "content": self.system}, None
        for own in self.messages:
            yield own, None
        for number, message in enumerate(messages[len(instructions) :], len(instructions)):
            yield message, number

    def to_toml(self) -> str:
        """This preset as a table of a file."""
        lines = [f"[{_key(self.name)}]"]
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name not in ("name", "options") and value not in ("", None, ()):
                lines.append(f"{entry.name} = {_value(value)}")
        lines += [f"{name} = {_value(value)}" for name, value in self.options.items()]
        return "\n".join(lines) + "\n"


def read_presets(path: Path) -> dict[str, Preset]:
    """The presets in the file *path*, by name; none if there is no file."""
    if not path.exists():
        return {}
    raw = read_bytes(path)
    if len(raw) > MOST_BYTES:
        raise InvalidFormat(f"{path}: {len(raw):,} bytes, presets have at most {MOST_BYTES:,}")
    try:
        return parse_presets(raw.decode())
    except UsageError as error:
        raise InvalidFormat(f"{path}: {error.message}", hint=error.hint) from error
    except ValueError as error:
        raise InvalidFormat(f"{path} is not TOML: {error}") from None


def parse_presets(text: str) -> dict[str, Preset]:
    """The presets in *text*, the content of a file, by name."""
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    return {name: _preset(name, table) for name, table in tables.items()}


def with_preset(text: str, preset: Preset) -> str:
    """*text* of a file of presets with *preset*, in place of one of the same name or at the end."""
    other_presets = {
        name: each for name, each in parse_presets(text).items() if name != preset.name
    }
    # Replace the lines of the table, so that comments and layout around it stay.
    before, after = _split_at_table(text, preset.name)
    if after is not None:
        changed = f"{before}{preset.to_toml()}{after}"
    elif before.strip():
        changed = f"{before.rstrip()}\n\n{preset.to_toml()}"
    else:
        changed = preset.to_toml()

    # Cutting by lines fails for subtables, and for lines of a text that begin with ``[``.
    try:
        is_right = parse_presets(changed) == {**other_presets, preset.name: preset}
    except ValueError:
        is_right = False
    if not is_right:
        raise UsageError(
            f"the preset {preset.name!r} cannot be replaced where it stands",
            hint="remove it from the file first",
        )
    return changed


def _split_at_table(text: str, name: str) -> tuple[str, str | None]:
    """The parts of *text* before and after the table of the preset *name*, which is in neither.

    Without that table, the first part is *text*, and the second one is None.
    """
    lines = [*io.StringIO(text)]  # TOML has fewer line ends than str.splitlines
    headers = [at for at, line in enumerate(lines) if line.startswith("[")]
    for begin, end in pairwise([*headers, len(lines)]):
        if _is_header(lines[begin], name):
            after = begin + _count_lines(lines[begin:end])
            return "".join(lines[:begin]), "".join(lines[after:])
    return text, None


def _is_header(line: str, name: str) -> bool:
    """True if *line* begins the table *name*, however the name is quoted."""
    try:
        tables: dict[str, Any] = tomllib.loads(line)
    except ValueError:  # such as a line of a list
        return False
    return tables == {name: {}}


def _count_lines(table: Sequence[str]) -> int:
    """Number of lines of *table* up to the end of its last value, without the comments below it."""
    values = [at for at, line in enumerate(table) if line.strip() and line.lstrip()[0] != "#"]
    for count in range(values[-1] + 1, len(table)):
        try:
            tomllib.loads("".join(table[:count]))
        except ValueError:  # the next line is not a comment, but part of a text of several lines
            continue
        return count
    return len(table)


def _preset(name: str, table: Any) -> Preset:
    """The preset *name* that the *table* of a file describes."""
    if not isinstance(table, dict):
        raise UsageError(f"{name}: expected a table [{name}]")
    field_names = {entry.name for entry in fields(Preset)} - {"name", "options"}
    for key, kind in (("model", str), ("system", str), ("chat_template", str), ("context", int)):
        if key in table and type(table[key]) is not kind:
            raise UsageError(f"preset {name!r}: {key} is not {_KINDS[kind]}")
    for key in ("messages", "lora"):
        if not isinstance(table.get(key, []), list):
            raise UsageError(f"preset {name!r}: {key} is not a list")
    if not all(isinstance(adapter, str) for adapter in table.get("lora", [])):
        raise UsageError(f"preset {name!r}: lora is not a list of texts")
    values = {key: table[key] for key in field_names & table.keys()}
    values.setdefault("model", "")  # Preset refuses an empty one
    values["messages"] = tuple(table.get("messages", ()))
    values["lora"] = tuple(table.get("lora", ()))
    options = {key: value for key, value in table.items() if key not in field_names}
    return Preset(name, **values, options=options)


def _key(name: str) -> str:
    """*name* as a key of TOML, quoted if it has to be."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _value(name)


def _value(value: Any) -> str:
    """*value* in TOML."""
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(f"{_key(str(key))} = {_value(each)}" for key, each in value.items())
            + "}"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, float):
        return repr(value)  # inf and nan are TOML's words, too
    # Strings, whole numbers and booleans are as in JSON, except that TOML has DEL escaped.
    text = json.dumps(value, ensure_ascii=False)
    return text.replace("\x7f", "\\u007f")
