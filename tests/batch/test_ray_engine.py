"""The same batch on a Ray cluster of this machine, with two actors."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from ray_folders import own_ray_folder
from tiny_models import tiny_gguf
from traps import lay_traps, trapped

pytestmark = [
    pytest.mark.skipif(
        not getattr(find_spec("ray"), "origin", None), reason="pip install 'bitnet-xtask[ray]'"
    ),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]


@pytest.fixture(autouse=True)
def _own_folder():
    with own_ray_folder():
        yield


def test_a_ray_cluster_gives_the_answers_of_a_local_run(bitnet, tmp_path, monkeypatch):
    import ray

    monkeypatch.setenv("RAY_DEDUP_LOGS", "0")
    model = tiny_gguf(tmp_path / "tiny.gguf")
    source = tmp_path / "in.jsonl"
    rows = [{"id": n, "prompt": "abc"[: n % 3 + 1], "max_tokens": 5, "seed": n} for n in range(80)]
    rows.append({"id": "bad", "prompt": ""})
    source.write_text("\n".join(map(json.dumps, rows)))
    words = ["batch", "--model", model, "--input", source, "--threads", 1, "--output"]
    local = tmp_path / "local.jsonl"
    cluster = tmp_path / "cluster.jsonl"
    failed = 24  # exit code if a row failed: here the one without a text
    assert bitnet(*words, local).code == failed
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        done = bitnet(*words, cluster, "--engine", "ray", "--address", "auto", "--actors", 2)
    finally:
        ray.shutdown()
    assert done.code == failed, done.err
    assert sorted(cluster.read_text().splitlines()) == sorted(local.read_text().splitlines())


def test_an_actor_imports_nothing_from_the_folder_of_the_command(tmp_path):
    lay_traps(tmp_path)  # modules in the current folder that note when they are imported
    tiny_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "in.jsonl").write_text('{"prompt": "ab", "max_tokens": 2}\n')
    words = "batch --model tiny.gguf --input in.jsonl --output out.jsonl --engine ray --actors 1"
    done = subprocess.run(
        [Path(sys.executable).with_name("bitnet"), *words.split()],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert not trapped(tmp_path)
    assert done.returncode == 0, done.stderr
