"""The files of a model, each with its purpose and whether it counts here.

``verify`` and ``show`` print the list. Which of a folder's tokenizer files is read, and which files
beside it count, follows the rules of :mod:`~bitnet.tokenizer.from_files` and
:mod:`~bitnet.tokenizer.side_files`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import BitnetError
from bitnet.formats.other_folders import ADAPTER, ADAPTER_WEIGHTS
from bitnet.formats.sentence_settings import MODEL_SETTINGS, TRANSFORMER_SETTINGS
from bitnet.tokenizer.discover import disagreement
from bitnet.tokenizer.from_files import tokenizer_names
from bitnet.tokenizer.load import load_tokenizer
from bitnet.tokenizer.side_files import TokenizerFile, read_json, template_files, templates_in

if TYPE_CHECKING:
    from bitnet.formats.checkpoint import Checkpoint, Inventory
    from bitnet.tokenizer.tokenizer import Tokenizer

_CONFIG = "tokenizer_config.json"
_WEIGHTS = ".safetensors"
_INDEX = ".safetensors.index.json"

# Files that readers here ask for, with their purpose.
_PURPOSES = {
    "config.json": "architecture and sizes",
    "generation_config.json": "sampling defaults and ids that end an answer",
    _CONFIG: "class, special tokens and chat template of the tokenizer",
    "special_tokens_map.json": "special tokens",
    "added_tokens.json": "added tokens",
    "chat_template.jinja": "chat template",
    "chat_template.json": "chat template",
    "modules.json": "modules of sentence-transformers",
    MODEL_SETTINGS: "prompts of sentence-transformers",
    **dict.fromkeys(TRANSFORMER_SETTINGS, "settings of sentence-transformers"),
}
# Files that count if the folder has a tokenizer, see _reason_against.
_TOKENIZER_SIDE = (
    *(_CONFIG, "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "chat_template.json"),
)
# Reasons why other files do not count, by their names or the ends of their names.
_UNREAD_NAMES = {
    "preprocessor_config.json": "pictures or sound: only the text model runs here",
    "processor_config.json": "pictures or sound: only the text model runs here",
    "video_preprocessor_config.json": "pictures or sound: only the text model runs here",
    "adapter_config.json": "an adapter counts with --lora",
    "params.json": "Mistral's own form of config.json; config.json counts",
    "trainer_state.json": "a record of the training",
    "training_args.bin": "a record of the training",
    "optimizer.pt": "a state of the training",
    "scheduler.pt": "a state of the training",
}
_UNREAD_ENDS = {
    (".md", ".txt", ".pdf", "LICENSE", "NOTICE"): "text for people",
    (".png", ".jpg", ".jpeg", ".svg", ".webp", ".gif"): "a picture for people",
    (".bin", ".pt", ".pth", ".onnx", ".msgpack", ".h5", ".gguf", ".ot"): (
        "other weights: those of safetensors files count"
    ),
    (".py",): "code of the author, which is never run",
}


@dataclass(frozen=True)
class FileUse:
    """A file of a model, what it is for, and whether it counts."""

    name: str  # relative to the folder
    purpose: str  # empty for files that no reader knows
    is_read: bool  # true if it counts
    reason: str = ""  # why it does not count

    def __str__(self) -> str:
        if self.is_read:
            return f"{self.name}: {self.purpose}; read"
        purpose = f"{self.purpose}; " if self.purpose else ""
        return f"{self.name}: {purpose}not read: {self.reason}"


def list_files(checkpoint: Checkpoint) -> list[FileUse]:
    """Every file of the model, those that count first; of a GGUF file, its parts.

    Hidden files are left out.
    """
    files = checkpoint.inventory
    if checkpoint.gguf is not None:
        return [FileUse(name, "weights, keys and tokenizer", True) for name in files.names]
    names = [*files.names, *files.unread]
    templates = _Templates(files)
    uses = [_describe(name, files, templates) for name in dict.fromkeys(names)]
    uses = [replace(use, reason="") if use.is_read else use for use in uses]
    return sorted(uses, key=lambda use: (not use.is_read, use.name))


def compare_tokenizer_files(checkpoint: Checkpoint, tokenizer: Tokenizer) -> dict[str, str]:
    """Difference from *tokenizer* of each other tokenizer file of the folder, by its name.

    The text is empty for a file with the same tokenizer. If the tokenizer that transformers reads
    is refused, *tokenizer* may be from outside of the folder: then every file is another one.
    """
    files = checkpoint.inventory
    results = {}
    for name in tokenizer_names(files):
        path = files.path(name)
        if path == Path(tokenizer.source):
            continue
        try:
            results[name] = disagreement(tokenizer, load_tokenizer(path, files=files))
        except BitnetError as error:
            results[name] = f"it cannot be read: {error.message}"
    return results


def find_unknown_stops(checkpoint: Checkpoint, tokenizer: Tokenizer) -> list[int]:
    """Ids at which the folder's JSON files end an answer and for which *tokenizer* has no token.

    Generation never ends at such an id. A *tokenizer* from outside of the folder has its own ids.
    """
    source = Path(tokenizer.source)
    if source.parent != checkpoint.path:
        return []
    stops = TokenizerFile(source, files=checkpoint.inventory).side.declared_stops
    return [id for id in stops if not 0 <= id < tokenizer.vocab_size]


class _Templates:
    """Chat templates of a folder, in files of their own and in ``tokenizer_config.json``."""

    def __init__(self, files: Inventory) -> None:
        self.has_jinja = "chat_template.jinja" in files
        self.named = template_files(files)  # names of the files in the folder for templates
        config: Any = read_json(files, _CONFIG) if _CONFIG in files else {}
        self.config: dict[str, Any] = config if isinstance(config, dict) else {}

    @property
    def are_in_files(self) -> bool:
        """True if files of templates count, and no template in a JSON file does."""
        return self.has_jinja or bool(self.named)


def _describe(name: str, files: Inventory, templates: _Templates) -> FileUse:
    """The use of the file *name*; it may have a reason even if the file counts."""
    readable = tokenizer_names(files)
    tokenizer = "vocab.json" if name == "merges.txt" else name  # the file that needs this one
    if tokenizer in readable:
        purpose = "merges of the tokenizer" if name == "merges.txt" else "tokenizer"
        chosen = readable[0]
        if tokenizer == chosen:
            return FileUse(name, purpose, True)
        return FileUse(name, purpose, False, f"transformers reads {chosen}")
    if name.endswith(_WEIGHTS):
        return FileUse(name, "weights", name in files.names, _reason_against_weights(name, files))
    if name.endswith(_INDEX):
        return FileUse(name, "file of each tensor", name in files.names, "one file has the weights")
    if name in templates.named:
        return FileUse(name, "chat template with a name", True)
    if name in _TOKENIZER_SIDE:
        reason = _reason_against(name, files, templates)
        return FileUse(name, _PURPOSES[name], not reason, reason)
    if name in _PURPOSES:
        is_read = name in files.names
        return FileUse(name, _PURPOSES[name], is_read, "no reader asked for it")
    if name in files.names:  # in a folder of a module of sentence-transformers
        return FileUse(name, "settings of a module of sentence-transformers", True)
    return FileUse(name, "", False, _unread_reason(name))


def _reason_against_weights(name: str, files: Inventory) -> str:
    """Reason for the case that the safetensors file *name* does not count."""
    if name == ADAPTER_WEIGHTS:
        return _UNREAD_NAMES[ADAPTER]
    if any(other.endswith(_INDEX) for other in files.names):
        return "the index does not name it"
    return "another file has the weights"


def _reason_against(name: str, files: Inventory, templates: _Templates) -> str:
    """Reason why a file beside the tokenizer's does not count, empty if it does."""
    if not tokenizer_names(files):
        return "the folder has no tokenizer"
    has_decoder = "added_tokens_decoder" in templates.config
    if name in ("special_tokens_map.json", "added_tokens.json") and has_decoder:
        return f"{_CONFIG} has added_tokens_decoder, which counts instead"
    if name == "chat_template.json" and (
        templates.are_in_files or _has_template_in_config(templates)
    ):
        return "another file has the chat template"
    return ""


def _has_template_in_config(templates: _Templates) -> bool:
    """True if ``tokenizer_config.json`` has a chat template."""
    return bool(templates_in(templates.config, {}))


def _unread_reason(name: str) -> str:
    """Reason why a file that no reader asked for does not count."""
    plain = name.rsplit("/", 1)[-1]
    if plain in _UNREAD_NAMES:
        return _UNREAD_NAMES[plain]
    for ends, reason in _UNREAD_ENDS.items():
        if plain.endswith(ends):
            return reason
    return "no reader knows it"
