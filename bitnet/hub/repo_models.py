"""The models in a repository, by its list of files, and the one that a user means."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from bitnet.base.errors import NotFound, UsageError
from bitnet.base.invocation import shell_quote
from bitnet.base.machine import fits_in_memory
from bitnet.base.quantities import human_size
from bitnet.base.trust import printable
from bitnet.formats.gguf_names import PART, is_companion, whole_name
from bitnet.hub.repository import some_of
from bitnet.hub.tags import DEFAULTS, QUANTIZATION, has_tag, quantization_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from bitnet.hub.project import Pick
    from bitnet.hub.ref import Ref
    from bitnet.sources import Source

logger = logging.getLogger(__name__)

# Files of a safetensors folder that are needed to run it: every name that a reader asks for, in
# bitnet.formats or bitnet.tokenizer, which a list of models need not import.
_FOLDER_FILES = (
    "config.json",
    "generation_config.json",
    *("quantize_config.json", "quant_config.json", "hf_quant_config.json"),
    "tokenizer*",
    *("tekken.json", "qwen.tiktoken", "vocab.json", "merges.txt"),
    *("special_tokens_map.json", "added_tokens.json"),
    "chat_template*",
    "*.safetensors.index.json",
    *("modules.json", "config_sentence_transformers.json", "sentence_*_config.json"),
)
TEMPLATE_FOLDER = "additional_chat_templates"  # folder beside them: chat templates by name
# Folders beside ``modules.json``, as sentence-transformers names them, and their files.
_MODULE_FOLDER = "[0-9]*_*"
_MODULE_FILES = ("config.json", "model.safetensors")
# Quantizations that only ternary models have: files with them have the same weights.
_TERNARY = frozenset({"PTQ1_0", "PQ2_0"})


@dataclass(frozen=True)
class RepoModel:
    """A model in a repository: a GGUF file, the parts of a split one, or a safetensors folder."""

    # the file, the parts' common name with ``*`` for the number, or ``*.safetensors`` for a folder
    name: str
    files: tuple[str, ...]  # paths in the repository, in order
    size: int  # bytes of all files
    encoding: str  # quantization type in the name, or "safetensors"; empty if there is neither

    @property
    def is_whole(self) -> bool:
        """True if no part of a split file is missing from *files*."""
        part = PART.fullmatch(self.files[0])
        return part is None or int(part["count"]) == len(self.files)

    def line(self) -> str:
        """Line of a list of models: name, size, quantization, and whether it fits in memory."""
        words = {True: "fits in RAM", False: "does not fit in RAM", None: "RAM unknown"}
        memory = words[fits_in_memory(self.size)]
        return (
            f"  {printable(self.name)}  {human_size(self.size)}  {self.encoding or '?'}  {memory}"
        )


def is_pattern(file: str) -> bool:
    """True if *file* has wildcards, or is empty."""
    return not file or any(character in file for character in "*?[")


def candidates(files: Iterable[Source], pattern: str) -> list[RepoModel]:
    """Models among *files* whose path or name matches *pattern*; without one, all GGUF models."""
    groups: dict[str, list[Source]] = {}
    for file in files:
        if not matches(file.file, pattern or "*.gguf"):
            continue
        groups.setdefault(whole_name(file.file), []).append(file)
    models = []
    for name, group in sorted(groups.items()):
        paths = sorted(file.file for file in group)
        size = sum(file.size or 0 for file in group)
        models.append(RepoModel(name, tuple(paths), size, quantization_of(paths[0])))
    return models


def models_in(files: Iterable[Source], pattern: str) -> list[RepoModel]:
    """Runnable models: GGUF files, and folders with safetensors and ``config.json``.

    *pattern* is matched against path or name of the weights. With one, files that go with a model
    (``mmproj``) are listed if they match; empty matches all but these.
    """
    files = list(files)
    gguf = candidates(files, "")
    folders = list(_folders(files))
    if not pattern:
        # Files that only accompany a model, such as a projector of images, are not runnable.
        runnable = [m for m in gguf if not is_companion(m.name.rpartition("/")[2])]
        return runnable + folders
    names_of_weights = {model: [model.name, *model.files] for model in gguf}
    for model in folders:
        names_of_weights[model] = [file for file in model.files if file.endswith(".safetensors")]
    return [
        model
        for model, names in names_of_weights.items()
        if any(matches(name, pattern) for name in names)
    ]


def _folders(files: list[Source]) -> Iterator[RepoModel]:
    """Runnable folders with safetensors."""
    by_folder: dict[str, list[Source]] = {}
    for file in files:
        by_folder.setdefault(file.file.rpartition("/")[0], []).append(file)
    modules = [folder for folder in sorted(by_folder) if _is_module(folder, by_folder)]
    for folder, inside in sorted(by_folder.items()):
        if folder in modules:
            continue  # its weights, if any, project the vectors of the model
        by_name = {file.file.rpartition("/")[2]: file for file in inside}
        weights = [name for name in by_name if name.endswith(".safetensors")]
        # Some repositories contain the same weights again in their authors' format.
        weights = [name for name in weights if name.startswith("model")] or weights
        if not weights or "config.json" not in by_name:
            continue
        needed = [
            name for name in by_name if any(fnmatchcase(name, pattern) for pattern in _FOLDER_FILES)
        ]
        chosen = [by_name[name] for name in sorted({*needed, *weights})]
        templates = f"{folder}/{TEMPLATE_FOLDER}".lstrip("/")
        chosen += [file for file in by_folder.get(templates, []) if file.file.endswith(".jinja")]
        for module in modules:
            if module.rpartition("/")[0] == folder:
                wanted = [f"{module}/{name}" for name in _MODULE_FILES]
                chosen += [file for file in by_folder[module] if file.file in wanted]
        yield RepoModel(
            f"{folder}/*.safetensors".lstrip("/"),
            tuple(file.file for file in chosen),
            sum(file.size or 0 for file in chosen),
            "safetensors",
        )


def _is_module(folder: str, by_folder: Mapping[str, Collection[Source]]) -> bool:
    """True if *folder* is that of a module of sentence-transformers, by the files of its parent."""
    parent, _, name = folder.rpartition("/")
    listed = f"{parent}/modules.json".lstrip("/")
    beside = by_folder.get(parent, ()) if folder else ()
    return fnmatchcase(name, _MODULE_FOLDER) and any(file.file == listed for file in beside)


def matches(file: str, pattern: str) -> bool:
    """True if *file* is *pattern*, or its path or name matches it."""
    name = file.rpartition("/")[2]
    return file == pattern or fnmatchcase(file, pattern) or fnmatchcase(name, pattern)


def choose(
    ref: Ref,
    models: list[RepoModel],
    files: Iterable[Source] = (),
    *,
    named: bool = False,
    pick: Pick = lambda _repo, _models: None,
) -> RepoModel:
    """The one of *models* that *ref* means; *files* are all of its repository.

    A tag that does not mean exactly one model is refused. Without a tag, the first that applies is
    chosen: the only model; if all are one model, its largest file in a ternary type that fits in
    memory; the choice of *pick*; and without a pattern, the first of the :data:`DEFAULTS`.

    Args:
        ref: the repository, with a tag or a pattern of files.
        models: the models of it that match the pattern.
        files: for the message if there are none.
        named: hints give the name of a model; otherwise the option --file.
        pick: asks the user which model is meant; returns None if no user can be asked.
    """
    repo = ref.repo
    pattern = ref.file
    if ref.tag:
        return _choose_tagged(ref, models)
    if len(models) == 1:
        return models[0]
    if not models:
        raise NotFound(
            f"{repo} has no file that matches {pattern or '*.gguf'!r}; "
            f"it has {some_of(file.file for file in files)}",
            hint="name one with --file FILE",
        )
    chosen = _choose_ternary(repo, models) or pick(repo, models)
    if chosen is None and not pattern:
        chosen = _choose_default(ref, models)
    if chosen is not None:
        return chosen
    largest = _largest_fitting(models).name
    raise UsageError(
        f"{len(models)} files of {repo} match {pattern or '*.gguf'!r}, none was fetched:\n"
        f"{_list(models)}",
        hint=f"name one: {ref.name_of(largest) if named else f'--file {shell_quote(largest)}'}",
    )


def _choose_tagged(ref: Ref, models: list[RepoModel]) -> RepoModel:
    """The only one of *models* that the tag of *ref* means."""
    matching = [model for model in models if has_tag(model.files[0], ref.tag)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UsageError(
            f"{len(matching)} models of {ref.repo} have the tag {ref.tag!r}, none was fetched:\n"
            f"{_list(matching)}",
            hint=f"name one: {ref.name_of(_largest_fitting(matching).name)}",
        )
    if not models:
        raise NotFound(
            f"{ref.repo} has no GGUF file, so none with the tag {ref.tag!r}",
            hint="choose another repository, such as one whose name ends in -GGUF",
        )
    largest = _largest_fitting(models)
    raise NotFound(
        f"no model of {ref.repo} has the tag {ref.tag!r}; it has:\n{_list(models)}",
        hint=f"name one: {ref.name_of(largest.encoding or largest.name)}",
    )


def _choose_default(ref: Ref, models: list[RepoModel]) -> RepoModel | None:
    """The model of the first quantization of the :data:`DEFAULTS`; None if several have it."""
    for quantization in DEFAULTS:
        matching = [model for model in models if model.encoding == quantization]
        if len(matching) == 1:
            text = "%s has %d models, %s is the default; another one is named by its tag: %s"
            name = ref.name_of("TAG")
            logger.info(text, printable(ref.repo), len(models), quantization, printable(name))
            return matching[0]
        if matching:
            return None
    return None


def _list(models: list[RepoModel]) -> str:
    return "\n".join(model.line() for model in models)


def _largest_fitting(models: list[RepoModel]) -> RepoModel:
    """The largest of *models* that fits in memory, else the largest, with a printable name."""
    fitting = [model for model in models if fits_in_memory(model.size) is not False]
    largest = max(fitting or models, key=lambda model: model.size)
    return replace(largest, name=printable(largest.name))


def _choose_ternary(repo: str, models: list[RepoModel]) -> RepoModel | None:
    """The largest in a ternary type that fits in memory, if *models* are one model; else None.

    They are one model if their names differ only in the quantization.
    """
    stems = {QUANTIZATION.sub("", model.name.rpartition("/")[2]) for model in models}
    ternary = [model for model in models if model.encoding in _TERNARY]
    fitting = [model for model in ternary if fits_in_memory(model.size)]
    if len(stems) > 1 or not fitting:
        return None
    chosen = max(fitting, key=lambda model: model.size)
    logger.warning(
        "%s: the files %s hold the same weights; %s, %s, is the %s that fits into memory",
        printable(repo),
        ", ".join(model.encoding for model in ternary),
        printable(chosen.name),
        human_size(chosen.size),
        "largest" if len(ternary) > 1 else "one",
    )
    return chosen
