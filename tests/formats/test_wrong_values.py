"""One wrong value beside the weights, or one wrong tensor: a model, or the project's own error."""

import json
import random
import time

import pytest
from config_mutants import MODELS
from folder_mutants import (
    FORMS,
    REMOVED,
    STATE,
    change_tensor,
    codes_of_bitsandbytes,
    json_mutants,
    opens,
    save_folder,
    set_value,
    tensor_mutants,
    tensors_of,
    use,
    values_in,
    write_json,
)

from bitnet.base.errors import BitnetError, InvalidFormat, Unsupported
from bitnet.formats.quantized_folders import unpack_quantized
from bitnet.formats.safetensors import SINGLE
from bitnet.formats.stored_numbers import KEY
from bitnet.quants import registry

SLICE = 20  # mutants of a form that run without --slow
# A folder opens in 10 ms; reserving memory for a wrong number takes minutes.
MOST_CPU_S = 10.0


@pytest.fixture(scope="module", params=FORMS)
def form(request, tmp_path_factory):
    """A folder of each form in turn: encoders, classifiers, and every kind of quantization."""
    folder = tmp_path_factory.mktemp(request.param) / request.param
    FORMS[request.param](folder)
    return folder


def outcomes_of(folder, mutants, change):
    """True or False for each of the *mutants*: if the *folder* opens with it.

    A mutant is a file and the arguments with which *change* changes it. Any error but the project's
    own fails the test.
    """
    for place, *mutant in mutants:
        file = folder / place
        before = file.read_bytes()
        start = time.process_time()
        try:
            change(file, *mutant)
            yield opens(folder)
        except Exception as error:
            raise AssertionError(f"{place}, {mutant!r:.300}") from error
        finally:
            file.write_bytes(before)
        assert time.process_time() - start < MOST_CPU_S, (place, mutant)


def change_json(file, path, value):
    """Write *value* at *path* of the JSON *file*."""
    write_json(file, set_value(json.loads(file.read_text()), path, value))


def sample_of(mutants, seed):
    """Some of the *mutants*."""
    everything = list(mutants)
    return random.Random(seed).sample(everything, min(SLICE, len(everything)))


def test_a_folder_of_each_form_opens(form):
    use(form)


def test_some_wrong_values_beside_the_weights_are_used_or_refused(form):
    outcomes = list(outcomes_of(form, sample_of(json_mutants(form), 1), change_json))
    assert not all(outcomes)  # the mutants do reach the reader


def test_some_wrong_tensors_are_used_or_refused(form):
    outcomes = list(outcomes_of(form, sample_of(tensor_mutants(form), 2), change_tensor))
    assert not all(outcomes)


@pytest.mark.slow
def test_every_wrong_value_beside_the_weights_is_used_or_refused(form):
    outcomes = list(outcomes_of(form, json_mutants(form), change_json))
    assert not all(outcomes)


@pytest.mark.slow
def test_every_wrong_tensor_is_used_or_refused(form):
    outcomes = list(outcomes_of(form, tensor_mutants(form), change_tensor))
    assert not all(outcomes)


def nested(levels):
    """An array in so many arrays."""
    return json.loads("[" * levels + "]" * levels)


# A form of FORMS, a file in it, the path of a value in the file, a wrong value, and words of the
# error.
@pytest.mark.parametrize(
    ("name", "file", "path", "value", "words"),
    [
        ("embedding", "2_Dense/config.json", ["in_features"], REMOVED, "it has no in_features"),
        ("embedding", "2_Dense/config.json", ["out_features"], "8", "out_features is '8'"),
        ("embedding", "2_Dense/config.json", ["in_features"], 0, "in_features is 0"),
        ("embedding", "2_Dense/config.json", ["bias"], "x", "bias is 'x', expected true or false"),
        ("embedding", "2_Dense/config.json", ["activation_function"], ["x"], "activation_function"),
        ("embedding", "modules.json", [1, "path"], [1], "the path of Pooling is [1]"),
        ("embedding", "modules.json", [1, "path"], "\0", "is not the name of a file"),
        ("embedding", "modules.json", [1, "path"], "\ud800", "is not the name of a file"),
        ("embedding", "sentence_bert_config.json", ["max_seq_length"], "x", "max_seq_length is"),
        ("embedding", "sentence_bert_config.json", ["max_seq_length"], True, "max_seq_length is"),
        ("reranker", "1_LogitScore/config.json", ["true_token_id"], -1, "json: true_token_id = -1"),
        ("reranker", "1_LogitScore/config.json", ["true_token_id"], True, "true_token_id = true"),
        ("reranker", "1_LogitScore/config.json", ["false_token_id"], None, "false_token_id = null"),
        ("classifier", "config.json", ["id2label"], ["abc", "b"], "id2label in config.json is"),
        ("classifier", "config.json", ["id2label", "0"], None, "id2label in config.json is"),
        ("classifier", "config.json", ["problem_type"], ["x"], "problem_type = ['x']"),
        (
            "classifier",
            "config.json",
            ["sentence_transformers"],
            [1],
            "sentence_transformers = [1]",
        ),
        (
            "classifier",
            "config.json",
            ["sentence_transformers", "activation_fn"],
            ["x"],
            "activation_fn = ['x']",
        ),
        ("fp8", "config.json", ["dtype"], ["x"], "dtype is ['x']"),
        (
            "bitnet",
            "config.json",
            ["quantization_config", "modules_to_not_convert"],
            ["a{99999999999999999999}"],
            "modules_to_not_convert is not a regular expression",
        ),
        ("text", "model.safetensors.index.json", ["weight_map", "a"], "a" * 300, "a" * 300),
        ("text", "generation_config.json", ["other"], nested(101), "more than 100 levels"),
    ],
)
def test_a_wrong_value_is_named(name, file, path, value, words, tmp_path):
    folder = tmp_path / name
    FORMS[name](folder)
    change_json(folder / file, path, value)
    with pytest.raises(BitnetError) as failure:
        use(folder)
    assert words in failure.value.message
    assert failure.value.hint


@pytest.mark.parametrize("name", ["reranker", "bitnet", "embedding", "gpt_oss"])
def test_a_folder_without_an_embedding_is_refused(name, tmp_path):
    folder = tmp_path / name
    FORMS[name](folder)
    change_tensor(folder / SINGLE, "model.embed_tokens.weight", None)
    with pytest.raises(InvalidFormat, match=r"embed_tokens\.weight"):
        use(folder)


# Families that run without --slow, most of them with a factor on the embedding.
WITH_FACTORS = ("granite", "minicpm", "falcon-h1", "helium")


@pytest.mark.parametrize(
    "name",
    [
        *WITH_FACTORS,
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in sorted(MODELS)
            if name not in WITH_FACTORS
        ),
    ],
)
@pytest.mark.parametrize("is_tied", [True, False])
def test_a_family_without_an_embedding_is_refused(name, is_tied, tmp_path):
    model = MODELS[name]
    tensors = tensors_of(model)
    missing = ("embed", "lm_head") if is_tied else ("embed",)
    other_tensors = {
        tensor: values
        for tensor, values in tensors.items()
        if not any(part in tensor for part in missing)
    }
    config = model["config"] | {"tie_word_embeddings": is_tied}
    with pytest.raises(BitnetError):
        use(save_folder(tmp_path, config, other_tensors))


def test_a_ternary_head_that_is_the_missing_embedding_is_refused(tmp_path):
    folder = tmp_path / "m"
    FORMS["bitnet"](folder)
    change_json(folder / "config.json", ["quantization_config", "modules_to_not_convert"], [])
    change_json(folder / "config.json", ["tie_word_embeddings"], True)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        change_tensor(folder / SINGLE, name, None)
    with pytest.raises(InvalidFormat, match=r"embed_tokens\.weight is missing"):
        use(folder)


def test_a_path_of_a_module_may_end_with_a_slash(tmp_path):
    folder = tmp_path / "m"
    FORMS["embedding"](folder)
    before = use(folder)
    for number, path in ((1, "1_Pooling/"), (2, "2_Dense/")):
        change_json(folder / "modules.json", [number, "path"], path)
    assert use(folder).metadata == before.metadata


@pytest.mark.parametrize(
    ("form", "name"),
    [("fp8", "weight_block_size"), ("gptq", "group_size"), ("awq", "q_group_size")],
)
def test_the_size_of_a_block_reserves_no_memory(form, name, tmp_path):
    folder = tmp_path / form
    FORMS[form](folder)
    sizes = {"weight_block_size": [10**13, 10**13]}
    for file in folder.glob("*.json"):
        document = json.loads(file.read_text())
        table = document.get("quantization_config", document)
        if name in table:
            table[name] = sizes.get(name, 10**30)
            write_json(file, document)
    with pytest.raises((InvalidFormat, Unsupported)):
        use(folder)


def test_a_wrong_state_of_codes_is_used_or_refused():
    tensors, quantization = codes_of_bitsandbytes(STATE)
    unpack_quantized(tensors, {KEY: quantization}, "m")
    hints = []
    for path, value in values_in(STATE):
        tensors, quantization = codes_of_bitsandbytes(set_value(STATE, path, value))
        try:
            weights, _ = unpack_quantized(tensors, {KEY: quantization}, "m")
            registry.dequantize(weights["w.weight"])
        except BitnetError as error:
            hints.append(error.hint)
    assert len(hints) > 100
    assert all(hints)
