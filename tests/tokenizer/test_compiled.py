"""The compiled form: written once, checked always, written again when it is damaged."""

import base64
from pathlib import Path

import pytest
from charsmaps import charsmap
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_specs import byte_level

from bitnet.base import native
from bitnet.base.errors import Unsupported
from bitnet.tokenizer import Tokenizer, compiled
from bitnet.tokenizer.spec import Step
from bitnet.tokenizer.vocabularies import LazySequence

pytestmark = pytest.mark.skipif(native.module() is None, reason="the native module is missing")

KEY = "ab" * 32
TEXT = "hello <|im|> world  aaaa </s> 12"


@pytest.fixture
def spec():
    """A specification with a fingerprint, so that its compiled form is kept."""
    return byte_level(fingerprint=KEY)


@pytest.fixture
def file(spec):
    """Path of the compiled form of *spec*, which is written."""
    Tokenizer.from_spec(spec)
    return compiled.path_of_compiled(KEY)


def _never():
    """Raise an error: nothing may load the vocabulary."""
    raise AssertionError("the vocabulary was loaded")


def test_a_second_load_builds_nothing(spec, file):
    first = Tokenizer.from_spec(spec).encode(TEXT)
    lazy = byte_level(
        fingerprint=KEY,
        tokens=LazySequence(len(spec.tokens), _never),
        merges=LazySequence(len(spec.merges), _never),
    )
    assert file.exists()
    assert Tokenizer.from_spec(lazy).encode(TEXT) == first


def test_no_temporary_file_stays(file):
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("keep", [0, 10, 64, 200, 1000])
def test_a_truncated_file_is_written_again(spec, file, keep):
    whole = file.read_bytes()
    expected = Tokenizer.from_spec(spec).encode(TEXT)
    file.unlink()
    file.write_bytes(whole[:keep])
    assert Tokenizer.from_spec(spec).encode(TEXT) == expected
    assert file.read_bytes() == whole


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(place=st.integers(min_value=0), value=st.integers(1, 255))
def test_a_flipped_byte_is_refused(spec, place, value):
    content = bytearray(compiled.compile_spec(spec))
    content[place % len(content)] ^= value
    module = native.module()
    try:
        engine = module.TokenizerEngine(bytes(content))
    except ValueError:
        return
    # The checksum does not cover the key, but a file with another key is not used.
    assert engine.key != bytes.fromhex(KEY)


def test_a_file_of_another_tokenizer_is_not_used(spec, file):
    other = byte_level(fingerprint="cd" * 32, merges=())
    file.write_bytes(compiled.compile_spec(other))
    assert Tokenizer.from_spec(spec).encode("hello") != Tokenizer.from_spec(other).encode("hello")


def test_an_unusable_cache_folder_leaves_the_tokenizer_usable(spec, tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("BITNET_CACHE_DIR", str(blocked / "below"))
    tokenizer = Tokenizer.from_spec(spec)
    assert tokenizer.engine == "native"
    # The added tokens take in the spaces before <|im|> and after </s>.
    assert tokenizer.decode(tokenizer.encode(TEXT, add_special=False)) == TEXT.replace(
        " <|im|>", "<|im|>"
    ).replace("</s> ", "</s>")


def test_the_chat_template_is_that_of_the_specification_and_not_of_the_compiled_file(spec, file):
    assert file.exists()
    changed = byte_level(fingerprint=KEY, chat_template="{{ messages }}")
    assert Tokenizer.from_spec(changed).chat_template == "{{ messages }}"


# Options of a step with a character map.
MAP = {"precompiled_charsmap": base64.b64encode(charsmap({b"a": b"b"})).decode()}


@pytest.mark.parametrize(
    "changes",
    [
        {"pre_tokenizer": (Step("Sorcery", {}), *byte_level().pre_tokenizer)},
        {"normalizer": (Step("Replace", {"pattern": {"Regex": "(?<=a)b"}, "content": "c"}),)},
        {"normalizer": (Step("Precompiled", MAP), Step("Precompiled", MAP))},
        {"merges": [(0, 1)]},
    ],
)
def test_a_specification_that_the_native_engine_cannot_run_is_not_compiled(changes):
    with pytest.raises(compiled.NotNative):
        compiled.compile_spec(byte_level(**changes))


def test_a_text_that_is_too_long_is_not_a_damaged_tokenizer(spec):
    # Python recognises the error by the text that the binding raises.
    source = Path(__file__).parents[2] / "native" / "bind" / "tokenizer.cpp"
    assert f'nb::value_error("{compiled._TOO_LONG}")' in source.read_text("utf-8")
    meta = compiled.open_compiled(spec)[1]

    class Full:
        def encode(self, *_):
            raise ValueError(compiled._TOO_LONG)

    with pytest.raises(Unsupported, match="was stopped: text of 2 GiB or more") as caught:
        compiled.NativeEngine(Full(), meta).encode("a")
    assert "send a shorter text" in caught.value.hint
