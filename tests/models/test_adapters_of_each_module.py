"""Adapters for each kind of linear module of each family: PEFT's logits in float64, or refused.

The modules are those of transformers' models; nothing here lists them.
"""

import numpy as np
import pytest
from dense_models import DENSE
from differences import relative_difference
from hf_models import TOKENS, make, torch
from mixed_models import MIXED
from quiet_libraries import QUIET

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.adapted import with_adapters
from bitnet.models.load import load_model

peft = pytest.importorskip(
    "peft", reason="peft is not installed: pip install 'bitnet-xtask[parity]'"
)
pytorch_utils = pytest.importorskip("transformers.pytorch_utils")

pytestmark = [pytest.mark.slow, *QUIET]

CASES = {**DENSE, **MIXED}
LINEAR = (torch.nn.Linear, pytorch_utils.Conv1D)
# Transformers computes some steps in float32 whatever the type of the weights is.
SAME = 1e-4
# Parts of the messages that refuse a module. The tests name their folder ``model``.
REFUSALS = (
    "which is not a matrix in a product of model's blocks",
    "which transformers multiplies without what an adapter adds",
    "which is stored otherwise in",
    # PEFT takes a module whose name ends like that of a matrix of experts for the experts.
    "target_parameters: it is",
    "is for a matrix of shape",  # a gate of one number per head, which is repeated here
)


def linear_modules(model):
    """Ends of the names of linear modules within *model*, each as PEFT takes it.

    Not those whose result has more than the product (Phi-MoE's router): PEFT fails on them.
    """
    with_more_results = set()

    def observe(module, _inputs, result):
        if not isinstance(result, torch.Tensor):
            with_more_results.add(module)

    linear = {name: module for name, module in model.named_modules() if isinstance(module, LINEAR)}
    handles = [module.register_forward_hook(observe) for module in linear.values()]
    logits_of(model)
    for handle in handles:
        handle.remove()
    ends = set()
    for name, module in linear.items():
        parts = name.split(".")
        if module not in with_more_results and len(parts) > 1:
            ends.add(parts[-1] if parts[-2].isdigit() else ".".join(parts[-2:]))
    return sorted(ends)


def adapt(model, ends, folder, *, trained=""):
    """*model* with an adapter for modules of the names *ends*, saved to *folder*, in float64.

    Factors of modules whose name has *trained* in it are random, the others are as PEFT begins.
    ``None`` if PEFT has no adapter for them.
    """
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=ends, task_type="CAUSAL_LM")
    try:
        adapted = peft.get_peft_model(model, config).eval()
    except ValueError:
        return None
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name and trained in name:
                parameter.copy_(torch.randn_like(parameter) * 0.1)
    adapted.save_pretrained(folder)
    return adapted.double()


def logits_of(model):
    """Logits of *model*, of transformers, for all of TOKENS."""
    with torch.no_grad():
        return model(torch.tensor([TOKENS]), use_cache=False).logits[0].numpy()


def ours(folder, adapter):
    """Logits of the model in *folder* with *adapter*, or the message of its refusal."""
    try:
        checkpoint = with_adapters(open_checkpoint(folder), [(adapter, 1.0)])
    except (Unsupported, InvalidFormat) as error:
        return error.message
    model = load_model(checkpoint, ops=ReferenceOps(dtype=np.float64))
    cache = KVCache(model.config, 64, dtype=np.float64)
    return model.forward(TOKENS, cache, all_positions=True)


def random_model(case, folder):
    """A random model of *case*, saved to *folder*."""
    kind, options = CASES[case]
    model = make(kind, options, folder)
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # the usual one does not compute in float64
    return model


@pytest.mark.parametrize("case", CASES)
def test_an_adapter_is_exact_or_refused(case, tmp_path):
    folder = tmp_path / "model"
    exact = []
    for number, end in enumerate(linear_modules(random_model(case, folder))):
        path = tmp_path / f"adapter-{number}"
        adapted = adapt(random_model(case, folder), [end], path)
        if adapted is None:
            continue
        result = ours(folder, path)
        if isinstance(result, str):
            assert any(reason in result for reason in REFUSALS), (end, result)
            continue
        expected = logits_of(adapted)
        assert relative_difference(result, expected) < SAME, end
        with adapted.disable_adapter():  # it has an effect
            assert relative_difference(logits_of(adapted), expected) > 10 * SAME, end
        exact.append(end)
    assert exact, "no module of this family takes an adapter"


def test_an_adapter_may_have_modules_whose_factors_are_untrained(tmp_path):
    folder = tmp_path / "model"
    model = random_model("mamba", folder)
    ends = ["in_proj", "dt_proj", "x_proj"]
    adapted = adapt(model, ends, tmp_path / "adapter", trained="in_proj")
    actual = ours(folder, tmp_path / "adapter")
    assert relative_difference(actual, logits_of(adapted)) < SAME
