"""Adapters that change more than products of blocks: the logits of the installed PEFT."""

import numpy as np
import pytest
from engine_logits import distance
from hf_folders import tiny_folder
from quiet_libraries import QUIET

from bitnet.base.errors import Unsupported, UsageError
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.adapted import with_adapters
from bitnet.models.load import load_model

torch = pytest.importorskip("torch", reason="pip install torch")
peft = pytest.importorskip("peft", reason="pip install peft")
transformers = pytest.importorskip("transformers", reason="pip install transformers")
safetensors = pytest.importorskip("safetensors.numpy", reason="pip install safetensors")

pytestmark = QUIET

IDS = [5, 9, 33, 2, 61, 17, 8, 40]
SAME = 2e-5  # of the range of the logits: PEFT computes in float32
BLOCKS = ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]
KINDS = {
    "dora": {"target_modules": BLOCKS, "use_dora": True},
    "dora-of-head": {"target_modules": ["q_proj", "lm_head"], "use_dora": True},
    "head": {"target_modules": ["q_proj", "lm_head"]},
    "embedding": {"target_modules": ["q_proj", "embed_tokens"]},
    "embedding-and-head": {"target_modules": ["embed_tokens", "lm_head"]},
    "saved-head": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "saved-embedding": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    "saved-both": {
        "target_modules": ["down_proj"],
        "modules_to_save": ["embed_tokens", "lm_head"],
        "use_rslora": True,
    },
}


def trained(folder, path, **kind):
    """Logits, by PEFT, of the model in *folder* with a random adapter, which is saved at *path*."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = peft.LoraConfig(r=4, lora_alpha=6, task_type="CAUSAL_LM", **kind)
    adapted = peft.get_peft_model(model, config)
    torch.manual_seed(46)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_magnitude" in name:
                parameter.mul_(1 + 0.2 * torch.rand_like(parameter))
            elif "lora_" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.1)
            elif "modules_to_save" in name:
                parameter.add_(torch.randn_like(parameter) * 0.05)
        logits = adapted.eval()(torch.tensor([IDS])).logits[0].numpy()
    adapted.save_pretrained(path)
    # The saved adapter must give the same logits in a new model: a head could be tied in one of the
    # two models alone.
    reloaded = peft.PeftModel.from_pretrained(
        transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), path
    )
    with torch.no_grad():
        loaded = reloaded.eval()(torch.tensor([IDS])).logits[0].numpy()
    assert distance(logits, loaded) < SAME
    return loaded


def logits_of(checkpoint):
    """Logits of *checkpoint* for all of IDS, in float64."""
    model = load_model(checkpoint, ops=ReferenceOps(dtype=np.float64))
    return model.forward(IDS, KVCache(model.config, 16, dtype=np.float64), all_positions=True)


@pytest.mark.parametrize("tied", [False, True], ids=["own-head", "tied"])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_peft(kind, tied, tmp_path):
    folder = tmp_path / "model"
    if tied:
        tiny_folder(folder, "qwen3", tie_word_embeddings=True)
    else:
        with_own_head(folder)
    expected = trained(folder, tmp_path / "adapter", **KINDS[kind])
    actual = logits_of(with_adapters(open_checkpoint(folder), [(tmp_path / "adapter", 1.0)]))
    assert distance(expected, actual) < SAME
    # The adapter has an effect.
    assert distance(logits_of(open_checkpoint(folder)), actual) > 1e-2


def with_own_head(folder):
    """Write a tiny model whose head is not its embedding into *folder*, and return it."""
    tiny_folder(folder, "qwen3", tie_word_embeddings=False)
    path = folder / "model.safetensors"
    tensors = safetensors.load_file(path)
    rng = np.random.default_rng(46)
    head = rng.standard_normal(tensors["model.embed_tokens.weight"].shape) * 0.1
    safetensors.save_file({**tensors, "lm_head.weight": head.astype("f4")}, path)
    return folder


def test_an_adapter_with_a_whole_matrix_takes_no_factor(tmp_path):
    folder = with_own_head(tmp_path / "model")
    trained(folder, tmp_path / "adapter", **KINDS["saved-head"])
    with pytest.raises(UsageError, match="whole matrices, which have no factor"):
        with_adapters(open_checkpoint(folder), [(tmp_path / "adapter", 0.5)])


def test_two_adapters_of_one_whole_matrix_are_refused(tmp_path):
    folder = with_own_head(tmp_path / "model")
    trained(folder, tmp_path / "adapter", **KINDS["saved-head"])
    twice = [(tmp_path / "adapter", 1.0)] * 2
    with pytest.raises(Unsupported, match="an adapter before it changes, too"):
        with_adapters(open_checkpoint(folder), twice)


def test_an_adapter_that_a_request_names_may_not_change_the_head(tmp_path):
    folder = with_own_head(tmp_path / "model")
    trained(folder, tmp_path / "adapter", **KINDS["saved-head"])
    plain = open_checkpoint(folder)
    base = load_model(plain)
    with pytest.raises(Unsupported, match="changes the output head"):
        load_model(with_adapters(plain, [(tmp_path / "adapter", 1.0)]), base=base)


def test_an_adapter_that_a_request_names_has_its_own_embedding(tmp_path):
    folder = with_own_head(tmp_path / "model")
    trained(folder, tmp_path / "adapter", **KINDS["embedding"])
    plain = open_checkpoint(folder)
    ours = with_adapters(plain, [(tmp_path / "adapter", 1.0)])
    alone = load_model(ours)
    beside = load_model(ours, base=load_model(plain))
    results = [model.forward(IDS, KVCache(model.config, 16)) for model in (alone, beside)]
    np.testing.assert_array_equal(*results)
