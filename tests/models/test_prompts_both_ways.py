"""Prompts whose positions see each other, before answers that look back, against transformers."""

import numpy as np
import pytest
from dense_models import DENSE
from hf_models import TOKENS, make, relative_difference, torch
from quiet_libraries import QUIET

from bitnet.base import native
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.native import NativeOps
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model

pytestmark = [pytest.mark.slow, *QUIET]

PROMPT = 17  # tokens of the prompt; the others are its answer


@pytest.mark.parametrize("case", ["hrm-text", "hrm-text-other-turns"])
def test_logits_of_prompt_and_answer_agree_with_transformers(case, tmp_path):
    kind, options = DENSE[case]
    hf = make(kind, options | {"prefix_lm": True}, tmp_path)
    types = [[1] * PROMPT + [0] * (len(TOKENS) - PROMPT)]
    with torch.no_grad():
        answer = hf(torch.tensor([TOKENS]), token_type_ids=torch.tensor(types), use_cache=False)
    expected = answer.logits[0].numpy()
    checkpoint = open_checkpoint(tmp_path)
    for ops in (ReferenceOps(), *([NativeOps()] if native.module() else [])):
        model = load_model(checkpoint, ops=ops)
        cache = KVCache(model.config, 64, dtype=np.float32)
        parts = [TOKENS[:PROMPT], *([token] for token in TOKENS[PROMPT:])]
        found = [model.forward(part, cache, all_positions=True) for part in parts]
        assert relative_difference(np.concatenate(found), expected) < 1e-4
