"""Our models in ``llm``, through its library and its program."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_models import tiny_gguf

from bitnet import load
from bitnet.shipped import SHIPPED

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

llm = pytest.importorskip("llm")
plugin = pytest.importorskip("bitnet.adapters.llm_plugin")
TEMPLATE = "{% for m in messages %}{{ m.role }}.{{ m.content }}.{% endfor %}assistant."
TINY = "bitnet/bitnet-tiny"


@pytest.fixture(autouse=True)
def _plugged(monkeypatch, tmp_path):
    """Register the plugin with llm, also if the installed package has no entry point for it yet."""
    from llm.plugins import load_plugins, pm

    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path / "llm"))
    load_plugins()
    own = not pm.is_registered(plugin)
    if own:
        pm.register(plugin)
    yield
    plugin._loaded.clear()
    if own:
        pm.unregister(plugin)


def test_llm_finds_the_plugin_by_its_entry_point():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["llm"] == {"bitnet": plugin.__name__}


def test_models_that_are_here_are_offered_and_no_others():
    writers = {model.model_id for model in llm.get_models()}
    embedders = {model.model_id for model in llm.get_embedding_models()}
    # The fixtures of every test give it an empty cache: only the shipped model is there.
    assert {name for name in writers if name.startswith("bitnet/")} == {TINY}
    assert {name for name in embedders if name.startswith("bitnet/")} == {TINY}


def test_vectors_are_those_of_the_model():
    texts = ["She was happy.", "Mr. Darcy", "a"]
    vectors = list(llm.get_embedding_model(TINY).embed_multi(texts, batch_size=2))
    with load(SHIPPED["bitnet-tiny"].path) as model:
        assert np.array_equal(np.float32(vectors), model.embed(texts))


def test_a_prompt_is_continued_with_the_options_that_are_given():
    response = llm.get_model(TINY).prompt("She was", max_tokens=6)
    with load(SHIPPED["bitnet-tiny"].path) as model:
        assert response.text() == model.generate("She was", max_tokens=6)
        assert response.usage().input == len(model.tokenizer.encode("She was"))
    assert response.usage().output == 6
    whole = llm.get_model(TINY).prompt("She was", max_tokens=6, stream=False)
    assert whole.text() == response.text()


@pytest.fixture
def writer(tmp_path):
    """The plugin's ``llm`` model of a GGUF file whose chat template spells the roles."""
    keys = {"tokenizer.chat_template": TEMPLATE, "llama.context_length": 256}
    path = tiny_gguf(tmp_path / "m.gguf", **keys)
    return plugin.Writer(str(path))


def message(role, content):
    return {"role": role, "content": content}


def test_a_conversation_is_answered_in_the_models_template_with_its_system_prompt(writer):
    chat = writer.conversation()
    first = chat.prompt("a", system="b", max_tokens=4).text()
    second = chat.prompt("c", max_tokens=4).text()
    third = chat.prompt("e", system="d", max_tokens=4).text()
    turns = [message("user", "a"), message("assistant", first), message("user", "c")]
    with load(writer._name) as model:
        assert first == model.chat([message("system", "b"), turns[0]], max_tokens=4)
        assert second == model.chat([message("system", "b"), *turns], max_tokens=4)
        turns += [message("assistant", second), message("user", "e")]
        assert third == model.chat([message("system", "d"), *turns], max_tokens=4)


def test_a_conversation_of_the_program_keeps_its_system_prompt(writer, tmp_path):
    from click.testing import CliRunner
    from llm.cli import cli
    from llm.plugins import pm

    class Offering:
        @llm.hookimpl
        def register_models(self, register):
            register(writer)

    offering = Offering()
    pm.register(offering)
    try:
        common = ["-m", writer.model_id, "-o", "max_tokens", "4", "-d", str(tmp_path / "logs.db")]
        first = CliRunner().invoke(cli, ["prompt", "a", "-s", "b", *common])
        second = CliRunner().invoke(cli, ["prompt", "c", "-c", *common])
    finally:
        pm.unregister(offering)
    turns = [message("system", "b"), message("user", "a")]
    with load(writer._name) as model:
        expected = model.chat(turns, max_tokens=4)
        assert first.output == f"{expected}\n"
        turns += [message("assistant", expected), message("user", "c")]
        assert second.output == f"{model.chat(turns, max_tokens=4)}\n"


def test_messages_of_an_older_llm_keep_the_system_prompt_of_earlier_responses():
    def prompt(text, system):
        """A prompt of such a version: a text and a system prompt, without ``messages``."""
        return SimpleNamespace(prompt=text, system=system)

    response = SimpleNamespace(prompt=prompt("a", "b"), text=lambda: "c")
    conversation = SimpleNamespace(responses=[response])
    turns = [message("user", "a"), message("assistant", "c"), message("user", "d")]
    # The system prompt of the last turn counts, or else that of the turn before.
    for system, expected in ((None, "b"), ("e", "e")):
        messages = plugin._messages(prompt("d", system), conversation)
        assert messages == [message("system", expected), *turns]


def test_messages_of_llm_are_read_by_their_parts(writer):
    if not hasattr(llm, "parts"):
        pytest.skip("this version of llm has no messages")
    from llm.parts import Message, ReasoningPart, TextPart, ToolResultPart

    messages = [
        Message("user", [TextPart("a"), TextPart("b")]),
        Message("assistant", [ReasoningPart("c"), TextPart("d")]),
        Message("user", [TextPart("e")]),
    ]
    expected = [
        message("user", "ab"),
        message("assistant", "d") | {"reasoning_content": "c"},
        message("user", "e"),
    ]
    assert plugin._messages(SimpleNamespace(messages=messages, system=None), None) == expected
    result = Message("tool", [ToolResultPart("f", "1")])
    with pytest.raises(llm.ModelError, match="not a part 'tool_result'"):
        writer.prompt("x", messages=[result]).text()


def test_a_model_without_a_template_refuses_what_it_would_leave_out():
    with pytest.raises(llm.ModelError, match="no chat template"):
        llm.get_model(TINY).prompt("She was", system="Be short.", max_tokens=2).text()
    chat = llm.get_model(TINY).conversation()
    chat.prompt("She was", max_tokens=2).text()
    with pytest.raises(llm.ModelError, match="without a system prompt or earlier turns"):
        chat.prompt("He was", max_tokens=2).text()


def test_the_program_makes_vectors_and_says_what_fails():
    from click.testing import CliRunner
    from llm.cli import cli

    done = CliRunner().invoke(cli, ["embed", "-m", TINY, "-c", "Mr. Darcy"])
    with load(SHIPPED["bitnet-tiny"].path) as model:
        assert np.array_equal(np.float32(json.loads(done.output)), model.embed("Mr. Darcy")[0])
    words = ["-m", TINY, "She", "-o", "max_tokens", "0", "--no-log"]
    done = CliRunner().invoke(cli, ["prompt", *words])
    assert (done.exit_code, "max_tokens is 0" in done.output) == (1, True)


@pytest.mark.parametrize(
    ("name", "said"), [("no-such-model", "no model of that name"), ("bitnet-tiny", "the context")]
)
def test_an_embedder_that_fails_raises_llms_own_error(name, said):
    # 5,000 words are more tokens than the context of bitnet-tiny has.
    with pytest.raises(llm.ModelError, match=said):
        plugin.Embedder(name).embed("a " * 5000)
