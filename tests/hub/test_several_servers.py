"""One file from several servers: the slow, silent or wrong one does not decide when it is there."""

import random
from dataclasses import replace

import pytest
from hub_server import HubServer, Rule

from bitnet.errors import NetworkError, UsageError
from bitnet.hub import pieces, transfer
from bitnet.hub.mirrors import with_mirror
from bitnet.hub.options import FetchOptions
from bitnet.hub.project import Project
from bitnet.hub.provision import provide_model
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
    monkeypatch.setattr(pieces, "STEAL_AFTER_S", 0.2)
    (tmp_path / "work").mkdir()
    options = FetchOptions(base_url=f"{hub.url},{other.url}", connections=2)
    return Project(tmp_path / "work", tmp_path / "cache", options, "none")


def received(project):
    return provide_model(WEIGHTS, project).path.read_bytes() == CONTENT


def test_all_servers_send_parts(hub, other, project):
    assert received(project)
    assert hub.sent("cdn") > 0
    assert other.sent("cdn") > 0
    assert hub.sent("cdn") + other.sent("cdn") < len(CONTENT) * 1.5


@pytest.mark.parametrize("slow_one", ["hub", "other"])
def test_the_tail_of_a_server_that_goes_silent_is_taken_from_it(hub, other, project, slow_one):
    slow, fast = (hub, other) if slow_one == "hub" else (other, hub)
    slow.rules.append(Rule(where="cdn", method="GET", stall_at=100_000))
    assert received(project)
    assert fast.sent("cdn") >= len(CONTENT) - 200_000
    assert len(slow.requests()) < 20


def test_a_slow_server_does_not_keep_its_last_piece(hub, other, project):
    other.rules.append(Rule(where="cdn", method="GET", rate=200_000.0))
    assert received(project)
    assert hub.sent("cdn") > len(CONTENT) * 0.6


@pytest.mark.parametrize(
    "rule",
    [
        Rule(status=503),
        Rule(status=404),
        Rule(where="cdn", reset_at=1000),
        Rule(where="cdn", ignore_range=True),
        Rule(where="hub", status=200, body=b"<html>", headers={"Content-Type": "text/html"}),
    ],
    ids=["503", "404", "resets", "no ranges", "a page"],
)
def test_a_server_that_fails_is_left_out(hub, other, project, rule, caplog):
    other.rules.append(rule)
    assert received(project)
    assert rule.status != 404 or "goes on without" in caplog.text
    assert hub.sent("cdn") >= len(CONTENT) - 200_000


def test_a_server_that_is_down_is_left_out(hub, other, project):
    other.close()
    assert received(project)


def test_the_first_server_may_be_the_one_that_is_down(hub, other, project):
    hub.close()
    options = replace(project.options, base_url=f"{hub.url},{other.url}")
    assert received(replace(project, options=options))


def test_a_server_with_other_bytes_costs_a_second_transfer_and_nothing_else(
    hub, other, project, monkeypatch, caplog
):
    blob = other.add("org/model", "model.gguf", CONTENT)
    monkeypatch.setattr(blob, "read", lambda start, stop: bytes(stop - start))
    assert received(project)
    assert "what a mirror sent is damaged" in caplog.text
    assert hub.sent("cdn") >= len(CONTENT)


def test_no_token_goes_to_a_further_server(hub, other, project, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    hub.tokens["hf_good"] = set()
    other.tokens["hf_good"] = set()
    assert received(project)
    assert any("Authorization" in seen.headers for seen in hub.requests("hub"))
    assert not any("Authorization" in seen.headers for seen in other.requests())


def test_all_servers_down_is_an_error(hub, other, project):
    hub.close()
    other.close()
    options = replace(project.options, retries=2)
    with pytest.raises(NetworkError):
        provide_model(WEIGHTS, replace(project, options=options))


def test_a_list_in_the_project_file_means_several_servers(hub, other, project):
    (project.folder / "bitnet.toml").write_text(
        f'[mirrors]\n"org/model" = ["{hub.url}", "{other.url}"]\n'
    )
    options = with_mirror(FetchOptions(connections=2), "org/model", project.folder)
    assert (options.endpoint, options.mirrors) == (hub.url, (other.url,))
    assert received(replace(project, options=FetchOptions(connections=2)))
    assert other.sent("cdn") > 0


@pytest.mark.parametrize("text", ["http://a,b", ",http://a", "http://a,", "ftp://a"])
def test_an_address_that_is_none_is_refused(text):
    with pytest.raises(UsageError, match="address"):
        FetchOptions(base_url=text)


def test_a_file_above_what_the_hub_sends_at_once_is_announced_and_asked_for_in_parts(
    hub, tmp_path, monkeypatch, caplog
):
    hub.add("org/model", "model.gguf", CONTENT)
    monkeypatch.setattr(transfer, "LARGE_BYTES", 10_000_000)
    monkeypatch.setattr(transfer, "LARGEST_REQUEST", 3_000_000)
    project = Project(
        tmp_path, tmp_path / "cache", FetchOptions(base_url=hub.url, connections=1), "none"
    )
    assert received(project)
    (said,) = [text for text in caplog.messages if "above 50 GB" in text]
    assert "--base-url=URL" in said
    asked = hub.requests("cdn", "GET")
    assert len(asked) >= 4
    assert all(request.sent <= 3_000_000 for request in asked)
