"""``verify_model``: a verdict for each check, on sound models and on damaged ones."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from builders import Tensor, i2_s, write_gguf
from tiny_keys import VOCAB
from tiny_models import letters, tiny, tiny_gguf

from bitnet.base.errors import InvalidFormat, NotFound
from bitnet.base.findings import status_of
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.gguf import GGUF, MAGIC
from bitnet.quants import types
from bitnet.quants.registry import quantize
from bitnet.verify import Digest, verify_model
from bitnet.verify.trace import judge_logits

# The checks in their order.
NAMES = [
    "file",
    "identity",
    "metadata",
    "tensors",
    "weights",
    "family",
    "tokenizer",
    "files",
    "vocabulary",
    "template",
    "stop ids",
    "forward pass",
]
TOKENIZER_KEYS = letters()


def verdicts(path, **options):
    """Findings about the model at *path* by the name of the check."""
    return {check.subject: check for check in verify_model(path, **options)}


def write_changed(path, change):
    """Write a tiny random model to *path* with its tensors changed by *change*."""
    checkpoint = tiny("llama")
    tensors = [
        Tensor(name, weight.shape, 0, weight.data.tobytes())
        for name, weight in checkpoint.weights.items()
    ]
    return write_gguf(path, checkpoint.metadata | TOKENIZER_KEYS, change(tensors))


def replace_tensor(name, make):
    """A function that returns a list of tensors with *make* applied to the one called *name*."""
    return lambda tensors: [make(entry) if entry.name == name else entry for entry in tensors]


@pytest.fixture
def model(tmp_path):
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    return tiny_gguf(tmp_path / "tiny.gguf", **{"tokenizer.chat_template": template})


def test_a_sound_model_passes_every_check(model):
    checks = list(verify_model(model))
    assert [check.subject for check in checks] == NAMES
    assert [check.severity for check in checks] == ["ok", "note", *["ok"] * 10]
    assert status_of(checks) == "passed"


def test_a_loss_worse_than_guessing_is_a_failure(tmp_path):
    found = verdicts(write_changed(tmp_path / "m.gguf", lambda tensors: tensors))["forward pass"]
    assert (found.severity, "untrained" in found.text) == ("failed", True)


def test_a_model_without_a_template_is_said_to_continue_text(tmp_path):
    found = verdicts(tiny_gguf(tmp_path / "tiny.gguf"))
    assert found["template"].severity == "note"
    assert "it continues text" in found["template"].text


def test_a_missing_model_is_an_error_and_no_verdict(tmp_path):
    with pytest.raises(NotFound):
        verify_model(tmp_path / "none.gguf")


# Bytes cut off the end; with 400,000 only the first four bytes are left.
@pytest.mark.parametrize("cut", [3, 100, 5_000, 400_000])
def test_a_truncated_file_fails_and_the_rest_is_skipped(model, cut):
    model.write_bytes(model.read_bytes()[:-cut] if cut < 400_000 else b"GGUF")
    checks = list(verify_model(model))
    assert [check.severity for check in checks] == ["failed"] + ["skipped"] * 11
    assert checks[0].hint


CORPUS = sorted((Path(__file__).parents[1] / "fuzz/corpus/gguf").iterdir())
NOT_GGUF = [path for path in CORPUS if not MAGIC.startswith(path.read_bytes()[: len(MAGIC)])]


def test_no_damaged_file_ends_in_anything_but_verdicts():
    damaged = [path for path in CORPUS if path not in NOT_GGUF]
    assert len(damaged) > 100
    for path in damaged:
        checks = list(verify_model(path))
        assert [check.subject for check in checks] == NAMES, path
        assert status_of(checks) == "failed", path


@pytest.mark.parametrize("path", NOT_GGUF, ids=lambda path: path.name)
def test_what_is_not_a_model_is_refused_as_it_is_elsewhere(path):
    with pytest.raises(InvalidFormat) as elsewhere:
        open_checkpoint(path)
    with pytest.raises(InvalidFormat) as refused:
        verify_model(path)
    assert str(refused.value) == str(elsewhere.value)
    assert refused.value.hint == elsewhere.value.hint


def test_a_file_that_cannot_be_opened_is_a_failed_check(model, monkeypatch):
    def refuse(path, **_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("bitnet.verify.open_checkpoint", refuse)
    first = next(iter(verify_model(model)))
    assert (first.severity, "Permission denied (os error 13)" in first.text) == ("failed", True)


def test_a_pinned_digest_is_compared(model):
    wrong = verdicts(model, find_pin=lambda _: Digest("0" * 64, "the lock file"))["identity"]
    assert wrong.severity == "failed"
    assert f"the lock file says {'0' * 64}" in wrong.text
    # The text has the digest of the file as its fifth word.
    right = Digest(wrong.text.split()[4].rstrip(","), "the lock file")
    assert (
        "SHA-256 as the lock file says"
        in verdicts(model, find_pin=lambda _: right)["identity"].text
    )


def test_a_missing_tensor_and_a_wrong_shape_are_both_listed(tmp_path):
    def damage(tensors):
        others = [entry for entry in tensors if entry.name != "blk.1.ffn_up.weight"]
        return [
            Tensor(e.name, (2, e.shape[0] // 2), e.type, e.data)
            if e.name == "output_norm.weight"
            else e
            for e in others
        ]

    found = verdicts(write_changed(tmp_path / "m.gguf", damage))
    assert found["tensors"].severity == "failed"
    assert "blk.1.ffn_up.weight (512, 256) is missing" in found["tensors"].text
    assert "output_norm.weight has shape (2, 128), expected (256,)" in found["tensors"].text
    assert found["forward pass"].severity == "skipped"


def test_nan_in_one_tensor_shows_in_its_numbers_and_in_the_logits(tmp_path):
    def damage(entry):
        raw = np.frombuffer(entry.data, "<f4").copy()
        raw[7] = np.nan
        return Tensor(entry.name, entry.shape, 0, raw.tobytes())

    found = verdicts(
        write_changed(tmp_path / "m.gguf", replace_tensor("blk.0.attn_v.weight", damage))
    )
    assert "blk.0.attn_v.weight: 1 values are NaN" in found["weights"].text
    assert found["weights"].severity == found["forward pass"].severity == "failed"


def test_invalid_ternary_codes_fail(tmp_path):
    def damage(entry):
        return i2_s(
            entry.name, entry.shape, codes=[3] * 128 + [i % 3 for i in range(256 * 256 - 128)]
        )

    found = verdicts(
        write_changed(tmp_path / "m.gguf", replace_tensor("blk.0.attn_q.weight", damage))
    )
    assert "128 of 65,536 codes mean nothing" in found["weights"].text
    assert found["weights"].severity == "failed"


def test_flat_logits_fail(tmp_path):
    def damage(entry):
        return Tensor(entry.name, entry.shape, 0, bytes(len(entry.data)))

    found = verdicts(
        write_changed(tmp_path / "m.gguf", replace_tensor("output_norm.weight", damage))
    )
    assert found["forward pass"].severity == "failed"
    assert "flat" in found["forward pass"].text


def test_a_model_without_tokenizer_fails_unless_a_mock_is_allowed(tmp_path, monkeypatch):
    model = tiny_gguf(tmp_path / "tiny.gguf", tokenizer=False)
    found = verdicts(model)
    assert found["tokenizer"].severity == "failed"
    assert "--allow-mock" in found["tokenizer"].hint
    named = verdicts(model, tokenizer=tmp_path / "missing.json")["tokenizer"]
    assert (named.severity, named.hint.split(",")[0]) == ("failed", "without --tokenizer")
    allowed = verdicts(model, allow_mock=True)
    assert (allowed["tokenizer"].severity, allowed["forward pass"].severity) == ("skipped", "ok")
    assert "MOCK" in allowed["tokenizer"].text
    monkeypatch.setenv("BITNET_STRICT_TOKENIZERS", "1")
    assert verdicts(model, allow_mock=True)["tokenizer"].severity == "failed"


def test_a_tokenizer_with_another_vocabulary_fails(model, tmp_path):
    words = {f"w{n}": n for n in range(VOCAB)}
    other = {"model": {"type": "BPE", "vocab": words, "merges": []}, "added_tokens": []}
    (tmp_path / "other").mkdir()
    (tmp_path / "other/tokenizer.json").write_text(json.dumps(other))
    found = verdicts(model, tokenizer=tmp_path / "other/tokenizer.json")
    assert found["tokenizer"].severity == "failed"
    assert found["stop ids"].text == "there is no tokenizer"


def test_a_named_tokenizer_is_compared_text_by_text(model, tmp_path, bitnet):
    assert bitnet("export-tokenizer", model, "--into", tmp_path / "own").code == 0
    found = verdicts(model, tokenizer=tmp_path / "own/tokenizer.json")["tokenizer"]
    assert found.severity == "ok"
    assert "40 of 40 probe texts (100%) give the same ids" in found.text


def test_a_named_tokenizer_with_other_ids_fails_with_the_first_text(model, tmp_path, bitnet):
    assert bitnet("export-tokenizer", model, "--into", tmp_path / "own").code == 0
    file = tmp_path / "own/tokenizer.json"
    spec = json.loads(file.read_text())
    spec["normalizer"] = {"type": "Lowercase"}
    file.write_text(json.dumps(spec))
    found = verdicts(model, tokenizer=file)["tokenizer"]
    assert found.severity == "failed"
    assert "give the same ids as the embedded one; first other: '" in found.text


def test_an_unknown_architecture_fails_by_name(tmp_path):
    found = verdicts(tiny_gguf(tmp_path / "m.gguf", **{"general.architecture": "mamba"}))
    assert found["metadata"].severity == "failed"
    assert "mamba" in found["metadata"].text
    assert found["tensors"].severity == "skipped"


def test_a_vocabulary_only_file_has_its_tokenizer_checked(tmp_path):
    path = write_gguf(tmp_path / "v.gguf", {"general.architecture": "llama"} | TOKENIZER_KEYS)
    found = verdicts(path)
    assert found["tokenizer"].severity == "ok"
    assert {found[name].severity for name in ("tensors", "weights", "forward pass")} == {"note"}
    assert status_of(found.values()) == "passed"


def test_logits_that_do_not_depend_on_the_input_fail():
    rows = np.tile(np.linspace(-5, 5, 16), (3, 1))
    finding = judge_logits(rows, [1, 2, 3], judge_text=True)
    assert (finding.severity, "whatever the model is given" in finding.text) == ("failed", True)


def test_the_loss_is_the_mean_of_the_negative_log_likelihoods():
    # Probabilities of the next token after each of three; nothing follows the last one.
    rows = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [1 / 3, 1 / 3, 1 / 3 + 0.1]]))
    text = judge_logits(rows, [2, 0, 1], judge_text=True).text
    expected = -(np.log(0.5) + np.log(0.8)) / 2
    assert f"{expected:.2f}, by guessing {np.log(3):.2f}" in text


# Real models: sound ones pass, and damage that leaves the file readable is still seen.


@pytest.mark.parametrize("name", ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"])
def test_real_models_pass_every_check(test_models, name):
    assert {check.severity for check in verify_model(test_models / name)} <= {"ok", "note"}


@pytest.fixture
def smollm2(test_models, tmp_path):
    copy = tmp_path / "model.gguf"
    shutil.copyfile(Path(test_models) / "SmolLM2-135M-Instruct.Q4_1.gguf", copy)
    return copy


def overwrite(path, tensor, change):
    """Change the bytes of a *tensor* in the file; *change* gets them and the tensor's entry."""
    with GGUF.open(path) as gguf:
        info = gguf.tensors[tensor]
    with path.open("r+b") as file:
        file.seek(info.offset)
        raw = np.frombuffer(file.read(info.size_bytes), np.uint8).copy()
        file.seek(info.offset)
        file.write(change(raw, info).tobytes())


def test_a_permuted_tensor_of_a_real_model_is_worse_than_guessing(smollm2):
    def permute(raw, info):
        rows = raw.reshape(info.shape[0], -1)
        return rows[np.random.default_rng(0).permutation(len(rows))]

    overwrite(smollm2, "token_embd.weight", permute)
    found = verdicts(smollm2)["forward pass"]
    assert (found.severity, "damaged" in found.text) == ("failed", True)


def test_one_flipped_scale_of_a_real_model_is_named(smollm2):
    def flip(raw, info):
        raw[20 * 1000 + 1] ^= 0x80  # the sign of the float16 scale of block 1000, of 20 bytes each
        return raw

    overwrite(smollm2, "blk.3.ffn_up.weight", flip)
    found = verdicts(smollm2)["weights"]
    assert found.severity == "warning"
    assert "blk.3.ffn_up.weight: 1 negative scales" in found.text


def test_another_quantization_of_the_same_matrix_is_sound(tmp_path):
    def smaller(entry):
        values = np.frombuffer(entry.data, "<f4").reshape(entry.shape)
        weight = quantize(entry.name, values, types.by_name("Q8_0"))
        return Tensor(entry.name, entry.shape, 8, weight.data.tobytes())

    found = verdicts(
        write_changed(tmp_path / "m.gguf", replace_tensor("blk.0.ffn_up.weight", smaller))
    )
    assert found["weights"].severity == "ok"
