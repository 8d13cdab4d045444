"""Vectors of texts: pooling, end token, prompts, truncated dimensions and rounding."""

import json
from dataclasses import replace

import numpy as np
import pytest
from bitnet_embeddings import DIM, folder, gguf
from builders import Tensor, write_gguf
from tiny_models import TOKENS, letters, tiny, tiny_gguf

from bitnet import load
from bitnet.base.errors import InferenceError, InvalidFormat, Unsupported, UsageError
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.program import Segment
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model
from bitnet.runtime.language_model import LanguageModel
from bitnet.runtime.scheduler import Scheduler
from bitnet.runtime.sequence import check_vectors, round_vectors
from bitnet.runtime.text_ids import pair_ids

TEXTS = ["abc", "zyxwvutsr", "a"]
END = TOKENS.index("</s>")


def ids_of(text):
    """Ids of the letters of *text*, without special tokens."""
    return [TOKENS.index(character) for character in text]


def states(model, ids):
    """Hidden states after each of *ids*, ``(T, dim)``."""
    cache = KVCache(model.config, len(ids))
    return model.model.hidden([Segment(ids, cache, "all")])[0].astype(np.float64)


def unit(row):
    """*row* with length 1."""
    return row / np.linalg.norm(row)


# Pooling of hidden states by GGUF's ``pooling_type``: mean, first and last.
POOLED = {
    1: lambda rows: rows.mean(axis=0),
    2: lambda rows: rows[0],
    3: lambda rows: rows[-1],
}


@pytest.mark.parametrize("pooling", POOLED)
def test_vectors_are_the_pooled_hidden_states_behind_the_end_token(pooling, tmp_path):
    with load(gguf(tmp_path / "model.gguf", "qwen3", pooling_type=pooling)) as model:
        vectors = model.embed(TEXTS)
        raw_vectors = model.embed(TEXTS, normalize=False)
        for row, raw, text in zip(vectors, raw_vectors, TEXTS, strict=True):
            expected = POOLED[pooling](states(model, [*ids_of(text), END]))
            np.testing.assert_allclose(row, unit(expected), atol=1e-6)
            np.testing.assert_allclose(raw, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["qwen3", "gemma3"])
def test_the_folder_and_the_file_give_the_same_vectors(kind, tmp_path):
    with (
        load(folder(tmp_path / "model", kind)) as model_of_folder,
        load(gguf(tmp_path / "m", kind)) as model_of_file,
    ):
        np.testing.assert_array_equal(model_of_folder.embed(TEXTS), model_of_file.embed(TEXTS))


def test_ids_are_embedded_without_an_added_end_token(tmp_path):
    with load(gguf(tmp_path / "model.gguf", "gemma3")) as model:
        bare, ended = model.embed([ids_of("abc"), [*ids_of("abc"), END]])
        assert np.array_equal(ended, model.embed("abc")[0])
        assert not np.allclose(bare, ended)


def test_a_vector_does_not_depend_on_the_other_texts_of_a_call(tmp_path):
    """Together the texts have more tokens than one chunk of prompts, so some are run in parts."""
    with load(tiny_gguf(tmp_path / "tiny.gguf")) as model:
        texts = ["abcdefghij" * 5, *("klmno" * count for count in range(1, 12))]
        together = model.embed(texts)
        alone = np.concatenate([model.embed(text) for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_a_prompt_of_the_folder_is_put_before_the_text(tmp_path):
    with load(folder(tmp_path / "model", "qwen3")) as model:
        assert model.config.pooling == "last"
        vectors = model.embed("cd", prompt_name="query")  # whose text is "ab"
        np.testing.assert_array_equal(vectors, model.embed("abcd"))
        assert not np.allclose(vectors, model.embed("cd"))
        with pytest.raises(UsageError, match="no prompt called 'passage'; it has: document, query"):
            model.embed("cd", prompt_name="passage")


def test_the_default_prompt_is_used_unless_another_is_named(tmp_path):
    path = folder(tmp_path / "model", "qwen3")
    settings = {"prompts": {"query": "ab", "plain": ""}, "default_prompt_name": "query"}
    (path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with load(path) as model:
        np.testing.assert_array_equal(model.embed("c"), model.embed("abc", prompt_name="plain"))


def test_a_shorter_vector_has_the_first_dimensions_scaled_to_length_one(tmp_path):
    with load(gguf(tmp_path / "model.gguf", "qwen3")) as model:
        whole = model.embed("abc")[0]
        short = model.embed("abc", dimensions=24)[0]
        np.testing.assert_allclose(short, unit(whole[:24]), atol=1e-6)
        for wrong in (0, -1, DIM + 1):
            with pytest.raises(UsageError, match="of this model have 128"):
                model.embed("abc", dimensions=wrong)


def test_vectors_of_a_generating_model_are_the_mean_of_its_states(tmp_path):
    with load(tiny_gguf(tmp_path / "tiny.gguf")) as model:
        ids = ids_of("abc")
        np.testing.assert_allclose(
            model.embed([ids])[0], unit(POOLED[1](states(model, ids))), atol=1e-6
        )


def test_a_model_of_vectors_refuses_to_generate(tmp_path):
    with (
        load(gguf(tmp_path / "model.gguf", "qwen3")) as model,
        pytest.raises(Unsupported, match="makes vectors of texts"),
    ):
        model.generate("abc")


def test_no_texts_give_no_rows_and_wrong_inputs_are_refused_by_name(tmp_path):
    with load(gguf(tmp_path / "model.gguf", "qwen3")) as model:
        assert model.embed([]).shape == (0, DIM)
        assert model.embed("").shape == (1, DIM)  # the end token alone
        with pytest.raises(UsageError, match="no tokens"):
            model.embed([[]])
        with pytest.raises(UsageError, match="outside the model's vocabulary"):
            model.embed([[64]])
        with pytest.raises(UsageError, match="expected a text or token ids"):
            model.embed([1, 2])
        with pytest.raises(UsageError, match=r"input\[0\] is of type str"):
            model.embed([["a", "b"]])
        with pytest.raises(InferenceError, match="the context holds 64"):
            model.embed("a" * 64)


def test_vectors_that_are_not_finite_are_refused(tmp_path):
    checkpoint = open_checkpoint(gguf(tmp_path / "model.gguf", "qwen3"))
    weight = checkpoint.weights["output_norm.weight"]
    data = weight.data.copy()
    data[:2] = (0, 0x7E)  # NaN in float16
    checkpoint.weights["output_norm.weight"] = replace(weight, data=data)
    with load(checkpoint) as model, pytest.raises(InferenceError, match="not finite numbers"):
        model.embed("abc")


def test_vectors_are_rounded_to_bytes_and_bits():
    rows = np.array([[0.5, -1.0, 0.0, 0.25, -0.1, 0.2, 0.3, -0.4]], np.float32)
    assert round_vectors(rows, "int8").tolist() == [[64, -127, 0, 32, -13, 25, 38, -51]]
    # The same plus 128.
    assert round_vectors(rows, "uint8").tolist() == [[192, 1, 128, 160, 115, 153, 166, 77]]
    # A bit for each positive number, the first one highest.
    assert round_vectors(rows, "ubinary").tolist() == [[0b10010110]]
    assert round_vectors(rows, "binary").tolist() == [[0b10010110 - 128]]
    # Zeros are not divided by their largest number.
    assert round_vectors(np.zeros((1, 8), np.float32), "int8").tolist() == [[0] * 8]


# A file of the folder, its contents, and words of the error.
@pytest.mark.parametrize(
    ("name", "said", "words"),
    [
        ("modules.json", [{"type": "x.Transformer"}, {"type": "x.Dense"}], "x.Dense"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "pooling_mode_max_tokens"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True,
                                   "pooling_mode_cls_token": True}, "one of mean, cls and last"),
        ("1_Pooling/config.json", {"pooling_mode": "weightedmean"}, "one of mean, cls and last"),
        ("1_Pooling/config.json", {"pooling_mode_lasttoken": True,
                                   "include_prompt": False}, "include_prompt"),
        ("1_Pooling/config.json", {"pooling_mode_lasttoken": True, "what": 1}, "what = 1"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case"),
    ],
)  # fmt: skip
def test_unsupported_modules_and_poolings_are_refused_by_name(name, said, words, tmp_path):
    path = folder(tmp_path / "model", "qwen3")
    (path / name).write_text(json.dumps(said))
    with pytest.raises(Unsupported, match=words):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("modules.json", "{"),
        ("modules.json", "{}"),
        ("modules.json", "[1]"),
        ("modules.json", '[{"type": "x.Pooling", "path": "../.."}]'),
        ("modules.json", '[{"type": "x.Pooling", "path": "/etc"}]'),
        ("1_Pooling/config.json", "[]"),
        ("config_sentence_transformers.json", '{"prompts": {"query": 1}}'),
        ("config_sentence_transformers.json", '{"prompts": {}, "default_prompt_name": "query"}'),
    ],
)
def test_damaged_settings_of_a_folder_are_refused_by_name(name, content, tmp_path):
    path = folder(tmp_path / "model", "qwen3")
    (path / name).write_text(content)
    with pytest.raises(InvalidFormat, match=r"modules\.json|config"):
        open_checkpoint(path)


def test_the_newer_key_for_pooling_is_read(tmp_path):
    path = folder(tmp_path / "model", "qwen3")
    (path / "1_Pooling/config.json").write_text('{"pooling_mode": "cls"}')
    assert open_checkpoint(path).value("pooling_type") == 2  # the first token


def test_a_folder_without_a_head_and_settings_of_pooling_has_the_mean(tmp_path):
    path = folder(tmp_path / "model", "qwen3")
    (path / "modules.json").unlink()
    assert open_checkpoint(path).value("pooling_type") == 1


# Attention in both directions, the last state as the vector, and a window.
BOTH_WAYS = {"attention.causal": False, "pooling_type": 3, "attention.sliding_window": 4}


def forward_alone(model, text):
    """The last hidden state of *text* on the reference backend, scaled to length 1."""
    reference = load_model(open_checkpoint(model.path), ops=ReferenceOps())
    cache = KVCache(reference.config, len(text))
    return unit(reference.hidden([Segment(ids_of(text), cache)])[0][-1].astype(np.float64))


def test_a_model_with_attention_in_both_directions_runs_whole_texts(tmp_path, monkeypatch):
    """Some texts are longer than a chunk of prompts, here 4 tokens, and than the window."""
    monkeypatch.setattr(LanguageModel, "scheduler", lambda self, **more: Scheduler(
        self.model, context=self.context, prefill_chunk=4, **more))  # fmt: skip
    checkpoint = tiny("gemma-embedding", **BOTH_WAYS)
    tensors = [Tensor(w.name, w.shape, 0, w.data.tobytes()) for w in checkpoint.weights.values()]
    path = write_gguf(tmp_path / "tiny.gguf", dict(checkpoint.metadata) | letters(), tensors)
    texts = ["abcdefghijkl", "zy", "mnopqrstuvwxyzabcdefghijklmnopq"]
    with load(path) as model:
        vectors = model.embed([ids_of(text) for text in texts])
        # Positions on one side, itself included: the window of 4 has half of them on each side.
        assert {attention.window for attention in model.config.attentions} == {3}
        expected = [forward_alone(model, text) for text in texts]
        np.testing.assert_allclose(vectors, expected, atol=2e-3)  # codes of keys, sums in any order
        differing_ends = model.embed([ids_of("abc"), ids_of("abd")], normalize=False)
        assert not np.allclose(*differing_ends)
        with pytest.raises(Unsupported, match="does not write any"):
            model.generate("abc")


@pytest.mark.parametrize("causal", [True, False])
def test_a_later_token_changes_the_first_state_only_without_causal_attention(causal):
    model = load_model(tiny("qwen2", **{"attention.causal": causal}), ops=ReferenceOps())

    def first_of(ids):
        segments = [Segment(ids, KVCache(model.config, len(ids)), "all")]
        return model.hidden(segments)[0][0]

    assert np.allclose(first_of([5, 6, 7]), first_of([5, 6, 8]), atol=1e-5) == causal


def test_a_model_without_causal_attention_refuses_a_text_in_parts():
    model = load_model(tiny("qwen2", **{"attention.causal": False}), ops=ReferenceOps())
    cache = KVCache(model.config, 8)
    model.forward([5, 6], cache)
    with pytest.raises(InferenceError, match="cannot be run in parts"):
        model.forward([7], cache)


@pytest.mark.parametrize("truncate", [False, True])
def test_a_pair_that_is_too_long_for_a_template_is_refused_with_a_hint(tmp_path, truncate):
    pair = ("a", "b" * 50)
    with load(tiny_gguf(tmp_path / "m.gguf")) as model:
        tokenizer = model.tokenizer
    with pytest.raises(InferenceError, match="the model reads 8") as caught:
        pair_ids(tokenizer, pair, "{query}{document}", room=(8, 100), truncate=truncate)
    assert caught.value.hint == "cut the text"


@pytest.mark.parametrize(
    # Dimensions of the model's vectors, and those that were requested (None: all).
    ("dim", "dimensions", "hint"),
    [
        (64, 20, "ask for 16 dimensions"),
        (20, None, "ask for 16 dimensions"),
        (64, 4, "ask for 8 dimensions"),
        (4, None, "choose another precision"),
    ],
)
def test_bits_of_other_lengths_are_refused_with_a_length_that_is_possible(dim, dimensions, hint):
    with pytest.raises(UsageError, match="packs 8 dimensions into a byte") as caught:
        check_vectors(dim, dimensions, "binary")
    assert caught.value.hint == hint
