"""Folders that people download, and that are not a model in the form of transformers.

The error for each says what it is, and its hint how to get a form that is read.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from bitnet.base.errors import BitnetError, Unsupported
from bitnet.base.files import open_file
from bitnet.base.invocation import shell_quote
from bitnet.formats.gguf_names import has_gguf_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

ADAPTER = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_MISTRAL = "params.json"
_LARGEST_CONFIG = 1 << 20  # bytes
# Weights in other forms, with the libraries that write them.
_OTHER_WEIGHTS = {
    "pytorch_model*.bin": "PyTorch's pickle files",
    "consolidated*.pth": "PyTorch's pickle files",
    "*.pt": "PyTorch's pickle files",
    "tf_model.h5": "TensorFlow",
    "flax_model.msgpack": "Flax",
    "*.onnx": "ONNX",
    "onnx/*.onnx": "ONNX",
    "openvino_model.xml": "OpenVINO",
}


def refuse_other_folder(folder: Path) -> None:
    """Refuse *folder* if it is another form of a model, or an adapter alone.

    The error names the form, and its hint a way on.
    """
    names = {path.name for path in folder.iterdir()}
    weights = {name for name in names if name.endswith(".safetensors")} - {ADAPTER_WEIGHTS}
    is_indexed = any(name.endswith(".safetensors.index.json") for name in names)
    if ADAPTER in names and not weights and not is_indexed:
        base = _base_of(folder / ADAPTER)
        model = f"of {base} " if base else ""
        raise Unsupported(
            f"{folder.name} is an adapter {model}alone, without the model ({ADAPTER})",
            hint=f"run its model with it, by the option --lora {shell_quote(folder)}",
        )
    if _MISTRAL in names and "config.json" not in names:
        raise Unsupported(
            f"{folder.name} is a model in Mistral's own form ({_MISTRAL}), which is not read",
            hint="fetch config.json and the other *.safetensors files of the same repository, or a "
            "GGUF file of it",
        )
    if "config.json" in names and not weights and not is_indexed:
        _refuse_other_weights(folder)
    if "config.json" not in names and not weights:
        _refuse_outer_folder(folder)


def _refuse_other_weights(folder: Path) -> None:
    for pattern, library in _OTHER_WEIGHTS.items():
        files = sorted(folder.glob(pattern))
        if files and not _has_gguf(folder.iterdir()):
            name = files[0].relative_to(folder).as_posix()
            raise Unsupported(
                f"{folder.name} has its weights in {name} ({library}), and none in *.safetensors",
                hint="save it with transformers' save_pretrained, or fetch a GGUF file of it",
            )


def _refuse_outer_folder(folder: Path) -> None:
    """Refuse *folder* if the model is in a folder of it, as after some downloads."""
    inner = [path for path in sorted(folder.iterdir()) if _is_model(path)]
    if inner and not _has_gguf(folder.iterdir()):
        raise Unsupported(
            f"{folder.name} is not a model, and {inner[0].name} in it is one",
            hint=f"name that folder: {shell_quote(inner[0])}",
        )


def _is_model(path: Path) -> bool:
    return (path / "config.json").is_file() and any(path.glob("*.safetensors"))


def _has_gguf(files: Iterable[Path]) -> bool:
    return any(map(has_gguf_name, files))


def _base_of(path: Path) -> str:
    """The model that the adapter's configuration at *path* names; empty if it names none."""
    try:
        with open_file(path) as file:
            config = json.loads(file.read(_LARGEST_CONFIG))
    except (OSError, ValueError, RecursionError, BitnetError):
        return ""
    base = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    return repr(base[:120]) if isinstance(base, str) else ""
