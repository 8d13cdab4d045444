"""Load a model step by step, with narration."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from bitnet.base.errors import BitnetError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.formats.gguf import GGUF
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.server.narration import Narrator

__all__ = ["failures", "load_narrated", "open_and_load", "open_narrated"]


def open_and_load(
    open_file: Callable[[], Checkpoint],
    load: Callable[[Checkpoint], LanguageModel],
    narrate: Narrator,
) -> LanguageModel:
    """The model that *load* makes of what *open_file* opens.

    As :func:`open_narrated` and :func:`load_narrated` together.

    Raises:
        BitnetError: as *open_file* and *load*; it has been narrated.
    """
    return load_narrated(open_narrated(open_file, narrate), load, narrate)


def open_narrated(open_file: Callable[[], Checkpoint], narrate: Narrator) -> Checkpoint:
    """The model that *open_file* opens; no weight is read.

    Args:
        open_file: opens the file or folder.
        narrate: told what the header says.

    Raises:
        BitnetError: as *open_file*; it has been narrated.
    """
    with failures(narrate):
        checkpoint = open_file()
        if checkpoint.gguf is not None:
            _describe(checkpoint.gguf, narrate)
        return checkpoint


def load_narrated(
    checkpoint: Checkpoint, load: Callable[[Checkpoint], LanguageModel], narrate: Narrator
) -> LanguageModel:
    """The model that *load* makes of the open *checkpoint*.

    Args:
        checkpoint: the open file or folder.
        load: loads it, tokenizer included.
        narrate: told of each step.

    Raises:
        BitnetError: as *load*; it has been narrated.
    """
    with failures(narrate):
        model = load(checkpoint)
    count = model.tokenizer.vocab_size
    is_gguf = checkpoint.gguf is not None
    if is_gguf and model.tokenizer.source.startswith("embedded"):
        narrate(
            "gguf_tokenizer_extracted",
            f"Extracted tokenizer from GGUF ({count} tokens)",
            "Found the tokenizer inside the GGUF! 📝✨",
            vocab_size=count,
        )
    if is_gguf:
        narrate(
            "gguf_load_complete",
            f"Loaded GGUF model ({model.config.architecture}, {count} tokens) "
            f"in {model.load_s:.2f} s",
            "GGUF model loaded successfully! Ready to generate! 🎉✨",
            architecture=model.config.architecture,
            vocab_size=count,
        )
        narrate.plain("GGUF model loaded successfully")
    narrate(
        "device_init",
        f"Computing with {model.backend}",
        "Warming up my little processor! 🔥",
        backend=model.backend,
    )
    narrate(
        "model_load_success",
        f"Model {model.path.name} is loaded",
        "All set! My head is full of weights! 🧠",
        context=model.context,
    )
    return model


@contextmanager
def failures(narrate: Narrator) -> Iterator[None]:
    """Say that a model does not load, and why."""
    try:
        yield
    except BitnetError as error:
        narrate(
            "model_load_failed",
            f"Model load failed: {error.message}",
            "Oh no, the model would not load! 😟",
            level="ERROR",
        )
        raise


def _describe(gguf: GGUF, narrate: Narrator) -> None:
    """Narrate the content of a GGUF header."""
    metadata = gguf.metadata
    narrate(
        "gguf_metadata_loaded",
        f"Read {len(metadata)} metadata keys and {len(gguf.tensors)} tensors",
        "Reading the label on the jar! 🏷️",
        architecture=metadata.get("general.architecture"),
    )
    narrate.plain("Detected GGUF file, extracting embedded tokenizer")
    narrate(
        "gguf_tokenizer_extract_start",
        "Looking for the tokenizer in the GGUF file",
        "Hmm, where did I put the tokenizer? 🔍",
    )
    tokens = metadata.get("tokenizer.ggml.tokens")
    if tokens is None:
        narrate.plain("Missing tokenizer.ggml.tokens")
        return
    narrate(
        "gguf_vocab_size_derived",
        f"The vocabulary has {len(tokens)} tokens",
        "Counting all my words! 🔢",
        vocab_size=len(tokens),
    )
    kind = metadata.get("tokenizer.ggml.model")
    narrate(
        "gguf_tokenizer_metadata_extracted",
        f"The tokenizer is of the kind {kind}",
        "I know how to cut words! ✂️",
        model=kind,
        pre=metadata.get("tokenizer.ggml.pre"),
    )
