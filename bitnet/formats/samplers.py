"""Names of samplers, as llama.cpp spells them on its command line and in GGUF files.

The names are those of llama.cpp b11434, in its function ``common_sampler_types_from_names``.
"""

from __future__ import annotations

#: The default order of the samplers. Biases are applied before all of them.
SAMPLERS = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)
#: Samplers of llama.cpp that change an answer only if one of their options is set, for which GGUF
#: files have no key.
WITHOUT_EFFECT = ("adaptive_p",)
_SYNONYMS = {"nucleus": "top_p", "temp": "temperature", "typ": "typ_p"}


def _spellings(names: tuple[str, ...]) -> dict[str, str]:
    """Each of *names* by its spellings: with underscores, with hyphens, and with neither."""
    spelled = {name: name for name in names}
    spelled |= {name.replace("_", "-"): name for name in names}
    return spelled | {name.replace("_", ""): name for name in names}


_BY_SPELLING = _spellings(SAMPLERS + WITHOUT_EFFECT) | _SYNONYMS


def find_sampler(name: str) -> str | None:
    """The sampler of llama.cpp that *name* means, or None if the name is unknown here."""
    return _BY_SPELLING.get(name.lower())


def read_sequence(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The samplers that run for ``general.sampling.sequence``, and the names that mean none here.

    Names are separated by semicolons. llama.cpp leaves out the names that it does not know. An
    empty one, such as behind the last semicolon, is not a name.
    """
    samplers: dict[str, None] = {}
    unknown = []
    for name in text.split(";"):
        sampler = find_sampler(name)
        if sampler is None and name:
            unknown.append(name)
        elif sampler is not None and sampler not in WITHOUT_EFFECT:
            samplers[sampler] = None
    return tuple(samplers), tuple(unknown)
