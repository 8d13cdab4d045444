"""``--lora``: commands that open a model run it with adapters."""

import json

import pytest
from adapter_files import adapter_file, factors
from tiny_models import tiny_gguf

from bitnet import load
from bitnet.base.errors import NotFound, Unsupported, UsageError
from bitnet.base.growing import GrowingFile
from bitnet.commands import bulk


@pytest.fixture
def model(tmp_path):
    return tiny_gguf(tmp_path / "tiny.gguf")


@pytest.fixture
def lora(tmp_path):
    """An adapter of both blocks, so strong that it changes answers."""
    pairs = {
        f"blk.{block}.ffn_down.weight": factors(256, 512, rank=8, seed=block) for block in range(2)
    }
    return adapter_file(tmp_path / "lora.gguf", pairs, alpha=800.0)


def answer(bitnet, *words):
    """Text of a greedy answer."""
    done = bitnet(
        "infer", *words, "--prompt", "abc", "--max-tokens", 8, "--temperature", 0, "--json"
    )
    assert done.code == 0, done.err
    return json.loads(done.out)["text"]


def test_an_adapter_changes_the_answer_and_a_factor_of_zero_does_not(model, lora, bitnet):
    plain = answer(bitnet, "--model", model)
    assert answer(bitnet, "--model", model, "--lora", f"{lora}:0") == plain
    assert answer(bitnet, "--model", model, "--lora", lora) != plain


def test_python_takes_the_same_adapters(model, lora, bitnet):
    with load(model, lora=[lora]) as adapted:
        text = adapted.generate("abc", max_tokens=8, temperature=0.0)
    assert text == answer(bitnet, "--model", model, "--lora", lora)


def test_an_adapter_that_is_unsupported_or_missing_ends_with_its_exit_code(
    model, lora, tmp_path, bitnet
):
    # The first file changes the output matrix, which is unsupported; the second does not exist.
    head = adapter_file(tmp_path / "head.gguf", {"output.weight": factors(64, 256)})
    for path, error in ((head, Unsupported), (tmp_path / "no.gguf", NotFound)):
        done = bitnet("infer", "--model", model, "--lora", path, "--prompt", "a")
        assert (done.code, path.name in done.err) == (error.exit_code, True)


def test_a_comparison_with_another_engine_refuses_adapters(model, lora, bitnet):
    done = bitnet("crossval", "--model", model, "--lora", lora)
    assert done.code == UsageError.exit_code
    assert "--lora" in done.err


def test_vectors_with_an_adapter_do_not_continue_those_without(
    model, lora, tmp_path, bitnet, monkeypatch
):
    (tmp_path / "texts.txt").write_text("abc\nde\nab\n")
    words = ("embed", "--model", model, "--input", tmp_path / "texts.txt", "--output")
    monkeypatch.setattr(bulk, "AT_ONCE", 2)
    assert bitnet(*words, tmp_path / "expected.npy", "--lora", lora).code == 0
    with monkeypatch.context() as patch:
        patch.setattr(GrowingFile, "publish", interrupt)
        assert bitnet(*words, tmp_path / "v.npy").code
    assert (tmp_path / ".v.npy.progress").exists()
    assert bitnet(*words, tmp_path / "v.npy", "--lora", lora).code == 0
    assert (tmp_path / "v.npy").read_bytes() == (tmp_path / "expected.npy").read_bytes()


def interrupt(_file, _header=b""):
    """Interrupt a run in place of GrowingFile.publish, when its vectors are computed."""
    raise KeyboardInterrupt
