"""Fixtures of tests with a worker, for the ``conftest.py`` of the server and of the dialects."""

import contextlib

import pytest

from bitnet.server import connection, guard


@pytest.fixture(name="patient")
def patient_fixture(monkeypatch):
    """Make servers wait an hour for slow clients: the machine may be busy. Some tests reduce it."""
    monkeypatch.setattr(connection, "HEADER_PATIENCE_S", 3600)
    monkeypatch.setattr(connection, "READER_PATIENCE_S", 3600)
    monkeypatch.setattr(guard, "BODY_PATIENCE_S", 3600)


@pytest.fixture(name="same_draws")
def same_draws_fixture(monkeypatch):
    """Give answers the same random draws in each run; with this seed they do not end early."""
    monkeypatch.setenv("BITNET_SEED", "3")


@pytest.fixture(name="openai_client")
def openai_client_fixture():
    """A function that makes OpenAI's client of a worker; the clients are closed after the test."""
    import openai

    with contextlib.ExitStack() as stack:

        def connect(worker):
            client = openai.OpenAI(
                base_url=f"{worker.address}/v1",
                api_key="none",
                max_retries=0,
                http_client=openai.DefaultHttpxClient(verify=False),  # plain HTTP
            )
            return stack.enter_context(client)

        yield connect


@pytest.fixture(name="client")
def client_fixture(openai_client, worker):
    """OpenAI's client of the worker."""
    return openai_client(worker)
