"""Tags: quantizations as users name them after a colon, such as ``ORG/REPO:Q4_K_M``.

A tag means the files whose name has this quantization, in upper or lower case. ``UD-Q4_K_XL`` also
requires the word before it. A tag must mean one model; otherwise it is refused.
"""

from __future__ import annotations

import re

from bitnet.formats.gguf_names import PART

#: Quantizations to choose, in this order, if a name has no tag and no user can be asked.
DEFAULTS = ("Q4_K_M", "Q4_0", "Q8_0")

QUANTIZATION = re.compile(
    r"(?:^|[-._])(?P<name>I2_S|TL[12]|TQ[12]_0|PTQ1_0|PQ2_0|I?Q[1-8](?:_[A-Z0-9]+)*|MXFP4|BF16|F16|F32)"
    r"(?=[-._]|$)",
    re.IGNORECASE,
)
_NO_TAG = re.compile(r"[./*?\[]")  # characters of file names and patterns, never of tags


def is_tag(text: str) -> bool:
    """True if *text*, after the colon of a name, is a tag; otherwise it is a file or a pattern."""
    return bool(text) and not _NO_TAG.search(text)


def quantization_of(file: str) -> str:
    """The quantization that the path *file* names last, in capitals; empty if it names none."""
    matches = QUANTIZATION.findall(_naming(file))
    return str(matches[-1]).upper() if matches else ""


def has_tag(file: str, tag: str) -> bool:
    """True if *tag* means the GGUF file with the path *file*."""
    tag = tag.upper()
    if not file.endswith(".gguf"):
        return False
    if quantization_of(file) == tag:
        return True
    if not QUANTIZATION.search(tag):
        return False
    # The tag is more than the quantization, such as ``UD-Q4_K_XL``.
    stem = _naming(file).upper()
    return stem == tag or stem.endswith(tuple(f"{sign}{tag}" for sign in "-._"))


def _naming(file: str) -> str:
    """The part of the path *file* that names its quantization: its stem, else its folder.

    Parts of a split file may have it in the name of their folder only.
    """
    folder, _, name = file.rpartition("/")
    part = PART.fullmatch(name)
    stem = part["stem"] if part else name.removesuffix(".gguf")
    return stem if QUANTIZATION.search(stem) else folder.rpartition("/")[2]
