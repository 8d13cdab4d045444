"""The scenarios of ``features/worker.feature``, on real files and a real worker."""

import re

import pytest
from pytest_bdd import given, parsers, scenarios, then, when
from tiny_models import tiny_gguf

from bitnet import load
from bitnet.base.errors import BitnetError
from bitnet.formats.containers import open_checkpoint
from bitnet.server.loading import load_narrated, open_narrated
from bitnet.server.narration import narrator

scenarios("features/worker.feature")


@pytest.fixture
def told():
    """Lines of the log, as the worker narrates them."""
    return []


@pytest.fixture
def outcome():
    """Values that a step leaves to later ones: an error, or a reply."""
    return {}


def fields(line):
    """Facts of an event, by name."""
    return dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', line))


def the_event(told, action):
    """The only line with *action*."""
    (line,) = [line for line in told if f'action="{action}"' in line]
    return line


@given("a model with an embedded tokenizer", target_fixture="path")
def _(tmp_path):
    return tiny_gguf(tmp_path / "tiny.gguf")


@given("a model without a tokenizer", target_fixture="path")
def _(tmp_path):
    return tiny_gguf(tmp_path / "tiny.gguf", tokenizer=False)


@given(parsers.parse('a model of the architecture "{name}"'), target_fixture="path")
def _(tmp_path, name):
    path = tiny_gguf(tmp_path / "tiny.gguf")
    # In GGUF: key, type 8 (a text), length 5, and the value. The other name has five letters, too.
    old = b"general.architecture" + (8).to_bytes(4, "little") + (5).to_bytes(8, "little") + b"llama"
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, old[:-5] + name.encode()))
    return path


@given("a model whose last bytes are missing", target_fixture="path")
def _(tmp_path):
    path = tiny_gguf(tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:-64])
    return path


@given("a worker that serves a model with an embedded tokenizer", target_fixture="worker")
def _(serving, told):
    return serving(lines=told)


@when("the worker loads it")
def _(path, told, outcome):
    narrate = narrator(told.append, worker_id="w1")
    try:
        checkpoint = open_narrated(lambda: open_checkpoint(path), narrate)
        load_narrated(checkpoint, load, narrate).close()
    except BitnetError as error:
        outcome["error"] = error


@when(parsers.parse('a client sends the prompt "{prompt}" and asks for {count:d} tokens'))
def _(worker, outcome, prompt, count):
    body = {"prompt": prompt, "max_tokens": count}
    outcome["reply"] = worker.post("/v1/inference", body)


@when(parsers.parse("a client sends a prompt of {count:d} characters"))
def _(worker, outcome, count):
    outcome["reply"] = worker.post("/v1/inference", {"prompt": "a" * count})


@then("it narrates these actions in order")
def _(told, datatable):
    _, *expected = datatable
    events = [fields(line) for line in told if "action=" in line]
    assert [[event["actor"], event["action"]] for event in events] == expected


@then(parsers.parse('"{action}" says "{text}"'))
def _(told, action, text):
    assert text in fields(the_event(told, action))["human"]


@then(parsers.parse('"{action}" adds "{text}"'))
def _(told, action, text):
    assert fields(the_event(told, action))["cute"] == text


@then("every event names the worker")
def _(told):
    assert {fields(line)["worker_id"] for line in told if "action=" in line} == {"w1"}


@then(parsers.parse("loading fails with exit code {code:d}"))
def _(outcome, code):
    assert outcome["error"].exit_code == code


@then(parsers.parse('it says "{text}"'))
def _(told, text):
    assert f"INFO {text}" in told


@then(parsers.parse('"{action}" is an error of "{actor}"'))
def _(told, action, actor):
    assert the_event(told, action).startswith(f'ERROR actor="{actor}"')


@then(parsers.parse("the answer has {count:d} tokens"))
def _(outcome, count):
    assert outcome["reply"].status_code == 200
    assert outcome["reply"].json()["tokens_generated"] == count


@then(parsers.parse('"{first}" and "{last}" name the request'))
def _(told, outcome, first, last):
    request = outcome["reply"].headers["x-request-id"]
    assert fields(the_event(told, first))["request_id"] == request
    assert fields(the_event(told, last))["request_id"] == request


@then(parsers.parse('the client is told "{text}"'))
def _(outcome, text):
    assert outcome["reply"].status_code == 400
    assert text in outcome["reply"].json()["error"]["message"]
