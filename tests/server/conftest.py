"""A worker with a tiny random model."""

import contextlib

import pytest
from server_process import listening
from tiny_models import tiny_gguf

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}.{{ m.content }}.{% endfor %}"
    "{% if tools %}{{ tools[0].function.name }}{% endif %}assistant."
)


@pytest.fixture
def model_path(tmp_path):
    return tiny_gguf(tmp_path / "tiny.gguf", **{"tokenizer.chat_template": TEMPLATE})


@pytest.fixture
def serving(model_path):
    """Start workers on the tiny model; they end with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(listening(model_path, **options))


@pytest.fixture
def worker(serving):
    return serving()
