"""Every block of commands in the README and below docs/ runs, on a hub of its own."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from docs_sandbox import MIRROR, OFFICIAL, Sandbox, blocks, llama_folder
from hub_server import HubServer
from tiny_models import tiny_gguf

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_COMMANDS = [page for page in PAGES if blocks(page, ROOT)]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == "nt", reason="the blocks are for a POSIX shell"),
]


def llama3():
    vocab = {f"t{number}": number for number in range(128_256)}
    return json.dumps({"model": {"type": "BPE", "vocab": vocab, "merges": []}}).encode()


@pytest.fixture(scope="module")
def full_hub(tmp_path_factory):
    """A hub with what the pages fetch."""
    path = tiny_gguf(tmp_path_factory.mktemp("hub") / "tiny.gguf")
    own = path.with_name("own")
    command = [Path(sys.executable).parent / "bitnet", "export-tokenizer", path, "--into", own]
    subprocess.run(command, check=True, capture_output=True)
    with HubServer() as server:
        server.add("org/repo", "tokenizer.json", (own / "tokenizer.json").read_bytes())
        server.add("openai-community/gpt2", "tokenizer.json", b"{}")  # doctor network asks for it
        server.add(MIRROR, "tokenizer.json", llama3())
        server.add(OFFICIAL, "tokenizer.json", llama3())
        server.repo(OFFICIAL, gated=True)
        server.tokens["hf_good"] = {OFFICIAL}
        server.add("org/tiny", "tiny.gguf", path.read_bytes())
        server.add("microsoft/bitnet-b1.58-2B-4T-gguf", "ggml-model-i2_s.gguf", path.read_bytes())
        yield server


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.stem)
def test_every_block_of_a_page_runs(page, tmp_path, full_hub, request):
    wanted = [block for block in blocks(page, ROOT) if block.is_run_here]
    models = None
    if any("smollm2" in block.text or "chat" in block.text for block in wanted):
        models = request.getfixturevalue("test_models")
    sandbox = Sandbox(tmp_path, full_hub, models).prepare()
    if any("Llama-3.2" in block.text for block in wanted):
        data = request.getfixturevalue("test_data") / "tokenizers"
        llama_folder(sandbox.folder / "models/Llama-3.2-1B", data / "llama3/tokenizer.json")
        shutil.copytree(data / "llama2", sandbox.folder / "llama2")
    if any(block.mark == "main" for block in blocks(page, ROOT)):  # it leaves the model behind
        sandbox.bitnet("download-model", "--id", "smollm2-135m")
    for block in wanted:
        done = sandbox.run(block.text, block.language)
        assert done.returncode == block.exit_code, f"{block.place}\n{block.text}\n{done.stdout}"


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.stem)
def test_a_block_that_is_not_run_says_why(page):
    for block in blocks(page, ROOT):
        known = block.is_run_here or block.mark in ("main", "tests")
        assert known or re.fullmatch(r"not run: .{10,}", block.mark), block.place
