"""A checkout in which documented commands run, with a hub and a package index of its own.

The checkout contains only files that a reader has. In the commands, addresses that stand for the
reader's own server become the hub's, and the reader's access token becomes one that the hub knows.
A comment above a block is for the test::

    <!-- exit 14 -->          the block ends with this exit code
    <!-- not run: REASON -->  it cannot run here
    <!-- main -->             .ci/run runs it, word for word
"""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tiny_packages import wheel

from bitnet.sources import PACKAGED

ROOT = Path(__file__).parents[2]
CHECKOUT = (
    "README.md",
    "tasks.py",
    "pyproject.toml",
    "scripts",
    ".github",
)  # files and folders that commands read
MIRROR = "baseten/Meta-Llama-3-tokenizer"
OFFICIAL = "meta-llama/Meta-Llama-3-8B"
READERS_ADDRESS = "https://hub.example.org"
ACCESS_TOKEN = "hf_your_token"
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
}
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]+) -->\n)?^```(?P<language>sh|python)\n(?P<text>.*?)^```",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A block of commands: its file and line, its language, its text and the comment above it."""

    place: str
    language: str
    text: str
    mark: str

    @property
    def exit_code(self):
        """Exit code with which the block must end."""
        found = re.fullmatch(r"exit (\d+)", self.mark)
        return int(found[1]) if found else 0

    @property
    def is_run_here(self):
        """True unless a comment says that the block is not run, or that .ci/run runs it."""
        return self.mark == "" or self.mark.startswith("exit ")


def blocks(page, root):
    """Every block of commands on *page*, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            f"{page.relative_to(root)}:{text.count(chr(10), 0, match.start()) + 1}",
            match["language"],
            match["text"],
            match["mark"] or "",
        )
        for match in BLOCK.finditer(text)
    ]


class Sandbox:
    """A checkout with an empty home, on a hub and a package index of its own.

    Args:
        folder: holds the checkout, the home and the cache.
        hub: stands for huggingface.co.
        index: folder of wheels that stands for the package index; without it there is none.
        cache: a cache to start with; its files are linked, not copied.
    """

    def __init__(self, folder, hub, *, index=None, cache=None):
        self.folder = folder / "work"
        self.cache = folder / "cache"
        self.hub = hub
        for name in CHECKOUT:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
            self.folder.mkdir(parents=True, exist_ok=True)
            copy(ROOT / name, self.folder / name)
        if cache is not None:
            shutil.copytree(cache, self.cache, copy_function=os.link)
        (folder / "home").mkdir()
        prefixes = ("BITNET_", "HF_", "PIP_")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(prefixes)
        } | {
            "PATH": path,
            "HOME": str(folder / "home"),
            "BITNET_CACHE_DIR": str(self.cache),
            "HF_ENDPOINT": hub.url,
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "BITNET_THREADS": "2",
        }
        if index is not None:
            self.environment["PIP_FIND_LINKS"] = str(index)

    def bitnet(self, *words, code=0, **environment):
        """Run one command; it must end with *code*."""
        done = subprocess.run(
            [Path(sys.executable).parent / "bitnet", *map(str, words)],
            cwd=self.folder,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def run(self, text, language="sh"):
        """Run *text*, and return the finished process with its output."""
        text = text.replace(READERS_ADDRESS, self.hub.url).replace(ACCESS_TOKEN, "hf_good")
        command = [sys.executable, "-"] if language == "python" else ["bash", "-euo", "pipefail"]
        return subprocess.run(
            [*command] if language == "python" else [*command, "-c", text],
            cwd=self.folder,
            env=self.environment,
            input=text if language == "python" else "",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def package_index(folder, test_models):
    """*folder* with a wheel of each package that holds one of the *test_models* whole."""
    folder.mkdir()
    for model in PACKAGED.values():
        if len(model.parts) != 1:
            continue
        (part,) = model.parts
        # A model of one file is directly in *test_models*, one of several in a folder of its name.
        own = test_models / model.name
        files = {part.member: (own if model.notices else test_models) / model.file}
        for notice in model.notices:
            files[notice.member] = own / notice.file_name
        wheel(folder, part.name, {}, part.version, files)
    return folder


def llama_folder(folder, tokenizer):
    """A tiny random LLaMA with LLaMA-3's vocabulary, in the layout of its publisher."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    shutil.copyfile(tokenizer, folder / "tokenizer.json")
    dim = LLAMA["hidden_size"]
    ffn = LLAMA["intermediate_size"]
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (LLAMA["vocab_size"], dim),
        "model.norm.weight": (dim,),
        f"{layer}input_layernorm.weight": (dim,),
        f"{layer}post_attention_layernorm.weight": (dim,),
        f"{layer}self_attn.q_proj.weight": (dim, dim),
        f"{layer}self_attn.k_proj.weight": (dim // 2, dim),
        f"{layer}self_attn.v_proj.weight": (dim // 2, dim),
        f"{layer}self_attn.o_proj.weight": (dim, dim),
        f"{layer}mlp.gate_proj.weight": (ffn, dim),
        f"{layer}mlp.up_proj.weight": (ffn, dim),
        f"{layer}mlp.down_proj.weight": (dim, ffn),
    }
    header = {}
    data = b""
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        size = 4 * math.prod(shape)
        header[name] = {
            "dtype": "F32",
            "shape": list(shape),
            "data_offsets": [len(data), len(data) + size],
        }
        data += rng.standard_normal(shape).astype("<f4").tobytes()
    head = json.dumps(header).encode()
    raw = len(head).to_bytes(8, "little") + head + data
    (folder / "model.safetensors").write_bytes(raw)
