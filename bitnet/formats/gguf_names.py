"""Names of GGUF files, and the models among the files of a folder by their names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from bitnet.base.errors import from_os_error

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

PART = re.compile(r"(?P<stem>.*)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)
# Files beside a model, for its images or its drafts, which are not models themselves.
_COMPANION = re.compile(r"(?:^|[-._])(?:mmproj|dspark)(?=[-._])", re.IGNORECASE)
# An importance matrix of llama-imatrix, which is not a model. Models that were quantized by one may
# have the word in their names, too, beside their quantization.
_IMATRIX = re.compile(r"imatrix[-._].*|.*[-._]imatrix\.gguf", re.IGNORECASE | re.DOTALL)
_QUANTIZED = re.compile(
    r"(?:^|[-._])(?:I?Q[1-8]|P?[TP]Q[12]|TL[12]|B?F16|F32|MXFP4)", re.IGNORECASE
)


def part_number(name: str) -> int:
    """Number of the file *name* in a split model, from 1; 1 for a model in one file."""
    match = PART.fullmatch(name)
    return int(match["number"]) if match else 1


def count_parts(name: str) -> int:
    """Number of files of the model that the file *name* is a part of; 1 if it is the whole."""
    match = PART.fullmatch(name)
    count = int(match["count"]) if match else 1
    return count if match and 1 <= int(match["number"]) <= count else 1


def whole_name(name: str) -> str:
    """The common name of all parts, with ``*`` for the number, of which the file *name* is one.

    That of a model in one file is *name*.
    """
    match = PART.fullmatch(name)
    return f"{match['stem']}-*-of-{match['count']}.gguf" if match else name


def first_part(name: str) -> str:
    """The name of the first part of the model that the file *name* is a part of, or *name*."""
    match = PART.fullmatch(name)
    return f"{match['stem']}-00001-of-{match['count']}.gguf" if match else name


def has_gguf_name(path: Path) -> bool:
    """True if the name of *path* is that of a GGUF file, in capitals or not."""
    return path.name.lower().endswith(".gguf")


def is_companion(name: str) -> bool:
    """True if the file *name* belongs to a model and is not one, such as an ``mmproj`` file."""
    is_matrix = _IMATRIX.fullmatch(name) is not None and _QUANTIZED.search(name) is None
    return is_matrix or _COMPANION.search(name) is not None


def select_models(paths: Iterable[Path]) -> list[Path]:
    """GGUF files among the *paths* in one folder that are models by their names, sorted.

    A split model has one: the first of its parts that is there.
    """
    candidates = [path for path in paths if has_gguf_name(path) and not is_companion(path.name)]
    # In this order the first part of a model is entered last.
    by_model = {
        path.name.replace(f"-{part_number(path.name):05d}-of-", "-of-", 1): path
        for path in sorted(candidates, reverse=True)
    }
    return sorted(by_model.values())


def list_models(folder: Path) -> list[Path]:
    """GGUF files directly in *folder* that are models, sorted, without hidden ones."""
    return select_models(_list_shown(folder))


def list_companions(folder: Path) -> list[Path]:
    """GGUF files directly in *folder* that belong to a model and are not one, sorted."""
    return [path for path in _list_shown(folder) if has_gguf_name(path) and is_companion(path.name)]


def _list_shown(folder: Path) -> list[Path]:
    """Files and links directly in *folder* that are not hidden, sorted."""
    try:
        paths = [path for path in sorted(folder.iterdir()) if not path.is_dir()]
    except OSError as error:
        raise from_os_error(error, folder) from error
    return [path for path in paths if not path.name.startswith(".")]
