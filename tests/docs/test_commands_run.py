"""Every block of commands in the README and below docs/ runs after the README's first line."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from docs_sandbox import MIRROR, OFFICIAL, ROOT, Sandbox, blocks, llama_folder, package_index
from hints import NEED_A_REAL_MODEL, those
from hub_server import HubServer

from bitnet.sources import PACKAGED

LLAMA2 = "meta-llama/Llama-2-7b-hf"
LLAMA32 = "meta-llama/Llama-3.2-1B"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_COMMANDS = [page for page in PAGES if blocks(page, ROOT)]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == "nt", reason="the blocks are for a POSIX shell"),
]


@pytest.fixture(scope="module")
def outside(tmp_path_factory, test_data, test_models):
    """Servers of all that the pages fetch: a hub, and a package index with models."""
    folder = tmp_path_factory.mktemp("outside")
    own = folder / "own"  # the tokenizer in the file of SmolLM2, as files of the hub have it
    tokenizers = test_data / "tokenizers"
    smollm2 = test_models / PACKAGED["smollm2-135m"].file
    command = [Path(sys.executable).parent / "bitnet", "export-tokenizer", smollm2, "--into", own]
    subprocess.run(command, check=True, capture_output=True)
    llama_folder(folder / "llama", tokenizers / "llama3/tokenizer.json")
    with HubServer() as hub:
        hub.add("HuggingFaceTB/SmolLM2-135M-Instruct", "tokenizer.json", own / "tokenizer.json")
        hub.add("HuggingFaceTB/SmolLM2-135M", "config.json", b"{}")
        hub.add("HuggingFaceTB/SmolLM2-135M", "tokenizer.json", own / "tokenizer.json")
        hub.add("Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf", b"GGUF")  # found by `search`
        hub.add("openai-community/gpt2", "tokenizer.json", b"{}")  # doctor network asks for it
        hub.add(MIRROR, "tokenizer.json", tokenizers / "llama3/tokenizer.json")
        hub.add(OFFICIAL, "tokenizer.json", tokenizers / "llama3/tokenizer.json")
        hub.add(LLAMA2, "tokenizer.model", tokenizers / "llama2/tokenizer.model")
        for file in (folder / "llama").iterdir():
            hub.add(LLAMA32, file.name, file)
        hub.tokens["hf_good"] = {OFFICIAL, LLAMA2, LLAMA32}
        for gated in hub.tokens["hf_good"]:
            hub.repo(gated, gated=True)
        yield hub, package_index(folder / "index", test_models)


@pytest.fixture(scope="module")
def after_readme(tmp_path_factory, outside):
    """The cache as the first line of the README leaves it; the line makes no other files."""
    hub, index = outside
    sandbox = Sandbox(tmp_path_factory.mktemp("readme"), hub, index=index)
    # The line sets up a virtual environment, and then runs the program; only the latter is run.
    (main,) = (block for block in blocks(PAGES[0], ROOT) if block.mark == "main")
    before = sorted(sandbox.folder.rglob("*"))
    done = sandbox.run(main.text.rpartition("&& .venv/bin/")[2])
    assert done.returncode == 0, done.stdout
    assert sorted(sandbox.folder.rglob("*")) == before  # nothing in the user's folder
    return sandbox.cache


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.stem)
def test_every_block_of_a_page_runs_after_the_first_line_of_the_readme(
    page, tmp_path, outside, after_readme
):
    hub, index = outside
    sandbox = Sandbox(tmp_path, hub, index=index, cache=after_readme)
    for block in blocks(page, ROOT):
        if block.is_run_here:
            done = sandbox.run(block.text, block.language)
            assert done.returncode == block.exit_code, f"{block.place}\n{block.text}\n{done.stdout}"


@pytest.mark.parametrize("words", those(NEED_A_REAL_MODEL))
def test_every_hint_about_a_real_model_helps_after_the_first_line_of_the_readme(
    words, tmp_path, outside, after_readme
):
    hub, index = outside
    sandbox = Sandbox(tmp_path, hub, index=index, cache=after_readme)
    command = words.replace("models/model.gguf", "smollm2-135m")
    done = sandbox.run(f"echo Hello | bitnet {command}")  # what a person would type into `run`
    assert done.returncode == 0, f"{words}\n{done.stdout}"


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.stem)
def test_a_block_that_is_not_run_says_why(page):
    for block in blocks(page, ROOT):
        known = block.is_run_here or block.mark in ("main", "tests")
        assert known or re.fullmatch(r"not run: .{10,}", block.mark), block.place
