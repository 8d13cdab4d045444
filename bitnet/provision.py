"""Provisioning for Python code: what the commands fetch, as objects to call.

What discovery says is missing is what is fetched::

    from bitnet import SmartTokenizerDownload, TokenizerDiscovery, TokenizerStrategy

    match TokenizerDiscovery.from_gguf("model.gguf").discover_tokenizer_strategy():
        case TokenizerStrategy.NeedsDownload(info):
            path = await SmartTokenizerDownload().download_tokenizer(info)
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from bitnet import settings
from bitnet.errors import NotFound, TokenizerNotFound, VocabMismatch
from bitnet.hub.options import FetchOptions
from bitnet.hub.project import Project
from bitnet.hub.provision import provide_tokenizer
from bitnet.sources import Source, TokenizerDownloadInfo
from bitnet.tokenizer.load import load_spec
from bitnet.tokenizer.vocabulary import check_vocabulary

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SmartTokenizerDownload"]

logger = logging.getLogger(__name__)


class SmartTokenizerDownload:
    """Fetches tokenizers into the cache: once, verified, resumable.

    Args:
        cache_dir: cache folder; the one of the settings when not given.
        options: how to fetch.
    """

    def __init__(
        self, cache_dir: Path | None = None, *, options: FetchOptions | None = None
    ) -> None:
        cache = cache_dir if cache_dir is not None else settings.cache_dir()
        self._project = Project(cache, cache, options or FetchOptions(), "none")

    async def download_tokenizer(self, info: TokenizerDownloadInfo) -> Path:
        """As :meth:`download_tokenizer_sync`, without blocking the event loop."""
        return await asyncio.to_thread(self.download_tokenizer_sync, info)

    def download_tokenizer_sync(self, info: TokenizerDownloadInfo) -> Path:
        """The tokenizer that *info* describes, in the cache; no connection when it is there.

        Args:
            info: its first file must be in the repository; further ones are fetched if they are.

        Raises:
            Offline: it is not in the cache, and the network is switched off.
            VocabMismatch: the file has not ``info.expected_vocab`` ids.
            BitnetError: it cannot be fetched; see :func:`bitnet.hub.download.download`.
        """
        first, *further = info.files
        path = self._provide(info, first)
        for name in further:
            self._provide_if_there(info, name)
        return path

    def _provide_if_there(self, info: TokenizerDownloadInfo, file: str) -> None:
        try:
            self._provide(info, file)
        except TokenizerNotFound:
            raise  # it is there, and not to be made sense of
        except NotFound:
            logger.info("%s has no %s; it is not needed", info.repo, file)

    def _provide(self, info: TokenizerDownloadInfo, file: str) -> Path:
        source = Source(
            info.cache_key,
            info.repo,
            file,
            vocab_size=info.expected_vocab,
            cache_key=info.cache_key,
        )
        return provide_tokenizer(source, self._project, check=_check).path


def _check(path: Path, vocab_size: int) -> None:
    """Accept a tokenizer file of any kind only if it has exactly *vocab_size* ids."""
    if path.name.partition(".partial")[0].endswith(".json"):
        check_vocabulary(path, vocab_size)
        return
    found = load_spec(path).vocab_size
    if found != vocab_size:
        raise VocabMismatch(
            f"Vocabulary size mismatch: expected {vocab_size}, got {found} ({path})",
            hint="bitnet tokenizer --source mirror --output models --force",
        )
