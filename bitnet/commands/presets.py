"""``create``: a name for a model with its options."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

from bitnet.base import settings
from bitnet.base.errors import UsageError
from bitnet.base.files import is_file_or_folder
from bitnet.base.invocation import shell_quote
from bitnet.base.options import option
from bitnet.base.outputs import OutputFile, OutputKind
from bitnet.base.terminal import as_json
from bitnet.commands.context import decode_text, read_text, say
from bitnet.commands.declare import Output, task
from bitnet.runtime.request import Request


@task(
    group="Models",
    example="bitnet create pirate --from smollm2-135m --system 'Talk like a pirate.'",
    required=("name",),
)
def create(
    c,
    name=option("", "name of the preset, which is then a MODEL", metavar="NAME", positional=True),
    from_=option("", "model that it runs, as commands take it", metavar="MODEL"),
    file=option(
        "",
        "Modelfile of Ollama, or preset.ini of llama.cpp, whose section NAME is imported; other "
        "options have precedence",
        short="f",
        metavar="FILE",
    ),
    system=option("", "instructions for conversations that have none"),
    chat_template=option(
        "", "file with the chat template to use instead of the model's", metavar="FILE"
    ),
    context=option(0, "context length in tokens; default: the model's own", bounds=(0, None)),
    lora=option(
        [],
        "adapter of every answer; with NAME, of the requests to a server that name it; may be "
        "repeated",
        metavar="[NAME=]PATH[:SCALE]",
    ),
    force=option(False, "replace a preset of this name"),
    request=Request(),
    output=Output(),
):
    """Save a model and its options under a name.

    The preset is stored in presets.toml. `run`, `chat`, `infer` and `serve` take its name as MODEL.
    Options of the command line and of a request override those of the preset.
    """
    from bitnet.wire.presets import OPTIONS, Preset, read_presets, with_preset

    preset, ignored = _read_source(name, from_, file)
    options = {key: getattr(request, key) for key in OPTIONS if request.sets(key)}
    overrides = {
        "model": _locate(from_, Path()),
        "system": decode_text(system, "--system"),
        "chat_template": _locate_template(chat_template, Path()),
        "context": context or None,
        "lora": tuple(_locate_adapter(adapter, Path()) for adapter in lora),
    }
    values = {"name": name, "model": ""}
    if preset is not None:
        values |= {each.name: getattr(preset, each.name) for each in fields(preset)}
        options = {**preset.options, **options}
    values |= {key: value for key, value in overrides.items() if value}
    values |= {"name": name, "options": options}
    new_preset = Preset(**values)

    path = settings.presets_file()
    if path is None:
        hint = "set BITNET_PRESETS to a file that can be written to"
        raise UsageError("this user has no home folder for presets", hint=hint)
    if name in read_presets(path) and not force:
        raise UsageError(f"there is a preset {name!r} in {path}", hint="add --force to replace it")
    before = read_text(str(path), whole=True) if path.exists() else ""
    path.parent.mkdir(parents=True, exist_ok=True)
    OutputFile(path, _FILE, option="BITNET_PRESETS").write_text(with_preset(before, new_preset))
    for ignored_setting in ignored:
        say(f"Note: {ignored_setting} has no effect here")
    if output.json:
        print(as_json({"name": name, "file": str(path), "ignored": ignored}))
    else:
        say(f"Created {name} in {path}. Try: bitnet run {shell_quote(name)}")


def _is_presets(path):
    """True: *path* has presets, or only comments; the error of any other file is raised."""
    from bitnet.wire.presets import read_presets

    read_presets(path)
    return True


_FILE = OutputKind("a file of presets", _is_presets)


def _read_source(name, model, file):
    """The preset that *file* describes, or None without a file, and settings without effect."""
    if not file:
        if not model:
            hint = f"bitnet create {shell_quote(name)} --from MODEL"
            raise UsageError("create needs a model", hint=hint, field="from")
        return None, []
    from bitnet.wire.modelfile import read_llama_cpp_presets, read_modelfile

    text = read_text(file, whole=True)
    if not file.lower().endswith(".ini"):
        preset, ignored = read_modelfile(text, name)
        # Paths are relative to the Modelfile, as in Ollama.
        return _locate_preset(preset, Path(file).parent), ignored
    presets, ignored = read_llama_cpp_presets(text)
    chosen = [preset for preset in presets if preset.name == name]
    if not chosen:
        names = ", ".join(preset.name for preset in presets) or "none"
        raise UsageError(f"{file} has no section for {name!r}; it has: {names}")
    return _locate_preset(chosen[0], Path()), ignored


def _locate_preset(preset, folder):
    """*preset* with absolute paths for the files that it names relative to *folder*."""
    return replace(
        preset,
        model=_locate(preset.model, folder),
        chat_template=_locate_template(preset.chat_template, folder),
        lora=tuple(_locate_adapter(adapter, folder) for adapter in preset.lora),
    )


def _locate(name, folder):
    """*name* of a model or file as the preset stores it: absolute, if it is an existing path.

    A pipe or a device is refused at once, rather than by each command that uses the preset.
    """
    path = (folder / name).absolute()
    return str(path) if name and is_file_or_folder(path) else name


def _locate_template(file, folder):
    """Absolute path of *file*, a chat template; one that cannot be read is refused."""
    if not file:
        return ""
    path = (folder / file).absolute()
    read_text(str(path), whole=True)
    return str(path)


def _locate_adapter(text, folder):
    """The adapter *text*, ``[NAME=]PATH[:SCALE]``, with an absolute path."""
    from bitnet.models.adapted import split_name, split_scale

    name, rest = split_name(text, folder)
    path, scale = split_scale(rest, folder)
    located = _locate(path, folder)
    if scale is not None:
        located = f"{located}:{scale}"
    return located if name is None else f"{name}={located}"


def find_preset(name):
    """The preset called *name*, or None."""
    from bitnet.wire.presets import NAME, read_presets

    path = settings.presets_file()
    if path is None or not name or not NAME.fullmatch(name) or not path.exists():
        return None
    return read_presets(path).get(name)


def apply_preset(model):
    """The options *model*, completed by the preset that they name, and that preset, or None."""
    preset = find_preset(model.model)
    return (model, None) if preset is None else (with_model(model, preset), preset)


def with_model(model, preset):
    """The options *model* completed by *preset*; the command line takes precedence."""
    return replace(
        model,
        model=preset.model,
        chat_template=model.chat_template or preset.chat_template,
        context=model.context or preset.context,
        lora=model.lora or list(preset.lora),
    )


def with_instructions(prompt, preset):
    """The options *prompt* with the instructions of *preset*, unless they have instructions.

    Without a chat, the instructions and messages of a preset have no place and are refused.
    """
    if prompt.chat:
        return prompt if prompt.system else replace(prompt, system=preset.system)
    if preset.begin([]):
        raise UsageError(
            f"the preset {preset.name!r} begins a conversation, which needs a chat",
            hint="add --chat",
        )
    return prompt
