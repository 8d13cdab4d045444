"""A worker whose model can spell JSON, for the clients of other servers."""

import pytest
from server_process import listening
from tool_models import tool_gguf
from worker_fixtures import (  # noqa: F401
    client_fixture,
    openai_client_fixture,
    patient_fixture,
    same_draws_fixture,
)


@pytest.fixture
def path(tmp_path):
    """A model with one token per character of JSON, and a context of 2,048 positions."""
    return tool_gguf(tmp_path / "m.gguf")


@pytest.fixture
def worker(path, patient, same_draws):
    """A worker with that model, which writes three answers at once."""
    with listening(path, max_output_tokens=400, max_batch=3) as worker:
        yield worker
