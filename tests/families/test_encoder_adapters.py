"""Adapters of encoders: vectors as of the model that PEFT merges them into, or a refusal."""

import shutil

import numpy as np
import pytest
from quiet_libraries import QUIET

REASON = "sentence-transformers is not installed: pip install 'bitnet-xtask[parity]'"
torch = pytest.importorskip("torch", reason=REASON)
transformers = pytest.importorskip("transformers", reason=REASON)
peft = pytest.importorskip("peft", reason=REASON)
pytest.importorskip("sentence_transformers", reason=REASON)

from sentence_folders import (  # noqa: E402 - needs torch
    TEXTS,
    encoder_folder,
    expected_vectors,
    mpnet_folder,
    sentence_folder,
)

from bitnet import load  # noqa: E402
from bitnet.base.errors import Unsupported  # noqa: E402

pytestmark = [pytest.mark.slow, *QUIET]
MAX_DIFFERENCE = 2e-4  # both compute in float32; the compiled module keeps keys as 16 bits
# Ids within the tiny vocabulary, for classes whose defaults are beyond it.
_IDS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
# Classes of transformers, with options of their configurations.
KINDS = {
    "Bert": {},
    "Roberta": {"pad_token_id": 0, "max_position_embeddings": 66},
    "DistilBert": {"dim": 48, "n_layers": 2, "n_heads": 4, "hidden_dim": 96},
    "ModernBert": _IDS | {"cls_token_id": 2, "sep_token_id": 3},
    "EuroBert": _IDS,
    "MPNet": {},
}


def adapt(folder, end, path):
    """Save an adapter for modules of the name *end* of the model in *folder*, and the merged model.

    They are in the folders ``adapter`` and ``merged`` in *path*.
    """
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32)
    config = peft.LoraConfig(
        r=4, lora_alpha=6, target_modules=[end], task_type="FEATURE_EXTRACTION"
    )
    adapted = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.1)
    adapted.save_pretrained(path / "adapter")
    adapted.merge_and_unload().save_pretrained(path / "merged")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(folder / name, path / "merged" / name)


def linear_modules(folder):
    """Ends of the names of linear modules in blocks of the model in *folder*."""
    model = transformers.AutoModel.from_pretrained(folder)
    names = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    return sorted({".".join(name.split(".")[-2:]) for name in names if "pooler" not in name})


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_the_merged_model(kind, tmp_path):
    if kind == "MPNet":  # whose padding is the second token, not the first
        source = mpnet_folder(tmp_path / "source")
    else:
        source = encoder_folder(tmp_path / "source", kind, **KINDS[kind])
    plain = sentence_folder(tmp_path / "plain", source)
    modules = linear_modules(source)
    assert len(modules) >= 4
    for number, end in enumerate(modules):
        folder = tmp_path / str(number)
        adapt(source, end, folder)
        expected = expected_vectors(sentence_folder(folder / "sentences", folder / "merged"))
        with load(plain, lora=[folder / "adapter"]) as model:
            vectors = model.embed(TEXTS)
        np.testing.assert_allclose(vectors, expected, atol=MAX_DIFFERENCE, err_msg=end)
        # The adapter changes the vectors by much more than the two programs differ.
        assert np.abs(expected_vectors(plain) - expected).max() > 10 * MAX_DIFFERENCE, end


def test_a_module_that_is_part_of_a_fused_matrix_is_refused_by_name(tmp_path):
    source = encoder_folder(tmp_path / "source", "NomicBert")
    plain = sentence_folder(tmp_path / "plain", source)
    adapt(source, "q_proj", tmp_path)
    with pytest.raises(Unsupported, match="q_proj"):
        load(plain, lora=[tmp_path / "adapter"])
