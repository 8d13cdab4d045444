"""Families whose code is in their repositories, against models with the same equations."""

import numpy as np
import pytest
from conversions import convert
from hf_models import MAX_RELATIVE_DIFFERENCE, TOKENS, relative_difference, torch
from remote_models import REMOTE, write

from bitnet.convert.convert_options import ConvertOptions
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model

pytestmark = pytest.mark.slow


def ours(path):
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
