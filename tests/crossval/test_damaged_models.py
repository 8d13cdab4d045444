"""Models that were damaged on purpose: each is caught, and by the check it should be."""

import importlib.util
import json
from dataclasses import replace

import numpy as np
import pytest
from tiny_models import TOKENS, in_encoding, tiny, write_model

from bitnet.families.family import of_gguf
from bitnet.formats import containers as checkpoints

needs_llama_cpp = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None, reason="the extra `crossval` is not installed"
)
PROMPTS = "the quick brown fox\nabcdefg ZyX\n"


def random_model(encoding):
    """A tiny random model in *encoding*: the same one in every call."""
    architecture = "bitnet-b1.58" if encoding == "I2_S" else "llama"
    return in_encoding(tiny(architecture), encoding)


@pytest.fixture
def recording(bitnet, tmp_path, monkeypatch):
    """A function that compares a bad model with a recording of the good one by float64.

    It returns the checks that failed.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BITNET_BACKEND", "reference")
    (tmp_path / "prompts.txt").write_text(PROMPTS)

    def check(good, bad, *, forget_file=True):
        file = tmp_path / "good.json"
        words = ("--reference", "float64", "--prompts", "prompts.txt", "--greedy", 6)
        recorded = bitnet("crossval", "--model", good, *words, "--record", file)
        assert recorded.code == 0, recorded.err
        same = bitnet("crossval", "--model", good, "--recording", file)
        assert same.code == 0, same.err
        if forget_file:  # otherwise the digest alone would tell
            values = json.loads(file.read_text()) | {"model_sha256": ""}
            file.write_text(json.dumps(values))
        done = bitnet("crossval", "--model", bad, "--recording", file, "--json")
        report = json.loads(done.out)
        failed = {
            finding["subject"]
            for finding in report["verdict"]["findings"]
            if finding["severity"] == "failed"
        }
        assert done.code == (15 if failed else 0)  # VerificationFailed
        assert report["verdict"]["status"] == ("failed" if failed else "passed")
        return failed

    return check


# The byte with the sign: of the float32 in front of the last 28 bytes of I2_S, and of the float16
# with which a block of Q8_0 begins.
@pytest.mark.parametrize(("encoding", "at", "bits"), [("I2_S", -29, 0x80), ("Q8_0", 1, 0x80)])
def test_one_flipped_scale_is_seen_in_the_logits(recording, tmp_path, encoding, at, bits):
    good = random_model(encoding)
    bad = random_model(encoding)
    data = bad.weights["blk.0.attn_v.weight"].data.copy()
    data[at] ^= bits  # the sign of the first scale
    bad.weights["blk.0.attn_v.weight"] = replace(bad.weights["blk.0.attn_v.weight"], data=data)
    files = [write_model(tmp_path / f"{i}.gguf", model) for i, model in enumerate((good, bad))]
    assert "logits" in recording(*files)


def test_a_change_too_small_for_the_logits_is_seen_in_digest_and_float64_pass(recording, tmp_path):
    good = random_model("Q8_0")
    bad = random_model("Q8_0")
    data = bad.weights["blk.1.ffn_down.weight"].data.copy()
    data[2] ^= 1  # the last bit of one weight
    bad.weights["blk.1.ffn_down.weight"] = replace(bad.weights["blk.1.ffn_down.weight"], data=data)
    files = [write_model(tmp_path / f"{i}.gguf", model) for i, model in enumerate((good, bad))]
    assert recording(*files, forget_file=False) == {"model", "answers"}


def test_a_permuted_tensor_is_seen_in_the_logits(recording, tmp_path):
    good = random_model("F32")
    bad = random_model("F32")
    weight = bad.weights["blk.1.ffn_up.weight"]
    rows = weight.data.view("<f4").reshape(weight.shape)
    rows[:] = rows[::-1].copy()  # in place, in the bytes of the weight
    files = [write_model(tmp_path / f"{i}.gguf", model) for i, model in enumerate((good, bad))]
    assert "logits" in recording(*files)


def test_a_converter_that_forgot_the_rope_permutation_is_seen(recording, tmp_path):
    good = random_model("F32")
    bad = random_model("F32")
    # A converter splits the halves of each head of queries and keys into neighbours, or forgets to.
    for part, heads in (("q", 4), ("k", 2)):
        weight = bad.weights[f"blk.0.attn_{part}.weight"]
        rows = weight.data.view("<f4").reshape(heads, -1, 2, weight.shape[1])
        swapped = rows.swapaxes(1, 2).reshape(weight.shape).copy()
        weight.data.view("<f4").reshape(weight.shape)[:] = swapped
    files = [write_model(tmp_path / f"{i}.gguf", model) for i, model in enumerate((good, bad))]
    assert "logits" in recording(*files)


def test_another_tokenizer_is_seen_as_that(recording, tmp_path):
    model = random_model("F32")
    other = [*TOKENS[:3], *reversed(TOKENS[3:])]  # the special tokens keep their ids
    good = write_model(tmp_path / "good.gguf", model)
    bad = write_model(tmp_path / "bad.gguf", model, tokens=other)
    assert recording(good, bad) == {"tokenizer"}


@needs_llama_cpp
def test_reading_rope_in_the_other_style_never_passes(bitnet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text(PROMPTS)
    model = write_model(tmp_path / "good.gguf", random_model("F32"))
    words = ("crossval", "--model", model, "--prompts", "prompts.txt", "--greedy", 4)
    assert bitnet(*words).code == 0
    in_halves = replace(of_gguf("llama"), gguf_rope_style="half")
    monkeypatch.setattr(checkpoints, "of_gguf", lambda _architecture: in_halves)
    done = bitnet(*words, "--json", "--allow-missing")
    report = json.loads(done.out)
    assert done.code == 15
    assert "Qcur-0 of llama.cpp differs from float64" in str(report["verdict"]["reasons"])


@needs_llama_cpp
def test_a_tokenizer_from_elsewhere_is_seen_by_llama_cpp(bitnet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = random_model("F32")
    good = write_model(tmp_path / "good.gguf", model)
    other = [*TOKENS[:3], *reversed(TOKENS[3:])]  # the special tokens keep their ids
    bad = write_model(tmp_path / "bad.gguf", model, tokens=other)
    done = bitnet("crossval", "--model", good, "--tokenizer", bad, "--tokenizer-only", "--json")
    report = json.loads(done.out)
    assert done.code == 15
    outcomes = {entry["subject"]: entry["severity"] for entry in report["verdict"]["findings"]}
    assert outcomes == {"answers": "ok", "tokenizer": "failed"}
    parity = report["tokenizer_parity"]
    assert parity["text"].startswith("The capital")
    assert parity["ours"] != parity["theirs"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("greedy", [0, 6])
@pytest.mark.parametrize(
    "name", ["blk.0.attn_q.weight", "blk.1.ffn_norm.weight", "output_norm.weight"]
)
def test_weights_that_are_not_finite_fail_and_are_named(
    bitnet, tmp_path, monkeypatch, name, greedy, value
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BITNET_BACKEND", "reference")
    (tmp_path / "prompts.txt").write_text(PROMPTS)
    bad = random_model("F32")
    values = bad.weights[name].data.view("<f4").copy()
    values[:] = value
    bad.weights[name] = replace(bad.weights[name], data=values.view(np.uint8))
    model = write_model(tmp_path / "bad.gguf", bad)
    words = ("--reference", "float64", "--prompts", "prompts.txt", "--greedy", greedy, "--json")

    done = bitnet("crossval", "--model", model, *words)

    assert done.code == 15, done.err
    verdict = json.loads(done.out)["verdict"]
    assert verdict["status"] == "failed"
    assert "not finite" in json.dumps(verdict["findings"])
