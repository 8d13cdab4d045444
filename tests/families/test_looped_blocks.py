"""Models whose blocks run several times, each time with caches of their own (Nanbeige 4.2)."""

import numpy as np
import pytest
from tiny_keys import LAYERS
from tiny_models import tiny

from bitnet.base.errors import InvalidFormat
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.hidden_program import layout
from bitnet.models.load import config_from, load_model

IDS = [5, 9, 3, 44, 12]


def logits(**keys):
    """Logits of a tiny model with these *keys*, on the reference backend."""
    model = load_model(tiny("nanbeige", **keys), ops=ReferenceOps())
    return model.forward(IDS, KVCache(model.config, 64), all_positions=True)


def test_each_loop_has_caches_of_its_own_and_the_tensors_of_the_first():
    config = config_from(tiny("nanbeige", num_loops=3))
    assert len(config.caches) == 3 * LAYERS
    numbers = {name.split(".")[1] for name in layout(config).required if name.startswith("blk.")}
    assert numbers == {str(number) for number in range(LAYERS)}


def test_loops_and_the_norm_between_them_change_the_logits():
    once = logits(num_loops=1)
    twice = logits(num_loops=2)
    without_norm = logits(num_loops=2, skip_loop_final_norm=True)
    # By more than a hundredth of their range: far more than rounding does.
    assert np.abs(once - twice).max() > 0.01 * np.ptp(once)
    assert np.abs(without_norm - twice).max() > 0.01 * np.ptp(twice)


def test_a_head_dim_that_contradicts_the_usual_keys_is_refused():
    # llama.cpp's converter writes the width of a head, here 64, once more by this key.
    config_from(tiny("nanbeige", **{"attention.head_dim": 64}))
    with pytest.raises(InvalidFormat, match="heads of 64 and, elsewhere, of 32"):
        config_from(tiny("nanbeige", **{"attention.head_dim": 32}))
