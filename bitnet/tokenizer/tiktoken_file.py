"""tiktoken's rank files and Mistral's ``tekken.json``.

A rank file does not say how text is cut into words, nor which special tokens follow the ranks. Both
are known for the published files of ``rank_files.json``, which are recognised by a hash of their
ranks: other vocabularies have the same number of ranks and cut text differently.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import TokenizerNotFound, Unsupported
from bitnet.tokenizer.class_table import check_rank_class
from bitnet.tokenizer.limits import TOKENS, damage_error, reading, refusal
from bitnet.tokenizer.spec import AddedToken, Step, byte_spelling
from bitnet.tokenizer.vocabularies import PRE_TOKENIZERS, LazySequence, bpe_spec, merges_from_ranks

if TYPE_CHECKING:
    from bitnet.tokenizer.side_files import TokenizerFile
    from bitnet.tokenizer.spec import TokenizerSpec

# A line of a rank file: a token in base64 and its rank.
RANK_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]+\r?\n")
# Pre-tokenizer of ``ChatGLM4Tokenizer``, the one class in a folder's code that reads ranks.
_PRE_OF_CODE = "chatglm-bpe"
_NO_BYTES = b"="  # how Whisper's file writes its last token, which is empty

# Versions of ``tekken.json``.
_VERSIONS = ("v1", "v2", "v3", "v7", "v11", "v13", "v15")
_WITHOUT_LIST = ("v1", "v2", "v3", "v7")  # versions whose files may leave out the special tokens
# The special tokens of ``tekken.json`` files that leave them out, by id.
_USUAL = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    "[TOOL_CONTENT]",
)
# A special token, even if it is left out of the text, ends a character with incomplete bytes.
_DECODER = (Step("Bytes", {"respell": False, "apart": True}),)


@cache
def _read_published() -> dict[str, dict[str, Any]]:
    """Rows of ``rank_files.json`` by the hash of the ranks; ``special`` has texts by id."""
    rows = json.loads(Path(__file__).with_name("rank_files.json").read_text("utf-8"))
    for row in rows:
        row["special"] = {
            id: text
            for first, texts in row["special"].items()
            for id, text in enumerate(chain.from_iterable(map(_expand, texts)), int(first))
        }
    return {row["sha256"]: row for row in rows}


def _expand(text: str) -> list[str]:
    """*text*, or the texts that ``{2..5}`` in it stands for."""
    if (span := re.search(r"\{(\d+)\.\.(\d+)\}", text)) is None:
        return [text]
    numbers = range(int(span[1]), int(span[2]) + 1)
    return [f"{text[: span.start()]}{n}{text[span.end() :]}" for n in numbers]


def spec_from_ranks(file: TokenizerFile) -> TokenizerSpec:
    """The tokenizer in a tiktoken rank file; ``file.pre`` overrides a known pre-tokenizer."""
    path = file.path
    side = file.side
    check_rank_class(file)
    ranks = _ranks(file.data, path)
    prefix = side.prefix_of_code(len(ranks), str(path))
    published: dict[str, Any] = {"pre": _PRE_OF_CODE}
    if prefix is None:
        published = _read_published().get(_digest_of_ranks(ranks), {})
    name = file.pre or published.get("pre")
    if name is None:
        raise _unknown_ranks(path, len(ranks))
    spelled = {rank: byte_spelling(token) for rank, token in ranks.items()}
    special = dict(published.get("special", {}))
    side.check_added(len(ranks) + len(special), str(path))
    special.update((token.id, token.text) for token in side.added if token.id not in ranks)
    size = max([*ranks, *special], default=-1) + 1

    # Special tokens may lie between the ranks, but no id below the last rank may be free.
    last = max(ranks, default=-1)
    if min(ranks, default=0) < 0 or len(ranks) + sum(id < last for id in special) != last + 1:
        raise damage_error(f"{path} has {len(ranks):,} ranks up to {last:,}: some are missing")

    tokens = [spelled.get(id) or special.get(id, "") for id in range(size)]
    own_ids = sorted(rank for rank, token in ranks.items() if token)
    declared = {token.id: token for token in side.added}
    by_text = {text: id for id, text in sorted(special.items())}
    spec = bpe_spec(
        name,
        tokens=tokens,
        merges=LazySequence(None, lambda: merges_from_ranks(tokens, own_ids, str(path))),
        added=tuple(declared.get(id, AddedToken(id, text)) for id, text in sorted(special.items())),
        outside=frozenset(special),
        byte_level=True,
        ignore_merges=True,
        prefix_ids=prefix,
        source=str(path),
        **side.bos_and_eos(
            by_text,
            bos=(by_text.get(published.get("bos", "")), True),
            eos=(by_text.get(published.get("eos", "")), False),
        ),
    )
    return side.complete(spec, file.data)


def _unknown_ranks(path: Path, count: int) -> TokenizerNotFound:
    """Error for a rank file that is not published, with the published ones of as many ranks."""
    same_size = [row for row in _read_published().values() if row["n_ranks"] == count]
    if same_size:
        names = " and ".join(row["name"] for row in same_size)
        reason = f"as many as {names}, but other ranks"
    else:
        published = ", ".join(
            f"{row['name']} {row['n_ranks']:,}" for row in _read_published().values()
        )
        reason = f"none of the known files has as many ({published})"
    usual = sorted({row["pre"] for row in _read_published().values()})
    return TokenizerNotFound(
        f"{path} holds {count:,} tiktoken ranks, {reason}: the file does not say how text is cut"
        " into words",
        hint=f"say which with --pre NAME (such as {', '.join(usual)}), or name the model's own"
        " tokenizer.json with --tokenizer FILE",
    )


def _digest_of_ranks(ranks: dict[int, bytes]) -> str:
    """SHA-256 of *ranks*, written as the published files are: one line each, ascending."""
    lines = (b"%b %d\n" % (base64.b64encode(ranks[rank]), rank) for rank in sorted(ranks))
    return hashlib.sha256(b"".join(lines)).hexdigest()


def _ranks(data: bytes, path: Path) -> dict[int, bytes]:
    """Tokens by rank; a rank or a token that is there twice is refused."""
    tokens: dict[int, bytes] = {}
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line:
            continue
        where = f"{path}, line {number}"
        try:
            text, digits = line.split()
            token = b"" if text == _NO_BYTES else base64.b64decode(text, validate=True)
            rank = int(digits)
        except (ValueError, binascii.Error):
            expected = "expected a token in base64 and its rank"
            raise damage_error(f"{where}: {expected}, found {line[:40]!r}") from None
        if rank in tokens:
            raise damage_error(f"{where}: the rank {rank} is that of an earlier line, too")
        if token in ranks:
            raise damage_error(f"{where}: rank {rank} has the token of rank {ranks[token]}")
        tokens[rank] = token
        ranks[token] = rank
    return tokens


def is_tekken(document: object) -> bool:
    """True if a JSON value is a ``tekken.json`` rather than a ``tokenizer.json``."""
    if not isinstance(document, dict) or "model" in document:
        return False
    config = document.get("config")
    return isinstance(config, dict) and "default_num_special_tokens" in config


def spec_from_tekken(file: TokenizerFile) -> TokenizerSpec:
    """The tokenizer in a ``tekken.json``; ``file.pre`` replaces the pattern of the file."""
    with reading(file.path, "tekken.json"):
        spec = _spec(file)
    return file.side.complete(spec, file.data)


def _spec(file: TokenizerFile) -> TokenizerSpec:
    """The tokenizer in a ``tekken.json``, without what its side files say."""
    path = str(file.path)
    document = file.document
    config = document["config"]
    version = config.get("version")
    if version not in _VERSIONS:
        supported = ", ".join(_VERSIONS)
        raise refusal(f"{path} has the tekken version {version!r:.40}; supported: {supported}")
    name = file.pre or _pre_of_pattern(path, config["pattern"])
    special = _special(document, version)
    n_ranks = _whole(config, "default_vocab_size") - len(special)
    tokens = special + _tekken_ranks(document["vocab"], n_ranks)
    ids = {text: id for id, text in enumerate(special)}
    own_ids = range(len(special), len(tokens))
    return bpe_spec(
        name,
        tokens=tokens,
        merges=LazySequence(None, lambda: merges_from_ranks(tokens, own_ids, path)),
        added=tuple(AddedToken(id, text) for id, text in enumerate(special)),
        outside=frozenset(range(len(special))),
        decoder=_DECODER,
        byte_level=True,
        ignore_merges=True,
        bos_id=ids.get("<s>"),
        eos_id=ids.get("</s>"),
        add_bos="<s>" in ids,
        source=path,
    )


def _pre_of_pattern(path: str, pattern: object) -> str:
    """Name of the pre-tokenizer that cuts text with this *pattern*; other patterns are refused."""
    for name in ("tekken", *PRE_TOKENIZERS):
        pre_tokenizer = PRE_TOKENIZERS[name]
        patterns = [step.options.get("pattern") for step in pre_tokenizer.steps]
        if (  # a Split by the pattern, and ByteLevel
            patterns == [{"Regex": pattern}, None]
            and pre_tokenizer.byte_level
            and not pre_tokenizer.normalizer
        ):
            return name
    raise Unsupported(
        f"{path} cuts text with a pattern that is not a known one: {pattern!r:.120}",
        hint="say which one it equals with --pre NAME, or name the model's tokenizer.json with"
        " --tokenizer FILE",
    )


def _special(document: dict[str, Any], version: str) -> list[str]:
    """Texts of the special tokens by id; ids without one get ``<SPECIAL_ID>``."""
    count = _whole(document["config"], "default_num_special_tokens")
    listed = document.get("special_tokens")
    if listed is None:
        if version not in _WITHOUT_LIST:
            raise ValueError(f"a file of version {version} without special_tokens")
        texts = list(_USUAL)
    else:
        texts = [entry["token_str"] for entry in listed]
        if [entry["rank"] for entry in listed] != list(range(len(listed))):
            raise ValueError("special tokens that are not in the order of their ids")
    if len(texts) > count:
        raise ValueError(f"{len(texts):,} special tokens, and room for {count:,}")
    texts += [f"<SPECIAL_{id}>" for id in range(len(texts), count)]
    if not all(type(text) is str and text for text in texts) or len(set(texts)) != count:
        raise ValueError("special tokens that are not texts, or duplicates")
    return texts


def _tekken_ranks(vocabulary: list[dict[str, Any]], count: int) -> list[str]:
    """The first *count* tokens of *vocabulary* by rank, in GPT-2's byte spelling."""
    if not 256 <= count <= len(vocabulary):
        raise ValueError(f"{len(vocabulary):,} byte tokens where {count:,} are expected")
    texts: list[str] = []
    for rank, entry in enumerate(vocabulary[:count]):
        token = base64.b64decode(entry["token_bytes"], validate=True)
        is_byte = rank >= 256 or token == bytes([rank])  # the first ranks are the bytes
        if type(entry["rank"]) is not int or entry["rank"] != rank or not token or not is_byte:
            raise ValueError(f"the byte token of rank {rank:,} is {entry!r:.80}")
        texts.append(byte_spelling(token))
    if len(set(texts)) != count:
        raise ValueError("a byte token that is there twice")
    return texts


def _whole(config: dict[str, Any], name: str) -> int:
    """The value of *name*, a number of tokens."""
    value = config[name]
    if type(value) is not int or not 0 <= value <= TOKENS:
        raise ValueError(f"{name} is {value!r:.40}")
    return value
