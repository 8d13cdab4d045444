"""Random configurations of every family, and what becomes of them here and in other engines.

Every one must end exact or refused by name: transformers is the oracle for a folder, llama.cpp for
the GGUF file that ``convert`` writes of it, unless a warning named llama.cpp. A case is a
configuration; its weights come from a seed, so that it is found again from a few lines of JSON.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import torch
import transformers
from configurations import KINDS, Case, cases
from conversions import convert
from engine_logits import distance, llama_cpp
from hf_folders import tokenizer_folder
from hf_models import attention_of, random_model, save
from tiny_models import TOKENS

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.convert.convert_options import ConvertOptions
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.activations import ACTIVATIONS
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from bitnet.base.findings import Finding

__all__ = ["KINDS", "Case", "as_json", "cases", "check", "load", "report"]

# Both compute in float32 and differ in the order of sums only; llama.cpp looks GELU up in a table.
SAME_FLOATS = 1e-3
SAME_HALVES = 1e-2
# In float64, where frequencies of float32 now and then round an activation to the next int8.
SAME_ROUNDED = 2e-2
# Of the range of the logits, in float32: keys of a GGUF file are float32.
READ_BACK = 1e-4

_GELU = ACTIVATIONS["gelu_tanh"]

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity(transformers.logging.CRITICAL)
torch.set_num_threads(1)
with patch.object(torch, "compile", lambda function: function):  # as they are written
    from transformers.integrations.bitnet import AutoBitLinear, BitLinear, pack_weights
    from transformers.quantizers.quantizers_utils import should_convert_module


def load(path: Path) -> Case:
    """The case in a file."""
    said = json.loads(path.read_text(encoding="utf-8"))
    return Case(**(said | {"without": tuple(said.get("without", ()))}))


def as_json(case: Case) -> str:
    """Files that :func:`load` reads."""
    return json.dumps(asdict(case), indent=2, sort_keys=True) + "\n"


def make(case: Case, folder: Path) -> np.ndarray | None:
    """The model in *folder* and its logits; ``None`` if transformers does not run it."""
    try:
        model = random_model(case.kind, case.options, case.seed)
        save(case.kind, case.options, model, folder)
        if case.quantization is not None:
            model = ternary(model, case.quantization, folder)
        elif case.changes or case.without:
            model = reopened(case, folder)
        found = None if model is None else logits(model, case)
    except (ValueError, KeyError, TypeError, RuntimeError, IndexError, ZeroDivisionError):
        return None
    except (AttributeError, OSError, ImportError):  # of what transformers does not find in a config
        return None
    except Exception as error:
        if type(error).__module__.startswith(("huggingface_hub", "transformers")):
            return None
        raise
    return found if found is not None and np.isfinite(found).all() else None


def logits(model: Any, case: Case) -> np.ndarray:
    """Logits of *model* for the prompt; in float64 where activations are rounded to int8."""
    with torch.no_grad(), ExitStack() as stack:
        if case.quantization is not None:
            model = model.double()
            stack.enter_context(patch.object(torch.Tensor, "float", torch.Tensor.double))
            stack.enter_context(patch.object(torch, "float32", torch.float64))
        return model(torch.tensor([prompt(case)]), use_cache=False).logits[0].numpy()


def reopened(case: Case, folder: Path) -> Any:
    """Transformers' model of the folder once config.json is changed; ``None``: no model."""
    path = folder / "config.json"
    said = json.loads(path.read_text(encoding="utf-8"))
    said = {key: value for key, value in said.items() if key not in case.without} | case.changes
    path.write_text(json.dumps(said), encoding="utf-8")
    model, told = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation=attention_of(case.kind),
        output_loading_info=True,
        local_files_only=True,
    )
    whole = not told["missing_keys"] and not told["mismatched_keys"]
    return model.eval() if whole else None


def ternary(model: Any, said: Mapping[str, Any], folder: Path) -> Any:
    """*model* with transformers' own BitNet layers, and *folder* with what they keep.

    ``None`` for layers with norms of their own, and for a packed head that is the embedding.
    """
    from safetensors.torch import save_file

    kept = said.get("modules_to_not_convert")
    patterns = ["lm_head"] if kept is None else kept
    auto = said.get("linear_class", "bitlinear") == "autobitlinear"
    online = auto and said.get("quantization_mode", "offline") == "online"
    for parameter in model.parameters():  # convert keeps embeddings as float16
        parameter.data = parameter.data.half().float()
    stored = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        del stored["lm_head.weight"]
        if not online and should_convert_module("lm_head", patterns):
            return None
    if said.get("use_rms_norm"):
        return None
    for name, module in list(model.named_modules()):
        if not isinstance(module, torch.nn.Linear) or not should_convert_module(name, patterns):
            continue
        size = (module.in_features, module.out_features, module.bias is not None)
        layer = (
            AutoBitLinear(*size, online_quant=online)
            if auto
            else BitLinear(*size, dtype=torch.float64)
        )
        if online:
            layer.weight = module.weight
        else:
            codes = (module.weight / module.weight.abs().mean()).round().clamp(-1, 1).detach()
            packed = pack_weights(codes.clone())
            layer.weight = torch.nn.Parameter(codes) if auto else packed
            layer.weight_scale = torch.tensor([0.25 if auto else 4.0])
            stored |= {f"{name}.weight": packed, f"{name}.weight_scale": layer.weight_scale}
        layer.bias = module.bias
        model.set_submodule(name, layer)
    save_file({name: tensor.clone() for name, tensor in stored.items()}, folder / WEIGHTS)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"quantization_config": dict(said)}
    path.write_text(json.dumps(config), encoding="utf-8")
    return model


def half_gelu(x: np.ndarray) -> np.ndarray:
    """GELU as ggml has it: a table of float16 by float16, within 10 of zero."""
    with np.errstate(over="ignore"):
        rounded = _GELU(x.astype(np.float16).astype(np.float32)).astype(np.float16)
    return np.where(np.abs(x) < 10, rounded, np.maximum(x, 0)).astype(x.dtype)


WEIGHTS = "model.safetensors"


def prompt(case: Case) -> list[int]:
    """Token ids."""
    return np.random.default_rng(case.seed).integers(3, 60, case.length).tolist()


def ours(path: Path, ids: list[int], dtype: type = np.float32) -> np.ndarray:
    """Our logits, of the prompt as it is."""
    model = load_model(open_checkpoint(path), ops=ReferenceOps(dtype=dtype))
    return model.forward(ids, KVCache(model.config, len(ids), dtype=dtype), all_positions=True)


def check(case: Case, folder: Path, *, engine: bool) -> str:
    """Outcome of *case*: ``exact``, ``refused`` or ``not a model``, and more about its file.

    Args:
        case: the model.
        folder: an empty one.
        engine: ask llama.cpp, too.

    Raises:
        AssertionError: something came out wrong without a word.
    """
    model = folder / "model"
    file = folder / "model.gguf"
    ids = prompt(case)
    expected = make(case, model)
    if expected is None:
        return "not a model"
    rounded = case.quantization is not None
    dtype = np.float64 if rounded else np.float32
    try:
        found = ours(model, ids, dtype)
    except (Unsupported, InvalidFormat):
        return "refused"
    apart = distance(expected, found)
    assert apart < (SAME_ROUNDED if rounded else SAME_FLOATS), f"{apart:.2g} from transformers"
    try:
        done = convert(
            tokenizer_folder(model, TOKENS), file, ConvertOptions("I2_S" if rounded else "F32")
        )
    except Unsupported:
        return "exact, not converted"
    named = {one.subject for one in done.warnings}
    read_back = ours(file, ids, dtype)
    if "every engine" not in named:  # which computes the file in another way, and so do we
        apart = distance(found, read_back)
        bound = SAME_ROUNDED if rounded else READ_BACK
        assert apart < bound, f"{apart:.2g} from the folder when the file is read back"
    if not engine:
        return "exact, llama.cpp named" if named else "exact"
    if "llama.cpp" in named:
        check_refusal(case, done.warnings, file, read_back, folder)
        return "exact, llama.cpp named"
    theirs = llama_cpp(file, [ids], folder)
    assert theirs is not None, "llama.cpp does not load the file, and was not named"
    with patch.dict(ACTIVATIONS, gelu_tanh=half_gelu):
        apart = distance(ours(file, ids, dtype), theirs[0])
    assert apart < SAME_HALVES, f"{apart:.2g} from llama.cpp, which was not named"
    return "exact, in llama.cpp as well"


# Kinds and reasons for which llama.cpp was asked already.
_ASKED: set[tuple[str, str]] = set()


def check_refusal(
    case: Case, warnings: Sequence[Finding], file: Path, found: np.ndarray, folder: Path
) -> None:
    """Ask llama.cpp whether it refuses *file*, where that is the only thing that *warnings* say.

    Each reason is asked for once in a kind.

    Raises:
        AssertionError: it computes the logits *found*.
    """
    reasons = [warning.text for warning in warnings if warning.subject == "llama.cpp"]
    reason = "".join(letter for letter in reasons[0] if not letter.isdigit())
    is_refusal = reason.startswith(("crashes at", "does not load", "has no"))
    if len(reasons) > 1 or not is_refusal or (case.kind, reason) in _ASKED:
        return
    try:
        theirs = llama_cpp(file, [prompt(case)], folder)
    except RuntimeError:  # it crashed
        theirs = None
    if theirs is not None:
        apart = distance(found, theirs[0])
        assert apart > SAME_FLOATS, f"llama.cpp computes the file ({apart:.2g}): {reasons[0]}"
    _ASKED.add((case.kind, reason))


def report(outcomes: Counter[tuple[str, str]]) -> str:
    """Examples by family and what became of them."""
    lines = []
    for kind in KINDS:
        of_kind = {what: count for (name, what), count in outcomes.items() if name == kind}
        parts = ", ".join(f"{count} {what}" for what, count in sorted(of_kind.items()))
        lines.append(f"{kind}: {sum(of_kind.values())} examples: {parts}")
    return "\n".join(lines)
