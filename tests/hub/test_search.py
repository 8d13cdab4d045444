"""A search of the hub: the request that huggingface_hub sends, and replies of any content."""

import json
from urllib.parse import parse_qs, urlsplit

import huggingface_hub
import pytest
from hub_server import Rule

from bitnet.base.errors import NetworkError, NotFound, Offline
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.search import search


@pytest.fixture
def options(hub):
    for repo in ("org/Qwen3-0.6B-GGUF", "org/Qwen3-4B-GGUF", "else/llama-GGUF"):
        hub.add(repo, "m.gguf", b"GGUF")
    return FetchOptions(base_url=hub.url)


def last_query(hub):
    """Path and parameters of the last request to *hub*."""
    url = urlsplit(hub.requests("hub")[-1].path)
    return url.path, parse_qs(url.query)


@pytest.mark.parametrize("text", ["qwen3", "Qwen 3 & more", "é?x=1#y"])
def test_a_search_sends_the_same_request_as_huggingface_hub(text, hub, options):
    api = huggingface_hub.HfApi(endpoint=hub.url)
    properties = ["downloads", "gated", "gguf", "tags"]
    theirs = api.list_models(
        search=text, filter="gguf", sort="downloads", limit=7, expand=properties
    )
    their_names = [model.id for model in theirs]
    expected = last_query(hub)
    hub.forget()
    if their_names:
        assert [model.repo for model in search(text, options, limit=7)] == their_names
    else:
        with pytest.raises(NotFound, match="in its name"):
            search(text, options, limit=7)
    assert last_query(hub) == expected


def test_a_reply_becomes_models(options):
    first = search("qwen3", options)[0]
    assert (first.repo, first.family, first.parameters) == ("org/Qwen3-0.6B-GGUF", "llama", 10**6)
    # The hub of the tests counts as many downloads as the name of the repository has letters.
    assert (first.licence, first.gated, first.downloads) == ("apache-2.0", False, 19)


def test_a_search_offline_sends_no_request(hub):
    with pytest.raises(Offline):
        search("qwen3", FetchOptions(base_url=hub.url, offline=True))
    assert hub.requests() == []


@pytest.mark.parametrize(
    "body",
    ["{}", '{"error": "x"}', "[1]", '["a/b"]', '[{"id": 1}]', '[{"id": "a"}]', '[{"id": "a/b\\n"}]',
     '[{"id": "../../x"}]', '[{"name": "a/b"}]', "null", "1", '"text"'],
)  # fmt: skip
def test_a_reply_that_is_not_a_list_of_models_is_a_network_error(body, hub, options):
    rule = Rule(path="/api/models", status=200, body=body.encode())
    rule.headers = {"Content-Type": "application/json"}
    hub.rules.append(rule)
    with pytest.raises(NetworkError, match="not a list of models"):
        search("a", options)


@pytest.mark.parametrize("value", [None, "x", -1, True, 10**20, [], {}, 1.5])
def test_details_of_a_wrong_type_or_range_are_unknown(value, hub, options):
    entry = {"id": "a/b", "downloads": value, "tags": value, "gguf": {"total": value}}
    body = json.dumps([entry, {"id": "a/c", "gguf": value}]).encode()
    hub.rules.append(Rule(path="/api/models", status=200, body=body))
    model, other = search("a", options)
    assert (model.downloads, model.parameters, model.licence) == (None, None, "")
    assert (other.family, other.gated) == ("", None)


def test_control_characters_in_a_reply_are_escaped(hub, options):
    entry = {"id": "a/b", "tags": ["license:\x1b[31mred"], "gguf": {"architecture": "\x1b]0;x\x07"}}
    hub.rules.append(Rule(path="/api/models", status=200, body=json.dumps([entry]).encode()))
    (model,) = search("a", options)
    assert "\x1b" not in model.licence + model.family


# --- the command ---------------------------------------------------------------------------------


def test_a_name_that_is_listed_can_be_planned(hub, options, bitnet, monkeypatch, tmp_path):
    from tiny_models import tiny_gguf

    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    hub.add("org/tiny-GGUF", "tiny.gguf", tiny_gguf(tmp_path / "made.gguf").read_bytes())
    (row,) = json.loads(bitnet("search", "tiny", "--json").out)
    assert (row["name"], row["runs"]) == ("hf:org/tiny-GGUF", True)
    assert bitnet("plan", row["name"]).code == 0
    lines = bitnet("search", "qwen3").out.splitlines()
    assert lines[0].split() == [
        "name",
        "parameters",
        "family",
        "runs",
        "here",
        "downloads",
        "licence",
    ]
    assert "hf:org/Qwen3-4B-GGUF" in lines[2]
    assert "1 M" in lines[2]


def test_words_are_searched_as_one_text_and_an_empty_search_is_refused(
    hub, options, bitnet, monkeypatch
):
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    # Exit codes: 19 not found, 2 a wrong command line.
    assert bitnet("search", "no", "such", "model").code == 19
    assert last_query(hub)[1]["search"] == ["no such model"]
    assert bitnet("search").code == 2
    assert bitnet("search", "x", "--limit", "0").code == 2


def test_a_model_of_an_unknown_family_or_too_large_for_the_memory_is_marked(
    hub, options, bitnet, monkeypatch
):
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    entries = [
        {"id": "a/other", "gguf": {"architecture": "other-family", "total": 1000}},
        {"id": "a/large", "gguf": {"architecture": "llama", "total": 10**14}},
        {"id": "a/unknown"},
    ]
    hub.rules.append(Rule(path="/api/models", status=200, body=json.dumps(entries).encode()))
    rows = json.loads(bitnet("search", "a", "--json").out)
    assert [row["runs"] for row in rows] == [False, False, None]
