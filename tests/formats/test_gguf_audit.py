"""Findings of the audit about the layout and the metadata of a GGUF file."""

import struct

import pytest
from builders import INT32, Tensor, Typed, f32, gguf_bytes, llama_metadata, vocabulary

from bitnet.base.errors import InvalidFormat
from bitnet.formats.gguf import GGUF
from bitnet.formats.gguf_audit import audit

COMPLETE = {**llama_metadata(), **vocabulary(["a", "b", "c"], merges=["a b"], pre="llama-bpe")}


def _findings(metadata, tensors=()):
    """Findings about a file with *metadata* and *tensors*."""
    raw = gguf_bytes(metadata, tensors)
    return audit(GGUF.parse(raw, size=len(raw)))


def _moved(raw, old, new):
    """The file *raw* with the offset *old* of an F32 tensor replaced by *new*.

    The bytes of ``<IQ`` are the type of the tensor, 0, and its offset.
    """
    entry = struct.pack("<IQ", 0, old)
    assert raw.count(entry) == 1
    return raw.replace(entry, struct.pack("<IQ", 0, new))


def test_a_sound_file_has_no_findings():
    assert _findings(COMPLETE, [f32("token_embd.weight", (3, 8)), f32("b", (3, 8))]) == []


@pytest.mark.parametrize(
    ("offset", "code", "severity", "text"),
    [
        (64, "tensor-overlap", "failed", "tensors token_embd.weight and b share 32 bytes"),
        (100, "unaligned", "failed", "not a multiple of the alignment 32"),
        (4096, "truncated", "failed", "tensor b needs bytes"),
    ],
)
def test_a_tensor_at_a_wrong_offset_is_found(offset, code, severity, text):
    # The embedding has 96 bytes, so that the second tensor, of 64, begins at 96.
    raw = gguf_bytes(COMPLETE, [f32("token_embd.weight", (3, 8)), f32("b", (16,))])
    findings = audit(GGUF.parse(_moved(raw + bytes(64), 96, offset), size=len(raw) + 64))
    match = [finding for finding in findings if finding.subject == code]
    assert match
    assert match[0].severity == severity
    assert text in match[0].text


@pytest.mark.parametrize(
    ("offset", "problem"),
    [
        (0, "share 64 bytes"),
        (64, "share 32 bytes"),
        (100, "multiple of the alignment"),
        (4096, "the file ends"),
    ],
)
def test_the_reader_refuses_every_layout_that_the_audit_calls_wrong(tmp_path, offset, problem):
    # The embedding has 96 bytes, so that the second tensor, of 64, begins at 96.
    raw = gguf_bytes(COMPLETE, [f32("token_embd.weight", (3, 8)), f32("b", (16,))])
    path = tmp_path / "model.gguf"
    path.write_bytes(_moved(raw + bytes(64), 96, offset))
    with pytest.raises(InvalidFormat, match=problem):
        GGUF.open(path)


@pytest.mark.parametrize(
    ("metadata", "tensors", "code", "text"),
    [
        ({}, [], "no-architecture", "general.architecture"),
        ({"general.architecture": "llama"}, [], "vocabulary-only", "no tensors"),
        ({"general.architecture": "x"}, [f32("a", (1,))], "missing-key", "x.block_count"),
        ({"general.architecture": "x"}, [f32("a", (1,))], "no-tokenizer", "no tokenizer"),
        (
            {"general.architecture": "llama", "llama.attention.sliding_window": 8},
            [f32("a", (1,))],
            "ignored-key",
            "llama.cpp ignores it",
        ),
        (
            {
                "general.architecture": "phi3",
                "phi3.rope.scaling.original_context_length": 4096,
            },
            [f32("rope_factors_long.weight", (1,))],
            "rope-factors",
            "above 4,096 positions",
        ),
        ({"tokenizer.ggml.tokens": ["a"]}, [], "no-tokenizer-model", "tokenizer.ggml.model"),
        (vocabulary(["a"], merges=["a a"]), [], "no-pre", "fix-gguf --set-pre"),
        (vocabulary(["a"], pre="x"), [], "no-merges", "merges is missing"),
        (vocabulary(["a"], scores=[1.0, 2.0]), [], "vocabulary-lengths", "1 tokens, and 2 entries"),
        (vocabulary(["a"], eos_token_id=5), [], "token-id", "eos_token_id is 5"),
        (vocabulary(["a"], eos_token_id=Typed(INT32, -1)), [], "token-id", "is -1"),
        ({}, [Tensor("w", (4,), 99, bytes(64))], "unknown-encoding", "type id 99"),
        ({}, [f32("n" * 70, (8,))], "long-name", "longer than 63"),
        (COMPLETE, [f32("token_embd.weight", (2, 8))], "embedding-rows", "3 tokens, and 2 rows"),
        (COMPLETE, [f32("token_embd.weight", (9, 8))], "padded-embedding", "6 rows more"),
        ({"general.alignment": 4}, [], "alignment", "at least 8"),
    ],
)
def test_what_is_odd_about_the_metadata_is_found(metadata, tensors, code, text):
    match = [finding for finding in _findings(metadata, tensors) if finding.subject == code]
    assert match
    assert text in match[0].text


def test_a_tensor_that_ends_outside_is_found_wherever_it_starts():
    embedding = f32("token_embd.weight", (3, 8))  # 96 bytes
    big = f32("big", (72,))  # 288 bytes
    raw = gguf_bytes(COMPLETE, [embedding, big])
    cut = len(raw) - 384 + 200  # 200 of 384 bytes of data
    # "big" at 0 and the embedding at 64: the tensor that ends last does not begin last.
    swallowed = _moved(gguf_bytes(COMPLETE, [big, embedding]), 288, 64)
    for data in (raw[:cut], swallowed[:cut]):
        findings = audit(GGUF.parse(data, size=cut))
        (truncated,) = [finding.text for finding in findings if finding.subject == "truncated"]
        assert "tensor big needs bytes" in truncated


def test_a_file_of_unknown_size_has_no_finding_about_its_end():
    gguf = GGUF.parse(gguf_bytes(COMPLETE, [f32("token_embd.weight", (3, 8))]))
    assert gguf.size is None
    assert audit(gguf) == []


def test_many_findings_of_one_kind_are_counted():
    findings = _findings(COMPLETE, [Tensor(f"w{i}", (1,), 99, bytes(32)) for i in range(9)])
    # Five of a kind are listed.
    assert [finding.text for finding in findings if finding.subject == "unknown-encoding"][-1] == (
        "4 more of the same kind"
    )


def test_the_worst_comes_first():
    severities = [finding.severity for finding in _findings({}, [f32("n" * 70, (8,))])]
    assert severities == sorted(severities, key=("failed", "warning", "note").index)
