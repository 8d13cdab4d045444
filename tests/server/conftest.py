"""A worker with a tiny random model."""

import contextlib
import threading

import pytest
from server_process import listening
from tiny_models import tiny_gguf
from worker_fixtures import (  # noqa: F401
    client_fixture,
    openai_client_fixture,
    patient_fixture,
    same_draws_fixture,
)

from bitnet.runtime.scheduler import Scheduler
from bitnet.server.slot import Slot

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}.{{ m.content }}.{% endfor %}"
    "{% if tools %}{{ tools[0].function.name ~ tools[0].function.description }}{% endif %}"
    "assistant."
)


@pytest.fixture(autouse=True)
def _patient_and_repeatable(patient, same_draws):
    """Make every worker of these tests wait for slow clients, and draw the same random numbers."""


@pytest.fixture
def model_path(tmp_path):
    """A tiny model with a chat template and a context of 64 positions."""
    return tiny_gguf(tmp_path / "tiny.gguf", **{"tokenizer.chat_template": TEMPLATE})


@pytest.fixture
def serving(model_path, tmp_path):
    """Start workers on the tiny model, with other GGUF keys if given; they end with the test."""
    with contextlib.ExitStack() as stack:

        def serve(keys=None, **options):
            path = model_path
            if keys:
                all_keys = {"tokenizer.chat_template": TEMPLATE} | keys
                path = tiny_gguf(tmp_path / "other.gguf", **all_keys)
            return stack.enter_context(listening(path, **options))

        yield serve


@pytest.fixture
def worker(serving):
    """A worker with that model and no other options."""
    return serving()


@pytest.fixture
def release(monkeypatch):
    """Hold the model before every pass; return the function that releases it.

    ``release(4)`` lets four passes run, ``release()`` all that follow.
    """
    gate = threading.Semaphore(0)
    free = threading.Event()
    step = Scheduler.step

    def waiting(self):
        while not free.is_set() and not gate.acquire(timeout=0.01):
            pass
        return step(self)

    monkeypatch.setattr(Scheduler, "step", waiting)

    def let_run(count=None):
        if count is None:
            free.set()
        elif count:
            gate.release(count)

    yield let_run
    free.set()


@pytest.fixture
def cancelled(monkeypatch):
    """An event that is set once the worker has cancelled the answers of a client that has gone."""
    told = threading.Event()
    cancel = Slot.cancel

    def tell(self, answers):
        cancel(self, answers)
        told.set()

    monkeypatch.setattr(Slot, "cancel", tell)
    return told
