"""Other people's programs around ours: the ``llm`` client, and nginx in front of two workers."""

import contextlib
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
from waiting import PATIENCE_S, free_port, until

HOW_TO = Path(__file__).parents[2] / "docs/how-to/serve.md"


@pytest.mark.skipif(find_spec("llm") is None, reason="pip install 'bitnet-xtask[server-test]'")
def test_the_llm_client_works_unchanged(worker, tmp_path):
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: tiny\n  model_name: tiny\n  api_base: {worker.address}/v1\n"
    )
    environment = os.environ | {"LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
    texts = [
        subprocess.run(
            [sys.executable, "-m", "llm", "-m", "tiny", "abc", "-o", "temperature", "0",
             "-o", "max_tokens", "6", *words],
            env=environment, capture_output=True, text=True, check=True, timeout=PATIENCE_S,
        ).stdout
        for words in ([], ["--no-stream"])
    ]  # fmt: skip
    assert texts[0] == texts[1]
    assert texts[0].strip()


@pytest.mark.needs("curl")
def test_the_curl_command_of_the_how_to_gets_text(worker):
    command = re.search(r"(curl -s .*?)```", HOW_TO.read_text(), re.DOTALL)[1]
    done = subprocess.run(
        ["sh", "-ec", command.replace("9999", str(worker.port))],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["tokens_generated"] == 10


@contextlib.contextmanager
def nginx(tmp_path, ports):
    """A client of nginx with the configuration of the how-to, for workers at the two *ports*."""
    text = re.search(r"<!-- nginx -->\n```nginx\n(.*?)```", HOW_TO.read_text(), re.DOTALL)[1]
    listen = free_port()
    for old, new in (("9999", ports[0]), ("9998", ports[1]), ("8080", listen)):
        assert old in text
        text = text.replace(old, str(new))
    temporary = "".join(
        f"{kind}_temp_path {tmp_path};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    configuration = tmp_path / "nginx.conf"
    configuration.write_text(
        f"daemon off;\npid {tmp_path}/pid;\nerror_log {tmp_path}/error.log;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{temporary}{text}\n}}\n"
    )
    process = subprocess.Popen(["nginx", "-p", str(tmp_path), "-c", str(configuration)])
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{listen}", timeout=PATIENCE_S) as http:
            until(lambda: health_reply(http), process)
            yield http
    finally:
        process.terminate()
        process.wait()


def health_reply(http):
    """The reply to a health check, or None while nginx does not answer."""
    try:
        return http.get("/health/live")
    except httpx.TransportError:
        return None


@pytest.mark.needs("nginx")
def test_nginx_balances_between_workers_and_skips_one_that_drains(serving, tmp_path):
    first, second = (serving() for _ in range(2))
    body = {"prompt": "ab", "max_tokens": 12}
    with nginx(tmp_path, (first.port, second.port)) as http:
        texts = {http.post("/v1/inference", json=body).json()["text"] for _ in range(8)}
        assert len(texts) == 1
        assert any("inference_start" in line for line in first.lines)
        assert any("inference_start" in line for line in second.lines)
        second.slot.drain()  # answers 503 from here on
        for _ in range(6):
            assert http.post("/v1/inference", json=body).status_code == 200


@pytest.mark.needs("nginx")
def test_nginx_passes_on_the_beginning_of_a_stream_before_its_end(serving, release, tmp_path):
    worker = serving()
    body = {"prompt": "ab", "max_tokens": 12, "stream": True}
    with nginx(tmp_path, (worker.port, worker.port)) as http:
        release(4)  # passes, and the model waits
        with http.stream("POST", "/v1/inference", json=body) as reply:
            parts = reply.iter_raw()
            received = b""
            while b'"text"' not in received:
                received += next(parts)
            release()
            assert b"[DONE]" in b"".join(parts)
