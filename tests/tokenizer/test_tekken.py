"""Mistral's ``tekken.json``: ids and texts as the ``mistral-common`` package has them."""

import json
import random
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from tekken_files import AUDIO, IMAGE, NAMES, document, special, write

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.tokenizer import Tokenizer, load_tokenizer, resolve_tokenizer
from bitnet.tokenizer.compiled import meta_of
from bitnet.tokenizer.library import library_engine
from bitnet.tokenizer.load import load_spec
from bitnet.tokenizer.probes import PROBES

# Versions of the format, with the parts that they add.
VERSIONS = {
    "v3": {},
    "v3 with pictures": {"multimodal": IMAGE},
    "v7": {"special_tokens": special(NAMES[:22])},
    "v11": {"image": IMAGE},
    "v13": {"audio": AUDIO, "special_tokens": special(control=False)},
    "v15": {"image": IMAGE},
}
TEXTS = (
    *PROBES,
    "",
    "aaaaaaaaaaaaa",
    "the thing\r\n/ 字字 ##",
    "<s>[INST] a [/INST]</s><SPECIAL_27>",
    "\ud7ff\U0010ffff",
)


@pytest.fixture(scope="module")
def tekken():
    """The module of ``mistral-common`` that reads these files."""
    pytest.importorskip("mistral_common", reason="pip install mistral-common")
    return import_module("mistral_common.tokens.tokenizers.tekken")


def _engines(path):
    """Tokenizers of the file at *path* by the engine in use and, if they can, the libraries."""
    spec = load_spec(path)
    tokenizers = [Tokenizer.from_spec(spec)]
    with suppress(Unsupported):  # where a text is two tokens
        tokenizers.append(Tokenizer(library_engine(spec), meta_of(spec)))
    return tokenizers


def _same_as(oracle, tokenizer, tekken, texts, rounds):
    """Assert that *tokenizer* has the ids and texts of *oracle*, also of *rounds* random lists."""
    assert (tokenizer.vocab_size, tokenizer.bos_id) == (oracle.n_words, oracle.bos_id)
    assert tokenizer.eos_id == oracle.eos_id
    assert tokenizer.special_ids == oracle.special_ids
    for text in texts:
        expected = oracle.encode(text, bos=True, eos=False)
        assert tokenizer.encode(text, parse_special=False) == expected
    rng = random.Random(0)
    keep = tekken.SpecialTokenPolicy.KEEP
    leave_out = tekken.SpecialTokenPolicy.IGNORE
    for _ in range(rounds):
        pools = (oracle.num_special_tokens, oracle.num_special_tokens + 256, oracle.n_words)
        ids = [rng.randrange(rng.choice(pools)) for _ in range(12)]
        for skip, policy in ((False, keep), (True, leave_out)):
            expected = oracle.decode(ids, policy)
            assert tokenizer.decode(ids, skip_special=skip) == expected
            stream = tokenizer.stream(skip_special=skip)
            assert "".join(map(stream.push, ids)) + stream.finish() == expected
        assert b"".join(map(tokenizer.token_bytes, ids)) == b"".join(
            oracle.id_to_byte_piece(id, keep) for id in ids
        )


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_gives_the_ids_and_texts_of_the_original(version, tekken, tmp_path):
    path = write(tmp_path / "tekken.json", version.split()[0], **VERSIONS[version])
    oracle = tekken.Tekkenizer.from_file(path)
    for tokenizer in _engines(path):
        _same_as(oracle, tokenizer, tekken, TEXTS, 200)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tekken_240718.json", "tekken_240911.json"])
def test_the_published_files_give_the_ids_and_texts_of_the_original(name, tekken):
    path = Path(tekken.__file__).parents[2] / "data" / name
    oracle = tekken.Tekkenizer.from_file(path)
    for tokenizer in _engines(path):
        _same_as(oracle, tokenizer, tekken, TEXTS, 500)


def test_special_tokens_in_a_text_are_parsed_only_if_that_is_asked_for(tmp_path):
    path = write(tmp_path / "tekken.json", "v11")
    for tokenizer in _engines(path):
        ids = tokenizer.encode("[INST]##[AUDIO]<SPECIAL_29>", add_special=False)
        assert ids == [3, 25, 22, 29]  # "##" is a special and a byte token
        plain = tokenizer.encode("##", add_special=False, parse_special=False)
        assert plain[0] >= 30  # behind the 30 special tokens
        assert tokenizer.decode(plain) == "##"


def test_a_tekken_json_counts_before_a_tokenizer_json_made_from_it(tmp_path):
    write(tmp_path / "tekken.json")
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "config.json").write_text('{"model_type": "mistral", "vocab_size": 301}')
    for tokenizer in (load_tokenizer(tmp_path), resolve_tokenizer(tmp_path)):
        assert tokenizer.source.endswith("tekken.json")
        assert tokenizer.pre == "tekken"


def test_files_beside_a_tekken_json_add_a_chat_template_and_stop_ids(tmp_path):
    path = write(tmp_path / "tekken.json")
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 9]}')
    tokenizer = load_tokenizer(path)
    assert tokenizer.chat_template == "{{ messages }}"
    assert tokenizer.stop_ids == {2, 9}


def _with(**config):
    """A file with other keys of its configuration."""
    changed = document()
    changed["config"] |= config
    return changed


def _token(at, **entry):
    """A file whose byte token number *at* is changed."""
    changed = document()
    changed["vocab"][at] |= entry
    return changed


def _special(at, **entry):
    """A file whose special token number *at* is changed."""
    changed = document("v11")
    changed["special_tokens"][at] |= entry
    return changed


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (_with(version="v99"), "version 'v99'"),
        (_with(version=None), "version None"),
        (_with(pattern=r"\p{L}+|\s+"), "pattern that is not a known one"),
    ],
)
def test_an_unknown_version_or_pattern_is_refused(found, why, tmp_path):
    path = tmp_path / "tekken.json"
    path.write_text(json.dumps(found))
    with pytest.raises(Unsupported, match=why) as refused:
        load_spec(path)
    assert "--tokenizer FILE" in refused.value.hint


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (_with(default_vocab_size=10**6), "274 byte tokens where 999,970 are expected"),
        (_with(default_vocab_size="many"), "default_vocab_size is 'many'"),
        (_with(default_vocab_size=200), "byte tokens where 170 are expected"),
        (_with(default_num_special_tokens=5), "20 special tokens, and room for 5"),
        (_with(default_num_special_tokens=-1), "default_num_special_tokens is -1"),
        (_token(258, rank=300), "the byte token of rank 258"),
        (_token(3, token_bytes="BA=="), "the byte token of rank 3"),
        (_token(258, token_bytes="!!!!"), "base64"),
        (_token(258, token_bytes=""), "the byte token of rank 258"),
        (_token(258, token_bytes=7), "TypeError"),
        (_token(258, token_bytes="aGU="), "there twice"),
        (_special(4, rank=7), "not in the order of their ids"),
        (_special(4, token_str="<s>"), "duplicates"),
        (_special(4, token_str=None), "not texts"),
        (document("v13", special_tokens=None), "version v13 without special_tokens"),
        (document(special_tokens=3), "TypeError"),
        (document(vocab={}), "not a tekken.json"),
    ],
)
def test_a_damaged_file_is_refused_with_its_reason(found, why, tmp_path):
    path = tmp_path / "tekken.json"
    path.write_text(json.dumps(found))
    with pytest.raises(InvalidFormat, match=why):
        load_spec(path)


def test_an_unknown_pattern_is_replaced_by_the_pre_tokenizer_that_the_user_names(tmp_path):
    path = tmp_path / "tekken.json"
    path.write_text(json.dumps(_with(pattern="nobody knows")))
    assert load_tokenizer(path, pre="tekken").pre == "tekken"
