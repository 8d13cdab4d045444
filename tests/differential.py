"""Random configurations of every family, and what becomes of them here and in other engines.

Every one must end exact or refused by name: transformers is the oracle for a folder, llama.cpp for
the GGUF file that ``convert`` writes of it, unless a warning named llama.cpp. A case is a
configuration; its weights come from a seed, so that it is found again from a few lines of JSON.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from engine_logits import distance, llama_cpp
from hf_folders import tokenizer_folder
from hypothesis import strategies as st
from tiny_models import TOKENS

from bitnet.convert import Request, convert
from bitnet.errors import InvalidFormat, Unsupported
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model
from bitnet.runtime.kv_cache import KVCache

if TYPE_CHECKING:
    from collections import Counter
    from pathlib import Path

# Both compute in float32 and differ in the order of sums only; llama.cpp's cache holds float16.
SAME_FLOATS, SAME_HALVES = 1e-3, 1e-2
# Of the range of the logits, in float32: keys of a GGUF file are float32.
READ_BACK = 1e-4

transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)

KINDS = ("Llama", "Mistral", "Phi3", "Qwen2", "Qwen3", "Gemma2", "Gemma3")


@dataclass(frozen=True)
class Case:
    """A model.

    Attributes:
        kind: of transformers.
        options: of its configuration.
        length: tokens of the prompt.
        seed: of its weights and of the prompt.
    """

    kind: str
    options: dict[str, Any] = field(hash=False)
    length: int = 20
    seed: int = 0

    @classmethod
    def load(cls, path: Path) -> Case:
        """The case in a file."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def as_json(self) -> str:
        """What :meth:`load` reads."""
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"


@st.composite
def cases(draw: st.DrawFn, kind: str) -> Case:
    """A case of *kind*."""
    heads = draw(st.sampled_from([2, 4]))
    head_dim = draw(st.sampled_from([16, 32]))
    layers = draw(st.integers(1, 4)) if kind != "Gemma3" else draw(st.sampled_from([2, 7]))
    context = draw(st.sampled_from([32, 64, 128]))
    options: dict[str, Any] = {
        "vocab_size": 96,
        "hidden_size": heads * head_dim if kind == "Phi3" else draw(st.sampled_from([48, 64])),
        "intermediate_size": draw(st.sampled_from([64, 96])),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": draw(st.sampled_from([1, heads // 2, heads])),
        "max_position_embeddings": context,
        "rms_norm_eps": draw(st.sampled_from([1e-6, 1e-5, 1e-3])),
        "tie_word_embeddings": draw(st.booleans()),
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if kind not in ("Phi3", "Qwen2"):
        options["head_dim"] = head_dim
    else:
        options["hidden_size"] = heads * head_dim
    options |= draw(_OWN[kind](layers))
    pairs = head_dim // 2
    rope = draw(rope_parameters(kind, context, pairs))
    if rope is not None:
        options["rope_parameters"] = rope
    if draw(st.integers(0, 9)) == 0:
        options["hidden_act"] = draw(st.sampled_from(["gelu", "relu", "silu", "gelu_pytorch_tanh"]))
    return Case(kind, options, draw(st.sampled_from([9, 20, 31])), draw(st.integers(0, 99)))


def rope_parameters(kind: str, context: int, pairs: int) -> st.SearchStrategy[Any]:
    """``rope_parameters``, or ``None`` for what the family assumes."""
    base = st.sampled_from([500.0, 1e4, 1e6])
    original = st.sampled_from([16, 24, context])
    factor = st.sampled_from([2.0, 4.0, 8.5])
    divisors = st.floats(1.0, 6.0, width=16)
    maybe = st.one_of(st.none(), st.sampled_from([0.5, 1.0, 1.7]))
    kinds = [
        st.builds(lambda theta: {"rope_type": "default", "rope_theta": theta}, base),
        st.fixed_dictionaries(
            {"rope_type": st.just("linear"), "rope_theta": base, "factor": factor}
        ),
        st.fixed_dictionaries(
            {"rope_type": st.just("dynamic"), "rope_theta": base, "factor": factor}
        ),
        st.fixed_dictionaries(
            {
                "rope_type": st.just("yarn"),
                "rope_theta": base,
                "factor": factor,
                "original_max_position_embeddings": original,
            },
            optional={
                "attention_factor": maybe,
                "beta_fast": st.sampled_from([4, 32]),
                "beta_slow": st.sampled_from([0.5, 1]),
                "truncate": st.booleans(),
                "mscale": st.sampled_from([0.7, 1.0]),
                "mscale_all_dim": st.sampled_from([0.5, 1.0]),
            },
        ),
        st.fixed_dictionaries(
            {
                "rope_type": st.just("llama3"),
                "rope_theta": base,
                "factor": factor,
                "low_freq_factor": st.just(1.0),
                "high_freq_factor": st.sampled_from([2.0, 4.0]),
                "original_max_position_embeddings": original,
            }
        ),
    ]
    if kind in ("Phi3", "Llama"):
        kinds.append(
            st.fixed_dictionaries(
                {
                    "rope_type": st.just("longrope"),
                    "rope_theta": base,
                    "short_factor": st.lists(divisors, min_size=pairs, max_size=pairs),
                    "long_factor": st.lists(divisors, min_size=pairs, max_size=pairs),
                    "original_max_position_embeddings": st.sampled_from([16, 24]),
                },
                optional={"attention_factor": maybe, "factor": factor},
            )
        )
    if kind == "Gemma3":
        local = st.builds(lambda theta: {"rope_type": "default", "rope_theta": theta}, base)
        full = st.one_of(kinds[:2])
        layered = st.fixed_dictionaries({"full_attention": full, "sliding_attention": local})
        return st.one_of(st.none(), layered)
    if kind != "Phi3":
        kinds.append(
            st.builds(
                lambda theta, part: {
                    "rope_type": "default",
                    "rope_theta": theta,
                    "partial_rotary_factor": part,
                },
                base,
                st.sampled_from([0.5, 1.0]),
            )
        )
    return st.one_of(st.none(), *kinds)


def _optional(**options: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=options)


def _layer_types(layers: int) -> st.SearchStrategy[list[str]]:
    kinds = st.sampled_from(["sliding_attention", "full_attention"])
    return st.lists(kinds, min_size=layers, max_size=layers)


def _gemma(layers: int, **more: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        dict.__or__,
        st.fixed_dictionaries({"sliding_window": st.sampled_from([4, 11, 64])}),
        _optional(
            query_pre_attn_scalar=st.sampled_from([16, 24, 32]),
            layer_types=_layer_types(layers),
            attention_bias=st.booleans(),
            **more,
        ),
    )


_CAPS = st.one_of(st.none(), st.sampled_from([2.0, 30.0]))
_OWN = {
    "Llama": lambda _layers: _optional(attention_bias=st.booleans(), mlp_bias=st.booleans()),
    "Mistral": lambda _layers: st.fixed_dictionaries(
        {"sliding_window": st.sampled_from([None, 5, 64])}
    ),
    "Phi3": lambda _layers: _optional(sliding_window=st.sampled_from([None, 5, 64])),
    "Qwen2": lambda layers: _optional(
        use_sliding_window=st.booleans(),
        sliding_window=st.sampled_from([5, 64]),
        max_window_layers=st.integers(0, layers),
    ),
    "Qwen3": lambda layers: _optional(
        attention_bias=st.booleans(),
        use_sliding_window=st.booleans(),
        sliding_window=st.sampled_from([5, 64]),
        max_window_layers=st.integers(0, layers),
    ),
    "Gemma2": lambda layers: _gemma(
        layers, attn_logit_softcapping=_CAPS, final_logit_softcapping=_CAPS
    ),
    "Gemma3": lambda layers: _gemma(
        layers,
        final_logit_softcapping=_CAPS,
        use_bidirectional_attention=st.sampled_from([False, False, False, True]),
    ),
}


def make(case: Case, folder: Path) -> np.ndarray | None:
    """The model in *folder* and its logits; ``None`` if transformers does not run it."""
    torch.manual_seed(case.seed)
    text = "Text" if case.kind == "Gemma3" else ""
    try:
        config = getattr(transformers, f"{case.kind}{text}Config")(**case.options)
        config._attn_implementation = "eager"
        model = getattr(transformers, f"{case.kind}ForCausalLM")(config).float().eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                # Initial norms of one and biases of zero would hide a mix-up.
                spread = 0.2 if "norm" in name or name.endswith("bias") else 0.1
                parameter.add_(torch.randn_like(parameter) * spread)
            found = model(torch.tensor([prompt(case)]), use_cache=False).logits[0].numpy()
    except (ValueError, KeyError, TypeError, RuntimeError, IndexError, ZeroDivisionError):
        return None
    except Exception as error:
        if type(error).__module__.startswith(("huggingface_hub", "transformers")):
            return None
        raise
    model.save_pretrained(folder, safe_serialization=True)
    return found if np.isfinite(found).all() else None


def prompt(case: Case) -> list[int]:
    """Token ids."""
    return np.random.default_rng(case.seed).integers(3, 60, case.length).tolist()


def ours(path: Path, ids: list[int]) -> np.ndarray:
    """Our logits, of the prompt as it is."""
    model = load_model(open_checkpoint(path), ops=ReferenceOps())
    return model.forward(ids, KVCache(model.config, len(ids), dtype=np.float32), all_positions=True)


def check(case: Case, folder: Path, *, engine: bool) -> str:
    """What became of *case*: ``exact``, ``refused`` or ``not a model``, and more about its file.

    Args:
        case: the model.
        folder: an empty one.
        engine: ask llama.cpp, too.

    Raises:
        AssertionError: something came out wrong without a word.
    """
    model, file, ids = folder / "model", folder / "model.gguf", prompt(case)
    expected = make(case, model)
    if expected is None:
        return "not a model"
    try:
        found = ours(model, ids)
    except (Unsupported, InvalidFormat):
        return "refused"
    apart = distance(expected, found)
    assert apart < SAME_FLOATS, f"{apart:.2g} from transformers"
    try:
        done = convert(tokenizer_folder(model, TOKENS), file, Request("F32"))
    except Unsupported:
        return "exact, not converted"
    apart = distance(found, ours(file, ids))
    assert apart < READ_BACK, f"{apart:.2g} from the folder when the file is read back"
    named = {one.subject for one in done.warnings}
    if not engine or "llama.cpp" in named:
        return "exact, llama.cpp named" if named else "exact"
    theirs = llama_cpp(file, [ids], folder)
    assert theirs is not None, "llama.cpp does not load the file, and was not named"
    apart = distance(expected, theirs[0])
    assert apart < SAME_HALVES, f"{apart:.2g} from llama.cpp, which was not named"
    return "exact, in llama.cpp as well"


def report(outcomes: Counter[tuple[str, str]]) -> str:
    """Examples by family and what became of them."""
    lines = []
    for kind in KINDS:
        of_kind = {what: count for (name, what), count in outcomes.items() if name == kind}
        parts = ", ".join(f"{count} {what}" for what, count in sorted(of_kind.items()))
        lines.append(f"{kind}: {sum(of_kind.values())} examples: {parts}")
    return "\n".join(lines)
