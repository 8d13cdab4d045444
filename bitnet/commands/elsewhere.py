"""Commands and options of other programs, and their names here.

Users of ollama, llama.cpp, huggingface_hub and uv type the names they know. These are not accepted,
since they rarely mean the same; the error's hint is the command line with the names used here.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

#: Our command for one of another program.
COMMANDS = {
    "benchmark": "bench",
    "cli": "infer",
    "complete": "infer",
    "delete": "rm",
    "embedding": "embed",
    "embeddings": "embed",
    "fetch": "download-model",
    "find": "search",
    "generate": "infer",
    "get": "download-model",
    "info": "inspect-gguf",
    "install": "download-model",
    "ls": "models",
    "perplexity": "crossval",
    "ps": "models",
    "quantise": "convert",
    "quantize": "convert",
    "remove": "rm",
    "server": "serve",
    "start": "serve",
    "tokenise": "tokenize",
    "uninstall": "rm",
}
#: Our option for one of another program.
OPTIONS_OF_OTHERS = {
    "-c": "--context",
    "-hf": "--model",
    "-hfr": "--model",
    "-m": "--model",
    "-n": "--max-tokens",
    "-o": "--output",
    "-p": "--prompt",
    "-t": "--threads",
    "--ctx-size": "--context",
    "--format": "--json",
    "--hf-repo": "--model",
    "--output-format": "--json",
}
_REASONS = {"ps": "no service runs in the background"}


def explain(word: str) -> str:
    """Ending for an error, ``: REASON``: why *word* of another program is not a command here.

    It is empty if no reason is known.
    """
    reason = _REASONS.get(word, "")
    return f": {reason}" if reason else ""


def translate(words: Sequence[str], commands: Collection[str]) -> str:
    """Our command line for *words*, those of another program; empty if they are unknown.

    *commands* are the names of our commands.
    """
    options = [*_translate_options(words)]
    command = COMMANDS.get(words[0], "")
    if command in commands:
        return shlex.join([command, *options[1:]])
    # The first word is the option alone: Invoke has split `--ctx-size=4096` there.
    if words[0] in OPTIONS_OF_OTHERS:
        return shlex.join(["infer", *options])
    return ""


def _translate_options(words: Sequence[str]) -> Iterator[str]:
    """Yield *words*, options of other programs by our names.

    An option that names a format becomes ``--json``, which takes no value; with the name of another
    format it is left out.
    """
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        ours = OPTIONS_OF_OTHERS.get(name)
        if ours is None:
            yield word
        elif ours != "--json":
            yield f"{ours}={value}" if equals else ours
        else:
            if not equals and left and not left[0].startswith("-"):
                value = left.pop(0)
            if value in ("json", ""):
                yield ours
