"""Our models in ``llm``, through its library and its program."""

import json
import sys
from pathlib import Path

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
    """The plugin in llm, also where this package was installed before it had one."""
    from llm.plugins import load_plugins, pm

    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path / "llm"))
    load_plugins()
    own = not pm.is_registered(plugin)
    if own:
        pm.register(plugin)
    yield
    plugin._load_model.cache_clear()
    if own:
        pm.unregister(plugin)


def test_llm_finds_the_plugin_by_its_entry_point():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["llm"] == {"bitnet": plugin.__name__}


def test_models_that_are_here_are_offered_and_no_others():
    offered = {model.model_id for model in llm.get_models()}
    vectors = {model.model_id for model in llm.get_embedding_models()}
    assert {one for one in offered if one.startswith("bitnet/")} == {TINY}
    assert {one for one in vectors if one.startswith("bitnet/")} == {TINY}


def test_vectors_are_those_of_the_model():
    texts = ["She was happy.", "Mr. Darcy", "a"]
    found = list(llm.get_embedding_model(TINY).embed_multi(texts, batch_size=2))
    with load(SHIPPED["bitnet-tiny"].path) as model:
        assert np.array_equal(np.float32(found), model.embed(texts))


def test_a_prompt_is_continued_with_the_options_that_are_given():
    response = llm.get_model(TINY).prompt("She was", max_tokens=6)
    with load(SHIPPED["bitnet-tiny"].path) as model:
        assert response.text() == model.generate("She was", max_tokens=6)
        assert response.usage().input == len(model.tokenizer.encode("She was"))
    assert response.usage().output == 6
    whole = llm.get_model(TINY).prompt("She was", max_tokens=6, stream=False)
    assert whole.text() == response.text()


def test_a_conversation_is_answered_in_the_models_template(tmp_path):
    path = tiny_gguf(tmp_path / "m.gguf", **{"tokenizer.chat_template": TEMPLATE})
    chat = plugin.Writer(str(path)).conversation()
    first = chat.prompt("a", system="b", max_tokens=4).text()
    second = chat.prompt("c", max_tokens=4).text()
    turns = [{"role": "system", "content": "b"}, {"role": "user", "content": "a"}]
    with load(path) as model:
        assert first == model.chat(turns, max_tokens=4)
        turns = [turns[1], {"role": "assistant", "content": first}]
        assert second == model.chat([*turns, {"role": "user", "content": "c"}], max_tokens=4)


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
def test_what_cannot_be_done_is_an_error_of_llms(name, said):
    with pytest.raises(llm.ModelError, match=said):
        plugin.Embedder(name).embed("a " * 5000)
