"""Compare random configurations of every family with other engines.

Each must be exact or refused by name. transformers is the oracle for a folder, and llama.cpp for
the GGUF file that ``convert`` writes from it, unless a warning names llama.cpp. A case is a
configuration and a seed for its weights, so that a few lines of JSON reproduce it. Tests that
import this module are skipped where transformers is not installed.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
from configurations import KINDS, Case, cases
from conversions import convert
from engine_logits import distance, llama_cpp
from hf_folders import tokenizer_folder
from hf_models import attention_of, random_model, save, torch, transformers
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

# Largest differences as shares of the range of the logits. From transformers: both compute in
# float32, and differ only in the order of sums. From llama.cpp, which looks GELU up in a table:
# SAME_HALVES.
SAME_FLOATS = 1e-3
SAME_HALVES = 1e-2
# With ternary weights, in float64: frequencies of rope in float32 may round an activation to the
# next int8.
SAME_ROUNDED = 2e-2
# Of a folder and its GGUF file, whose keys are float32.
READ_BACK = 1e-4

WEIGHTS = "model.safetensors"
_GELU = ACTIVATIONS["gelu_tanh"]

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity(transformers.logging.CRITICAL)
torch.set_num_threads(1)
with patch.object(torch, "compile", lambda function: function):  # its functions run uncompiled
    from transformers.integrations.bitnet import AutoBitLinear, BitLinear, pack_weights
    from transformers.quantizers.quantizers_utils import should_convert_module


def load(path: Path) -> Case:
    """The case in a file."""
    fields = json.loads(path.read_text(encoding="utf-8"))
    return Case(**(fields | {"without": tuple(fields.get("without", ()))}))


def as_json(case: Case) -> str:
    """The text of a file that :func:`load` reads."""
    return json.dumps(asdict(case), indent=2, sort_keys=True) + "\n"


def make(case: Case, folder: Path) -> np.ndarray | None:
    """Write the model into *folder*, and return its logits; None if transformers cannot run it."""
    try:
        model = random_model(case.kind, case.options, case.seed)
        save(case.kind, case.options, model, folder)
        if case.quantization is not None:
            model = ternary(model, case.quantization, folder)
        elif case.changes or case.without:
            model = reopened(case, folder)
        result = None if model is None else logits(model, case)
    except (ValueError, KeyError, TypeError, RuntimeError, IndexError, ZeroDivisionError):
        return None
    except (AttributeError, OSError, ImportError):  # transformers misses something in the config
        return None
    except Exception as error:
        if type(error).__module__.startswith(("huggingface_hub", "transformers")):
            return None
        raise
    return result if result is not None and np.isfinite(result).all() else None


def logits(model: Any, case: Case) -> np.ndarray:
    """Logits of *model* for the prompt; in float64 where activations are rounded to int8.

    There the float32 of transformers' own code is replaced, too.
    """
    with torch.no_grad(), ExitStack() as stack:
        if case.quantization is not None:
            model = model.double()
            stack.enter_context(patch.object(torch.Tensor, "float", torch.Tensor.double))
            stack.enter_context(patch.object(torch, "float32", torch.float64))
        return model(torch.tensor([prompt(case)]), use_cache=False).logits[0].numpy()


def reopened(case: Case, folder: Path) -> Any:
    """Change config.json in *folder* as *case* says, and load the folder with transformers.

    ``None`` if tensors are missing or have other shapes.
    """
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config = {key: value for key, value in config.items() if key not in case.without} | case.changes
    path.write_text(json.dumps(config), encoding="utf-8")
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation=attention_of(case.kind),
        output_loading_info=True,
        local_files_only=True,
    )
    is_whole = not info["missing_keys"] and not info["mismatched_keys"]
    return model.eval() if is_whole else None


def ternary(model: Any, quantization: Mapping[str, Any], folder: Path) -> Any:
    """*model* with transformers' own BitNet layers, whose tensors are saved into *folder*.

    *quantization* is the ``quantization_config``. ``None`` for layers with norms of their own, and
    for a packed head that is tied to the embedding.
    """
    from safetensors.torch import save_file

    excluded = quantization.get("modules_to_not_convert")
    patterns = ["lm_head"] if excluded is None else excluded
    auto = quantization.get("linear_class", "bitlinear") == "autobitlinear"
    online = auto and quantization.get("quantization_mode", "offline") == "online"
    for parameter in model.parameters():  # convert keeps embeddings as float16
        parameter.data = parameter.data.half().float()
    stored = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        del stored["lm_head.weight"]
        if not online and should_convert_module("lm_head", patterns):
            return None
    if quantization.get("use_rms_norm"):
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
            # Both scale by a quarter: the first layer multiplies by its number, the second divides.
            layer.weight_scale = torch.tensor([0.25 if auto else 4.0])
            stored |= {f"{name}.weight": packed, f"{name}.weight_scale": layer.weight_scale}
        layer.bias = module.bias
        model.set_submodule(name, layer)
    save_file({name: tensor.clone() for name, tensor in stored.items()}, folder / WEIGHTS)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {
        "quantization_config": dict(quantization)
    }
    path.write_text(json.dumps(config), encoding="utf-8")
    return model


def half_gelu(x: np.ndarray) -> np.ndarray:
    """GELU of ggml: looked up by float16 in a table of float16 between -10 and 10, else ReLU."""
    with np.errstate(over="ignore"):
        rounded = _GELU(x.astype(np.float16).astype(np.float32)).astype(np.float16)
    return np.where(np.abs(x) < 10, rounded, np.maximum(x, 0)).astype(x.dtype)


def prompt(case: Case) -> list[int]:
    """Random token ids of the prompt of *case*."""
    return np.random.default_rng(case.seed).integers(3, 60, case.length).tolist()


def ours(path: Path, ids: list[int], dtype: type = np.float32) -> np.ndarray:
    """Our logits after each of *ids*, by the reference backend in *dtype*."""
    model = load_model(open_checkpoint(path), ops=ReferenceOps(dtype=dtype))
    return model.forward(ids, KVCache(model.config, len(ids), dtype=dtype), all_positions=True)


def check(case: Case, folder: Path, *, engine: bool) -> str:
    """Outcome of *case*: ``exact``, ``refused`` or ``not a model``, and more about its GGUF file.

    Args:
        case: the model.
        folder: an empty folder to work in.
        engine: True to run llama.cpp as well.

    Raises:
        AssertionError: a result is wrong, and no warning says so.
    """
    model = folder / "model"
    file = folder / "model.gguf"
    ids = prompt(case)
    expected = make(case, model)
    if expected is None:
        return "not a model"
    is_rounded = case.quantization is not None
    dtype = np.float64 if is_rounded else np.float32
    try:
        actual = ours(model, ids, dtype)
    except (Unsupported, InvalidFormat):
        return "refused"
    apart = distance(expected, actual)
    assert apart < (SAME_ROUNDED if is_rounded else SAME_FLOATS), f"{apart:.2g} from transformers"
    try:
        done = convert(
            tokenizer_folder(model, TOKENS), file, ConvertOptions("I2_S" if is_rounded else "F32")
        )
    except Unsupported:
        return "exact, not converted"
    warned = {warning.subject for warning in done.warnings}
    read_back = ours(file, ids, dtype)
    # A warning for every engine says that the file computes something else: also here.
    if "every engine" not in warned:
        apart = distance(actual, read_back)
        bound = SAME_ROUNDED if is_rounded else READ_BACK
        assert apart < bound, f"{apart:.2g} from the folder when the file is read back"
    if not engine:
        return "exact, llama.cpp named" if warned else "exact"
    if "llama.cpp" in warned:
        check_refusal(case, done.warnings, file, read_back, folder)
        return "exact, llama.cpp named"
    theirs = llama_cpp(file, [ids], folder)
    assert theirs is not None, "llama.cpp does not load the file, and was not named"
    with patch.dict(ACTIVATIONS, gelu_tanh=half_gelu):
        apart = distance(ours(file, ids, dtype), theirs[0])
    assert apart < SAME_HALVES, f"{apart:.2g} from llama.cpp, which was not named"
    return "exact, in llama.cpp as well"


# Pairs of a kind and a reason for which check_refusal has run llama.cpp already.
_ASKED: set[tuple[str, str]] = set()


def check_refusal(
    case: Case, warnings: Sequence[Finding], file: Path, our_logits: np.ndarray, folder: Path
) -> None:
    """Run llama.cpp on *file*, if *warnings* say only that it refuses the file.

    Each reason is checked once for each kind.

    Raises:
        AssertionError: it does not refuse the file, and computes *our_logits*.
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
        apart = distance(our_logits, theirs[0])
        assert apart > SAME_FLOATS, f"llama.cpp computes the file ({apart:.2g}): {reasons[0]}"
    _ASKED.add((case.kind, reason))


def report(outcomes: Counter[tuple[str, str]]) -> str:
    """A line for each family: its number of examples, and of each outcome."""
    lines = []
    for kind in KINDS:
        of_kind = {what: count for (name, what), count in outcomes.items() if name == kind}
        parts = ", ".join(f"{count} {what}" for what, count in sorted(of_kind.items()))
        lines.append(f"{kind}: {sum(of_kind.values())} examples: {parts}")
    return "\n".join(lines)
