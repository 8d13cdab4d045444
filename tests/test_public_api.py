"""The names other people's code imports."""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bitnet
import bitnet.tokenizer
from bitnet.base import errors

PACKAGES = ["bitnet", "bitnet.tokenizer"]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_is_there_once_and_sorted(name):
    package = importlib.import_module(name)
    assert len(set(package.__all__)) == len(package.__all__)
    # Constants first, then classes, then functions.
    assert list(package.__all__) == sorted(
        package.__all__, key=lambda n: (not n.isupper(), not n[0].isupper(), n)
    )
    for public in package.__all__:
        assert getattr(package, public) is not None


@pytest.mark.parametrize("name", PACKAGES)
def test_an_unknown_name_is_an_attribute_error(name):
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = importlib.import_module(name).no_such_name


def test_every_exception_can_be_imported_from_the_package():
    exceptions = {
        name
        for name, member in vars(errors).items()
        if isinstance(member, type) and issubclass(member, errors.BitnetError)
    }
    assert len(exceptions) > 20
    assert exceptions <= set(bitnet.__all__)


def test_importing_the_package_loads_nothing_else():
    program = (
        "import sys, bitnet; dir(bitnet); "
        "print([name for name in sys.modules if name.startswith('bitnet.') or name == 'numpy'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


@pytest.fixture(scope="module")
def model():
    with bitnet.load("bitnet-tiny") as loaded:
        yield loaded


def test_the_model_of_the_package_loads_by_its_name(model, tmp_path, monkeypatch):
    assert model.path.name == "bitnet-tiny.gguf"
    monkeypatch.chdir(tmp_path)
    Path("bitnet-tiny").mkdir()  # a path that exists counts before a name
    with pytest.raises(bitnet.BitnetError):
        bitnet.load("bitnet-tiny")
    with pytest.raises(bitnet.NotFound):
        bitnet.load("bitnet-huge")


def test_a_seed_and_a_temperature_choose_the_text(model):
    drawn = model.generate("She was", max_tokens=12, temperature=0.8, seed=7)
    assert drawn == model.generate("She was", max_tokens=12, temperature=0.8, seed=7)
    other = model.generate("She was", max_tokens=12, temperature=0.8, seed=8)
    greedy = model.generate("She was", max_tokens=12, temperature=None)
    assert greedy == model.generate("She was", max_tokens=12)
    assert len({drawn, other, greedy}) == 3


def test_vectors_are_made_by_a_loaded_model_or_by_a_name(model):
    texts = ["one", "another"]
    vectors = bitnet.embed(model, texts, dimensions=8)
    assert vectors.shape == (2, 8)
    np.testing.assert_array_equal(vectors, bitnet.embed("bitnet-tiny", texts, dimensions=8))
    assert bitnet.embed(model, ["a"], normalize=False).shape == (1, model.config.dim)


def test_ids_of_numpy_are_ids(model):
    ids = np.array(model.tokenizer.encode("She was"))
    assert model.generate(ids, max_tokens=3) == model.generate(list(map(int, ids)), max_tokens=3)
    assert model.tokenizer.decode(ids, skip_special=True) == "She was"


# A call with a value of a wrong type, given a loaded model, and a part of its error: the parameter,
# the type of the value, and the type that is expected.
WRONG = (
    (lambda m: bitnet.load(3), "model is of type int, expected a path"),
    (lambda m: bitnet.load(None), "model is of type None, expected a path"),
    (lambda m: bitnet.load(m.path, context="a"), "context is of type str, expected a whole number"),
    (lambda m: bitnet.load(m.path, context=1.5), "context is of type float"),
    (lambda m: bitnet.load(m.path, threads="2"), "threads is of type str, expected a whole number"),
    (lambda m: bitnet.load(m.path, tokenizer=3), "tokenizer is of type int, expected a Tokenizer"),
    (lambda m: bitnet.load(m.path, pre=3), "pre is of type int, expected a text"),
    (lambda m: bitnet.load(m.path, allow_mock="no"), "allow_mock is of type str, expected True"),
    (lambda m: bitnet.load(m.path, fetch="no"), "fetch is of type str, expected True"),
    (lambda m: bitnet.load(m.path, ignore_keys="a"), "ignore_keys is of type str, expected a list"),
    (lambda m: bitnet.load(m.path, ignore_keys=[3]), r"ignore_keys\[0\] is of type int, expected"),
    (lambda m: bitnet.load(m.path, lora=[3]), r"lora\[0\] is of type int, expected a path"),
    (lambda m: bitnet.load(m.path, lora=[True]), r"lora\[0\] is of type bool, expected a path"),
    (lambda m: bitnet.load_tokenizer(None), "path is of type None, expected a path"),
    (lambda m: bitnet.resolve_tokenizer(3), "model is of type int, expected a path or an open"),
    (lambda m: bitnet.resolve_tokenizer(m.path, 3), "explicit is of type int, expected a path"),
    (lambda m: bitnet.TokenizerDiscovery(b"x"), "model is of type bytes, expected a path or an"),
    (lambda m: bitnet.tokenizer.extract_tokens(3), "path is of type int, expected a path"),
    (lambda m: bitnet.embed(3, ["a"]), "model is of type int, expected a path"),
    (lambda m: m.generate(None), "prompt is of type None, expected a text or token ids"),
    (lambda m: m.generate(b"a"), "prompt is of type bytes, expected a text or token ids"),
    (lambda m: m.generate([1, "a"]), r"prompt\[1\] is of type str, expected a token id"),
    (lambda m: m.generate("a", max_tokens="3"), "max_tokens is of type str, expected a whole"),
    (lambda m: m.generate("a", max_tokens=True), "max_tokens is of type bool"),
    (lambda m: m.generate("a", logprobs=1.5), "logprobs is of type float, expected a whole number"),
    (lambda m: m.generate("a", regex=3), "regex is of type int, expected a text"),
    (
        lambda m: m.generate("a", hot=1),
        "'hot' is not an option of an answer: max_tokens, min_tokens, stop",
    ),
    (lambda m: m.generate("a", prompt="b"), "prompt"),
    (lambda m: m.chat(None), "messages is of type None, expected a list"),
    (lambda m: m.embed(None), "texts is of type None, expected a text or a list"),
    (lambda m: m.embed([None]), "input is of type None, expected a text or token ids"),
    (lambda m: m.embed(["a"], dimensions="8"), "dimensions is of type str, expected a whole"),
    (lambda m: m.embed(["a"], prompt_name=8), "prompt_name is of type int, expected a text"),
    (lambda m: m.logits("abc"), "ids is of type str, expected token ids"),
    (lambda m: m.logits([1.5]), r"ids\[0\] is of type float, expected a token id"),
    (lambda m: m.tokenizer.encode(3), "text is of type int, expected a text"),
    (lambda m: m.tokenizer.encode_batch("ab"), "texts is of type str, expected a list of texts"),
    (lambda m: m.tokenizer.encode_batch([3]), r"texts\[0\] is of type int, expected a text"),
    (lambda m: m.tokenizer.decode(3), "ids is of type int, expected token ids"),
    (lambda m: m.tokenizer.decode(["a"]), "id is of type str, expected a token id"),
    (lambda m: m.tokenizer.count(3), "text is of type int, expected a text"),
    (lambda m: m.tokenizer.spans(3), "text is of type int, expected a text"),
    (lambda m: m.generate("a", temperature="hot"), "temperature is of type str, expected a"),
    (lambda m: m.generate("a", top_k=1.5), "top_k is of type float, expected a whole number"),
    (lambda m: m.generate("a", seed="a"), "seed is of type str, expected a whole number or"),
    (
        lambda m: m.generate("a", logit_bias=3),
        "logit_bias is of type int, expected a",
    ),
    (lambda m: bitnet.narrate(1, "a", "b"), "actor is of type int, expected a text"),
    (lambda m: bitnet.SmartTokenizerDownload(3), "cache_dir is of type int, expected a path"),
    (
        lambda m: bitnet.SmartTokenizerDownload(options="x"),
        "options is of type str, expected FetchOptions",
    ),
    (lambda m: download_tokenizer("x"), "info is of type str, expected a TokenizerDownloadInfo"),
    (lambda m: download_tokenizer(files="x"), r"info\.files is of type str, expected a list"),
    (lambda m: download_tokenizer(files=[3]), r"info\.files\[0\] is of type int, expected a text"),
    (lambda m: download_tokenizer(repo=3), r"info\.repo is of type int, expected a text"),
    (lambda m: download_tokenizer(cache_key=3), r"info\.cache_key is of type int, expected a"),
    (lambda m: download_tokenizer(expected_vocab="5"), r"info\.expected_vocab is of type str"),
)


def download_tokenizer(info=None, **changes):
    """Fetch the tokenizer *info*, by default one with *changes*."""
    fields = {"repo": "o/r", "files": ("tok.json",), "cache_key": "k", "expected_vocab": 5}
    info = info or bitnet.TokenizerDownloadInfo(**fields | changes)
    return bitnet.SmartTokenizerDownload().download_tokenizer_sync(info)


@pytest.mark.parametrize(("call", "said"), WRONG, ids=[said for _, said in WRONG])
def test_a_wrong_type_names_the_parameter_and_both_types(model, call, said):
    with pytest.raises(TypeError, match=said) as caught:
        call(model)
    if said != "prompt":  # given twice, which Python itself refuses
        assert isinstance(caught.value, bitnet.UsageError)


def test_an_event_is_written_by_a_function(capfd):
    bitnet.narrate("pool", "greeting", 'Two\n"lines"', "Hi! 👋", tokens=3, absent=None)
    bitnet.narrate("pool", "greeting", "Hello", level="WARN", worker_id="w1", as_json=True)
    plain, encoded = capfd.readouterr().err.splitlines()
    assert plain == (
        'INFO actor="pool" action="greeting" tokens="3" human="Two\\n\\"lines\\"" cute="Hi! 👋"'
    )
    event = json.loads(encoded)
    assert event.pop("time")
    assert event == {
        "level": "WARN",
        "actor": "pool",
        "action": "greeting",
        "worker_id": "w1",
        "human": "Hello",
    }
    with pytest.raises(bitnet.UsageError, match="level is 'LOUD', expected INFO, WARN, ERROR"):
        bitnet.narrate("pool", "greeting", "Hello", level="LOUD")


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Path("x"), "x"),
        (np.array([1, 2]), "[1 2]"),
        (np.array([]), "[]"),
        (np.float32(1.5), "1.5"),
        (float("nan"), "nan"),
        ({(1, 2): 3}, "{(1, 2): 3}"),
    ],
    ids=str,
)
def test_a_fact_of_any_type_is_written_as_a_text(value, text, as_json, capfd):
    bitnet.narrate("a", "b", "c", as_json=as_json, fact=value)
    line = capfd.readouterr().err
    assert (json.loads(line)["fact"] == text) if as_json else (f'fact="{text}"' in line)


# Packages whose functions are private, but for those that the public API exports.
INNER = {
    *("adapters", "base", "batch", "bench", "cache", "ci", "commands", "convert", "crossval"),
    *("formats", "hub", "quants", "runtime", "server", "sheet", "shipped", "store", "tokenizer"),
    *("verify", "wire"),
}
PUBLIC = {*bitnet.__all__, *bitnet.tokenizer.__all__}


def functions_of(node, is_public=False):
    """Functions below *node* that are not part of the public API."""
    for child in ast.iter_child_nodes(node):
        is_named = getattr(child, "name", "") in PUBLIC
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not is_public:
            if not is_named:
                yield child
        elif isinstance(child, ast.ClassDef):
            yield from functions_of(child, is_named)


@pytest.mark.parametrize("room", sorted(INNER))
def test_only_the_public_api_lists_its_errors(room):
    """Inside, a docstring says what is returned or done."""
    listed = [
        f"{path}:{function.lineno} {function.name}"
        for path in (Path(bitnet.__file__).parent / room).rglob("*.py")
        for function in functions_of(ast.parse(path.read_text(encoding="utf-8")))
        if "\nRaises:" in (ast.get_docstring(function) or "")
    ]
    assert listed == []
