"""transformers as the reference for folders with safetensors."""

import json

import pytest
from compared_folders import WORDS
from hf_folders import save_tensors, tiny_folder, tokenizer_folder
from hf_models import TINY, make, torch, transformers
from tiny_models import TOKENS

from bitnet.crossval.references import Transformers
from bitnet.crossval.trace import EngineFailed, Prompt, Question
from bitnet.formats.containers import open_checkpoint

pytest.importorskip("torch", reason="torch is not installed: pip install 'bitnet-xtask[parity]'")
pytest.importorskip("torch", reason="torch is not installed: pip install 'bitnet-xtask[parity]'")
pytest.importorskip("transformers", reason="pip install 'bitnet-xtask[parity]'")

pytestmark = pytest.mark.slow

SHORT = ("--greedy", 3, "--max-positions", 20)


@pytest.fixture
def folder(tmp_path):
    return tokenizer_folder(
        tiny_folder(tmp_path / "model", "llama", tie_word_embeddings=True), TOKENS
    )


def test_a_folder_agrees_and_its_recording_notices_damage(bitnet, folder, tmp_path):
    golden = tmp_path / "golden.json"
    more = ("--record", golden, "--json")
    done = bitnet("crossval", "--model", folder, *SHORT, *more)
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["reference"]["name"] == "transformers"
    assert report["reference"]["version"].startswith("transformers ")
    assert report["summary"]["positions"] == 20
    assert report["summary"]["exact_to_reference"] < 1e-5
    assert report["tokenizer_parity"]["total"] > 800
    assert {it["subject"] for it in report["verdict"]["findings"]} >= {"tokenizer", "reference"}
    assert [*report["operations"]] == ["bitnet", "transformers"]

    damaged = bytearray((folder / "model.safetensors").read_bytes())
    directory = int.from_bytes(damaged[:8], "little")
    names = json.loads(damaged[8 : 8 + directory])
    start, end = names["model.layers.0.mlp.down_proj.weight"]["data_offsets"]
    for at in range(8 + directory + start + 3, 8 + directory + end, 4):
        damaged[at] ^= 0x80  # the sign, in the last byte of a float32
    (folder / "model.safetensors").write_bytes(damaged)
    done = bitnet("crossval", "--model", folder, "--recording", golden, "--json")
    assert done.code == 15  # the verdict is failed
    findings = json.loads(done.out)["verdict"]["findings"]
    failed = {entry["subject"] for entry in findings if entry["severity"] == "failed"}
    assert {"model", "logits"} <= failed


def test_biases_by_distance_that_transformers_rounds_are_compared_in_float32(bitnet, tmp_path):
    # The slopes of 12 heads, and their products with positions from 257 on, are not bfloat16.
    options = {"num_attention_heads": 12, "hidden_size": 96, "alibi": True, "bias": True}
    options |= {"multi_query": False, "parallel_attn": False, "vocab_size": len(TOKENS)}
    make("Falcon", options, tmp_path / "model")
    folder = tokenizer_folder(tmp_path / "model", TOKENS)
    done = bitnet("crossval", "--model", folder, "--greedy", 3, "--json")
    assert done.code == 0, done.err
    version = json.loads(done.out)["reference"]["version"]
    assert version.endswith("with ALiBi in float32 instead of bfloat16")


@pytest.mark.parametrize("name", ["MistralModel", "Qwen3ForSequenceClassification"])
def test_a_class_without_an_output_head_is_compared_by_its_embeddings(bitnet, name, tmp_path):
    kind = name.partition("Model")[0].partition("For")[0]
    torch.manual_seed(1)
    config = getattr(transformers, f"{kind}Config")(**TINY, tie_word_embeddings=False)
    getattr(transformers, name)(config).float().save_pretrained(tmp_path / "model")
    folder = tokenizer_folder(tmp_path / "model", WORDS)
    done = bitnet("crossval", "--model", folder, *SHORT, "--reference", "transformers", "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["summary"]["exact_to_reference"] < 1e-5
    assert [*report["operations"]] == ["bitnet", "transformers"]


def test_tokenizers_alone_need_no_weights(bitnet, folder):
    save_tensors(folder / "model.safetensors", {})
    done = bitnet("crossval", "--model", folder, "--tokenizer-only", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["rows"] == []


def test_another_tokenizer_is_noticed(bitnet, folder):
    swapped = [*TOKENS[:3], TOKENS[4], TOKENS[3], *TOKENS[5:]]
    other = tokenizer_folder(folder.parent, swapped) / "tokenizer.json"
    done = bitnet("crossval", "--model", folder, *SHORT, "--tokenizer", other)
    assert done.code == 15
    assert "first difference" in done.err


def untie(folder):
    """Change the configuration to a head that is not the embedding; *folder* has no such tensor."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": False}))


def test_weights_that_transformers_would_invent_give_no_reference(folder):
    question = Question(open_checkpoint(folder), prompts=(Prompt("ab", (3, 4)),))
    (answer,) = Transformers().trace(question).prompts
    assert len(answer.positions) == 2
    untie(folder)
    with pytest.raises(EngineFailed, match=r"the folder has no lm_head\.weight \(1 are missing\)"):
        Transformers().trace(question)


def test_weights_that_are_missing_are_not_a_model_either(bitnet, folder):
    untie(folder)
    done = bitnet("crossval", "--model", folder, *SHORT)
    assert done.code == 13  # InvalidFormat
    assert "lm_head.weight is missing" in done.err
