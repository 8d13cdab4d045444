"""Models that make vectors of texts: no continuations, and a text in one pass."""

import importlib.util
import json

import pytest
from tiny_models import TOKENS, in_encoding, tiny, write_model
from verdicts import check_verdicts

from bitnet.crossval.plan import COMPARED, LONG

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="transformers is not installed: pip install 'bitnet-xtask[parity]'",
)
LENGTH = LONG + 8
SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": LENGTH + 2,
}
KINDS = {
    "bert": ("Bert", {}),
    "bert of one text": ("Bert", {"type_vocab_size": 1}),
    "roberta": ("Roberta", {"pad_token_id": 0, "layer_norm_eps": 1e-5}),
    "xlm-r": ("XLMRoberta", {"pad_token_id": 0, "layer_norm_eps": 1e-5}),
    "distilbert": ("DistilBert", {"dim": 64, "n_heads": 4, "n_layers": 3, "hidden_dim": 128}),
}


def test_a_model_that_makes_vectors_is_compared_without_continuations(bitnet, tmp_path):
    checkpoint = in_encoding(tiny("bert", context_length=LENGTH), "Q8_0")
    path = write_model(tmp_path / "bert.gguf", checkpoint)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(f"abc\n{'abcdefghij' * 30}\n")
    words = ("--against", "float64", "--prompts", prompts, "--json")
    done = bitnet("crossval", "--model", path, *words)
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["plan"]["greedy"] == 0
    assert "greedy" not in {it["subject"] for it in report["verdict"]["findings"]}
    assert report["prompts"][1]["first"] == LENGTH - COMPARED
    assert report["summary"]["positions"] > COMPARED


def test_a_recording_of_such_a_model_sees_a_change(bitnet, tmp_path):
    for name, more in (("good", {}), ("other", {"attention.layer_norm_epsilon": 1e-3})):
        checkpoint = in_encoding(tiny("bert", context_length=LENGTH, **more), "Q8_0")
        write_model(tmp_path / f"{name}.gguf", checkpoint)
    golden = tmp_path / "golden.json"
    good = ("crossval", "--model", tmp_path / "good.gguf")
    recorded = bitnet(*good, "--against", "float64", "--record", golden)
    assert recorded.code == 0, recorded.err
    assert bitnet(*good, "--recording", golden).code == 0
    values = json.loads(golden.read_text())
    golden.write_text(json.dumps(values | {"model_sha256": ""}))  # the digest alone would tell
    done = bitnet("crossval", "--model", tmp_path / "other.gguf", "--recording", golden)
    assert done.code == 15
    assert "today's pass is not the recorded one" in done.err


@needs_transformers
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_against_transformers_the_right_encoder_passes_and_wrong_ones_fail(
    kind, tmp_path, monkeypatch
):
    from asked_here import share_this_process
    from hf_folders import tokenizer_folder
    from hf_models import torch, transformers

    from bitnet.crossval.references import Transformers

    share_this_process(monkeypatch)
    name, options = KINDS[kind]
    torch.manual_seed(4)
    config = getattr(transformers, f"{name}Config")(**(SIZES | options))
    model = getattr(transformers, f"{name}Model")(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(tmp_path / "model")
    words = (*TOKENS, *(f"<more {number}>" for number in range(SIZES["vocab_size"] - len(TOKENS))))
    check_verdicts(tokenizer_folder(tmp_path / "model", words), Transformers())
