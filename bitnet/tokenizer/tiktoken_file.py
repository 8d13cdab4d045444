"""tiktoken's rank files: lines of a token in base64 and its rank, without regex or special tokens.

The regex and the special tokens of a file follow from its number of ranks, which is unique among
published vocabularies.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bitnet.errors import InvalidFormat, TokenizerNotFound
from bitnet.tokenizer.byte_alphabet import byte_spelling
from bitnet.tokenizer.fingerprints import spec_key
from bitnet.tokenizer.merges import LazyRankMerges
from bitnet.tokenizer.pretokenizers import pre_tokenizer
from bitnet.tokenizer.side_files import SideFiles, read_bytes, read_side_files
from bitnet.tokenizer.spec import AddedToken, TokenizerSpec
from bitnet.tokenizer.stop_ids import stop_ids

if TYPE_CHECKING:
    import os

__all__ = ["looks_like_ranks", "spec_from_ranks"]

_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]+\r?\n")


@dataclass(frozen=True)
class _Published:
    """A published rank file: its pre-tokenizer, special tokens by id, BOS and EOS."""

    name: str
    pre: str
    special: dict[int, str]
    bos: str = ""
    eos: str = ""


def _reserved(count: int, start: int, kind: str = "") -> list[str]:
    return [f"<|{kind}reserved_special_token_{n}|>" for n in range(start, start + count)]


def _numbered(first: int, texts: list[str]) -> dict[int, str]:
    return {first + at: text for at, text in enumerate(texts)}


_LLAMA3 = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    *_reserved(4, 0),
    "<|start_header_id|>",
    "<|end_header_id|>",
    *_reserved(1, 4),
    "<|eot_id|>",
    *_reserved(246, 5),
]
_LLAMA4 = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|header_start|>",
    "<|header_end|>",
    "<|eom|>",
    "<|eot|>",
    "<|step|>",
    *_reserved(6, 0, "text_post_train_"),
    "<|python_start|>",
    "<|python_end|>",
    "<|finetune_right_pad|>",
    *_reserved(61, 8, "text_post_train_"),
    "<|image_start|>",
    "<|image_end|>",
    *_reserved(2, 0, "vision_"),
    "<|tile_x_separator|>",
    "<|tile_y_separator|>",
    *_reserved(4, 2, "vision_"),
    "<|image|>",
    *_reserved(1, 6, "vision_"),
    "<|patch|>",
    *_reserved(1041, 7, "vision_"),
    *_reserved(8, 0, "reasoning_"),
    "<|reasoning_thinking_start|>",
    "<|reasoning_thinking_end|>",
]
_LLAMA4 += _reserved(2048 - len(_LLAMA4), 0)
_QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{n}|>" for n in range(205))]

_PUBLISHED = {
    50_256: _Published("GPT-2 (r50k)", "gpt-2", {50_256: "<|endoftext|>"}, eos="<|endoftext|>"),
    50_280: _Published(  # runs of spaces after the one special token
        "p50k", "gpt-2", {50_256: "<|endoftext|>"}, eos="<|endoftext|>"
    ),
    100_256: _Published(
        "cl100k",
        "llama-bpe",
        {
            100_257: "<|endoftext|>",
            100_258: "<|fim_prefix|>",
            100_259: "<|fim_middle|>",
            100_260: "<|fim_suffix|>",
            100_276: "<|endofprompt|>",
        },
        eos="<|endoftext|>",
    ),
    128_000: _Published(
        "LLaMA-3",
        "llama-bpe",
        _numbered(128_000, _LLAMA3),
        bos="<|begin_of_text|>",
        eos="<|end_of_text|>",
    ),
    151_643: _Published("Qwen", "qwen2", _numbered(151_643, _QWEN), eos="<|endoftext|>"),
    199_998: _Published(
        "o200k",
        "gpt-4o",
        {199_999: "<|endoftext|>", 200_018: "<|endofprompt|>"},
        eos="<|endoftext|>",
    ),
    200_000: _Published(
        "LLaMA-4",
        "llama4",
        _numbered(200_000, _LLAMA4),
        bos="<|begin_of_text|>",
        eos="<|end_of_text|>",
    ),
}


def looks_like_ranks(data: bytes) -> bool:
    """True if *data* begins like a rank file."""
    return _LINE.match(data) is not None


def spec_from_ranks(path: str | os.PathLike[str], *, pre: str | None = None) -> TokenizerSpec:
    """The tokenizer in a tiktoken rank file.

    Args:
        path: the file, whatever its name.
        pre: pre-tokenizer of an unknown vocabulary; overrides a known one's.

    Raises:
        InvalidFormat: a line is damaged, or ranks are missing.
        TokenizerNotFound: no known vocabulary has this many ranks, and *pre* is not given.
    """
    path = Path(path)
    data = read_bytes(path)
    side = read_side_files(path.parent)
    ranks = _ranks(data, path)
    n_ranks = len(ranks)
    known = _PUBLISHED.get(n_ranks)
    if known is None and pre is None:
        raise TokenizerNotFound(
            f"{path} holds {n_ranks:,} tiktoken ranks: no known vocabulary has as many, and the"
            " file does not say how text is cut into words",
            hint="say which with --pre NAME, or name the model's own tokenizer.json",
        )
    name = pre or (known.pre if known else "")
    special = dict(known.special) if known else {}
    special.update((token.id, token.text) for token in side.added if token.id not in ranks)
    size = max([*ranks, *special], default=-1) + 1
    _check_holes(ranks, special, path)
    tokens = [ranks.get(id) or special.get(id, "") for id in range(size)]
    merges = LazyRankMerges(tokens, sorted(ranks), str(path))
    kind = pre_tokenizer(name)
    spec = TokenizerSpec(
        model="bpe",
        tokens=tokens,
        merges=merges,
        normalizer=kind.normalizer,
        pre_tokenizer=kind.steps,
        byte_level=True,
        ignore_merges=True,
        pre=name,
        source=str(path),
        chat_template=side.chat_template,
    )
    spec = _with_special(spec, special, known, side)
    return replace(spec, fingerprint=spec_key(spec, data, side.raw))


def _with_special(
    spec: TokenizerSpec, special: dict[int, str], known: _Published | None, side: SideFiles
) -> TokenizerSpec:
    flags = {token.id: token for token in side.added}
    added = tuple(flags.get(id, AddedToken(id, text)) for id, text in sorted(special.items()))
    by_text = {token.text: token.id for token in added}
    bos = by_text.get(side.token("bos") or (known.bos if known else ""))
    eos = by_text.get(side.token("eos") or (known.eos if known else ""))
    ends = [id for id in side.declared_ends if id < spec.vocab_size]
    return replace(
        spec,
        added=added,
        outside=frozenset(token.id for token in added),
        bos_id=bos,
        eos_id=eos,
        add_bos=bos is not None and side.adds("bos") is not False,
        add_eos=eos is not None and side.adds("eos") is True,
        stop_ids=stop_ids(by_text, (eos, *ends)),
    )


def _ranks(data: bytes, path: Path) -> dict[int, str]:
    """Tokens by rank, in GPT-2's byte spelling."""
    tokens: dict[int, str] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line:
            continue
        try:
            text, rank = line.split()
            token = base64.b64decode(text, validate=True)
            tokens[int(rank)] = byte_spelling(token)
        except (ValueError, binascii.Error):
            raise InvalidFormat(
                f"{path}, line {number}: expected a token in base64 and its rank,"
                f" found {line[:40]!r}",
                hint="fetch the file again",
            ) from None
    return tokens


def _check_holes(ranks: dict[int, str], special: dict[int, str], path: Path) -> None:
    """Check that every id below the last rank belongs to a rank or to a special token."""
    last = max(ranks, default=-1)
    inside = sum(id < last for id in special)
    if min(ranks, default=0) < 0 or len(ranks) + inside != last + 1:
        raise InvalidFormat(
            f"{path} has {len(ranks):,} ranks up to {last:,}: some are missing",
            hint="fetch the file again",
        )
