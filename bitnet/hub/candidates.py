"""Select the files of a repository that a ``--file`` pattern matches."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from bitnet.base.errors import NotFound, UsageError
from bitnet.base.progress import human_size
from bitnet.base.trust import printable
from bitnet.hub.repository import some_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from bitnet.sources import Source

_PART = re.compile(r"(?P<stem>.*)-\d{5}-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.DOTALL)
# Files of a safetensors folder that are needed to run it.
_FOLDER_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template*",
    "*.safetensors.index.json",
)
_ENCODING = re.compile(
    r"(?:^|[-._])(?P<name>I2_S|TL[12]|TQ[12]_0|PTQ1_0|PQ2_0|I?Q[1-8](?:_[A-Z0-9]+)*|MXFP4|BF16|F16|F32)"
    r"(?=[-._]|$)",
    re.IGNORECASE,
)
# Types that only ternary models have, so that files of them hold the same weights.
_TERNARY = frozenset({"PTQ1_0", "PQ2_0"})
_NO_MODEL = re.compile(r"(?:^|[-._])(?:mmproj|dspark)(?=[-._])", re.IGNORECASE)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RepoModel:
    """A model in a repository: one file, or all parts of a split one.

    Attributes:
        name: the file, the parts' common name with ``*`` for the number, or ``*.safetensors`` for
            a folder.
        files: paths in the repository, in order.
        size: bytes of all files.
        encoding: quantization type in the name, empty if there is none.
    """

    name: str
    files: tuple[str, ...]
    size: int
    encoding: str

    @property
    def is_whole(self) -> bool:
        """True if no part of a split file is missing from *files*."""
        part = _PART.fullmatch(self.files[0])
        return part is None or int(part["count"]) == len(self.files)

    def line(self, fits: bool | None) -> str:
        """The candidate as text; *fits*: it can run here, ``None`` if unknown."""
        memory = {True: "fits in RAM", False: "does not fit in RAM", None: "RAM unknown"}[fits]
        return (
            f"  {printable(self.name)}  {human_size(self.size)}  {self.encoding or '?'}  {memory}"
        )


def is_pattern(file: str) -> bool:
    """True if *file* has wildcards, or is empty."""
    return not file or any(character in file for character in "*?[")


def candidates(files: Iterable[Source], pattern: str) -> list[RepoModel]:
    """Models whose path or name matches *pattern*; all GGUF files when it is empty."""
    groups: dict[str, list[Source]] = {}
    for file in files:
        name = file.file.rpartition("/")[2]
        glob = pattern or "*.gguf"
        if not (fnmatchcase(file.file, glob) or fnmatchcase(name, glob)):
            continue
        part = _PART.fullmatch(file.file)
        shown = f"{part['stem']}-*-of-{part['count']}{part['suffix']}" if part else file.file
        groups.setdefault(shown, []).append(file)
    return [
        RepoModel(
            name,
            tuple(sorted(file.file for file in group)),
            sum(file.size or 0 for file in group),
            _encoding(name),
        )
        for name, group in sorted(groups.items())
    ]


def select_paths(files: Iterable[Source], include: list[str], exclude: list[str]) -> list[str]:
    """Paths that match one of *include* (any path if it is empty) and none of *exclude*."""
    return [
        file.file
        for file in files
        if (not include or any(_matches(file.file, glob) for glob in include))
        and not any(_matches(file.file, glob) for glob in exclude)
    ]


def models_in(files: Iterable[Source], pattern: str) -> list[RepoModel]:
    """Runnable models: GGUF files, and folders with safetensors and ``config.json``.

    A folder is one model, with its tokenizer; one part of a split file stands for all of them.
    *pattern* is matched against path or name of the weights; empty matches all.
    """
    files = list(files)
    gguf = [
        model
        for model in candidates(files, "")
        if (pattern or not _NO_MODEL.search(model.name.rpartition("/")[2]))
        and (not pattern or any(_matches(file, pattern) for file in (model.name, *model.files)))
    ]
    return gguf + [
        model
        for model in _folders(files)
        if not pattern or any(_matches(file, pattern) for file in model.files if _is_weights(file))
    ]


def _folders(files: list[Source]) -> Iterator[RepoModel]:
    """Runnable folders with safetensors."""
    by_folder: dict[str, list[Source]] = {}
    for file in files:
        by_folder.setdefault(file.file.rpartition("/")[0], []).append(file)
    for folder, inside in sorted(by_folder.items()):
        by_name = {file.file.rpartition("/")[2]: file for file in inside}
        weights = [name for name in by_name if name.endswith(".safetensors")]
        # Some repositories contain the same weights again in their authors' format.
        weights = [name for name in weights if name.startswith("model")] or weights
        if not weights or "config.json" not in by_name:
            continue
        named = [name for name in by_name if any(fnmatchcase(name, one) for one in _FOLDER_FILES)]
        chosen = [by_name[name] for name in sorted({*named, *weights})]
        yield RepoModel(
            f"{folder}/*.safetensors".lstrip("/"),
            tuple(file.file for file in chosen),
            sum(file.size or 0 for file in chosen),
            "safetensors",
        )


def _is_weights(file: str) -> bool:
    return file.endswith((".gguf", ".safetensors"))


def _matches(file: str, pattern: str) -> bool:
    """True if *file* is *pattern*, or its path or name matches it."""
    name = file.rpartition("/")[2]
    return file == pattern or fnmatchcase(file, pattern) or fnmatchcase(name, pattern)


def choose(
    repo: str,
    found: list[RepoModel],
    pattern: str,
    *,
    fits: Callable[[int], bool | None],
    files: Iterable[Source] = (),
) -> RepoModel:
    """The only candidate.

    *fits* tells whether so many bytes can run here; *files* are all of the repository.
    """
    if len(found) == 1:
        return found[0]
    chosen = choose_ternary(repo, found, fits=fits)
    if chosen is not None:
        return chosen
    if not found:
        raise NotFound(
            f"{repo} has no file that matches {pattern or '*.gguf'!r}; "
            f"it has {some_of(file.file for file in files)}",
            hint="name one with --file FILE",
        )
    lines = "\n".join(candidate.line(fits(candidate.size)) for candidate in found)
    fitting = [candidate for candidate in found if fits(candidate.size) is not False]
    largest = max(fitting or found, key=lambda candidate: candidate.size)
    raise UsageError(
        f"{len(found)} files of {repo} match {pattern or '*.gguf'!r}, none was fetched:\n{lines}",
        hint=f"name one: --file '{printable(largest.name)}'",
    )


def choose_ternary(
    repo: str, models: list[RepoModel], *, fits: Callable[[int], bool | None]
) -> RepoModel | None:
    """The largest of several files of one ternary model that can run here; it says so.

    ``None``: they may be different models, or none is known to fit.
    """
    stems = {_ENCODING.sub("", model.name.rpartition("/")[2]) for model in models}
    ternary = [model for model in models if model.encoding in _TERNARY]
    fitting = [model for model in ternary if fits(model.size)]
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


def _encoding(name: str) -> str:
    found = _ENCODING.findall(name.rpartition("/")[2])
    return found[-1].upper() if found else ""
