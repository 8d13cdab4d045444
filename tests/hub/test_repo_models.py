"""The models of a repository: files grouped, chosen by a pattern, or by the memory that is free."""

import ast
import re
from pathlib import Path

import pytest

import bitnet
from bitnet.base.errors import NotFound, UsageError
from bitnet.hub import repo_models
from bitnet.hub.ref import Ref
from bitnet.hub.repo_models import candidates, choose, is_pattern, models_in
from bitnet.sources import Source

FILES = [
    Source("", "", "README.md", size=10),
    Source("", "", "m-IQ2_XS.gguf", size=2_000_000),
    Source("", "", "m.Q4_K_M.gguf", size=4_000_000),
    Source("", "", "big/m-BF16-00002-of-00002.gguf", size=8_000_000),
    Source("", "", "big/m-BF16-00001-of-00002.gguf", size=9_000_000),
    Source("", "", "ggml-model-i2_s.gguf", size=1_000_000),
]


def ref(pattern):
    """The repository o/r with *pattern* as its file."""
    return Ref("", repo="o/r", file=pattern)


def test_without_a_pattern_every_gguf_model_is_one_candidate_with_its_encoding():
    by_name = {c.name: (c.encoding, c.size, len(c.files)) for c in candidates(FILES, "")}
    assert by_name == {
        "big/m-BF16-*-of-00002.gguf": ("BF16", 17_000_000, 2),
        "ggml-model-i2_s.gguf": ("I2_S", 1_000_000, 1),
        "m-IQ2_XS.gguf": ("IQ2_XS", 2_000_000, 1),
        "m.Q4_K_M.gguf": ("Q4_K_M", 4_000_000, 1),
    }


@pytest.mark.parametrize("pattern", ["big/*", "*BF16*", "m-BF16-*-of-00002.gguf"])
def test_a_split_model_is_chosen_whole_and_in_order(pattern):
    chosen = choose(ref(pattern), candidates(FILES, pattern))
    # The number of the part, in NNNNN-of-00002.gguf.
    assert [name[-19:-14] for name in chosen.files] == ["00001", "00002"]


def have_room(monkeypatch, room):
    """Let *room* bytes of memory be free, or None if the system does not report it."""
    monkeypatch.setattr(repo_models, "fits_in_memory", lambda size: room and size < room)


def test_of_several_models_the_largest_that_fits_in_memory_is_suggested(monkeypatch):
    have_room(monkeypatch, 5e6)
    with pytest.raises(UsageError) as caught:
        choose(ref("*m*"), candidates(FILES, "*m*"))
    assert "does not fit in RAM" in caught.value.message
    assert caught.value.hint == "name one: --file m.Q4_K_M.gguf"


def test_a_pattern_that_matches_no_file_is_an_error():
    with pytest.raises(NotFound, match="no file that matches"):
        choose(ref("*.bin"), candidates(FILES, "*.bin"))


def test_a_plain_name_is_not_a_pattern():
    assert not is_pattern("a.gguf")
    assert all(map(is_pattern, ("", "*.gguf", "a?", "[ab]")))


# One ternary model, its weights in two packings and in F16, and two files beside the model: an
# image projector and a draft model.
TERNARY = [
    Source("", "", "Ternary-Bonsai-2-27B-PTQ1_0.gguf", size=5_946_648_928),
    Source("", "", "Ternary-Bonsai-2-27B-PQ2_0.gguf", size=7_206_000_000),
    Source("", "", "Ternary-Bonsai-2-27B-F16.gguf", size=53_800_000_000),
    Source("", "", "Ternary-Bonsai-2-27B-mmproj-F16.gguf", size=900_000_000),
    Source("", "", "Ternary-Bonsai-2-27B-dspark-Q4_0.gguf", size=1_000_000_000),
]


@pytest.mark.parametrize(("room", "file"), [(8e9, "PQ2_0"), (6e9, "PTQ1_0"), (1e12, "PQ2_0")])
def test_of_a_ternary_model_the_largest_packing_that_fits_is_chosen_and_reported(
    monkeypatch, room, file, caplog
):
    have_room(monkeypatch, room)
    caplog.set_level("INFO", logger="bitnet")
    chosen = choose(ref(""), models_in(TERNARY, ""))
    assert chosen.name == f"Ternary-Bonsai-2-27B-{file}.gguf"
    assert "PQ2_0, PTQ1_0 hold the same weights" in caplog.text
    assert f"{file}.gguf" in caplog.text


@pytest.mark.parametrize("room", [5e9, None])
def test_without_memory_for_any_packing_of_a_ternary_model_none_is_chosen(monkeypatch, room):
    have_room(monkeypatch, room)
    with pytest.raises(UsageError, match="none was fetched"):
        choose(ref(""), models_in(TERNARY, ""))


def test_between_packings_of_different_models_none_is_chosen():
    other = Source("", "", "Another-PQ2_0.gguf", size=10)
    with pytest.raises(UsageError, match="none was fetched"):
        choose(ref(""), models_in([*TERNARY, other], ""))


def test_mxfp4_is_recognised_as_an_encoding_in_a_file_name():
    (candidate,) = candidates([Source("", "", "gpt-oss-20b-mxfp4.gguf", size=1)], "")
    assert candidate.encoding.upper() == "MXFP4"


def test_a_model_of_safetensors_includes_the_chat_templates_of_its_own_folder():
    names = [
        "config.json",
        "model.safetensors",
        "chat_template.jinja",
        "additional_chat_templates/tool_use.jinja",
        "additional_chat_templates/README.md",
        "other/additional_chat_templates/rag.jinja",
    ]
    (model,) = models_in([Source("", "", name, size=10) for name in names], "")
    assert set(model.files) == {*names[:4]}


def test_a_model_of_sentence_transformers_is_one_with_the_folders_of_its_modules():
    names = [
        "config.json",
        "model.safetensors",
        "modules.json",
        "config_sentence_transformers.json",
        "sentence_bert_config.json",
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
    ]
    others = ["2_Dense/pytorch_model.bin", "onnx/config.json", "README.md"]
    (model,) = models_in([Source("", "", name, size=10) for name in names + others], "")
    assert set(model.files) == {*names}
    assert next(name for name in model.files if "safetensors" in name) == "model.safetensors"


def test_a_transformer_in_the_folder_of_a_module_is_not_a_model_without_its_pooling():
    names = ["modules.json", "0_Transformer/config.json", "0_Transformer/model.safetensors"]
    assert models_in([Source("", "", name) for name in names], "") == []


# Files that no model of a folder has, or that do not count in it.
NOT_OF_A_MODEL = {
    *("tokenizer_classes.json", "known_vocabularies.json", "pre_tokenizers.json"),  # of the package
    *("probes.json", "rank_files.json"),
    *("adapter_config.json", "params.json", "trainer_state.json"),  # of an adapter; not read
    *("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"),
}


def names_in_readers():
    """Names of text files in the code of the packages that read the folder of a model."""
    root = Path(bitnet.__file__).parent
    for package in ("formats", "tokenizer"):
        for path in (root / package).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                value = node.value if isinstance(node, ast.Constant) else None
                if isinstance(value, str) and re.fullmatch(
                    r"[a-z][\w.-]*\.(json|txt|model|jinja|tiktoken)", value
                ):
                    yield value


def test_every_file_that_a_reader_of_a_folder_asks_for_belongs_to_the_model():
    asked = {*names_in_readers()} - NOT_OF_A_MODEL
    assert {"tekken.json", "modules.json", "quant_config.json"} < asked
    names = {"config.json", "model.safetensors"} | asked
    (model,) = models_in([Source("", "", name) for name in names], "")
    assert names - {*model.files} == set()
