"""Several servers: what the hub cannot answer or send, a mirror is asked."""

import random
from dataclasses import replace

import pytest
from hub_server import HubServer, Rule

from bitnet.base.errors import (
    AuthError,
    NetworkError,
    NotFound,
    RateLimited,
    UpstreamChanged,
    UsageError,
)
from bitnet.hub import transfer
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.models import compare_with_hub, locate_tokenizer
from bitnet.hub.project import Project
from bitnet.hub.provide import fetch_source
from bitnet.hub.ref import parse
from bitnet.hub.resolve import locate_source, resolve
from bitnet.hub.search import search
from bitnet.sources import Source

WEIGHTS = Source("weights", "org/model", "model.gguf")
CONTENT = random.Random(3).randbytes(12_000_000)


@pytest.fixture
def other(hub):
    """A second server with the same repository."""
    hub.add("org/model", "model.gguf", CONTENT)
    with HubServer() as server:
        server.add("org/model", "model.gguf", CONTENT)
        yield server


@pytest.fixture
def project(hub, other, tmp_path, monkeypatch):
    monkeypatch.setenv("BITNET_CONNECTIONS", "2")
    (tmp_path / "work").mkdir()
    options = FetchOptions(base_url=f"{hub.url},{other.url}")
    return Project(tmp_path / "work", tmp_path / "cache", options, "none")


def received(project):
    """True if the file is fetched, with the right bytes."""
    return fetch_source(WEIGHTS, project).path.read_bytes() == CONTENT


def test_a_mirror_is_not_asked_while_the_hub_works(hub, other, project):
    assert received(project)
    assert other.requests() == []


def test_a_mirror_continues_where_the_hub_broke_off(hub, other, project):
    hub.rules.append(Rule(where="cdn", method="GET", reset_at=1_000_000, times=2))
    hub.rules.append(Rule(where="cdn", status=503))
    assert received(project)
    assert hub.sent("cdn") > 0
    assert other.sent("cdn") < len(CONTENT)


@pytest.mark.parametrize(
    "rule",
    [
        Rule(status=503),
        Rule(status=404),
        Rule(reset_at=1000),
        Rule(ignore_range=True),
        Rule(status=200, body=b"<html>", headers={"Content-Type": "text/html"}),
    ],
    ids=["503", "404", "resets", "no ranges", "a page"],
)
def test_a_hub_that_fails_is_replaced_by_the_mirror(hub, other, project, rule, caplog):
    # The hub describes the file, and its storage misbehaves.
    hub.rules.append(replace(rule, where="cdn", method="GET"))
    assert received(project)
    if not rule.ignore_range:  # with it, the hub sends the whole file and needs no mirror
        assert "goes on without" in caplog.text
        # The hub sent at most a few kB before that.
        assert other.sent("cdn") >= len(CONTENT) - 200_000


def test_a_file_is_fetched_from_the_second_server_if_the_first_is_down(hub, other, project):
    hub.close()
    assert received(project)


def test_damaged_bytes_of_an_earlier_run_are_fetched_again_from_the_server_that_answers(
    hub, other, project, caplog
):
    for server in (hub, other):
        server.rules.append(Rule(where="cdn", method="GET", reset_at=100_000))
    with pytest.raises(NetworkError):
        received(replace(project, options=replace(project.options, retries=1)))
    other.rules.clear()
    hub.close()
    (partial,) = (project.cache / "store/partial").rglob("*.partial")
    content = bytearray(partial.read_bytes())
    content[:100] = bytes(100)
    partial.write_bytes(content)
    assert received(project)
    assert "what an earlier run left or what a server sent is damaged" in caplog.text


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
def test_a_file_is_fetched_from_the_second_server_if_the_first_refuses_or_lacks_it(
    hub, other, project, status, caplog
):
    hub.rules.append(Rule(where="hub", status=status))
    assert received(project)
    assert "another server is asked" in caplog.text
    assert other.sent("cdn") == len(CONTENT)
    assert hub.sent("cdn") == 0


@pytest.mark.parametrize(
    ("first", "second", "kind"),  # statuses of the two servers; a 503 is not a definite answer
    [
        (401, 404, AuthError),
        (404, 401, NotFound),
        (429, 404, RateLimited),
        (503, 404, NotFound),
        (404, 503, NotFound),
    ],
)
def test_if_every_server_fails_the_error_is_the_first_definite_answer(
    hub, other, project, first, second, kind
):
    options = replace(project.options, retries=1)
    hub.rules.append(Rule(where="hub", status=first))
    other.rules.append(Rule(where="hub", status=second))
    with pytest.raises(kind):
        fetch_source(WEIGHTS, replace(project, options=options))


def test_a_file_with_another_digest_on_the_second_server_is_reported_with_that_servers_address(
    hub, other, project
):
    hub.close()
    with pytest.raises(UpstreamChanged, match=f"^{other.url}/.*has been replaced on the server"):
        fetch_source(replace(WEIGHTS, sha256="0" * 64), project)


def _files(project):
    return [source.file for source in resolve(parse("hf:org/model:*"), project)]


def _tokenizer(project):
    def choose(_present, read_config, _where):
        assert read_config() == {}  # the second server has it, too
        return ["tokenizer.json"]

    path = locate_tokenizer(
        parse("hf:org/words"),
        project,
        check=lambda path: path,
        names=("tokenizer.json",),
        beside=(),
        order_names=choose,
    )
    return path.read_bytes()


def _size(project):
    source, path, read = locate_source(WEIGHTS, project)
    assert path is None
    return source.size, read(0, 100) == CONTENT[:100]


def _found(project):
    return [model.repo for model in search("mod", project.options)]


@pytest.mark.parametrize("status", [401, 404, 429, 503])
@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (_files, ["model.gguf"]),
        (_tokenizer, b"{}"),
        (_size, (len(CONTENT), True)),
        (_found, ["org/model"]),
    ],
)
def test_whatever_the_first_server_cannot_say_the_second_is_asked(
    hub, other, project, ask, answer, status
):
    other.add("org/words", "tokenizer.json", b"{}")
    other.add("org/words", "config.json", b"{}")
    options = replace(project.options, retries=1)
    hub.rules.append(Rule(where="hub", status=status))
    assert ask(replace(project, options=options)) == answer
    assert hub.requests()


def test_files_of_the_cache_are_compared_with_the_second_server_if_the_first_is_down(
    hub, other, project
):
    assert received(project)
    hub.close()
    (finding,) = compare_with_hub(parse("hf:org/model"), project)
    assert finding.severity == "ok"


def test_a_mirror_that_sends_other_bytes_is_left_and_the_hub_sends_the_file(
    hub, other, project, monkeypatch, caplog
):
    blob = other.add("org/model", "model.gguf", CONTENT)
    monkeypatch.setattr(blob, "read", lambda start, stop: bytes(stop - start))  # zeros
    hub.rules.append(Rule(where="cdn", method="GET", status=404, times=1))
    assert received(project)
    assert "what a server sent is damaged" in caplog.text
    assert hub.sent("cdn") >= len(CONTENT)


def test_only_the_first_server_gets_the_token(hub, other, project, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    hub.tokens["hf_good"] = set()
    hub.rules.append(Rule(where="cdn", method="GET", status=404))
    assert received(project)
    assert any("Authorization" in seen.headers for seen in hub.requests("hub"))
    assert other.requests()
    assert not any("Authorization" in seen.headers for seen in other.requests())


def test_a_download_with_all_servers_down_is_a_network_error(hub, other, project):
    hub.close()
    other.close()
    options = replace(project.options, retries=2)
    with pytest.raises(NetworkError):
        fetch_source(WEIGHTS, replace(project, options=options))


def test_a_list_in_the_project_file_names_fallbacks(hub, other, project):
    (project.folder / "bitnet.toml").write_text(
        f'[mirrors]\n"org/model" = ["{hub.url}", "{other.url}"]\n'
    )
    options = replace(project, options=FetchOptions()).options_for("org/model")
    assert options.addresses == (hub.url, other.url)
    hub.rules.append(Rule(where="cdn", method="GET", status=404))
    assert received(replace(project, options=FetchOptions()))
    assert other.sent("cdn") > 0


@pytest.mark.parametrize("text", ["http://a,b", ",http://a", "http://a,", "ftp://a"])
def test_a_list_of_servers_with_an_invalid_address_is_refused(text):
    with pytest.raises(UsageError, match="address"):
        FetchOptions(base_url=text)


def test_a_file_too_large_for_one_reply_is_requested_in_parts_with_a_warning(
    hub, tmp_path, monkeypatch, caplog
):
    hub.add("org/model", "model.gguf", CONTENT)
    monkeypatch.setattr(transfer, "LARGE_BYTES", 10_000_000)
    monkeypatch.setattr(transfer, "LARGEST_REQUEST", 3_000_000)
    monkeypatch.setenv("BITNET_CONNECTIONS", "1")
    project = Project(tmp_path, tmp_path / "cache", FetchOptions(base_url=hub.url), "none")
    assert received(project)
    # The text names the limit of the hub, which is lowered here.
    (warning,) = [text for text in caplog.messages if "above 50 GB" in text]
    assert "--base-url=URL" in warning
    requests = hub.requests("cdn", "GET")
    assert len(requests) >= 4
    assert all(request.sent <= 3_000_000 for request in requests)
