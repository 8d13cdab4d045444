"""Bodies that agents send, recorded with their texts left out: every field of them is known."""

import json
from pathlib import Path

import pytest

import bitnet
from bitnet.runtime.request import EVERYTHING, Request
from bitnet.wire.routes import ROUTES

BODIES = json.loads((Path(__file__).parents[1] / "data" / "agent_bodies.json").read_text())
#: Fields that a reply names as ignored, by agent and, if it has several, its API; of other agents
#: none. They cannot change the answer of a model without reasoning.
NAMED = {
    "claude-code": {
        "content.cache_control", "context_management", "metadata", "output_config.effort",
        "thinking",
    },
    "codex": {
        "client_metadata", "include", "input.id", "prompt_cache_key", "reasoning.summary",
        "tools.namespace", "tools.web_search",
    },
    "goose-sdk anthropic": {"content.cache_control", "tools.cache_control"},
}  # fmt: skip


@pytest.mark.parametrize("agent", BODIES)
def test_every_field_that_an_agent_sends_is_known(agent):
    form = ROUTES[BODIES[agent]["path"]]
    body = BODIES[agent]["body"]
    fields = form.read(body)
    with bitnet.load("bitnet-tiny") as model:
        (request,) = form.requests(fields, Request(max_tokens=EVERYTHING), model)
        request.check()
        ignored = form.list_ignored(fields, model)
    # Nothing of a body is lost: its tools, its last message, and each of its messages.
    assert bool(request.tools) == bool(body.get("tools"))
    last = request.messages[-1]
    assert last["content"] or last["role"] == "tool"  # the output of a command may be empty
    sent = body["input"] if "input" in body else body["messages"]
    assert len(request.messages) >= len(sent) > 0
    name, _version, *api = agent.split()
    assert set(ignored) == NAMED.get(" ".join([name, *api]), set())
