"""A worker that is started again reads a stored prompt from disk instead of computing it."""

import contextlib

import pytest
from server_process import serving_all
from tiny_models import tiny_gguf

from bitnet.base import native
from bitnet.cache.prompts import PromptFolder
from bitnet.formats.containers import open_checkpoint
from bitnet.runtime import prompt_cache
from bitnet.runtime.language_model import load_checkpoint
from bitnet.server.slot import Slot

pytestmark = pytest.mark.skipif(
    native.module() is None, reason="the compiled module is not installed"
)


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start a worker whose prompts are in one folder."""
    monkeypatch.setattr(prompt_cache, "SHORTEST", 32)  # least positions of a file
    path = tiny_gguf(tmp_path / "tiny.gguf", **{"llama.context_length": 400})
    folder = PromptFolder(tmp_path / "prompts", limit_bytes=1e9)

    @contextlib.contextmanager
    def started():
        slot = Slot(
            "tiny",
            path,
            lambda: open_checkpoint(path),
            lambda checkpoint: load_checkpoint(checkpoint, prompt_folder=folder),
        )
        with serving_all([slot]) as worker:
            yield worker

    return started


def test_ids_that_another_worker_computed_are_counted_as_cached(start):
    body = {"prompt": "abcdefghij" * 20, "max_tokens": 4, "temperature": 0}
    replies = []
    for _ in range(2):
        with start() as worker:
            replies.append(worker.post("/v1/completions", body).json())
    cached = [reply["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in replies]
    # BOS and 200 letters, of which the last one is run in any case.
    assert cached == [0, 200]
    assert replies[0]["choices"] == replies[1]["choices"]
