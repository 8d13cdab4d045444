"""Gaps in a client's stream while another client sends hostile bodies to every route.

    python benchmarks/serve_hostile.py MODEL [--seed 1] [--count 20]

Prints the statuses of the replies to these bodies, and the largest gap between two events of a
stream meanwhile, and of one alone, in seconds. Run it on an idle machine: other load distorts the
result.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from hostile_bodies import VALID, bodies
from waiting import free_port, until

from bitnet.wire.ollama import SHOW
from bitnet.wire.routes import COMPUTED, ROUTES

# Forms of the bodies, by the title of their schemas in the OpenAPI page.
FORMS = {form.name: form for form in (*ROUTES.values(), *COMPUTED.values(), SHOW)}

STREAM = {"prompt": "A neighbour", "max_tokens": 200, "stream": True, "ignore_eos": True}
JSON = {"Content-Type": "application/json"}
PATIENCE_S = 120


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--count", type=int, default=20, help="bodies of a route with several wrong fields"
    )
    options = parser.parse_args()
    port = free_port()
    command = [sys.executable, "-m", "bitnet", "serve", options.model, "--port", str(port)]
    worker = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as client:
            until(lambda: _is_ready(client), worker)
            alone = max(_gaps(client, lambda: True))
            with ThreadPoolExecutor(1) as pool:
                attack = pool.submit(_attack, client, options)
                beside = max(_gaps(client, attack.done))
            statuses = attack.result()
    except httpx.HTTPError as error:
        raise SystemExit(f"the server: {type(error).__name__}: {error}") from error
    finally:
        worker.terminate()
        worker.wait()
    print(json.dumps({"statuses": statuses, "alone_s": alone, "beside_s": beside}))


def _is_ready(client: httpx.Client) -> bool:
    """True if the worker has loaded its model."""
    try:
        return client.get("/health/ready").status_code == 200
    except httpx.TransportError:
        return False


def _gaps(client: httpx.Client, is_over) -> list[float]:
    """Seconds between the events of streams, one stream after the other until *is_over*.

    The time to the first event of a stream does not count.
    """
    gaps = []
    while True:
        with client.stream("POST", "/v1/completions", json=STREAM) as reply:
            reply.raise_for_status()
            last = None
            for line in reply.iter_lines():
                now = time.perf_counter()
                if line.startswith("data:"):
                    gaps += [] if last is None else [now - last]
                    last = now
        if is_over():
            return gaps


def _attack(client, options) -> Counter[int]:
    """Send hostile bodies to every route, and count the statuses of the replies."""
    page = _get(client, "/openapi.json")
    model = {"model": _get(client, "/v1/models")["data"][0]["id"]}
    statuses: Counter[int] = Counter()
    for path, methods in page["paths"].items():
        content = methods.get("post", {}).get("requestBody", {}).get("content")
        if content:
            name = content["application/json"]["schema"]["title"]
            for body in bodies(FORMS[name], VALID[name] | model, options.seed, options.count):
                reply = client.post(path, content=body, headers=JSON)
                statuses[reply.status_code] += 1
    return statuses


def _get(client, path) -> dict[str, Any]:
    """The JSON object at *path*."""
    return client.get(path).raise_for_status().json()


if __name__ == "__main__":
    main()
