"""Keys that llama.cpp reads from a GGUF file whatever its architecture, from its source.

    python tests/support/llama_cpp_keys.py SOURCE VERSION

writes them to ``tests/data/llama_cpp_keys.json``; SOURCE is the folder of llama.cpp, VERSION its
release, such as b11434. ``src/llama-arch.cpp`` names every key; those of an architecture begin with
a placeholder for it.
"""

import json
import re
import sys
from pathlib import Path

TABLE = Path(__file__).parents[1] / "data" / "llama_cpp_keys.json"
_OF_AN_ARCHITECTURE = "%s."
_ENTRY = re.compile(r'\{\s*LLM_KV_\w+,\s*"([^"]+)"\s*\}')
_NAMED = re.compile(r"\bLLM_KV_\w+")


def read_keys(source):
    """Sorted keys in the source of llama.cpp that do not belong to an architecture."""
    text = (Path(source) / "src" / "llama-arch.cpp").read_text(encoding="utf-8")
    start = text.index("LLM_KV_NAMES = {")
    table = text[start : text.index("\n};", start)]
    entries = _ENTRY.findall(table)
    constants = {*_NAMED.findall(table)} - {"LLM_KV_NAMES"}
    if len(entries) != len(constants):
        raise ValueError(f"{len(constants)} names in the table, {len(entries)} were read")
    return sorted({key for key in entries if not key.startswith(_OF_AN_ARCHITECTURE)})


def main(source, version):
    """Write the table of the llama.cpp *version* at the folder *source*."""
    table = {"version": version, "keys": read_keys(source)}
    TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
