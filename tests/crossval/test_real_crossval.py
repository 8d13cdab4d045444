"""Real weights against llama.cpp, good ones and damaged ones."""

import importlib.util
import json
import shutil
import struct
from dataclasses import replace

import pytest

from bitnet.families.family import of_gguf
from bitnet.formats import containers as checkpoints
from bitnet.formats.gguf import GGUF

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
GEMMA3 = "gemma-3-270m-q4_k_m.gguf"
# Enough positions for a mean KL: over the 27 of the first two texts alone, that from the float64
# pass to llama.cpp is 1.1e-2.
PROMPTS = (
    "The quick brown fox jumps over the lazy dog, and the dog does not mind it at all.\n"
    "London is the capital of\n"
    "Once upon a time, in a village at the foot of a mountain, there lived a watchmaker who\n"
    "Water boils at 100 degrees Celsius at sea level. At 3,000 metres it boils at about\n"
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Large vocabulary"),
]
needs_llama_cpp = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None, reason="the extra `crossval` is not installed"
)


@pytest.fixture
def check(bitnet, tmp_path, test_models, monkeypatch):
    """A function that runs crossval on a model.

    It returns the exit code (15 if the verdict is failed), the report, and the failed checks.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text(PROMPTS)

    def run(model, *words):
        path = test_models / model
        if not path.exists():
            pytest.skip(f"{model} is not in the folder BITNET_TEST_MODELS names")
        prompts = () if "--recording" in words else ("--prompts", "prompts.txt")
        done = bitnet("crossval", "--model", path, *prompts, "--json", *words)
        report = json.loads(done.out)
        failed = {
            finding["subject"]
            for finding in report["verdict"]["findings"]
            if finding["severity"] == "failed"
        }
        return done.code, report, failed

    return run


@pytest.fixture
def damaged(test_models, tmp_path):
    """A function that copies SmolLM2 and lets another function change the bytes of one tensor."""

    def make(tensor, change):
        path = tmp_path / "damaged.gguf"
        shutil.copyfile(test_models / SMOLLM2, path)
        with GGUF.open(path) as gguf:
            raw = bytearray(gguf.tensor_bytes(tensor))
            start = gguf.tensors[tensor].offset
        change(raw)
        with path.open("r+b") as file:
            file.seek(start)
            file.write(raw)
        return path

    return make


@needs_llama_cpp
@pytest.mark.parametrize("model", [SMOLLM2, GEMMA3])
def test_we_agree_with_llama_cpp_and_are_closer_to_exact_arithmetic(check, model):
    code, report, failed = check(model, "--greedy", 4)
    assert (code, failed) == (0, set())
    assert report["summary"]["positions"] > 20
    summary = report["summary"]
    assert summary["exact_to_ours"] < summary["exact_to_reference"]
    assert report["compute_path"] in ("real", "reference")


@needs_llama_cpp
def test_rope_in_the_other_style_is_our_fault(check, monkeypatch):
    in_halves = replace(of_gguf("llama"), gguf_rope_style="half")
    monkeypatch.setattr(checkpoints, "of_gguf", lambda _architecture: in_halves)
    code, report, failed = check(SMOLLM2, "--greedy", 0)
    assert code == 15
    assert {"reference", "logits", "operations"} <= failed
    assert "we read the model wrong" in report["verdict"]["reasons"][0]


@needs_llama_cpp
def test_another_pre_tokenizer_is_seen_with_its_first_difference(check):
    code, report, failed = check(SMOLLM2, "--pre", "llama-bpe", "--tokenizer-only")
    assert (code, failed) == (15, {"tokenizer"})
    parity = report["tokenizer_parity"]
    assert 0 < parity["equal"] < parity["total"]
    assert parity["ours"] != parity["theirs"]


@needs_llama_cpp
def test_a_damaged_copy_of_a_known_model_fails_before_anything_is_compared(check, damaged):
    """Both engines would read the same damaged file, and agree."""
    code, report, failed = check(SMOLLM2, "--tokenizer-only")
    assert (code, failed) == (0, set())
    assert report["model"]["original"] == "smollm2-135m"

    def flip(raw):
        raw[1] ^= 0x80  # the sign of the first block's scale

    code, report, failed = check(damaged("blk.0.attn_v.weight", flip), "--tokenizer-only")
    assert (code, failed) == (15, {"model"})
    assert "blk.0.attn_v.weight" in report["model"]["problem"]


def test_a_permuted_tensor_is_seen_against_recorded_logits(check, damaged, test_data):
    def permute(raw):
        half = len(raw) // 2
        raw[:half], raw[half:] = raw[half:], raw[:half]

    path = damaged("blk.3.ffn_down.weight", permute)
    golden = test_data / "goldens" / "smollm2.json"
    words = ("--recording", golden)
    assert check(SMOLLM2, *words)[0] == 0
    code, _, failed = check(path, *words)
    assert code == 15
    assert {"logits", "top-1"} <= failed


def test_one_flipped_scale_is_seen_by_the_digest_at_least(check, damaged, tmp_path):
    recording = tmp_path / "good.json"
    words = ("--reference", "float64", "--greedy", 0, "--max-positions", 12)
    assert check(SMOLLM2, *words, "--record", recording)[0] == 0

    def flip(raw):
        raw[1] ^= 0x80  # the sign of the first block's scale

    path = damaged("blk.0.attn_v.weight", flip)
    code, _, failed = check(path, "--recording", recording)
    assert code == 15
    assert "model" in failed


ROPE = "llama.rope.freq_base"
EPSILON = "llama.attention.layer_norm_rms_epsilon"
FACTORS = [(ROPE, 1.05), (ROPE, 1.3), (ROPE, 3), (EPSILON, 10), (EPSILON, 100)]


@pytest.fixture
def with_number_changed(test_models, tmp_path):
    """A function that copies SmolLM2 and multiplies the float32 of a metadata key by a factor."""

    def make(key, factor):
        content = bytearray((test_models / SMOLLM2).read_bytes())
        place = content.index(key.encode()) + len(key)
        kind, value = struct.unpack_from("<If", content, place)
        assert kind == 6  # FLOAT32 among GGUF's types of values
        struct.pack_into("<f", content, place + 4, value * factor)
        path = tmp_path / "changed.gguf"
        path.write_bytes(content)
        return path

    return make


@pytest.mark.parametrize(("key", "factor"), [(ROPE, 1), *FACTORS])
def test_a_recording_sees_one_changed_number_of_the_metadata(
    check, with_number_changed, tmp_path, key, factor
):
    recording = tmp_path / "good.json"
    words = ("--against", "float64", "--greedy", 0, "--max-positions", 16)
    assert check(SMOLLM2, *words, "--record", recording)[0] == 0
    golden = json.loads(recording.read_text())
    golden["model_sha256"] = ""  # the digest alone would tell
    recording.write_text(json.dumps(golden))

    changed = with_number_changed(key, factor)
    code, report, failed = check(changed, "--recording", recording)
    expected = (0, set()) if factor == 1 else (15, {"answers"})
    assert (code, failed & {"answers"}) == expected, report["verdict"]["reasons"]
