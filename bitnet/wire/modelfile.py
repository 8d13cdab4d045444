"""Presets in the forms of other programs: Ollama's Modelfile, and llama.cpp's preset.ini."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError
from bitnet.base.options import types_of, without_none
from bitnet.runtime.request import Request
from bitnet.wire.fields import DIALECTS, NAMES
from bitnet.wire.ollama import RUNNING, UNSERVED_OPTIONS
from bitnet.wire.presets import OPTIONS, Preset
from bitnet.wire.schemas import is_neutral

if TYPE_CHECKING:
    from collections.abc import Iterator

_QUOTES = ('"""', '"')  # around a value, which may have several lines then; longest first
_COMMAND = re.compile(r"(\w+)[ \t]+(.*)", re.DOTALL)  # a command and its value
_PAIR = re.compile(r"(\S+)[ \t]+(.*)", re.DOTALL)  # a name and a value: the value of _PAIRS
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_MOST_DIGITS = 20  # of a whole number, with its sign
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_ROLES = ("system", "user", "assistant")
#: Commands of a Modelfile without effect here: the licence, and choices of Ollama's own code.
_IDLE = ("LICENSE", "PARSER", "RENDERER", "REQUIRES")
_PAIRS = ("PARAMETER", "MESSAGE")  # commands with a name before their value
#: Options of which Ollama and llama.cpp write the default as a number below 0.
_DEFAULTS_BELOW_0 = {"max_tokens": (-1, -2), "seed": (-1,), "thinking_budget": (-1,)}

#: Options of llama.cpp and the keys of a preset that they set.
_OF_LLAMA_CPP = {
    "m": "model", "model": "model", "hf-repo": "model", "hf": "model", "c": "context",
    "ctx-size": "context", "sys": "system", "system-prompt": "system", "lora": "lora",
    "chat-template-file": "chat_template", "n": "max_tokens", "n-predict": "max_tokens",
    "predict": "max_tokens", "temp": "temperature", "temperature": "temperature",
    "top-k": "top_k", "top-p": "top_p", "min-p": "min_p", "typical": "typical_p",
    "typical-p": "typical_p", "top-nsigma": "top_n_sigma", "top-n-sigma": "top_n_sigma",
    "xtc-probability": "xtc_probability", "xtc-threshold": "xtc_threshold",
    "dynatemp-range": "dynatemp_range", "dynatemp-exp": "dynatemp_exponent",
    "repeat-last-n": "repeat_last_n", "repeat-penalty": "repetition_penalty",
    "presence-penalty": "presence_penalty", "frequency-penalty": "frequency_penalty",
    "dry-multiplier": "dry_multiplier", "dry-base": "dry_base",
    "dry-allowed-length": "dry_allowed_length", "dry-penalty-last-n": "dry_penalty_last_n",
    "mirostat": "mirostat", "mirostat-lr": "mirostat_eta", "mirostat-ent": "mirostat_tau",
    "s": "seed", "seed": "seed", "samplers": "samplers", "reasoning-budget": "thinking_budget",
}  # fmt: skip
#: Options of llama.cpp for loading and running a model, without effect here.
_RUNNING_OF_LLAMA_CPP = {
    "ngl", "gpu-layers", "n-gpu-layers", "t", "threads", "b", "batch-size", "ub", "ubatch-size",
    "fa", "flash-attn", "mlock", "mmap", "no-mmap", "load-on-startup", "stop-timeout", "jinja",
    "np", "parallel", "version",
}  # fmt: skip
_EVERY = "*"  # name of the section with the options of every model
#: A comment begins a line or follows a blank. llama.cpp needs neither, so it cuts ``top_k;temp``.
_COMMENT = re.compile(r"(?:^|\s)[#;]")


def read_modelfile(text: str, name: str) -> tuple[Preset, list[str]]:
    """The preset *name* that the Modelfile *text* describes, and commands without effect here.

    The form is that of ollama's ``docs/modelfile.mdx``. A command that is not supported is refused
    by name.
    """
    values: dict[str, Any] = {}
    messages: list[dict[str, str]] = []
    adapters: list[str] = []
    parameters: dict[str, list[str]] = {}
    ignored: list[str] = []
    for number, command, key, value in _commands(text):
        if command == "FROM":
            if "model" in values:
                raise _error(number, "a second FROM")
            values["model"] = value
        elif command == "SYSTEM":
            values["system"] = value
        elif command == "ADAPTER":
            adapters.append(value)
        elif command == "TEMPLATE":
            raise _error(
                number,
                "TEMPLATE is a template of Go, which no program but Ollama runs",
                hint="leave it out: the model's own chat template is used; or give a Jinja "
                "template with --chat-template FILE",
            )
        elif command == "MESSAGE":
            if key not in _ROLES:
                raise _error(number, f"MESSAGE {key[:20]}: expected {', '.join(_ROLES)}")
            messages.append({"role": key, "content": value})
        elif command == "PARAMETER":
            parameters.setdefault(key, []).append(value)
        elif command in _IDLE:
            ignored.append(command)
        else:
            raise _error(number, f"{command} is not a command of a Modelfile")
    if "model" not in values:
        raise UsageError("the Modelfile has no FROM", hint="name the model: FROM MODEL")
    options, context, idle_parameters = _options(parameters)
    preset = Preset(
        name, messages=tuple(messages), lora=tuple(adapters), context=context, options=options,
        **values,
    )  # fmt: skip
    return preset, [*ignored, *idle_parameters]


def _commands(source: str) -> Iterator[tuple[int, str, str, str]]:
    """Commands of a Modelfile: the number of the line, the name in capitals, a key and the value.

    The key is the word before the value of a ``PARAMETER`` or a ``MESSAGE``. A value that begins
    with quotation marks ends with them at the end of a line, as in ollama's ``parser/parser.go``.
    """
    lines = source.removeprefix("\ufeff").split("\n")
    at = 0
    while at < len(lines):
        line = lines[at].lstrip()
        at += 1
        if not line.strip() or line.startswith("#"):
            continue
        number = at
        match = _COMMAND.fullmatch(line)
        if match is None:
            raise _error(number, f"{line.strip()[:40]!r} is not a command with a value")
        command = match[1].upper()
        value = match[2]
        key = ""
        if command in _PAIRS:
            pair = _PAIR.fullmatch(value.lstrip())
            if pair is None:
                raise _error(number, f"{command} {value.strip()[:40]} has no value")
            key = pair[1]
            value = pair[2]
        text_lines = [value]
        first = value.strip()
        marks = next((marks for marks in _QUOTES if first.startswith(marks)), "")
        is_closed = first.endswith(marks) and len(first) >= 2 * len(marks)
        while not is_closed:
            if at == len(lines):
                raise _error(number, f"the text after {marks} does not end with it")
            is_closed = lines[at].rstrip().endswith(marks)
            text_lines.append(lines[at])
            at += 1
        whole = "\n".join(text_lines).strip()
        yield number, command, key, whole[len(marks) : len(whole) - len(marks)]


def _options(parameters: dict[str, list[str]]) -> tuple[dict[str, Any], int | None, list[str]]:
    """Options of an answer, the context length, and ``PARAMETER NAME`` of those without effect.

    *parameters* has the values of each ``PARAMETER`` by its name. Of several values of one name the
    last counts; only ``stop`` has them all.
    """
    at = DIALECTS.index("ollama")
    names_here = {names[at]: name for name, names in NAMES.items() if names[at] and name in OPTIONS}
    options: dict[str, Any] = {}
    context: int | None = None
    ignored = []
    for key, settings in parameters.items():
        if key in RUNNING:
            ignored.append(f"PARAMETER {key}")
        elif key == "num_ctx":
            context = int(_number(f"PARAMETER {key}", settings[-1], whole=True))
        elif key in UNSERVED_OPTIONS and _turns_off(key, settings[-1]):
            continue
        elif key not in names_here:
            raise UsageError(f"PARAMETER {key[:40]} is not served")
        elif names_here[key] == "stop":
            options["stop"] = settings
        else:
            _set_number(options, names_here[key], f"PARAMETER {key}", settings[-1])
    return options, context, ignored


def _turns_off(name: str, text: str) -> bool:
    """True if *text* turns off the option *name* of Ollama, which is refused otherwise."""
    value: float | str = float(text) if _NUMBER.fullmatch(text) else text.lower()
    return value == "false" or is_neutral(UNSERVED_OPTIONS[name], value)


def _is_whole(name: str) -> bool:
    """True if the option *name* of an answer is a whole number."""
    return without_none(types_of(Request, name)[name]) is int


def _set_number(options: dict[str, Any], name: str, label: str, text: str) -> None:
    """Set the option *name* to the number *text* of *label*, unless that is the default."""
    number = _number(label, text, whole=_is_whole(name))
    if number in _DEFAULTS_BELOW_0.get(name, ()):
        return
    # Ollama and llama.cpp leave top-k out for any number below 1.
    options[name] = max(0, number) if name == "top_k" else number


def _number(label: str, text: str, *, whole: bool) -> float:
    """The number *text*, the value of *label*."""
    if whole and _WHOLE.fullmatch(text) and len(text) <= _MOST_DIGITS:
        return int(text)
    if not whole and _NUMBER.fullmatch(text):
        return float(text)
    expected = "a whole number" if whole else "a number"
    # Without a field: a command would report it as one of its own options.
    raise UsageError(f"{label} is {text[:40]!r}, expected {expected}")


def _error(number: int, reason: str, *, hint: str = "") -> UsageError:
    """Error about line *number* of a Modelfile."""
    return UsageError(f"Modelfile, line {number:,}: {reason}", hint=hint)


def read_llama_cpp_presets(text: str) -> tuple[list[Preset], list[str]]:
    """The presets in *text*, a ``preset.ini`` of llama.cpp, and its options without effect here."""
    # Options as written, with their values, by the key that they set: they have several names.
    common: dict[str, tuple[str, str]] = {}
    sections: dict[str, dict[str, tuple[str, str]]] = {}
    section: dict[str, tuple[str, str]] | None = None
    headings: dict[str, str] = {}  # of the sections, by the names of their presets
    for number, raw in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        line = _COMMENT.split(raw, maxsplit=1)[0].strip()
        if not line:
            continue
        if line.startswith("[") and line.endswith("]"):
            heading = line[1:-1].strip()
            if heading == _EVERY:
                section = common
                continue
            preset_name = _name_of(heading)
            if preset_name in headings:
                first_heading = headings[preset_name]
                raise UsageError(
                    f"preset.ini, line {number:,}: [{heading[:40]}] and [{first_heading[:40]}] "
                    f"are both the preset {preset_name!r}",
                    hint="rename one of the sections",
                )
            headings[preset_name] = heading
            section = sections[heading] = {}
            continue
        key, equals, value = line.partition("=")
        if not equals:
            raise UsageError(f"preset.ini, line {number:,}: expected NAME = VALUE")
        option = key.strip().lstrip("-").lower()
        if section is None and option != "version":
            # llama.cpp makes a model of its own of these options, and calls it default.
            raise UsageError(
                f"preset.ini, line {number:,}: {option[:40]} is not in a section",
                hint=f"put the options of all models into the section [{_EVERY}]",
            )
        options_of_section = common if section is None else section
        key_set = _OF_LLAMA_CPP.get(option, f"--{option}")  # an unknown one is refused below
        options_of_section[key_set] = option, value.strip()
    ignored: dict[str, None] = {}
    presets = []
    for heading, entries in sections.items():
        values: dict[str, Any] = {"model": heading}  # unless an option of the section names a model
        options: dict[str, Any] = {}
        for key, value in (common | entries).values():
            if key in _RUNNING_OF_LLAMA_CPP:
                ignored[key] = None
                continue
            own = _OF_LLAMA_CPP.get(key)
            if own is None:
                raise UsageError(f"preset.ini: {key[:40]} of [{heading[:40]}] is not served")
            _set(values, options, own, key, value)
        presets.append(Preset(_name_of(heading), options=options, **values))
    return presets, [*ignored]


def _set(values: dict[str, Any], options: dict[str, Any], name: str, key: str, value: str) -> None:
    """Set *name*, a field of a preset or an option, to the *value* of llama.cpp's option *key*."""
    if name in ("model", "system", "chat_template"):
        values[name] = value
    elif name == "lora":
        values["lora"] = (value,)
    elif name == "context":
        values["context"] = int(_number(f"preset.ini: {key}", value, whole=True)) or None
    elif name == "samplers":
        options[name] = value.split(";")
    else:
        _set_number(options, name, f"preset.ini: {key}", value)


def _name_of(section: str) -> str:
    """Name for the preset of *section*, whose heading may be a repository: ``ORG/REPO:TAG``."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", section).strip("-.")[:64]
