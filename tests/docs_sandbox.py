"""Where the commands of the documentation run: a folder with a model, a hub, and nothing else.

``inv`` is the same program as ``bitnet`` there (outside a checkout Invoke finds no tasks).
Addresses that stand for the reader's own server become the hub's. A comment above a block says what
a test has to know::

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
from tiny_models import tiny_gguf

from bitnet.hub.package_index import PACKAGED

MIRROR = "baseten/Meta-Llama-3-tokenizer"
OFFICIAL = "meta-llama/Meta-Llama-3-8B"
OTHERS_ADDRESS = "https://hub.example.org"
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
    """A block of commands: where it is, its language, its text and what its mark says."""

    place: str
    language: str
    text: str
    mark: str

    @property
    def exit_code(self):
        found = re.fullmatch(r"exit (\d+)", self.mark)
        return int(found[1]) if found else 0

    @property
    def is_run_here(self):
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
    """A working folder with a cache and a hub of its own; :meth:`run` runs a block in it."""

    def __init__(self, folder, hub, test_models=None):
        self.folder = folder / "work"
        self.cache = folder / "cache"
        (self.folder / "models").mkdir(parents=True)
        programs = folder / "bin"
        programs.mkdir()
        python = Path(sys.executable)
        (programs / "inv").write_text(f'#!/bin/sh\nexec "{python.parent}/bitnet" "$@"\n')
        (programs / "inv").chmod(0o755)
        self.hub = hub
        path = f"{programs}{os.pathsep}{python.parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = os.environ | {
            "PATH": path,
            "BITNET_CACHE_DIR": str(self.cache),
            "HF_ENDPOINT": hub.url,
            "PIP_NO_INDEX": "1",
            "BITNET_THREADS": "2",
        }
        for packaged in PACKAGED.values():
            if test_models is not None and (test_models / packaged.file).exists():
                entry = self.cache / packaged.entry
                entry.parent.mkdir(parents=True)
                shutil.copyfile(test_models / packaged.file, entry)

    def prepare(self):
        """What the pages take for granted: a model, its files beside others, something pinned."""
        tiny_gguf(self.folder / "models/model.gguf", **{"tokenizer.ggml.pre": "qwen2"})
        for name in ("original", "other"):
            self.bitnet("export-tokenizer", "models/model.gguf", "--into", name)
        shutil.copyfile(self.folder / "original/tokenizer.json", self.folder / "tokenizer.json")
        scripts = Path(__file__).parents[1] / "ci/scripts"
        shutil.copytree(scripts, self.folder / "scripts")
        (self.folder / "texts.txt").write_text("Hello world\nSome other text\n")
        self.bitnet("download-model", "--id", "org/tiny", "--file", "tiny.gguf")
        return self

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
        """Run *text*; the finished process with what it printed."""
        text = text.replace(OTHERS_ADDRESS, self.hub.url).replace(ACCESS_TOKEN, "hf_good")
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


def llama_folder(folder, tokenizer):
    """A tiny random LLaMA with LLaMA-3's vocabulary, in the layout of its publisher."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    shutil.copyfile(tokenizer, folder / "tokenizer.json")
    dim, ffn, layer = LLAMA["hidden_size"], LLAMA["intermediate_size"], "model.layers.0."
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
    header, data, rng = {}, b"", np.random.default_rng(0)
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
