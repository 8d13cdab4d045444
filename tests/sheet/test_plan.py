"""The plan of a model: memory, disk and problems, from the header of its file alone."""

import itertools
from dataclasses import replace

import pytest
from builders import Tensor, f32, gguf_bytes, i2_s, llama_metadata, vocabulary, write_gguf
from tiny_models import tiny, write_model

from bitnet.base.errors import InvalidFormat, NotFound, Unsupported
from bitnet.families.refused import kind_of, list_refused
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.gguf_header import NeedMoreBytes
from bitnet.models.load import config_from
from bitnet.sheet import plan
from bitnet.sheet.plan import (
    Resources,
    plan_model,
    plan_path,
    plan_unread,
    read_header,
)

ROOMY = Resources(free_disk=10**12, free_memory=10**12)


def tokens(count):
    """The letters a to z, and further tokens, *count* in all."""
    letters = [chr(ord("a") + number) for number in range(26)]
    return letters + [f"t{number}" for number in range(count - 26)]


def metadata(count=40, **more):
    """Metadata of a Llama of two blocks with *count* tokens, and *more* keys."""
    # SentencePiece: no pre-tokenizer to name, only scores.
    pieces = vocabulary(
        ["<unk>", "<s>", "</s>", *tokens(count - 3)],
        model="llama",
        scores=[0.0] * count,
        token_types=[2, 3, 3] + [1] * (count - 3),
    )
    epsilon = {"llama.attention.layer_norm_rms_epsilon": 1e-5}
    return {**llama_metadata(blocks=2, width=256, context=128), **epsilon, **pieces, **more}


@pytest.fixture
def model(tmp_path):
    """Path of a GGUF file with a licence, an embedding and one ternary matrix."""
    tensors = [f32("token_embd.weight", (40, 256)), i2_s("blk.0.attn_q.weight", (256, 256))]
    return write_gguf(tmp_path / "m.gguf", metadata(**{"general.license": "mit"}), tensors)


def test_experts_may_stay_in_the_file_if_memory_is_short_and_a_token_reads_those_it_uses(tmp_path):
    tensors = [
        f32("token_embd.weight", (40, 256)),
        f32("output.weight", (40, 256)),
        f32("blk.0.ffn_up_exps.weight", (8, 64, 256)),
    ]
    keys = metadata(**{"llama.expert_count": 8, "llama.expert_used_count": 2})
    path = write_gguf(tmp_path / "m.gguf", keys, tensors)
    planned = plan_path(path, ROOMY)
    parts = planned.memory
    table = 40 * 256 * 4
    experts = 8 * 64 * 256 * 4
    assert (parts.weights, parts.experts) == (2 * table + experts, experts)
    assert parts.touched == table + experts // 4  # two of eight experts
    assert planned.memory_bytes == parts.total
    # Free memory; does the model run? number of lines that say its experts stay in the file.
    for free, runs, stays in (
        (parts.total, True, 0),
        (parts.least, True, 1),
        (parts.least - 1, False, 0),
    ):
        planned = plan_path(path, replace(ROOMY, free_memory=free))
        assert [it.subject for it in planned.findings].count("memory") == (not runs)
        assert "\n".join(planned.lines()).count("experts stay in the file") == stays


def test_a_model_that_runs_is_described_from_its_header(model):
    planned = plan_path(model, ROOMY)
    assert planned.runs
    assert planned.architecture == "llama"
    assert planned.parameters == 40 * 256 + 256 * 256
    assert set(planned.encodings) == {"F32", "I2_S"}
    assert sum(planned.encodings.values()) == pytest.approx(1.0)
    assert (planned.vocab_size, planned.context_length, planned.has_tokenizer) == (40, 128, True)
    assert planned.licence == "mit"
    # two layers of two heads; keys and values of 64 numbers at 16 bits and a step of 4 bytes
    cache = 2 * 2 * 2 * (64 * 2 + 4) * 128
    weights = 40 * 256 * 4 + 256 * 256 // 4  # as in memory: without the scale in the file
    assert planned.memory_bytes == weights + cache + plan.OVERHEAD_BYTES
    text = "\n".join(planned.lines())
    assert "runs here      yes" in text
    assert "already here" in text


def test_only_the_header_of_a_file_is_read_and_no_byte_twice(model, monkeypatch):
    monkeypatch.setattr(plan, "FIRST_WINDOW", 64)
    content = model.read_bytes()
    asked_ranges = []

    def read(start, stop):
        asked_ranges.append((start, stop))
        return content[start:stop]

    gguf, used = read_header(read, size=len(content))
    assert len(gguf.tensors) == 2
    assert used < len(content) // 2
    assert asked_ranges[0] == (0, 64)
    assert all(left[1] == right[0] for left, right in itertools.pairwise(asked_ranges))


@pytest.mark.parametrize("known", [True, False])
def test_a_file_that_ends_within_its_header_is_damaged(model, known):
    content = model.read_bytes()[:300]  # bytes; the header is longer
    size = len(content) if known else None
    with pytest.raises(InvalidFormat):
        read_header(lambda start, stop: content[start:stop], size=size)


def test_a_header_longer_than_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr(plan, "FIRST_WINDOW", 64)
    monkeypatch.setattr(plan, "LARGEST_HEADER", 500)
    content = gguf_bytes(metadata(2000))
    with pytest.raises(InvalidFormat, match="longer than 500 B"):
        read_header(lambda start, stop: content[start:stop])


def test_a_model_that_fits_neither_the_disk_nor_the_memory_has_a_finding_for_each(model):
    tight = Resources(free_disk=10, free_memory=10)
    size = model.stat().st_size
    content = model.read_bytes()

    def read(start, stop):
        return content[start:stop]

    remote = plan_model(read, tight, name="m", size=size)
    assert not remote.runs
    assert [finding.subject for finding in remote.findings] == ["disk", "memory"]
    assert len(plan_path(model, tight).findings) == 1  # already on the disk
    assert plan_path(model, Resources(None, None)).runs  # unknown resources give no finding


def test_a_model_without_a_tokenizer_has_a_finding_about_it(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", llama_metadata(), [f32("token_embd.weight", (4, 128))])
    planned = plan_path(path, ROOMY)
    assert not planned.has_tokenizer
    assert [finding.subject for finding in planned.findings] == ["tokenizer"]


def test_weights_in_an_unknown_encoding_are_a_finding(tmp_path):
    # 250 is not a type of GGUF.
    tensors = [Tensor("blk.0.attn_q.weight", (1, 256), 250, b"\0" * 64)]
    path = write_gguf(tmp_path / "m.gguf", metadata(), tensors)
    planned = plan_path(path, ROOMY)
    assert any("no decoder for" in finding.text for finding in planned.findings)


@pytest.mark.parametrize("name", [*list_refused(), "unheard-of", ""])
def test_an_architecture_that_does_not_run_is_refused_as_when_it_is_loaded(name, tmp_path):
    path = write_gguf(tmp_path / "m.gguf", llama_metadata(name), [f32("x", (4, 128))])
    with pytest.raises(Unsupported) as refused:
        config_from(open_checkpoint(path))
    finding = plan_path(path, ROOMY).findings[0]
    assert finding.text == refused.value.message
    # Only for an unknown architecture the message lists those that run.
    assert ("afmoe, apertus" in finding.text) is (kind_of(name) == "")


def test_a_file_with_a_vocabulary_and_no_tensors_has_a_finding(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", metadata())
    findings = plan_path(path, ROOMY).findings
    assert "it has none, only metadata" in {finding.text for finding in findings}


def test_a_file_whose_header_cannot_be_read_is_planned_by_its_size():
    planned = plan_unread("m.gguf", 1000, ROOMY, licence="MIT", gated=False)
    assert planned.runs
    assert "open" in "\n".join(planned.lines())
    assert not plan_unread("m", 1000, replace(ROOMY, free_memory=5)).runs


def test_a_missing_file_is_not_found(tmp_path):
    with pytest.raises(NotFound):
        plan_path(tmp_path / "none.gguf", ROOMY)


def test_the_free_disk_of_a_missing_folder_is_measured_above_it(tmp_path):
    machine = plan.this_machine(tmp_path / "not" / "yet")
    assert machine.free_disk > 0
    assert machine.free_memory is None or machine.free_memory > 0


def test_a_cache_of_8_bit_keys_and_values_takes_half_the_memory(tmp_path):
    keys = metadata(
        **{
            "llama.embedding_length": 256,
            "llama.attention.head_count": 2,
            "llama.attention.head_count_kv": 2,
            "llama.rope.dimension_count": 128,
        }
    )
    path = write_gguf(tmp_path / "m.gguf", keys, [f32("token_embd.weight", (40, 256))])
    parts = plan_path(path, ROOMY).memory
    assert 2 * parts.cache_q8 == parts.cache


KIB = 1 << 10


@pytest.mark.parametrize(
    ("needs", "least", "reads"),
    [
        # Bytes that a part of the header says to need, length of the header (None: endless), and
        # bytes that are read. The limit is 256 KiB.
        (1 << 40, None, KIB),
        (257 * KIB, None, KIB),
        (2 * KIB, 200 * KIB, 256 * KIB),
        (130 * KIB, 220 * KIB, 256 * KIB),
        (256 * KIB, 256 * KIB, 256 * KIB),
    ],
)
def test_a_header_is_read_up_to_the_limit_and_a_longer_one_refused_without_reading_it(
    monkeypatch, needs, least, reads
):
    class Header:
        @staticmethod
        def parse(buffer, **_):
            if least is None or len(buffer) < least:
                raise NeedMoreBytes(max(needs, len(buffer) + 1))
            return "parsed"

    monkeypatch.setattr(plan, "GGUF", Header)
    monkeypatch.setattr(plan, "FIRST_WINDOW", KIB)
    monkeypatch.setattr(plan, "LARGEST_HEADER", 256 * KIB)
    ends = []

    def read(start, stop):
        ends.append(stop)
        return bytes(stop - start)

    if least is None:
        with pytest.raises(InvalidFormat, match=r"the header is longer than 262"):
            read_header(read)
    else:
        assert read_header(read) == ("parsed", reads)
    assert ends[-1] == reads


def test_embeddings_of_which_a_token_reads_one_row_do_not_count_as_read(tmp_path):
    per_layer = f32("per_layer_token_embd.weight", (40, 512))
    tied = [f32("token_embd.weight", (40, 256)), per_layer, i2_s("blk.0.attn_q.weight", (256, 256))]
    memory = plan_path(write_gguf(tmp_path / "m.gguf", metadata(), tied), ROOMY).memory
    # Without an output matrix the embedding is read whole, as the output.
    assert memory.weights - memory.touched == 40 * 512 * 4
    whole = [*tied, f32("output.weight", (40, 256))]
    memory = plan_path(write_gguf(tmp_path / "n.gguf", metadata(), whole), ROOMY).memory
    assert memory.weights - memory.touched == 40 * (512 + 256) * 4


def test_a_token_of_an_encoder_reads_one_row_of_its_embeddings(tmp_path):
    path = write_model(tmp_path / "bert.gguf", tiny("bert"))
    weights = open_checkpoint(path).weights
    tables = ("token_embd.weight", "position_embd.weight", "token_types.weight")
    memory = plan_path(path, ROOMY).memory
    assert memory.weights - memory.touched == sum(weights[name].size_bytes for name in tables)
