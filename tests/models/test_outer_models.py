"""Models around a text model: the logits of a text are those of transformers, or it is refused."""

import json

import numpy as np
import pytest
from differences import relative_difference
from hf_models import MAX_RELATIVE_DIFFERENCE, TOKENS, torch
from outer_models import GEMMA_3N, OUTER_MODELS
from quiet_libraries import QUIET

from bitnet.base.errors import Unsupported
from bitnet.families.outer_models import SAME_TEXT, text_keys
from bitnet.formats.containers import open_checkpoint
from bitnet.models.load import load_model
from bitnet.runtime.scheduler import Scheduler

pytestmark = [pytest.mark.slow, *QUIET]
# timm makes the vision tower of Gemma 3n, and needs another version of torch than the CI job has.
NOT_MADE = {"gemma3n"}


def _make(kind, tied):
    """A random model of the type *kind*, or a skip where the installed version lacks it."""
    import transformers

    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {kind}")
    torch.manual_seed(0)
    text_config, other_keys = OUTER_MODELS[kind]
    config = transformers.CONFIG_MAPPING[kind](text_config=text_config, **other_keys)
    config._attn_implementation = "eager"
    config.tie_word_embeddings = tied
    for auto in ("AutoModelForImageTextToText", "AutoModelForSeq2SeqLM", "AutoModelForCausalLM"):
        auto_class = getattr(transformers, auto)
        if type(config) in auto_class._model_mapping:
            model = auto_class.from_config(config)
            break
    else:
        model = transformers.AutoModelForMultimodalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.float().eval()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", OUTER_MODELS)
def test_the_logits_of_a_text_are_those_of_the_whole_model(kind, tied, tmp_path):
    model = _make(kind, tied)
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([TOKENS]), use_cache=False).logits[0].numpy()
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    ours = Scheduler(load_model(checkpoint), cache_dtype=np.float32).logits(TOKENS)
    assert relative_difference(ours, expected) < MAX_RELATIVE_DIFFERENCE


def test_the_logits_of_gemma_3n_are_those_of_its_text_with_tensors_of_images_beside(tmp_path):
    from safetensors.torch import load_file, save_file
    from transformers import Gemma3nForCausalLM, Gemma3nTextConfig

    torch.manual_seed(0)
    text = Gemma3nTextConfig(**GEMMA_3N)
    model = Gemma3nForCausalLM(text).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        expected = model(input_ids=torch.tensor([TOKENS]), use_cache=False).logits[0].numpy()
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in load_file(path).items()
    }
    tensors["model.vision_tower.timm_model.conv_stem.conv.weight"] = torch.zeros(4, 3, 3, 3)
    save_file(tensors, path)
    outer = {"model_type": "gemma3n", "text_config": text.to_dict(), "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    ours = Scheduler(load_model(open_checkpoint(tmp_path)), cache_dtype=np.float32).logits(TOKENS)
    assert relative_difference(ours, expected) < MAX_RELATIVE_DIFFERENCE


def test_every_type_of_the_table_is_compared():
    assert SAME_TEXT.keys() == OUTER_MODELS.keys() | NOT_MADE


def test_a_type_of_transformers_that_the_table_lacks_is_refused():
    from transformers import CONFIG_MAPPING

    refused = 0
    for kind in CONFIG_MAPPING:
        if kind in SAME_TEXT:
            continue
        with pytest.raises(Unsupported, match="model_type"):
            text_keys({"model_type": kind, "text_config": {"model_type": "llama"}})
        refused += 1
    assert refused > 100


def test_tensors_of_images_are_left_out_and_logged(tmp_path, caplog):
    _make("llava", tied=False).save_pretrained(tmp_path)
    with caplog.at_level("INFO", logger="bitnet.formats.hf_checkpoint"):
        open_checkpoint(tmp_path)
    assert "left out, as text does not need them" in caplog.text
    # The folder is that of the outer model.
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "llava"
