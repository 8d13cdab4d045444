"""Inspection of a GGUF file: vocabulary, encodings, memory, findings, and their form as JSON."""

import json
import re

import pytest
import tiny_keys
import tiny_models
from builders import (
    FLOAT32,
    INT32,
    UINT16,
    Typed,
    f32,
    i2_s,
    llama_metadata,
    vocabulary,
    write_gguf,
)

from bitnet.base.errors import InvalidFormat
from bitnet.formats.gguf_write import write_copy
from bitnet.kernels.kv_cache import KVCache
from bitnet.models.load import config_from
from bitnet.runtime.scheduler import PREFILL_CHUNK
from bitnet.sheet.inspection import inspect_gguf


@pytest.fixture
def bitnet_file(tmp_path):
    """A GGUF file of bitnet.cpp with one float and one ternary tensor, and no ``pre`` key."""
    metadata = {
        **llama_metadata("bitnet-b1.58", blocks=3, width=256, heads=4, kv_heads=2, context=1000),
        "bitnet-b1.58.attention.layer_norm_rms_epsilon": 1e-5,
        **vocabulary([f"t{i}" for i in range(20)], merges=["t 0"], bos_token_id=1),
    }
    tensors = [
        f32("token_embd.weight", (20, 256)),
        # The codes 0, 1 and 2 are the weights -1, 0 and 1.
        i2_s("blk.0.attn_q.weight", (2, 128), [0] * 64 + [1] * 128 + [2] * 64, scale=0.5),
    ]
    return write_gguf(tmp_path / "m.gguf", metadata, tensors)


def _report(path, **options):
    """Text of the report about *path*."""
    return "\n".join(inspect_gguf(path, **options).lines())


def test_the_report_names_the_key_or_list_that_gives_the_vocabulary_size(bitnet_file):
    text = _report(bitnet_file)
    derived = "absent (normal); derived from tokenizer.ggml.tokens: 20"
    assert "general.architecture: bitnet-b1.58" in text
    assert f"tokenizer.ggml.vocab_size: {derived}" in text
    assert f"bitnet-b1.58.vocab_size: {derived}" in text
    assert "llama.vocab_size: absent (normal); the key of this architecture is" in text


def test_a_stated_vocabulary_size_is_shown(tmp_path):
    metadata = {"general.architecture": "llama", "llama.vocab_size": 7}
    inspection = inspect_gguf(write_gguf(tmp_path / "m.gguf", metadata))
    assert inspection.vocabulary.size == 7
    text = "\n".join(inspection.lines())
    assert "llama.vocab_size: 7" in text
    assert "tokenizer.ggml.vocab_size: absent, and nothing in the file to derive it from" in text


def test_without_a_tokenizer_the_vocabulary_size_is_the_number_of_embedding_rows(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {}, [f32("token_embd.weight", (9, 4))])
    assert "derived from token_embd.weight: 9" in _report(path)


def test_encodings_memory_and_ternary_counts_of_a_file_are_computed(bitnet_file):
    inspection = inspect_gguf(bitnet_file)
    assert inspection.dialect == "bitnet.cpp"
    assert [(row["type"], row["tensors"], row["weights"]) for row in inspection.encodings] == [
        ("F32", 1, 5120),
        ("I2_S", 1, 256),
    ]
    # Four bytes a number; four ternary codes a byte, and 32 bytes for their scale.
    assert inspection.memory.weights == 5120 * 4 + 256 // 4 + 32
    # 3 layers, 2 heads of keys and values; 64 numbers of 2 bytes, and a scale step of 4 bytes
    assert inspection.memory.kv_per_token == 3 * 2 * 2 * (64 * 2 + 4)
    # The context is 1000 tokens; the cache has whole pages of 64.
    assert inspection.memory.kv_at_context == inspection.memory.kv_per_token * 1024
    (ternary,) = inspection.ternary
    assert (ternary.minus, ternary.zero, ternary.plus, ternary.scale) == (64, 128, 64, 0.5)
    text = "\n".join(inspection.lines())
    # The row of the tensor: shares of -1, 0 and 1, its scale, and invalid codes.
    assert re.search(r"25\.0%  50\.0%  25\.0% +0\.5 +0$", text, re.MULTILINE)
    assert "blk.0.attn_q.weight" in text
    assert "! no-pre: tokenizer.ggml.pre is missing" in text


@pytest.mark.parametrize("positions", [2, 64, 100, 1000])
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_the_estimate_of_the_kv_cache_is_the_largest_size_that_a_real_one_reaches(
    architecture, positions, tmp_path
):
    metadata = tiny_keys.metadata(architecture, context_length=positions)
    embedding = f32("token_embd.weight", (tiny_keys.DIM, tiny_keys.VOCAB))
    memory = inspect_gguf(write_gguf(tmp_path / "m.gguf", metadata, [embedding])).memory
    cache = KVCache(config_from(tiny_models.tiny(architecture)), positions)
    largest = 0
    while cache.length < positions:
        count = min(PREFILL_CHUNK, positions - cache.length)
        cache.pages(count)
        cache.advance(count)
        largest = max(largest, cache.size_bytes)
    if architecture == "llama":  # with a sliding window, as in gemma3, it is an upper bound
        assert memory.kv_at_context == largest
    assert memory.kv_at_context >= largest


def test_layers_with_a_sliding_window_need_little_cache_in_a_long_context(tmp_path):
    metadata = tiny_keys.metadata("gemma3", context_length=32_768, block_count=6)
    embedding = f32("token_embd.weight", (tiny_keys.DIM, tiny_keys.VOCAB))
    memory = inspect_gguf(write_gguf(tmp_path / "m.gguf", metadata, [embedding])).memory
    assert memory.kv_per_token == 6 * 2 * 2 * (64 * 2 + 4)
    # Of six layers, one attends to the whole context.
    one_layer = memory.kv_per_token * 32_768 // 6
    assert one_layer < memory.kv_at_context < 1.3 * one_layer
    strange = metadata | {"gemma3.attention.sliding_window": -1}
    memory = inspect_gguf(write_gguf(tmp_path / "s.gguf", strange, [embedding])).memory
    assert memory.kv_at_context is None  # loading refuses a negative window


@pytest.mark.parametrize(
    "changes",
    [
        {"llama.attention.head_count": 0},
        {"llama.attention.head_count": "many"},
        {"llama.attention.head_count_kv": Typed(FLOAT32, [1.0])},
        {"llama.block_count": -1},
        {"llama.embedding_length": True},
        {"llama.attention.head_count": Typed(INT32, [])},
    ],
)
def test_with_invalid_metadata_the_kv_cache_is_not_estimated(tmp_path, changes):
    inspection = inspect_gguf(write_gguf(tmp_path / "m.gguf", llama_metadata() | changes))
    assert inspection.memory.kv_per_token is None
    assert "KV cache: unknown" in "\n".join(inspection.lines())


def test_invalid_codes_and_truncated_tensors_are_findings_and_a_truncated_header_an_error(tmp_path):
    tensor = i2_s("w", (1, 128), [3] * 2 + [1] * 126)
    path = write_gguf(tmp_path / "m.gguf", {}, [tensor])
    assert "✗ invalid-codes: tensor w: 2 invalid codes" in _report(path)
    path.write_bytes(path.read_bytes()[:-40])
    text = _report(path)
    assert "✗ truncated: m.gguf: tensor w needs bytes" in text
    assert "Ternary" not in text
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(InvalidFormat):
        _report(path)


def test_nothing_in_a_file_reaches_the_terminal_unescaped(tmp_path):
    metadata = {
        "general.architecture": "\x1b[31mred",
        "\x1b]0;title\x07": "x\x1b[2Jy",
        "tokenizer.ggml.tokens": ["\x9b\u202e", b"\xff"],
        "tokenizer.ggml.model": "\x07",
    }
    inspection = inspect_gguf(write_gguf(tmp_path / "m.gguf", metadata, [f32("\x1b[1m", (1,))]))
    for line in inspection.lines():
        assert line.isprintable()
        line.encode()
    assert "\x1b" not in json.dumps(inspection.as_json())


def test_infinite_numbers_and_nan_are_texts_in_the_json(tmp_path):
    metadata = {"a": float("nan"), "b": Typed(FLOAT32, [float("inf"), 1.0])}
    facts = inspect_gguf(write_gguf(tmp_path / "m.gguf", metadata)).as_json()
    text = json.dumps(facts, allow_nan=False)
    assert json.loads(text)["metadata"]["a"] == "nan"
    assert facts["metadata"]["b"]["first"] == ["inf", 1.0]


def test_every_setting_that_a_file_recommends_has_a_line(tmp_path):
    keys = {
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": 40,
        "general.sampling.sequence": "top_k;temperature",
        "tokenizer.ggml.suppress_tokens": Typed(INT32, [3, 5]),
    }
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama"} | keys)
    lines = list(inspect_gguf(path).lines())
    for line in (
        "  temperature: 0.5 (general.sampling.temp)",
        "  top_k: 40 (general.sampling.top_k)",
        "  samplers: top_k;temperature (general.sampling.sequence)",
        "  suppressed: [3, 5]",
    ):
        assert line in lines


def test_a_split_model_lists_its_files(tmp_path):
    for number in (0, 1):
        write_gguf(
            tmp_path / f"m-0000{number + 1}-of-00002.gguf",
            {"split.no": Typed(UINT16, number), "split.count": Typed(UINT16, 2)},
            [f32(f"w{number}", (1,))],
        )
    assert "2 files: m-00001-of-00002.gguf, m-00002-of-00002.gguf" in _report(
        tmp_path / "m-00002-of-00002.gguf"
    )


def _with_pre(test_data, tmp_path, name):
    """Inspection of llama.cpp's vocabulary of Llama 3 with *name* as its pre-tokenizer."""
    path = tmp_path / "m.gguf"
    write_copy(
        test_data / "vocab" / "ggml-vocab-llama-bpe.gguf",
        path,
        changes=[f"tokenizer.ggml.pre:string={name}"],
    )
    return inspect_gguf(path)


def test_the_family_is_recognised_by_its_vocabulary_and_a_wrong_pre_key_is_a_finding(
    test_data, tmp_path
):
    inspection = inspect_gguf(test_data / "vocab" / "ggml-vocab-llama-bpe.gguf")
    assert inspection.tokenizer["family_pre"] == "llama-bpe"
    assert len(inspection.tokenizer["fingerprint"]) == 64
    assert not [finding for finding in inspection.findings if finding.subject == "pre-differs"]
    for name, problem in (("", "is missing"), ("gpt-2", "is 'gpt-2'")):
        inspection = _with_pre(test_data, tmp_path, name)
        (finding,) = [
            finding for finding in inspection.findings if finding.subject == "pre-differs"
        ]
        assert problem in finding.text
        assert finding.text.endswith("fix-gguf --set-pre llama-bpe")
        (tmp_path / "m.gguf").unlink()


def test_an_unknown_vocabulary_is_called_unknown(bitnet_file):
    inspection = inspect_gguf(bitnet_file)
    assert inspection.tokenizer["family"] is None
    assert "family: not a known vocabulary" in "\n".join(inspection.lines())
