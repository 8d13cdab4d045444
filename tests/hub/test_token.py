"""The access token goes to the hub that the user names, and to no other server."""

import logging

import pytest
from downloading import download, fetch_file
from hub_server import PAGE, SECRET_QUERY, Rule

from bitnet.base import settings
from bitnet.base.errors import (
    AuthError,
    TokenInvalid,
)
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.project import Project
from bitnet.hub.provide import fetch_source
from bitnet.hub.session import HubSession
from bitnet.sources import Source

TOKEN = "hf_TheSecretThatMustNeverAppear"
BIG = b"x" * 5000


# --- the token -----------------------------------------------------------------------------------


def test_the_token_goes_to_the_hub_and_not_to_the_file_server(hub, session, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.tokens[TOKEN] = {"org/model"}
    hub.add("org/model", "model.gguf", BIG)
    hub.repo("org/model", gated=True)
    fetch_file(session, tmp_path)
    assert {seen.headers.get("Authorization") for seen in hub.requests("hub")} == {
        f"Bearer {TOKEN}"
    }
    assert [seen.headers.get("Authorization") for seen in hub.requests("cdn")] == [None]


@pytest.mark.parametrize("token", ["", "  "])
def test_an_empty_token_is_not_a_token(hub, session, tmp_path, monkeypatch, token):
    monkeypatch.setenv("HF_TOKEN", token)
    hub.add("org/model", "model.gguf", BIG)
    fetch_file(session, tmp_path)
    assert not any("Authorization" in seen.headers for seen in hub.requests())


def test_the_token_does_not_go_to_an_address_outside_the_hub(hub, session, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.tokens[TOKEN] = set()
    blob = hub.add("org/model", "model.gguf", BIG)
    with session() as hub_session:
        download(
            f"{hub.cdn_url}/{blob.sha256}", tmp_path / "file", session=hub_session, progress="none"
        )
    assert not any("Authorization" in seen.headers for seen in hub.requests())


def test_a_netrc_file_adds_no_password(hub, session, tmp_path, monkeypatch):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine localhost login me password mine\ndefault login me password mine\n")
    monkeypatch.setenv("NETRC", str(netrc))
    hub.add("org/model", "model.gguf", BIG)
    fetch_file(session, tmp_path)
    assert not any("Authorization" in seen.headers for seen in hub.requests())


def test_a_public_file_is_fetched_without_a_token_that_the_hub_does_not_accept(
    hub, session, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.add("org/model", "model.gguf", BIG)
    fetch_file(session, tmp_path)
    assert (tmp_path / "model.gguf").read_bytes() == BIG
    assert caplog.text.count("does not accept the token") == 1
    refused = [seen for seen in hub.requests("hub") if seen.status == 401]
    assert len(refused) == 1


@pytest.mark.parametrize("token", ["hf_two words", "hf_line\nbreak", "hf_ünicode"])
def test_a_token_with_invalid_characters_is_refused_and_not_shown(
    hub, session, tmp_path, monkeypatch, token
):
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(TokenInvalid, match="holds characters") as caught:
        fetch_file(session, tmp_path)
    assert token not in str(caught.value) + caught.value.hint
    assert hub.requests() == []


FAILURES = {
    "server error": Rule(status=500),
    "refused": Rule(status=403),
    "web page": Rule(status=200, headers={"Content-Type": "text/html"}, body=PAGE),
    "missing": Rule(status=404),
    "too many": Rule(status=429),
    "bad bytes": Rule(where="cdn", flip_at=7),
    "broken": Rule(where="cdn", truncate_at=7),
    "reset": Rule(where="cdn", reset_at=0),
    "loop": Rule(status=302, headers={"Location": f"/again?{SECRET_QUERY}"}),
}


@pytest.mark.parametrize("rule", FAILURES.values(), ids=FAILURES)
def test_no_output_of_a_failing_run_holds_a_secret(
    hub, session, tmp_path, monkeypatch, caplog, capfd, rule
):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.tokens[TOKEN] = {"org/model"}
    hub.add("org/model", "model.gguf", BIG)
    hub.rules.append(Rule(**vars(rule)))  # a copy: the hub counts down its times
    caplog.set_level(logging.DEBUG, "bitnet")
    with pytest.raises(Exception) as caught:  # noqa: PT011
        fetch_file(lambda: session(retries=3), tmp_path)
    texts = [*capfd.readouterr(), str(caught.value), caught.value.hint, repr(caught.value)]
    texts += [record.getMessage() for record in caplog.records if record.name.startswith("bitnet")]
    # Partial files and their sidecars: a failing run leaves nothing in *tmp_path*.
    left = [path for path in settings.cache_dir().rglob("*") if path.is_file()]
    texts += [path.read_text(errors="replace") for path in left]
    error = caught.value
    while error := error.__cause__:
        texts.append(repr(error))
    for secret in (TOKEN, SECRET_QUERY):
        assert secret not in "\n".join(texts)


@pytest.mark.parametrize(
    ("status", "headers", "reason"),
    [
        (451, {}, "disabled for legal reasons"),
        (403, {"X-Error-Code": "DisabledRepo"}, "disabled by the hub"),
    ],
)
@pytest.mark.parametrize("has_login", [False, True])
def test_a_disabled_repository_is_that_also_for_servers_that_get_no_token(
    hub, tmp_path, monkeypatch, status, headers, reason, has_login
):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.rules.append(Rule(where="hub", status=status, headers=headers))
    address = hub.url.replace("//", "//me:sesame@") if has_login else hub.url
    options = FetchOptions(base_url=address)
    with HubSession(options) as hub_session, pytest.raises(AuthError, match=reason) as caught:
        fetch_file(lambda: hub_session, tmp_path)
    assert "access token: you did not" not in str(caught.value)


@pytest.mark.parametrize("token", [None, TOKEN])
def test_a_password_in_the_hubs_address_is_in_no_error(hub, tmp_path, monkeypatch, token, caplog):
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    hub.add("org/model", "model.gguf", BIG)
    hub.repo("org/model", gated=True)
    options = FetchOptions(base_url=hub.url.replace("//", "//me:sesame@"))
    with (
        HubSession(options) as hub_session,
        pytest.raises(AuthError, match="the login in its address") as caught,
    ):
        fetch_file(lambda: hub_session, tmp_path)
    text = f"{caught.value} {caught.value.hint} {caplog.text}"
    assert f"{hub.url}/" in text
    assert "sesame" not in text


# --- the hub under another name ------------------------------------------------------------------


def add_redirected_file(hub, host):
    """Add a gated file to *hub*, which redirects requests for it to its own port at *host*."""
    hub.add("org/model", "model.gguf", b"small")
    hub.repo("org/model", gated=True)
    hub.tokens[TOKEN] = {"org/model"}
    commit = hub.repos["org/model"].revisions["main"]
    there = f"{hub.url.replace('127.0.0.1', host)}/org/model/resolve/{commit}/model.gguf"
    first = Rule(where="hub", path="/main/", status=307, headers={"Location": there})
    hub.rules.append(first)


def test_a_host_that_belongs_to_the_hub_gets_the_token(hub, session, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    add_redirected_file(hub, "localhost")
    monkeypatch.setenv(
        "BITNET_HUB_HOSTS", f"cdn.example.org, localhost:{hub.url.rpartition(':')[2]}"
    )
    fetch_file(session, tmp_path)
    assert (tmp_path / "model.gguf").read_bytes() == b"small"


def test_any_other_host_gets_no_token_and_the_error_says_so(hub, session, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    add_redirected_file(hub, "localhost")
    with pytest.raises(AuthError, match="did not get the access token") as caught:
        fetch_file(session, tmp_path)
    # Advice to set BITNET_HUB_HOSTS would give the token to any host that asks for it so.
    assert "HUB_HOSTS" not in f"{caught.value} {caught.value.hint}"
    assert "HF_TOKEN is not set" not in str(caught.value)
    elsewhere = [s for s in hub.requests("hub") if s.headers["Host"].startswith("localhost")]
    assert elsewhere
    assert not any("Authorization" in seen.headers for seen in elsewhere)


@pytest.mark.parametrize(
    ("endpoint", "url", "gets_it"),
    [
        ("https://huggingface.co", "https://hf.co/org/model", True),
        ("https://hf.co", "https://huggingface.co/org/model", True),
        ("https://huggingface.co", "http://huggingface.co/org/model", False),
        ("https://huggingface.co", "https://huggingface.co:8443/org/model", False),
        ("https://huggingface.co", "https://cdn-lfs.huggingface.co/x", False),
        ("https://huggingface.co", "https://huggingface.co.evil.example/x", False),
        ("https://hub.example.org", "https://huggingface.co/org/model", False),
        ("http://hub.example.org", "https://hub.example.org/org/model", True),
    ],
)
def test_only_addresses_of_the_endpoint_and_its_official_names_get_the_token(
    endpoint, url, gets_it
):
    with HubSession(FetchOptions(base_url=endpoint)) as hub_session:
        assert hub_session._is_the_hub(url) is gets_it


# --- who names the hub ---------------------------------------------------------------------------


@pytest.fixture
def project(hub, tmp_path):
    """A project without a named server; the hub has its file, and knows the token hf_good."""
    hub.add("org/model", "model.gguf", b"small")
    hub.tokens["hf_good"] = set()
    (tmp_path / "work").mkdir()
    return Project(tmp_path / "work", tmp_path / "cache", FetchOptions(), "none")


def test_a_server_that_a_project_names_gets_no_token(hub, project, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    (project.folder / "bitnet.toml").write_text(f'[mirrors]\ndefault = "{hub.url}"\n')
    fetch_source(Source("m", "org/model", "model.gguf"), project)
    assert hub.requests("hub")
    assert not any("Authorization" in seen.headers for seen in hub.requests())


def test_a_server_that_project_and_user_name_gets_the_token(hub, project, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    (project.folder / "bitnet.toml").write_text(f'[mirrors]\ndefault = "{hub.url}"\n')
    fetch_source(Source("m", "org/model", "model.gguf"), project)
    assert any("Authorization" in seen.headers for seen in hub.requests("hub"))


def test_the_error_for_a_gated_file_of_a_projects_server_says_that_the_user_must_name_it(
    hub, project, monkeypatch
):
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    hub.repo("org/model", gated=True)
    (project.folder / "bitnet.toml").write_text(f'[mirrors]\ndefault = "{hub.url}"\n')
    with pytest.raises(AuthError, match="did not get the access token") as caught:
        fetch_source(Source("m", "org/model", "model.gguf"), project)
    assert "named by this project's bitnet.toml, not by you" in caught.value.hint
    assert "BITNET_HUB_HOSTS" not in caught.value.hint


@pytest.mark.parametrize(
    ("url", "endpoint", "gets_it"),
    [
        ("http://hub.example.org/f", "http://hub.example.org", False),
        ("http://192.168.1.7/f", "http://192.168.1.7", False),
        ("http://127.0.0.1:8080/f", "http://127.0.0.1:8080", True),
        ("http://localhost:8080/f", "http://localhost:8080", True),
        ("http://[::1]:8080/f", "http://[::1]:8080", True),
        ("http://127.0.0.1.evil.example/f", "http://127.0.0.1.evil.example", False),
        ("https://hub.example.org/f", "https://hub.example.org", True),
    ],
)
def test_the_token_goes_over_plain_http_only_to_this_machine(url, endpoint, gets_it, monkeypatch):
    monkeypatch.setenv("BITNET_HUB_HOSTS", "192.168.1.7,hub.example.org")
    with HubSession(FetchOptions(base_url=endpoint)) as hub_session:
        assert hub_session._is_the_hub(url) is gets_it
