"""The targets of ``inv fuzz``: what reads bytes from strangers, and the inputs to begin with.

A new one is a row: a function of bytes that raises nothing but what is a fault, in a module of this
folder, and a folder of that name in ``corpus``. ``test_corpora.py`` replays every corpus.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True)
class Target:
    """A function to fuzz.

    Attributes:
        module: where it is.
        function: its name there.
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
