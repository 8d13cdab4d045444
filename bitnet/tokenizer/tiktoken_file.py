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
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InvalidFormat, TokenizerNotFound, Unsupported
from bitnet.formats.inventory import Inventory
from bitnet.tokenizer.fingerprints import spec_key
from bitnet.tokenizer.limits import TOKENS
from bitnet.tokenizer.merges import LazyRankMerges
from bitnet.tokenizer.pretokenizers import PRE_TOKENIZERS, PreTokenizer, pre_tokenizer
from bitnet.tokenizer.side_files import SideFiles, read_bytes, read_side_files
from bitnet.tokenizer.spec import AddedToken, Step, TokenizerSpec, byte_spelling, stop_ids

if TYPE_CHECKING:
    import os

__all__ = [
    "is_tekken",
    "looks_like_ranks",
    "spec_from_ranks",
    "spec_from_tekken",
]

_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]+\r?\n")


@dataclass(frozen=True)
class _Published:
    """A published rank file: its pre-tokenizer, special tokens by id, BOS and EOS."""

    name: str
    pre: str
    special: dict[int, str]
    bos: str = ""
    eos: str = ""


def _reserve(count: int, start: int, kind: str = "") -> list[str]:
    return [f"<|{kind}reserved_special_token_{n}|>" for n in range(start, start + count)]


def _number(first: int, texts: list[str]) -> dict[int, str]:
    return {first + at: text for at, text in enumerate(texts)}


_LLAMA3 = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    *_reserve(4, 0),
    "<|start_header_id|>",
    "<|end_header_id|>",
    *_reserve(1, 4),
    "<|eot_id|>",
    *_reserve(246, 5),
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
    *_reserve(6, 0, "text_post_train_"),
    "<|python_start|>",
    "<|python_end|>",
    "<|finetune_right_pad|>",
    *_reserve(61, 8, "text_post_train_"),
    "<|image_start|>",
    "<|image_end|>",
    *_reserve(2, 0, "vision_"),
    "<|tile_x_separator|>",
    "<|tile_y_separator|>",
    *_reserve(4, 2, "vision_"),
    "<|image|>",
    *_reserve(1, 6, "vision_"),
    "<|patch|>",
    *_reserve(1041, 7, "vision_"),
    *_reserve(8, 0, "reasoning_"),
    "<|reasoning_thinking_start|>",
    "<|reasoning_thinking_end|>",
]
_LLAMA4 += _reserve(2048 - len(_LLAMA4), 0)
_QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{n}|>" for n in range(205))]
# Whisper's languages. The large-v3 models have one more, which moves every token behind these: a
# rank file does not say which it belongs to, so later tokens come from the files beside it.
_LANGUAGES = (
    "en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no"
    " th ur hr bg lt la mi ml cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw"
    " gl mr pa si km sn yo so af oc ka be tg sd gu am yi lo uz fo ht ps tk nn mt sa lb my bo tl"
    " mg as tt haw ln ha ba jw su"
)
_WHISPER = [
    "<|endoftext|>",
    "<|startoftranscript|>",
    *(f"<|{name}|>" for name in _LANGUAGES.split()),
]

_PUBLISHED = {
    50_256: _Published("GPT-2 (r50k)", "gpt-2", {50_256: "<|endoftext|>"}, eos="<|endoftext|>"),
    50_257: _Published("Whisper", "gpt-2", _number(50_257, _WHISPER), eos="<|endoftext|>"),
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
        _number(128_000, _LLAMA3),
        bos="<|begin_of_text|>",
        eos="<|end_of_text|>",
    ),
    151_643: _Published("Qwen", "qwen2", _number(151_643, _QWEN), eos="<|endoftext|>"),
    199_998: _Published(
        "o200k",
        "gpt-4o",
        {199_999: "<|endoftext|>", 200_018: "<|endofprompt|>"},
        eos="<|endoftext|>",
    ),
    200_000: _Published(
        "LLaMA-4",
        "llama4",
        _number(200_000, _LLAMA4),
        bos="<|begin_of_text|>",
        eos="<|end_of_text|>",
    ),
}


def looks_like_ranks(data: bytes) -> bool:
    """True if *data* begins like a rank file."""
    return _LINE.match(data) is not None


def spec_from_ranks(
    path: str | os.PathLike[str], *, pre: str | None = None, files: Inventory | None = None
) -> TokenizerSpec:
    """The tokenizer in a tiktoken rank file.

    Args:
        path: the file, whatever its name.
        pre: pre-tokenizer of an unknown vocabulary; overrides a known one's.
        files: of its folder, if some have been read already.

    Raises:
        InvalidFormat: a line is damaged, or ranks are missing.
        TokenizerNotFound: no known vocabulary has this many ranks, and *pre* is not given.
    """
    path = Path(path)
    files = files or Inventory(path.parent)
    data = read_bytes(files, path.name)
    side = read_side_files(files)
    ranks = _ranks(data, path)
    n_ranks = len(ranks)
    published = _PUBLISHED.get(n_ranks)
    if published is None and pre is None:
        raise TokenizerNotFound(
            f"{path} holds {n_ranks:,} tiktoken ranks: no known vocabulary has as many, and the"
            " file does not say how text is cut into words",
            hint="say which with --pre NAME, or name the model's own tokenizer.json",
        )
    name = pre or (published.pre if published else "")
    special = dict(published.special) if published else {}
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
    spec = _with_special(spec, special, published, side)
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


_VERSIONS = ("v1", "v2", "v3", "v7", "v11", "v13", "v15")
_NAMED = ("v1", "v2", "v3", "v7")  # versions whose files may leave out the special tokens
_USUAL = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    "[TOOL_CONTENT]",
)
# Hidden special tokens end a character whose bytes are incomplete.
_DECODER = (Step("Bytes", {"respell": False, "apart": True}),)


def is_tekken(document: object) -> bool:
    """True if a JSON value is a ``tekken.json`` rather than a ``tokenizer.json``."""
    if not isinstance(document, dict) or "model" in document:
        return False
    config = document.get("config")
    return isinstance(config, dict) and "default_num_special_tokens" in config


def spec_from_tekken(
    path: Path, document: dict[str, Any], files: Inventory, *, pre: str | None = None
) -> TokenizerSpec:
    """The tokenizer in a ``tekken.json`` and its side files.

    Args:
        path: the file.
        document: its content.
        files: of its folder.
        pre: name of the pre-tokenizer, instead of the file's pattern.

    Raises:
        InvalidFormat: a value has the wrong type, or tokens are missing or out of order.
        Unsupported: the version or the pattern is unknown.
    """
    try:
        spec = _spec(path, document, pre)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise _damage_error(path, f"{type(error).__name__} {error}") from None
    side = read_side_files(files)
    ids = {token.text: token.id for token in spec.added}
    ends = [id for id in side.declared_ends if 0 <= id < spec.vocab_size]
    spec = replace(
        spec,
        stop_ids=stop_ids(ids, (spec.eos_id, *ends)),
        chat_template=side.chat_template,
    )
    return replace(spec, fingerprint=spec_key(spec, read_bytes(files, path.name), side.raw))


def _spec(path: Path, document: dict[str, Any], pre: str | None) -> TokenizerSpec:
    config = document["config"]
    version = config.get("version")
    if version not in _VERSIONS:
        raise Unsupported(
            f"{path} has the tekken version {version!r:.40}; supported: {', '.join(_VERSIONS)}",
            hint="name the model's tokenizer.json with --tokenizer FILE",
        )
    name, cut = _pre_tokenizer(path, config["pattern"], pre)
    special = _special(path, document, version)
    own = _whole(path, config, "default_vocab_size") - len(special)
    ranks = _tekken_ranks(path, document["vocab"], own)
    tokens = special + ranks
    ids = {text: id for id, text in enumerate(special)}
    return TokenizerSpec(
        model="bpe",
        tokens=tokens,
        merges=LazyRankMerges(tokens, range(len(special), len(tokens)), str(path)),
        added=tuple(AddedToken(id, text) for id, text in enumerate(special)),
        outside=frozenset(range(len(special))),
        normalizer=cut.normalizer,
        pre_tokenizer=cut.steps,
        decoder=_DECODER,
        byte_level=True,
        ignore_merges=True,
        bos_id=ids.get("<s>"),
        eos_id=ids.get("</s>"),
        add_bos="<s>" in ids,
        pre=name,
        source=str(path),
    )


def _pre_tokenizer(path: Path, pattern: object, pre: str | None) -> tuple[str, PreTokenizer]:
    """The pre-tokenizer; a pattern is accepted only if it is known to be supported exactly."""
    if pre is not None:
        return pre, pre_tokenizer(pre)
    usual = PRE_TOKENIZERS["tekken"]
    if pattern == _regex(usual):
        return "tekken", usual
    for name, known in PRE_TOKENIZERS.items():
        if _regex(known) == pattern and known.byte_level and not known.normalizer:
            return name, known
    raise Unsupported(
        f"{path} cuts text with a pattern that is not a known one: {pattern!r:.120}",
        hint="say which one it equals with --pre NAME, or name the model's tokenizer.json with"
        " --tokenizer FILE",
    )


def _regex(pre: PreTokenizer) -> object:
    """The single expression of *pre*, ``None`` if there are other steps."""
    if len(pre.steps) != 2 or pre.steps[0].type != "Split":
        return None
    pattern = pre.steps[0].options["pattern"]
    return pattern.get("Regex") if isinstance(pattern, dict) else None


def _special(path: Path, document: dict[str, Any], version: str) -> list[str]:
    """Texts of the special tokens by id."""
    count = _whole(path, document["config"], "default_num_special_tokens")
    listed = document.get("special_tokens")
    if listed is None:
        if version not in _NAMED:
            raise _damage_error(path, f"a file of version {version} without special_tokens")
        texts = list(_USUAL)
    else:
        texts = [entry["token_str"] for entry in listed]
        if [entry["rank"] for entry in listed] != list(range(len(listed))):
            raise _damage_error(path, "special tokens that are not in the order of their ids")
    if len(texts) > count:
        raise _damage_error(path, f"{len(texts):,} special tokens, and room for {count:,}")
    texts += [f"<SPECIAL_{id}>" for id in range(len(texts), count)]
    if not all(type(text) is str and text for text in texts) or len(set(texts)) != count:
        raise _damage_error(path, "special tokens that are not texts, or duplicates")
    return texts


def _tekken_ranks(path: Path, vocabulary: list[dict[str, Any]], count: int) -> list[str]:
    """The byte tokens by rank, in GPT-2's byte spelling."""
    if not 256 <= count <= len(vocabulary):
        raise _damage_error(path, f"{len(vocabulary):,} byte tokens where {count:,} are expected")
    texts: list[str] = []
    for rank, entry in enumerate(vocabulary[:count]):
        try:
            token = base64.b64decode(entry["token_bytes"], validate=True)
        except binascii.Error:
            token = b""
        is_byte = rank >= 256 or token == bytes([rank])
        if type(entry["rank"]) is not int or entry["rank"] != rank or not token or not is_byte:
            raise _damage_error(path, f"the byte token of rank {rank:,} is {entry!r:.80}")
        texts.append(byte_spelling(token))
    if len(set(texts)) != count:
        raise _damage_error(path, "a byte token that is there twice")
    return texts


def _whole(path: Path, config: dict[str, Any], name: str) -> int:
    value = config[name]
    if type(value) is not int or not 0 <= value <= TOKENS:
        raise _damage_error(path, f"{name} is {value!r:.40}")
    return value


def _damage_error(path: Path, what: str) -> InvalidFormat:
    return InvalidFormat(f"{path} is not a tekken.json: {what}", hint="fetch the file again")
