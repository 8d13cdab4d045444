"""The targets of ``inv fuzz``: functions that read untrusted bytes, and the inputs to begin with.

A new target is a row of the table, and a folder of its name in ``corpus``. Its function takes bytes
and catches the errors that are right; what it raises is a fault.
``test_gguf_corpus.py`` replays the corpus of gguf, and ``test_corpora.py`` those with seeds in
``make_tokenizer_corpora.py``.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True)
class Target:
    """A function to fuzz.

    Attributes:
        module: module of this folder that has the function.
        function: name of the function.
        max_len: bytes of the longest input.
    """

    module: str
    function: str
    max_len: int = 4096

    def load(self):
        """The function."""
        return getattr(import_module(self.module), self.function)


TARGETS = {
    "gguf": Target("exercise_gguf", "exercise", 65_536),
    "tokenizer-json": Target("exercise_tokenizers", "tokenizer_json"),
    "sentencepiece": Target("exercise_tokenizers", "sentencepiece"),
    "tiktoken": Target("exercise_tokenizers", "tiktoken"),
    "tekken": Target("exercise_tokenizers", "tekken", 32_768),
    "chat-template": Target("exercise_tokenizers", "chat_template"),
    "server-body": Target("exercise_tokenizers", "server_body"),
}


def corpus(name):
    """The committed inputs of a target."""
    return sorted((CORPUS / name).iterdir())
