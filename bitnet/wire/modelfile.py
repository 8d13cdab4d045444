"""Presets in the forms of other programs: Ollama's Modelfile, and llama.cpp's preset.ini."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError
from bitnet.base.options import types_of, without_none, wrong_type
from bitnet.runtime.request import Request
from bitnet.wire.fields import DIALECTS, NAMES
from bitnet.wire.ollama import RUNNING
from bitnet.wire.presets import OPTIONS, Preset

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLOCK = '"""'
_COMMAND = re.compile(r"\s*(\w+)\s+(.*)", re.DOTALL)
_ROLES = ("system", "user", "assistant")
#: Commands of a Modelfile without effect here: the licence, and choices of Ollama's own code.
_IDLE = ("LICENSE", "PARSER", "RENDERER", "REQUIRES")
_PAIRS = ("PARAMETER", "MESSAGE")  # commands whose value is a name and a value

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
_EVERY = "*"  # name of the section whose options every model has


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
    for number, command, value in _commands(text):
        if command == "FROM":
            if "model" in values:
                raise _error(number, "FROM stands here again")
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
            role, _, content = value.partition(" ")
            if role not in _ROLES:
                raise _error(number, f"MESSAGE {role[:20]}: expected {', '.join(_ROLES)}")
            messages.append({"role": role, "content": _unquote(content.strip())})
        elif command == "PARAMETER":
            key, _, setting = value.partition(" ")
            parameters.setdefault(key, []).append(_unquote(setting.strip()))
        elif command in _IDLE:
            ignored.append(command)
        else:
            raise _error(number, f"{command} is not a command of a Modelfile")
    if "model" not in values:
        raise UsageError("the Modelfile has no FROM", hint="name the model: FROM MODEL")
    options, context, idle = _options(parameters)
    preset = Preset(
        name, messages=tuple(messages), lora=tuple(adapters), context=context, options=options,
        **values,
    )  # fmt: skip
    return preset, [*ignored, *idle]


def _commands(text: str) -> Iterator[tuple[int, str, str]]:
    """Commands of a Modelfile: the number of the line, the name in capitals, and the value.

    A value between triple quotation marks may have several lines.
    """
    lines = text.removeprefix("\ufeff").split("\n")
    at = 0
    while at < len(lines):
        line = lines[at].strip()
        at += 1
        if not line or line.startswith("#"):
            continue
        number = at
        match = _COMMAND.fullmatch(line)
        if match is None:
            raise _error(number, f"{line[:40]!r} is not a command with a value")
        command = match[1].upper()
        value = match[2]
        head, opened, rest = value.partition(_BLOCK)
        if not opened:
            yield number, command, value.strip() if command in _PAIRS else _unquote(value.strip())
            continue
        while _BLOCK not in rest:
            if at == len(lines):
                raise _error(number, f"the text after {_BLOCK} does not end")
            rest += f"\n{lines[at]}"
            at += 1
        yield number, command, head + rest.partition(_BLOCK)[0]


def _unquote(text: str) -> str:
    is_quoted = len(text) > 1 and text[0] == text[-1] == '"'
    return text[1:-1] if is_quoted else text


def _options(
    parameters: dict[str, list[str]], dialect: str = "ollama"
) -> tuple[dict[str, Any], int | None, list[str]]:
    """Options of an answer, the context length, and names without an effect here."""
    at = DIALECTS.index(dialect)
    own = {names[at]: name for name, names in NAMES.items() if names[at] and name in OPTIONS}
    options: dict[str, Any] = {}
    context: int | None = None
    ignored = []
    for key, settings in parameters.items():
        if key in RUNNING:
            ignored.append(f"PARAMETER {key}")
        elif key == "num_ctx":
            context = int(_number(key, settings[-1], whole=True))
        elif key not in own:
            raise UsageError(f"PARAMETER {key[:40]} is not served", field=key[:40])
        elif own[key] == "stop":
            options["stop"] = settings
        else:
            name = own[key]
            number = _number(key, settings[-1], whole=_is_whole(name))
            if number == -1 and name in ("max_tokens", "seed", "top_k"):
                continue  # the default
            options[name] = number
    return options, context, ignored


def _is_whole(name: str) -> bool:
    """True if the option *name* of an answer is a whole number."""
    return without_none(types_of(Request, name)[name]) is int


def _number(name: str, text: str, *, whole: bool) -> float:
    try:
        return int(text) if whole else float(text)
    except ValueError:
        raise wrong_type(f"PARAMETER {name}", text, "a number") from None


def _error(number: int, reason: str, *, hint: str = "") -> UsageError:
    return UsageError(f"Modelfile, line {number:,}: {reason}", hint=hint)


def read_llama_cpp_presets(text: str) -> tuple[list[Preset], list[str]]:
    """The presets in *text*, a ``preset.ini`` of llama.cpp, and its options without effect here."""
    common: dict[str, str] = {}
    sections: dict[str, dict[str, str]] = {}
    section = common
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("[") and line.endswith("]"):
            name = line[1:-1].strip()
            section = common if name == _EVERY else sections.setdefault(name, {})
            continue
        key, equals, value = line.partition("=")
        if not equals:
            raise UsageError(f"preset.ini, line {number:,}: expected NAME = VALUE")
        section[key.strip().lstrip("-").lower()] = value.strip()
    ignored: dict[str, None] = {}
    presets = []
    for name, entries in sections.items():
        values: dict[str, Any] = {"model": name}
        options: dict[str, Any] = {}
        for key, value in (common | entries).items():
            if key in _RUNNING_OF_LLAMA_CPP:
                ignored[key] = None
                continue
            own = _OF_LLAMA_CPP.get(key)
            if own is None:
                raise UsageError(f"preset.ini: {key[:40]} of [{name[:40]}] is not served")
            _set(values, options, own, key, value)
        presets.append(Preset(_name_of(name), options=options, **values))
    return presets, [*ignored]


def _set(values: dict[str, Any], options: dict[str, Any], name: str, key: str, value: str) -> None:
    """Set *name*, a field of a preset or an option, to the *value* of llama.cpp's option *key*."""
    if name in ("model", "system", "chat_template"):
        values[name] = value
    elif name == "lora":
        values["lora"] = (value,)
    elif name == "context":
        values["context"] = int(_number(key, value, whole=True)) or None
    elif name == "samplers":
        options[name] = value.split(";")
    else:
        number = _number(key, value, whole=_is_whole(name))
        # -1 is llama.cpp's default, but as repeat_last_n it means the whole text.
        if number != -1 or name == "repeat_last_n":
            options[name] = number


def _name_of(section: str) -> str:
    """Name for the preset of *section*, whose heading may be a repository: ``ORG/REPO:TAG``."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", section).strip("-.")[:64]
