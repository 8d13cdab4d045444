"""HRM-Text: two stacks of blocks that alternate, a state for each, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from stored_weights import stored_weight
from tiny_models import tiny

from bitnet.base.errors import InferenceError, InvalidFormat, Unsupported
from bitnet.crossval.references import LlamaCpp
from bitnet.families.config_json import describe
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.hidden_program import layout
from bitnet.models.load import config_from, load_model
from bitnet.runtime.drafts import check_draft_model
from bitnet.runtime.request import Request
from bitnet.runtime.scheduler import Scheduler
from bitnet.verify.weights import weight_anomalies

IDS = [5, 9, 3, 44, 12]
# Keys of transformers 5.24, with small sizes and prompts that are read in one direction.
CONFIG = {
    "model_type": "hrm_text",
    "architectures": ["HrmTextForCausalLM"],
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 16,
    "num_layers_per_stack": 2,
    "max_position_embeddings": 64,
    "prefix_lm": False,
}


def key_of(config, name):
    """The value of the GGUF key *name* that a folder with *config* gets."""
    return describe(config, model="m").metadata[f"hrm_text.{name}"]


def logits(checkpoint):
    """Logits of all positions on the reference backend."""
    model = load_model(checkpoint, ops=ReferenceOps())
    return model.forward(IDS, KVCache(model.config, 16), all_positions=True)


def test_each_run_of_a_block_has_a_cache_and_the_tensors_are_those_of_two_stacks():
    keys = {"hrm.layers_per_stack": 2, "hrm.l_cycles": 3, "hrm.h_cycles": 2, "block_count": 16}
    config = config_from(tiny("hrm_text", **keys))
    assert len(config.caches) == 16
    # Blocks 0 and 1, the low stack, run three times before 2 and 3, the high one; all of it twice.
    assert config.block_numbers == (0, 1, 0, 1, 0, 1, 2, 3) * 2
    numbers = {name.split(".")[1] for name in layout(config).required if name.startswith("blk.")}
    assert numbers == {"0", "1", "2", "3"}
    # Its norms have no weights.
    assert not any("norm" in name for name in layout(config).required)


@pytest.mark.parametrize("name", ["hrm.z_l_init", "blk.0.attn_q.weight", "blk.1.attn_q.weight"])
def test_the_initial_low_state_and_both_stacks_change_the_logits(name):
    checkpoint = tiny("hrm_text")
    other = tiny("hrm_text", seed=1)
    changed = checkpoint.weights | {name: other.weights[name]}
    actual = logits(type(checkpoint)(**vars(checkpoint) | {"weights": changed}))
    expected = logits(checkpoint)
    # By more than a hundredth of their range: far more than rounding does.
    assert np.abs(actual - expected).max() > 0.01 * np.ptp(expected)


def test_a_number_of_layers_that_contradicts_the_cycles_is_refused():
    with pytest.raises(InvalidFormat, match=r"5 layers, expected those of 2 cycles of 1 \+ 1"):
        config_from(tiny("hrm_text", block_count=5))
    with pytest.raises(InvalidFormat, match="num_hidden_layers is 15"):
        describe(CONFIG | {"num_hidden_layers": 15}, model="m")


def test_the_layers_of_an_older_folder_are_those_of_one_stack():
    older = {key: value for key, value in CONFIG.items() if key != "num_layers_per_stack"}
    for config in (CONFIG, older | {"num_hidden_layers": 2}):
        assert key_of(config, "block_count") == 16
        assert key_of(config, "hrm.layers_per_stack") == 2


def test_the_scale_of_embeddings_is_one_over_initializer_range_unless_it_is_stated():
    assert key_of(CONFIG, "embedding_scale") == 50.0  # the default range is 0.02
    assert key_of(CONFIG | {"initializer_range": 0.25}, "embedding_scale") == 4.0
    assert key_of(CONFIG | {"embedding_scale": 3}, "embedding_scale") == 3.0


def both_ways(**keys):
    """A tiny model whose prompts are read in both directions, on the reference backend."""
    return load_model(tiny("hrm_text", **{"hrm.prefix_lm": True} | keys), ops=ReferenceOps())


def test_prompts_are_read_in_both_directions_unless_a_folder_says_otherwise():
    assert key_of(CONFIG, "hrm.prefix_lm") is False
    left_out = {key: CONFIG[key] for key in CONFIG if key != "prefix_lm"}
    assert key_of(left_out, "hrm.prefix_lm") is True  # transformers 5.24


def test_longrope_is_refused_where_prompts_are_read_in_both_directions():
    keys = {"rope.scaling.original_context_length": 16, "context_length": 64}
    checkpoint = tiny("hrm_text", **{"hrm.prefix_lm": True}, **keys)
    pairs = config_from(checkpoint).attentions[0].rope.dims // 2
    for length in ("long", "short"):
        name = f"rope_factors_{length}.weight"
        checkpoint.weights[name] = stored_weight(name, np.ones(pairs, np.float32), "F32")
    with pytest.raises(Unsupported, match=r"longrope.*run again as a prompt"):
        config_from(checkpoint)
    checkpoint.metadata["hrm_text.hrm.prefix_lm"] = False
    assert config_from(checkpoint).attentions[0].rope.scaling == "longrope"


def test_a_text_read_in_both_directions_continues_token_by_token_only():
    model = both_ways()
    cache = KVCache(model.config, 16)
    whole = model.forward(IDS, cache, all_positions=True)
    # The first position differs from causal attention: it sees the later ones.
    assert np.abs(whole[0] - logits(tiny("hrm_text"))[0]).max() > 0.01 * np.ptp(whole)
    with pytest.raises(InferenceError, match="a text cannot be run in parts"):
        model.forward([7, 8], cache)
    assert model.forward([7], cache).shape == (1, model.config.vocab_size)


def test_answers_are_the_same_alone_in_a_batch_and_after_a_restart():
    model = both_ways()
    prompts = [IDS * 3, IDS * 3 + [8], IDS * 2]
    request = Request(max_tokens=6, temperature=0.0, lookup=4)
    alone = []
    for ids in prompts:
        cache = KVCache(model.config, 64)
        row = model.forward(ids, cache)[0]
        answer = []
        while len(answer) < 6:
            answer.append(int(row.argmax()))
            row = model.forward(answer[-1:], cache)[0]
        alone.append(answer)
    scheduler = Scheduler(model, max_batch=3, prefill_chunk=4)
    running = [scheduler.submit(ids, request) for ids in prompts]
    is_restarted = False
    while scheduler.busy:
        scheduler.step()
        if running[0].tokens >= 3 and not is_restarted:
            running[0].start_over()
            is_restarted = True
    assert [sequence.ids[sequence.prompt_tokens :] for sequence in running] == alone
    assert is_restarted
    # Neither cached prompts nor drafts, which would read a prompt in parts.
    assert not any(sequence.reused_tokens or sequence.drafted for sequence in running)


def test_drafts_and_llama_cpp_are_refused_for_prompts_read_in_both_directions():
    usual = load_model(tiny("hrm_text"), ops=ReferenceOps()).config
    tokens = ["a", "b"]
    for model, draft in ((both_ways().config, usual), (usual, both_ways().config)):
        with pytest.raises(Unsupported, match="two models that read a prompt in one direction"):
            check_draft_model(model, tokens, draft, tokens)
    assert LlamaCpp().computes(tiny("hrm_text"))
    assert not LlamaCpp().computes(tiny("hrm_text", **{"hrm.prefix_lm": True}))


def test_zeros_are_an_anomaly_of_a_matrix_but_not_of_the_initial_state():
    zeros = replace(tiny("hrm_text").weights["hrm.z_l_init"], data=np.zeros(1024, dtype=np.uint8))
    assert weight_anomalies(zeros) == []
    assert weight_anomalies(replace(zeros, name="blk.0.attn_q.weight"))
