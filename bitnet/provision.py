"""Models by name for Python code, and tokenizer downloads as objects to call.

Fetch the tokenizer that discovery reports as missing::

    from bitnet import SmartTokenizerDownload, TokenizerDiscovery, TokenizerStrategy

    match TokenizerDiscovery.from_gguf("model.gguf").discover_tokenizer_strategy():
        case TokenizerStrategy.NeedsDownload(info):
            path = await SmartTokenizerDownload().download_tokenizer(info)
"""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from bitnet.base import settings
from bitnet.base.errors import (
    InvalidFormat,
    NotFound,
    TokenizerNotFound,
    UsageError,
    VocabMismatch,
    from_os_error,
)
from bitnet.base.files import exists
from bitnet.base.options import check_type, check_values
from bitnet.sources import Source, TokenizerDownloadInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from bitnet.families.blocks import KVType
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.formats.containers import I2SLayout
    from bitnet.hub.fetch_options import FetchOptions
    from bitnet.hub.project import Project
    from bitnet.models.exact_head.head import HeadMode
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_OTHER_TOKENIZER = "correct expected_vocab, or name the repository of another tokenizer"
_SUFFIXES = (".gguf", ".safetensors", ".json", ".model")  # endings of paths, never of names


def load(
    model: str | os.PathLike[str] | Checkpoint,
    *,
    tokenizer: Tokenizer | str | os.PathLike[str] | None = None,
    pre: str | None = None,
    context: int | None = None,
    threads: int = 0,
    allow_mock: bool = False,
    exact_head: HeadMode = "auto",
    kv_type: KVType = "f16",
    i2_s_layout: I2SLayout = "x86",
    ignore_keys: Collection[str] = (),
    draft_model: str | os.PathLike[str] | None = None,
    lora: Collection[str | os.PathLike[str]] = (),
    lock_memory: bool = False,
    fetch: bool = True,
) -> LanguageModel:
    """*model* with its tokenizer, ready to generate; a model that is missing is downloaded.

    Args:
        model: GGUF file, folder with ``config.json`` and safetensors files, or an open
            checkpoint; or a name, as :mod:`bitnet.hub.ref` lists.
        tokenizer: the tokenizer, or a file or folder with it; discovered when not given.
        pre: pre-tokenizer name to use instead of the one in the GGUF file.
        context: positions a sequence may reach; the model's own length when not given.
        threads: compute threads; 0: ``BITNET_THREADS``, else as many as there are cores.
        allow_mock: without a tokenizer, treat bytes as tokens.
        exact_head: choose tokens without computing the whole output head, with identical
            results: on, off, or ``auto`` where it saves time.
        kv_type: form of keys and values: ``f16``, 16 bits, or ``q8``, 8 bits of rotated
            vectors, for half the memory and faster attention; ignored for an open checkpoint.
        i2_s_layout: processor that wrote the I2_S weights, which no file records; ignored for
            an open checkpoint.
        ignore_keys: metadata keys to ignore; without effect for an open checkpoint.
        draft_model: a smaller model with the same vocabulary, which drafts tokens that *model*
            checks: the same answers, faster where enough drafts are right.
        lora: low-rank adapters to run the model with: GGUF files and folders of PEFT, each
            ``PATH`` or ``PATH:SCALE``.
        lock_memory: keep the weights in memory, but for experts that stay in the file.
        fetch: download a model that is not on this machine.

    Raises:
        NotFound: there is no such file or name, or it is not here and *fetch* is off.
        TokenizerNotFound: no tokenizer matches the model exactly.
        VocabMismatch: *tokenizer* or *draft_model* does not match the model.
        UsageError: a value is out of its range.
        WrongType: a value is of another type.
        InvalidFormat: the file is damaged.
        Unsupported: the architecture or an encoding is unknown, or the file is not a model.
        InferenceError: not enough memory, or the limit of locked memory forbids *lock_memory*.
        BitnetError: the model cannot be downloaded.
    """
    from bitnet.families.blocks import KVType
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.formats.containers import open_checkpoint
    from bitnet.models.adapted import parse_adapter, with_adapters
    from bitnet.models.exact_head.head import HeadMode
    from bitnet.runtime.language_model import load_checkpoint, memory_errors
    from bitnet.tokenizer import Tokenizer

    paths = (str, os.PathLike)
    check_type("model", model, "a path, a name or an open checkpoint", *paths, Checkpoint)
    check_type("tokenizer", tokenizer, "a Tokenizer, a path or None", Tokenizer, *paths, None)
    check_type("pre", pre, "a text or None", str, None)
    check_type("context", context, "a whole number or None", Integral, None)
    check_type("threads", threads, "a whole number", Integral)
    check_type("allow_mock", allow_mock, "True or False", bool)
    check_type("lock_memory", lock_memory, "True or False", bool)
    check_type("fetch", fetch, "True or False", bool)
    check_type("draft_model", draft_model, "a path, a name or None", *paths, None)
    check_values("ignore_keys", ignore_keys, "a list of keys", "a text", str)
    check_values("lora", lora, "a list of paths", "a path", *paths)
    for name, value in (("model", model), ("tokenizer", tokenizer), ("draft_model", draft_model)):
        if isinstance(value, str) and not value:  # as a path, the current folder
            raise UsageError(
                f"{name} is an empty text, expected a path or a name",
                hint="the current folder is '.'",
                field=name,
            )
    for name, choice, choices in (
        ("exact_head", exact_head, HeadMode),
        ("kv_type", kv_type, KVType),
    ):
        if choice not in get_args(choices):
            raise UsageError(f"{name} is {choice!r}, expected {' or '.join(get_args(choices))}")

    def open_named(named: str | os.PathLike[str]) -> Checkpoint:
        path = locate(named, _plain_project, fetch=fetch) if isinstance(named, str) else Path(named)
        with memory_errors(path):
            checkpoint = open_checkpoint(path, i2_s_layout=i2_s_layout, ignore_keys=ignore_keys)
            return replace(checkpoint, kv_type=kv_type)

    with _system_errors():
        checkpoint = model if isinstance(model, Checkpoint) else open_named(model)
        if lora:
            checkpoint = with_adapters(checkpoint, map(parse_adapter, lora))
        if isinstance(tokenizer, str | os.PathLike):
            tokenizer = Path(tokenizer)
        return load_checkpoint(
            checkpoint,
            tokenizer=tokenizer,
            pre=pre,
            context=context,
            threads=threads,
            allow_mock=allow_mock,
            exact_head=exact_head,
            draft=None if draft_model is None else open_named(draft_model),
            lock_memory=lock_memory,
        )


@contextmanager
def _system_errors() -> Iterator[None]:
    """Turn an ``OSError``, such as for a path that is too long, into an error of this package."""
    try:
        yield
    except OSError as error:
        raise from_os_error(error, error.filename or "model") from error


def embed(
    model: LanguageModel | str | os.PathLike[str],
    texts: str | Sequence[str | Sequence[int]],
    **options: Any,
) -> NDArray[np.float32]:
    """Vectors of *texts*, ``(len(texts), dim)``; one row for a single text.

    Args:
        model: a loaded model, or a name or path for :func:`load`, which this call loads.
        texts: as for :meth:`LanguageModel.embed`.
        **options: as for that method.

    Raises:
        BitnetError: as :func:`load` and :meth:`LanguageModel.embed`.
    """
    from bitnet.runtime.language_model import LanguageModel

    if isinstance(model, LanguageModel):
        return model.embed(texts, **options)
    with load(model) as loaded:
        return loaded.embed(texts, **options)


def locate(
    text: str,
    project: Callable[[], Project],
    *,
    fetch: bool,
    announce: Callable[[str], None] = logger.info,
) -> Path:
    """The file or folder of the model that *text* names, as :mod:`bitnet.hub.ref` lists.

    A model with a name is kept in the cache of *project*. With *fetch* it is downloaded if it is
    missing, after *announce* was called with the files and their size.

    Raises:
        NotFound: the name does not exist, or its files are missing while *fetch* is off. Text that
            can only be a path is returned as one, also if nothing is there.
    """
    from bitnet.formats.model_files import only_model

    path = Path(text)
    if exists(path):
        try:
            return only_model(path)
        except OSError as error:
            raise from_os_error(error, path) from error
    # Imported here: the modules that open connections load slowly, and a path needs none of them.
    from bitnet.hub.models import locate_model
    from bitnet.hub.ref import parse, suggest_names

    ref = parse(text)
    if ref.path is not None and not exists(ref.path):
        if "/" in ref.text or "\\" in ref.text or ref.path.suffix.lower() in _SUFFIXES:
            return ref.path  # it can only be a path
        raise NotFound(
            f"no such file or folder, and no model of that name: {ref.text}",
            hint=suggest_names(ref.text),
        )
    return locate_model(ref, project(), fetch=fetch, announce=announce)


def _plain_project() -> Project:
    """The working folder as a project, with the cache and the download options of the settings."""
    from bitnet.hub.fetch_options import FetchOptions
    from bitnet.hub.project import Project

    return Project(Path(), settings.cache_dir(), FetchOptions(), "auto")


class SmartTokenizerDownload:
    """Fetches tokenizers into the cache: once, verified, resumable."""

    def __init__(
        self,
        cache_dir: str | os.PathLike[str] | None = None,
        *,
        options: FetchOptions | None = None,
    ) -> None:
        """Download into *cache_dir*, by default the cache of the settings, with *options*.

        Raises:
            WrongType: a value is of another type.
        """
        from bitnet.hub.fetch_options import FetchOptions
        from bitnet.hub.project import Project

        check_type("cache_dir", cache_dir, "a path or None", str, os.PathLike, None)
        check_type("options", options, "FetchOptions or None", FetchOptions, None)
        cache = settings.cache_dir() if cache_dir is None else Path(cache_dir)
        self._project = Project(cache, cache, options or FetchOptions(), "none")

    async def download_tokenizer(self, info: TokenizerDownloadInfo) -> Path:
        """As :meth:`download_tokenizer_sync`, without blocking the event loop."""
        import asyncio  # here: it is slow to import, and commands do not need it

        return await asyncio.to_thread(self.download_tokenizer_sync, info)

    def download_tokenizer_sync(self, info: TokenizerDownloadInfo) -> Path:
        """Path of the tokenizer that *info* describes; it is downloaded unless it is in the cache.

        Args:
            info: its first file must be in the repository; the others are optional.

        Raises:
            UsageError: *info* names no file.
            WrongType: *info*, or a value of it, is of another type.
            Offline: it is not in the cache, and the network is switched off.
            VocabMismatch: the file does not have ``info.expected_vocab`` ids.
            BitnetError: it cannot be fetched; see :func:`bitnet.hub.fetch.fetch`.
        """
        from bitnet.hub.provide import fetch_source

        check_type("info", info, "a TokenizerDownloadInfo", TokenizerDownloadInfo)
        check_values("info.files", info.files, "a list of names", "a text", str)
        for name in ("repo", "cache_key"):
            check_type(f"info.{name}", getattr(info, name), "a text", str)
        check_type("info.expected_vocab", info.expected_vocab, "a whole number", Integral)
        if not info.files:
            raise UsageError("info.files is empty, expected the names of one file or more")
        key = info.cache_key
        vocab_size = info.expected_vocab
        paths = []
        for file in info.files:
            source = Source(key, info.repo, file, vocab_size=vocab_size, cache_key=key)
            try:
                paths.append(fetch_source(source, self._project, check=_check).path)
            except NotFound as error:
                # The first file must exist. TokenizerNotFound means that a file exists, but holds
                # no tokenizer: that is an error for each of them.
                if not paths or isinstance(error, TokenizerNotFound):
                    raise
                logger.info("%s has no %s; it is not needed", info.repo, file)
        return paths[0]


def _check(path: Path, vocab_size: int) -> None:
    """Accept a tokenizer file of any kind only if it has exactly *vocab_size* ids.

    Raises:
        VocabMismatch: it has another number of ids.
    """
    from bitnet.tokenizer.load import load_spec
    from bitnet.tokenizer.tokenizer_json import check_vocabulary

    # While a file is downloaded, its name is followed by ".partial" and another suffix.
    if path.name.partition(".partial")[0].endswith(".json"):
        try:
            check_vocabulary(path, vocab_size)
        except (InvalidFormat, VocabMismatch) as error:
            error.hint = _OTHER_TOKENIZER  # the check's own hint is about LLaMA 3's tokenizer
            raise
    elif (actual := load_spec(path).vocab_size) != vocab_size:
        raise VocabMismatch(
            f"Vocabulary size mismatch: expected {vocab_size}, got {actual} ({path})",
            hint=_OTHER_TOKENIZER,
        )
