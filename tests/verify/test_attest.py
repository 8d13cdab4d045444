"""Attestations: the same for the same content, another for any other, and what differs is named."""

import contextlib
import hashlib
import json
import re
from dataclasses import replace
from importlib import resources

import jsonschema
import numpy as np
import pytest
from builders import INT32, STRING, UINT16, Tensor, Typed, write_gguf
from hf_folders import tiny_folder
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import letters, tiny, tiny_gguf

from bitnet.base.errors import InvalidFormat, NotFound, Unsupported
from bitnet.formats.containers import open_checkpoint
from bitnet.tokenizer.discover import resolve_tokenizer
from bitnet.verify import trace as pass_over_text
from bitnet.verify import verify_model
from bitnet.verify.attest import (
    Attestation,
    attest,
    attestation_of,
    attestations_by_name,
    compare,
    recognise,
)
from bitnet.verify.content import Grid, Items, content_of
from bitnet.verify.vocabulary import vocabulary_anomalies

SCHEMA = json.loads((resources.files("bitnet.verify") / "attestation.schema.json").read_text())
WORDS = [f"w{number}" for number in range(300)]


def model(path, *, keys=None, change=list, tokens=None, **options):
    """A GGUF file of a tiny model with a template and a list of words.

    *keys* are further metadata, *change* is a function of the list of tensors, which it returns.
    """
    checkpoint = tiny("llama")
    tensors = [
        Tensor(name, weight.shape, 0, weight.data.tobytes())
        for name, weight in checkpoint.weights.items()
    ]
    extra = {"tokenizer.chat_template": "{{ x }}", "tokenizer.words": Typed(STRING, WORDS)}
    metadata = checkpoint.metadata | letters(add_bos_token=True) | extra | (keys or {})
    return write_gguf(path, metadata, change(tensors), **options)


def digest(path):
    """Digest of the content of the model at *path*."""
    return attest(open_checkpoint(path), trace=False).digest


@pytest.fixture
def original(tmp_path):
    return model(tmp_path / "model.gguf")


def differences(original, changed):
    """Differences of the file *changed* from an attestation of *original*, as texts."""
    attestation = attest(open_checkpoint(original), trace=False)
    return compare(attestation, open_checkpoint(changed))


def test_order_alignment_and_file_name_do_not_matter(original, tmp_path):
    backwards = model(tmp_path / "b.gguf", change=lambda tensors: tensors[::-1])
    assert digest(backwards) == digest(original)
    aligned = model(tmp_path / "c.gguf", keys={"general.alignment": 64}, alignment=64)
    assert digest(aligned) == digest(original)


def split_file(tmp_path):
    """The model of the fixture ``original`` as a GGUF file of two parts: paths of both."""
    total = {"split.count": Typed(UINT16, 2), "split.tensors.count": Typed(INT32, 20)}
    first = model(
        tmp_path / "m-00001-of-00002.gguf",
        keys=total | {"split.no": Typed(UINT16, 0)},
        change=lambda tensors: tensors[:7],
    )
    checkpoint = tiny("llama")
    other_tensors = [
        Tensor(name, weight.shape, 0, weight.data.tobytes())
        for name, weight in list(checkpoint.weights.items())[7:]
    ]
    second = tmp_path / "m-00002-of-00002.gguf"
    write_gguf(second, total | {"split.no": Typed(UINT16, 1)}, other_tensors)
    return first, second


def test_a_split_does_not_matter(original, tmp_path):
    assert digest(split_file(tmp_path)[0]) == digest(original)


def test_shards_of_safetensors_do_not_matter(tmp_path):
    whole = tmp_path / "whole"
    split = tmp_path / "split"
    for folder in (whole, split):
        tiny_folder(folder, "llama")
    tensors = (split / "model.safetensors").read_bytes()
    length = int.from_bytes(tensors[:8], "little")
    directory = json.loads(tensors[8 : 8 + length])
    data = tensors[8 + length :]
    names = {}
    (split / "model.safetensors").unlink()
    for number, part in enumerate((list(directory)[::2], list(directory)[1::2])):
        shard = {}
        body = b""
        for name in part:
            start, stop = directory[name]["data_offsets"]
            shard[name] = directory[name] | {"data_offsets": [len(body), len(body) + stop - start]}
            body += data[start:stop]
        head = json.dumps(shard).encode()
        (split / f"part{number}.safetensors").write_bytes(
            len(head).to_bytes(8, "little") + head + body
        )
        names |= dict.fromkeys(part, f"part{number}.safetensors")
    index = split / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": names}))
    assert digest(split) == digest(whole)


def test_any_bit_of_any_tensor_is_named(original, tmp_path):
    rng = np.random.default_rng(0)
    for number, name in enumerate(tiny("llama").weights):

        def flip(tensors, number=number):
            """Flip a random bit of one of the *tensors*."""
            tensor = tensors[number]
            raw = bytearray(tensor.data)
            raw[rng.integers(len(raw))] ^= 1 << int(rng.integers(8))
            tensors[number] = Tensor(tensor.name, tensor.shape, tensor.type, bytes(raw))
            return tensors

        changed = model(tmp_path / "changed.gguf", change=flip)
        (text,) = differences(original, changed)
        assert text == f"tensor {name} has other bytes than attested"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"llama.attention.layer_norm_rms_epsilon": 1e-6}, "layer_norm_rms_epsilon is 9.99"),
        ({"llama.rope.freq_base": 5e5}, "key llama.rope.freq_base is not attested"),
        ({"tokenizer.ggml.add_bos_token": False}, "tokenizer.ggml.add_bos_token is False"),
        ({"tokenizer.ggml.eos_token_id": 2}, "tokenizer.ggml.eos_token_id is 2"),
        ({"tokenizer.ggml.pre": "llama-bpe"}, "tokenizer.ggml.pre is 'llama-bpe'"),
        ({"tokenizer.chat_template": "{{ y }}"}, "key tokenizer.chat_template is '{{ y }}'"),
    ],
)
def test_a_changed_value_is_named(original, tmp_path, keys, expected):
    (text,) = differences(original, model(tmp_path / "changed.gguf", keys=keys))
    assert expected in text


def test_a_missing_and_an_added_tensor_are_named(original, tmp_path):
    def change(tensors):
        return [*tensors[1:], Tensor("extra", (4,), 0, bytes(16))]

    texts = differences(original, model(tmp_path / "changed.gguf", change=change))
    assert texts == ["tensor token_embd.weight is missing", "tensor extra is not attested"]


def differing_items(before, now):
    """Place at which *now* differs from the list *before*, known by digests of rows and columns.

    300 items are a grid of 17 rows and 18 columns.
    """
    return Grid.of(Items.of_texts(before)).locate(Items.of_texts(now))


def test_a_changed_token_is_named():
    assert differing_items(WORDS, [*WORDS[:123], "x", *WORDS[124:]]) == "item: 123 'x'"


@given(st.sets(st.integers(0, 299), min_size=2, max_size=2))
def test_two_swapped_tokens_are_named(places):
    first, second = sorted(places)
    now = list(WORDS)
    now[first], now[second] = now[second], now[first]
    text = differing_items(WORDS, now)
    assert f"{first} 'w{second}'" in text
    assert f"{second} 'w{first}'" in text


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (WORDS[:-9], "291 items instead of 300, different from item 288 on"),
        ([*WORDS, "x"], "301 items instead of 300, different from item 288 on"),
        ([*WORDS[:100], *WORDS[101:]], "299 items instead of 300, different from item 90 on"),
        (WORDS[::-1], "items in 17 rows and 18 columns, of 18 each: among 0 'w299', 1 'w298', "),
        ([], "0 items instead of 300, different from item 0 on"),
    ],
)
def test_the_place_where_lists_of_much_difference_begin_to_differ_is_named(now, expected):
    assert differing_items(WORDS, now).startswith(expected)


def test_a_file_of_an_attestation_gives_it_back(original, tmp_path):
    attestation = replace(attest(open_checkpoint(original), name="m"), files=("a.gguf",))
    jsonschema.validate(json.loads(attestation.text()), SCHEMA)
    attestation.write(tmp_path / "a.json")
    assert Attestation.read(tmp_path / "a.json") == attestation


@pytest.mark.parametrize("name", sorted(attestations_by_name()))
def test_every_attestation_in_the_package_fits_the_schema(name):
    facts = attestations_by_name()[name].facts()
    jsonschema.validate(facts, SCHEMA)
    assert set(facts["trace"]) == {"ids", "reference", "native"}


def test_a_changed_attestation_is_refused(original, tmp_path):
    path = tmp_path / "a.json"
    facts = attest(open_checkpoint(original), trace=False).facts()
    key = "tokenizer.ggml.pre"
    # Values that the digest does not fit, and fields of wrong types or lengths.
    wrongs = [
        facts | {"keys": facts["keys"] | {key: "0" * 64}},
        facts | {"keys": facts["keys"] | {key: None}},
        facts | {"tensors": {}},
        facts | {"tensors": {}, "keys": {}},
        facts | {"digest": None},
        facts | {"trace": {"native": [[1, -0.5]]}},
        facts | {"trace": {"ids": [1], "native": [[1, float("nan")]]}},
        facts | {"trace": {"ids": [1, 2], "native": [[1, -0.5]]}},
        facts | {"trace": {"ids": [1], "native": None}},
        facts | {"lists": {key: {"length": 3, "rows": "", "columns": ""}}},
        facts | {"lists": {key: {"length": None, "rows": "", "columns": ""}}},
        {"schema": 1},
        [],
    ]
    for wrong in wrongs:
        path.write_text(json.dumps(wrong))
        with pytest.raises(InvalidFormat):
            Attestation.read(path)
    path.write_text(json.dumps(facts | {"schema": 2}))
    with pytest.raises(Unsupported):
        Attestation.read(path)


def test_against_takes_a_file_an_original_or_a_name(original, tmp_path):
    attest(open_checkpoint(original), trace=False).write(tmp_path / "a.json")
    by_file, by_original = (attestation_of(str(p)) for p in (tmp_path / "a.json", original))
    assert by_file.digest == by_original.digest
    assert attestation_of("smollm2-135m").architecture == "llama"
    with pytest.raises(NotFound, match="no known model 'smollm2'"):
        attestation_of("smollm2")


def test_a_model_without_attestation_is_not_recognised(original):
    assert recognise(open_checkpoint(original)) is None


def test_a_file_that_bears_a_pinned_name_must_be_that_model(original):
    renamed = original.rename(original.with_name("SmolLM2-135M-Instruct.Q4_1.gguf"))
    assert "bears the name of smollm2-135m" in recognise(open_checkpoint(renamed)).text


@pytest.fixture
def known(original, monkeypatch):
    """Make the tiny model the one that the package has an attestation of."""
    attestation = attest(open_checkpoint(original), name="tiny", trace=False)
    monkeypatch.setattr("bitnet.verify.attest.attestations_by_name", lambda: {"tiny": attestation})


def test_a_known_model_is_recognised_by_content(known, original, tmp_path):
    other = model(tmp_path / "other.gguf", change=lambda tensors: tensors[::-1])
    match = recognise(open_checkpoint(other))
    assert (match.attestation.name, match.by, match.differences) == ("tiny", "content", ())


def test_a_damaged_copy_is_recognised_under_any_name(known, tmp_path):
    changed = model(tmp_path / "other.gguf", keys={"tokenizer.ggml.add_bos_token": False})
    text = recognise(open_checkpoint(changed)).text
    assert re.search(r"most of the content of tiny.*add_bos_token", text)


def test_another_model_of_the_same_shape_is_not_a_damaged_one(known, tmp_path):
    fresh = tiny("llama", seed=1)
    tensors = [Tensor(n, w.shape, 0, w.data.tobytes()) for n, w in fresh.weights.items()]
    path = write_gguf(tmp_path / "m.gguf", fresh.metadata | letters(), tensors)
    assert recognise(open_checkpoint(path)) is None


def test_every_value_beside_the_tensors_is_part_of_the_content(original):
    content = content_of(open_checkpoint(original))
    assert {"tokenizer.words", "tokenizer.ggml.tokens"} <= set(content.lists)
    assert content.values["tokenizer.ggml.bos_token_id"] == 0
    assert "general.alignment" not in content.values


# The commands. Exit codes: 2 wrong options, 15 a check failed.


def test_attest_and_verify_against_it(bitnet, original, tmp_path):
    done = bitnet("attest", "--model", original, "--output", tmp_path / "a.json")
    assert (done.code, done.out.split()[0]) == (0, digest(original))
    words = ("verify", "--model", original, "--json", "--against", tmp_path / "a.json")
    identity = json.loads(bitnet(*words).out)["findings"][1]
    assert (identity["severity"], identity["subject"]) == ("ok", "identity")
    changed = model(tmp_path / "changed.gguf", keys={"tokenizer.ggml.eos_token_id": 2})
    done = bitnet("verify", "--model", changed, "--against", original)
    assert done.code == 15
    assert "key tokenizer.ggml.eos_token_id is 2, attested is another value" in done.out


@pytest.mark.parametrize(("off", "severity"), [(0.0, "ok"), (2.0, "failed")])
def test_the_recorded_pass_is_compared_with_this_one(tmp_path, off, severity):
    path = tiny_gguf(tmp_path / "tiny.gguf")
    attestation = attest(open_checkpoint(path), tokenizer=resolve_tokenizer(path))
    # The log-probability of each token, by backend, is recorded as lower by *off* nats.
    trace = {
        name: rows if name == "ids" else [[id, value - off] for id, value in rows]
        for name, rows in attestation.trace.items()
    }
    against = replace(attestation, trace=trace)
    last = list(verify_model(path, against=against))[-1]
    assert (last.subject, last.severity) == ("forward pass", severity)
    assert "nats from the recorded pass" in last.text


def test_an_attestation_without_a_pass_is_said_to_have_none(tmp_path):
    path = tiny_gguf(tmp_path / "tiny.gguf")
    last = list(verify_model(path, against=attest(open_checkpoint(path), trace=False)))[-1]
    assert "the attestation records no pass" in last.text


@pytest.mark.parametrize("where", ["ids", "reference"])
def test_a_recorded_token_that_the_model_has_not_is_a_failure(tmp_path, where):
    path = tiny_gguf(tmp_path / "tiny.gguf")
    recorded = attest(open_checkpoint(path), tokenizer=resolve_tokenizer(path))
    rows = [10**6, *recorded.trace["ids"][1:]] if where == "ids" else [
        [10**6, value] for _, value in recorded.trace["reference"]
    ]  # fmt: skip
    against = replace(recorded, trace={**recorded.trace, where: rows})
    last = list(verify_model(path, against=against))[-1]
    assert last.severity == "failed"
    assert "the token 1000000" in last.text


def test_a_recorded_pass_of_other_content_is_not_compared(tmp_path):
    path = tiny_gguf(tmp_path / "tiny.gguf")
    attestation = attest(open_checkpoint(path), tokenizer=resolve_tokenizer(path))
    changed = tiny_gguf(path, **{"general.name": "another"})
    last = list(verify_model(changed, against=attestation))[-1]
    assert "recorded" not in last.text


def test_an_attestation_beside_the_model_is_what_it_is_compared_with(bitnet, original):
    attest(open_checkpoint(original)).write(original.with_name("model.gguf.attestation.json"))
    model(original, keys={"tokenizer.ggml.eos_token_id": 2})
    assert (
        "attested to be: key tokenizer.ggml.eos_token_id"
        in bitnet("verify", "--model", original).out
    )


@pytest.mark.parametrize(("digits", "code"), [("0" * 64, 15), ("12", 2), ("", 2)])
def test_a_digest_on_the_command_line_is_compared(bitnet, original, digits, code):
    assert bitnet("verify", "--model", original, f"--sha256={digits}").code == code


def test_an_empty_name_to_compare_with_is_a_wrong_call(bitnet, original):
    assert bitnet("verify", "--model", original, "--against=").code == 2


ODD_TOKENIZERS = [
    {},
    {"model": None, "added_tokens": None},
    {"model": {"vocab": {}, "merges": []}, "added_tokens": [None, {}, {"id": "x"}]},
    {"model": {"vocab": {"a": 10**30, "b": None}, "merges": [[1, 2], "x", None]}},
    {"model": {"vocab": [["a", 1]], "merges": {"a": 1}}, "added_tokens": {"id": 1}},
    {"model": {"vocab": {"a": 0, "\ud800": 1}, "type": ["BPE"]}, "decoder": {"type": None}},
]


@pytest.mark.parametrize("tokenizer", ODD_TOKENIZERS)
def test_a_strange_tokenizer_file_has_a_digest_and_no_traceback(tmp_path, tokenizer):
    folder = tiny_folder(tmp_path / "m", "llama")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": [1], "bos_token": {}}))
    checkpoint = open_checkpoint(folder)
    assert compare(attest(checkpoint, trace=False), checkpoint) == []
    vocabulary_anomalies(checkpoint)


def test_a_list_of_the_wrong_type_has_a_digest_and_no_traceback(tmp_path):
    keys = {"tokenizer.ggml.token_type": Typed(STRING, ["a"]), "tokenizer.ggml.eos_token_id": "x"}
    checkpoint = open_checkpoint(model(tmp_path / "m.gguf", keys=keys))
    assert compare(attest(checkpoint, trace=False), checkpoint) == []
    vocabulary_anomalies(checkpoint)


# Numbers that JSON can have in the place of any other, and values that are not numbers.
HUGE = [float("inf"), float("-inf"), float("nan"), 10**400, -(10**400), 1.5, True, None, "x", []]


def places_of_numbers(value, place=()):
    """Places of the numbers in JSON *value*."""
    if type(value) in (int, float):
        return [place]
    inside = value.items() if isinstance(value, dict) else ()
    inside = enumerate(value) if isinstance(value, list) else inside
    return [found for key, entry in inside for found in places_of_numbers(entry, (*place, key))]


def with_number(facts, place, number):
    """A copy of *facts* with *number* at *place*; all else is shared."""
    if not place:
        return number
    copied = dict(facts) if isinstance(facts, dict) else list(facts)
    copied[place[0]] = with_number(copied[place[0]], place[1:], number)
    return copied


def test_any_number_in_an_attestation_is_read_or_refused(original):
    facts = attest(open_checkpoint(original)).facts()
    # Two tensors are enough: the entries of the others are alike.
    tensors = {name: facts["tensors"][name] for name in [*facts["tensors"]][:2]}
    places = places_of_numbers(facts | {"tensors": tensors})
    assert len(places) > 20
    for place in places:
        for number in HUGE:
            text = json.dumps(with_number(facts, place, number))
            with contextlib.suppress(InvalidFormat, Unsupported):
                Attestation.parse(text, "attestation.json")


def test_a_model_whose_tokenizer_gives_no_ids_has_no_recorded_pass(original, monkeypatch):
    checkpoint = open_checkpoint(original)
    monkeypatch.setattr(pass_over_text, "ids_for", lambda *_: [])
    attestation = attest(checkpoint, tokenizer=resolve_tokenizer(checkpoint))
    assert attestation.trace == {}
    assert Attestation.parse(attestation.text(), "x") == attestation
    finding = pass_over_text.forward_verdict(checkpoint, resolve_tokenizer(checkpoint))
    assert (finding.severity, "0 tokens of an English sentence" in finding.text) == ("failed", True)


def test_a_digest_of_a_file_does_not_go_with_a_folder(bitnet, tmp_path):
    folder = tiny_folder(tmp_path / "model", "llama")
    done = bitnet("verify", folder, f"--sha256={'0' * 64}")
    assert done.code == 2
    assert "--sha256 is the digest of a file" in done.err
    assert "--against FILE" in done.err


def test_a_digest_is_that_of_the_named_part_of_a_split_file(bitnet, tmp_path):
    parts = split_file(tmp_path)
    digits = hashlib.sha256(parts[0].read_bytes()).hexdigest()
    done = bitnet("verify", parts[0], f"--sha256={digits}", "--allow-mock")
    assert "--sha256 says" not in done.out + done.err
    other = hashlib.sha256(parts[1].read_bytes()).hexdigest()
    done = bitnet("verify", parts[0], f"--sha256={other}", "--allow-mock")
    assert done.code == 15
    assert f"SHA-256 of {parts[0].name} is {digits}, --sha256 says {other}" in done.out
