"""Families whose code is in their repositories, against models with the same equations."""

import numpy as np
import pytest
from conversions import convert
from differences import relative_difference
from hf_models import MAX_RELATIVE_DIFFERENCE, TOKENS, make, set_config, torch
from remote_models import REMOTE, write

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.convert.convert_options import ConvertOptions
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model

pytestmark = pytest.mark.slow


def ours(path):
    """Logits of all of TOKENS by the model at *path*."""
    model = load_model(open_checkpoint(path), ops=ReferenceOps(dtype=np.float32))
    return model.forward(TOKENS, KVCache(model.config, 64), all_positions=True)


@pytest.mark.parametrize("case", REMOTE)
def test_a_folder_and_the_file_made_of_it_give_the_logits_of_these_equations(case, tmp_path):
    model = write(REMOTE[case], tmp_path / "folder")
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS]), use_cache=False).logits[0].numpy()
    assert relative_difference(ours(tmp_path / "folder"), expected) < MAX_RELATIVE_DIFFERENCE
    file = tmp_path / "model.gguf"
    convert(tmp_path / "folder", file, ConvertOptions("F32", no_tokenizer=True))
    assert relative_difference(ours(file), expected) < MAX_RELATIVE_DIFFERENCE


@pytest.mark.parametrize(("loops", "skips_norm"), [(1, False), (2, False), (3, False), (3, True)])
def test_nanbeige_gives_the_logits_of_a_llama_whose_blocks_run_several_times(
    loops, skips_norm, tmp_path
):
    """The final norm follows each run of the blocks, or only the last one.

    The code of Nanbeige/Nanbeige4.2-3B computes this, as does that of mlx-lm, which follows it.
    """
    folder = tmp_path / "folder"
    model = make("Llama", {"head_dim": 24}, folder)
    keys = {"num_loops": loops, "skip_loop_final_norm": skips_norm, "loop_loss_weights": []}
    keys |= {"kv_channels": 24, "rope_theta": 1e4, "rope_parameters": None}
    set_config(folder, model_type="nanbeige", architectures=["NanbeigeForCausalLM"], **keys)
    norm = model.model.norm
    with torch.no_grad():
        x = model.model.embed_tokens(torch.tensor([TOKENS]))
        for loop in range(loops):
            is_last = loop == loops - 1
            model.model.norm = torch.nn.Identity() if skips_norm and not is_last else norm
            x = model.model(inputs_embeds=x, use_cache=False).last_hidden_state
        expected = model.lm_head(x)[0].numpy()
    assert relative_difference(ours(folder), expected) < 1e-4
    file = tmp_path / "model.gguf"
    convert(folder, file, ConvertOptions("F32", no_tokenizer=True))
    assert relative_difference(ours(file), expected) < 1e-4


@pytest.mark.parametrize(
    "key",
    [
        *({"enable_double_loop_split": True}, {"loop_loss_weights": [0.5]}, {"enable_mhc": True}),
        *({"num_loops": None}, {"kv_channels": 32}, {"rope_scaling": {"rope_type": "linear"}}),
    ],
)
def test_a_nanbeige_key_that_is_not_computed_is_refused_by_its_name(key, tmp_path):
    make("Llama", {"head_dim": 24}, tmp_path)
    computed_keys = {"num_loops": 2, "skip_loop_final_norm": False, "rope_theta": 1e4}
    computed_keys |= {"model_type": "nanbeige", "rope_parameters": None}
    set_config(tmp_path, **computed_keys)
    load_model(open_checkpoint(tmp_path))  # is not refused without the key
    set_config(tmp_path, **key)
    with pytest.raises((InvalidFormat, Unsupported), match=next(iter(key))):
        open_checkpoint(tmp_path)
