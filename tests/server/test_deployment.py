"""HTTPS, and the files of docs/how-to/deploy.md that start a worker on a machine of its own."""

import contextlib
import json
import re
import shlex
import signal
import ssl
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import httpx
import pytest
import yaml
from serve_process import serving
from waiting import PATIENCE_S, free_port

trustme = pytest.importorskip("trustme")
PAGE = Path(__file__).parents[2] / "docs/how-to/deploy.md"
PROGRAM = Path(sys.executable).parent / "bitnet"


@contextlib.contextmanager
def worker(*words, **environment):
    """A worker that listens; after the block it must end with 0 on SIGTERM."""
    with serving(*words, env=environment) as process:
        yield process
        assert process.end(signal.SIGTERM) == 0, process.lines


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture(scope="module")
def pems(authority, tmp_path_factory):
    """A folder of PEM files: chain, key, both, another key, a key with a passphrase, and text."""
    folder = tmp_path_factory.mktemp("pems")
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    another = authority.issue_cert("localhost", "127.0.0.1")
    for number, blob in enumerate(certificate.cert_chain_pems):
        blob.write_to_path(folder / "chain.pem", append=number > 0)
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    certificate.private_key_and_cert_chain_pem.write_to_path(folder / "both.pem")
    another.private_key_pem.write_to_path(folder / "other.pem")
    from cryptography.hazmat.primitives import serialization as form

    key = form.load_pem_private_key((folder / "key.pem").read_bytes(), None)
    encryption = form.BestAvailableEncryption(b"secret")
    (folder / "locked.pem").write_bytes(
        key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, encryption)
    )
    (folder / "text.pem").write_text("no certificate")
    return folder


@pytest.mark.parametrize(
    "words", [("--tls-cert", "chain.pem", "--tls-key", "key.pem"), ("--tls-cert", "both.pem")]
)
def test_https_answers_and_plain_http_does_not(model_path, authority, pems, words):
    port = free_port()
    files = [word if word.startswith("--") else pems / word for word in words]
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    with worker("--model", model_path, "--port", port, *files) as process:
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/health/live", timeout=PATIENCE_S)
        with httpx.Client(base_url=f"https://localhost:{port}", verify=trusted) as client:
            client.timeout = PATIENCE_S
            assert client.get("/health/live").status_code == 200
            body = {"prompt": "ab", "max_tokens": 5}
            assert client.post("/v1/inference", json=body).json()["tokens_generated"] == 5
            same_origin = {"Origin": f"https://localhost:{port}"}
            assert client.post("/v1/inference", json=body, headers=same_origin).status_code == 200
        # Without the authority of the test, the certificate is not trusted.
        with pytest.raises(httpx.ConnectError, match=r"(?i)certificate"):
            httpx.get(f"https://localhost:{port}/health/live", timeout=PATIENCE_S)
    assert not any("Traceback" in line for line in process.lines)


@pytest.mark.parametrize(
    ("cert", "key", "code", "message"),
    [
        ("absent.pem", "", 19, "absent.pem"),
        ("chain.pem", "absent.pem", 19, "absent.pem"),
        ("text.pem", "", 2, "no certificate with its key"),
        ("chain.pem", "", 2, "no certificate with its key"),
        ("chain.pem", "other.pem", 2, "KEY_VALUES_MISMATCH"),
        ("chain.pem", "locked.pem", 2, "has a passphrase"),
        ("", "key.pem", 2, "--tls-key needs --tls-cert"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_refused_at_once(
    bitnet, pems, cert, key, code, message
):
    words = ["--tls-cert", str(pems / cert)] if cert else []
    words += ["--tls-key", str(pems / key)] if key else []
    done = bitnet("serve", "--model", "absent.gguf", *words)
    assert done.code == code, done.err
    assert message in done.err


def block(name):
    """Text of the code block in deploy.md below the comment *name*."""
    text = PAGE.read_text(encoding="utf-8")
    return re.search(rf"<!-- {re.escape(name)} -->\n```\w+\n(.*?)```", text, re.DOTALL)[1]


def local_words(words, model_path, port):
    """Arguments of ``bitnet serve`` in *words*, with another model and port than the page's."""
    assert (Path(words[0]).name, words[1]) == ("bitnet", "serve")
    changed = {"smollm2-135m": model_path, "9999": port}
    return [changed.get(word, word) for word in words[2:]]


def statuses_without_and_with_the_key(port):
    """HTTP statuses of a request without an API key, and of one with the key change-me."""
    address = f"http://127.0.0.1:{port}/v1/models"
    allowed = {"Authorization": "Bearer change-me"}
    with httpx.Client(timeout=PATIENCE_S) as client:
        return (client.get(address).status_code, client.get(address, headers=allowed).status_code)


def test_the_command_of_the_systemd_unit_serves_and_has_time_to_drain(model_path):
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read_string(block("bitnet.service"))
    service = unit["Service"]
    port = free_port()
    words = shlex.split(service["ExecStart"])
    with worker(*local_words(words, model_path, port), BITNET_API_KEY="change-me"):
        assert statuses_without_and_with_the_key(port) == (401, 200)
    drain = float(words[words.index("--drain") + 1])
    # Seconds after which systemd kills the worker: enough to drain, and some more.
    assert int(service["TimeoutStopSec"]) > drain + 10
    assert service["Environment"].endswith(f"/{service['CacheDirectory']}")


def faults_of_unit(file):
    """Lines in which systemd-analyze names the unit *file*, and not one that it depends on."""
    command = ["systemd-analyze", "verify", "--man=no", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr  # it ran; by default, faults do not change the status
    return [line for line in done.stderr.splitlines() if file.name in line]


@pytest.mark.needs("systemd-analyze")
def test_systemd_finds_no_fault_in_the_unit(tmp_path):
    unit = block("bitnet.service")
    words = shlex.split(re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)[1])
    file = tmp_path / "bitnet.service"
    file.write_text(unit.replace(words[0], str(PROGRAM)))
    assert faults_of_unit(file) == []
    file.write_text(file.read_text().replace("PrivateTmp", "PrivateTemp"))
    assert len(faults_of_unit(file)) == 1


def test_the_command_of_the_container_serves_and_its_health_check_passes(model_path):
    lines = block("Containerfile").splitlines()
    (start,) = (json.loads(line.partition(" ")[2]) for line in lines if line.startswith("CMD"))
    (health,) = (line.partition(" CMD ")[2] for line in lines if line.startswith("HEALTHCHECK"))
    port = free_port()
    program, *words = (word.replace("9999", str(port)) for word in json.loads(health))
    assert program == "python"
    with worker(*local_words(start, model_path, port), BITNET_API_KEY="change-me"):
        assert statuses_without_and_with_the_key(port) == (401, 200)
        assert subprocess.run([sys.executable, *words], check=False).returncode == 0
    # Without a worker the health check fails.
    gone = subprocess.run([sys.executable, *words], check=False, capture_output=True)
    assert gone.returncode != 0


def test_a_terminal_shows_only_the_name_and_address_at_start(model_path):
    pytest.importorskip("pty")
    from terminals import OnTerminal

    # So wide that no line is wrapped.
    terminal = OnTerminal([PROGRAM, "serve", model_path, "--port", "0"], columns=200)
    terminal.until("(Ctrl-C stops it)")
    line = terminal.shown.splitlines()[-1]
    assert re.fullmatch(r"Serving [\w.-]+ on http://127\.0\.0\.1:\d+ \(Ctrl-C stops it\)", line)
    assert "actor=" not in terminal.shown
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.end() == 0


def test_the_command_of_the_pod_has_the_probes_and_metrics_of_the_page(model_path):
    pod = yaml.safe_load(block("bitnet.yaml"))["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    port = free_port()
    words = container["args"]
    key = {"Authorization": "Bearer change-me"}
    names = re.findall(r"`((?:bitnet_|vllm:)\w+)`", PAGE.read_text(encoding="utf-8"))
    assert len(names) == 3  # metrics for scaling, which the page explains
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S)
    with worker(*local_words(words, model_path, port), BITNET_API_KEY="change-me"), client:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            endpoint = container[probe]["httpGet"]
            assert endpoint["port"] == container["ports"][0]["containerPort"] == 9999
            assert client.get(endpoint["path"]).status_code == 200
        (scraped,) = yaml.safe_load(block("podmonitor.yaml"))["spec"]["podMetricsEndpoints"]
        assert scraped["port"] == container["ports"][0]["name"]
        secret = container["env"][0]["valueFrom"]["secretKeyRef"]
        assert scraped["authorization"]["credentials"] == secret
        assert client.get(scraped["path"]).status_code == 401
        text = client.get(scraped["path"], headers=key).text
    for name in names:
        assert f"\n{name}{{" in text, name
    drain = int(words[words.index("--drain") + 1])
    assert pod["spec"]["terminationGracePeriodSeconds"] > drain + 10
