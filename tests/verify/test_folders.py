"""Folders: every file that is read belongs to what a model is, and no damage of one goes unseen."""

import json
import os
import shutil
import sys
from contextlib import suppress

import pytest
from damages import small, write_folder

from bitnet.base.errors import BitnetError, IntegrityError
from bitnet.base.files import digest_of
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.safetensors import INDEX
from bitnet.tokenizer.discover import resolve_tokenizer
from bitnet.tokenizer.load import read_files
from bitnet.verify import Digest, verify_model
from bitnet.verify.attest import Attestation, attest, compare

FILES = {
    "generation_config.json": {"eos_token_id": [1, 2], "temperature": 0.6, "do_sample": True},
    "special_tokens_map.json": {"bos_token": {"content": "<s>", "lstrip": False}},
    "added_tokens.json": {"<extra>": 2},
    "chat_template.json": {"chat_template": "{{ messages[0].content }}!"},
    "modules.json": [
        {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ],
    "1_Pooling/config.json": {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False},
    "sentence_bert_config.json": {"max_seq_length": 64, "do_lower_case": False},
    "config_sentence_transformers.json": {
        "prompts": {"query": "q: ", "document": ""},
        "default_prompt_name": "query",
    },
    "vocab.json": {"a": 0, "b": 1},
}
TEXTS = {
    "chat_template.jinja": "{{ messages[0].content }}?",
    "merges.txt": "#version: 0.2\na b\n",
    "README.md": "# A model\n",
}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A folder with a file of every name that some reader knows."""
    folder = tmp_path_factory.mktemp("models") / "model"
    folder.mkdir()
    write_folder(small("llama", "F32"), folder)
    for name, value in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(value))
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    config = json.loads((folder / "config.json").read_text())
    theta = config.pop("rope_theta")
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def attestation(original):
    return attest(open_checkpoint(original), trace=False)


def copy(original, tmp_path):
    """Copy the folder *original*; returns the copy."""
    return shutil.copytree(original, tmp_path / "copy")


def edit(name, change):
    """A function that damages the JSON file *name* of a folder.

    *change* is a function that alters the value of the file, or returns another value.
    """

    def damage(folder):
        value = json.loads((folder / name).read_text())
        replaced = change(value)
        (folder / name).write_text(json.dumps(value if replaced is None else replaced))

    return damage


def another(value):
    """A different value of the same type as *value*."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return f"{value}x"
    return [*value, 7] if isinstance(value, list) else value | {"more": 7}


def leaves(value, path=()):
    """Paths of the values in *value* that hold no others, and of its lists and large objects."""
    if isinstance(value, dict) and value and len(value) < 20:
        for key, entry in value.items():
            yield from leaves(entry, (*path, key))
    else:
        yield path


def change_at(path, change):
    """A function that calls *change* with the value that holds *path*, and the last key of it."""

    def damage(value):
        for key in path[:-1]:
            value = value[key]
        change(value, path[-1])

    return damage


def assign(value, key):
    value[key] = another(value[key])


def remove(value, key):
    del value[key]


# Paths of the values that are changed and removed, by file.
CONFIG = [
    *[(key,) for key in ("model_type", "hidden_act", "vocab_size", "rms_norm_eps", "eos_token_id")],
    *[("rope_parameters", key) for key in ("rope_theta", "rope_type")],
    *[(key,) for key in ("num_attention_heads", "max_position_embeddings", "tie_word_embeddings")],
]
TOKENIZER = [
    *[("model", key) for key in ("type", "vocab", "merges")],
    *[("pre_tokenizer", key) for key in ("type", "add_prefix_space", "use_regex")],
    *[("decoder", "use_regex"), ("normalizer",), ("post_processor",), ("version",)],
    *[("added_tokens", 1, key) for key in ("id", "content", "special", "lstrip", "normalized")],
    *[("added_tokens", 0), ("added_tokens", 2)],
]
SETTINGS = [(key,) for key in ("add_bos_token", "bos_token", "eos_token", "chat_template")]
PATHS = {"config.json": CONFIG, "tokenizer.json": TOKENIZER, "tokenizer_config.json": SETTINGS}
PATHS |= {name: [*leaves(value)] for name, value in FILES.items() if isinstance(value, dict)}
PATHS |= {"modules.json": [(0, "type"), (1, "path"), (1, "idx")]}

# Functions that damage a folder, by a description.
DAMAGES = {
    f"{name} {what} {path}": edit(name, change_at(path, change))
    for name, paths in PATHS.items()
    for path in paths
    for what, change in (("changed", assign), ("without", remove))
}
DAMAGES |= {
    f"{name} emptied": lambda folder, name=name: (folder / name).write_bytes(b"")
    for name in (*FILES, "chat_template.jinja", "merges.txt", "tokenizer.json")
}
DAMAGES |= {
    f"{name} removed": lambda folder, name=name: (folder / name).unlink()
    for name in (*FILES, "chat_template.jinja", "merges.txt", "tokenizer_config.json")
}
DAMAGES |= {
    f"{name} added": lambda folder, name=name: (folder / name).write_text('{"a": 1}')
    for name in ("tekken.json", "tokenizer.model")
}


def swap(first, second):
    """A function that exchanges the ids of two tokens, given by their places in the vocabulary."""

    def change(value):
        model = value["model"]
        items = [*model["vocab"]]
        ids = model["vocab"]
        a = items[first]
        b = items[second]
        ids[a], ids[b] = ids[b], ids[a]

    return change


def move_template(folder):
    """Change template and end token, and leave the old ones under keys that might pass for them.

    Such as ``config.chat_template`` in ``tokenizer.json``.
    """
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    for key in ("chat_template", "eos_token"):
        tokenizer[key] = tokenizer[f"config.{key}"] = settings[key]
        tokenizer.setdefault("config", {})[key] = settings[key]
    settings |= {"chat_template": "{{ 'x' }}", "eos_token": "<extra>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def flatten_theta(value):
    """Replace the object ``rope_parameters`` by keys with a dot in their names."""
    rope = value.pop("rope_parameters")
    value |= {f"rope_parameters.{key}": entry for key, entry in rope.items()}


def overwrite(folder, name, old, new):
    """Replace the first *old* in the file *name* by *new*."""
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1))


def flip(folder, at):
    """Flip the lowest bit of the byte *at* of the weights' file."""
    path = folder / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def give_bytes_twice(folder):
    """Let two tensors of one shape have the same bytes, as one bit of an offset may do."""
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    directory = json.loads(raw[8 : 8 + length])
    up = "model.layers.{}.mlp.up_proj.weight"
    directory[up.format(1)] = directory[up.format(2)]
    head = json.dumps(directory).encode().ljust(length)
    path.write_bytes(len(head).to_bytes(8, "little") + head + raw[8 + length :])


DAMAGES |= {
    "two ids swapped": edit("tokenizer.json", swap(10, 40)),
    "a merge added before the others": edit(
        "tokenizer.json", lambda value: value["model"]["merges"].insert(0, "h e")
    ),
    "merges reversed": edit("tokenizer.json", lambda value: value["model"]["merges"].reverse()),
    "added tokens reversed": edit("tokenizer.json", lambda value: value["added_tokens"].reverse()),
    "merges cut elsewhere": edit(
        "tokenizer.json",
        lambda value: value["model"].update(
            merges=[["a", merge.replace(" ", "")] for merge in value["model"]["merges"]]
        ),
    ),
    "theta as a key with a dot": edit("config.json", flatten_theta),
    "the template and the end elsewhere": move_template,
    "a key of the configuration twice": lambda folder: overwrite(
        folder, "config.json", '"rms_norm_eps":', '"rms_norm_eps": 0.1, "rms_norm_eps":'
    ),
    "a token twice": lambda folder: overwrite(
        folder, "tokenizer.json", '"<s>": 0', '"<s>": 5, "<s>": 0'
    ),
    "pooling by the last token": edit(
        "1_Pooling/config.json",
        lambda value: value.update(pooling_mode_mean_tokens=False, pooling_mode_lasttoken=True),
    ),
    "prompts by another name": edit(
        "config_sentence_transformers.json",
        lambda value: value.update(default_prompt_name="document"),
    ),
    "a number as a text": edit("config.json", lambda value: value.update(vocab_size="64")),
    "a flag as a number": edit("tokenizer_config.json", lambda v: v.update(add_bos_token=1)),
    "an end in another file": edit("config.json", lambda value: value.update(eos_token_id=[1, 2])),
    "one bit of a weight": lambda folder: flip(folder, -1000),
    "one bit of the directory": lambda folder: flip(folder, 300),
    "a tensor with the bytes of another": give_bytes_twice,
    "a file cut": lambda folder: os.truncate(folder / "model.safetensors", 100_000),
    "bytes behind the last tensor": lambda folder: (folder / "model.safetensors").write_bytes(
        (folder / "model.safetensors").read_bytes() + bytes(4)
    ),
    "an index of other files": lambda folder: (folder / INDEX).write_text(
        json.dumps({"weight_map": {"model.norm.weight": "other.safetensors"}})
    ),
    "a template that is cut off": lambda folder: (folder / "chat_template.jinja").write_text("{{"),
}


def test_there_are_damages_of_every_kind():
    assert len(DAMAGES) >= 100


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damage_of_a_folder_is_seen(damage, original, attestation, tmp_path):
    folder = copy(original, tmp_path)
    damage(folder)
    with suppress(BitnetError):  # refused is seen, too
        assert compare(attestation, open_checkpoint(folder)) != []


def reformat(folder):
    for path in folder.rglob("*.json"):
        value = json.loads(path.read_text())
        if isinstance(value, dict):
            value = dict(reversed(value.items()))
        path.write_text(json.dumps(value, indent=2))


def shard(folder):
    """Rename the weights' file and add an index that names it for every tensor."""
    raw = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").unlink()
    directory = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    (folder / "one.safetensors").write_bytes(raw)
    places = dict.fromkeys(directory, "one.safetensors")
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))


REWRITES = {
    "keys in another order": reformat,
    "the file by another name": shard,
    "another page about it": lambda folder: (folder / "README.md").write_text("other"),
    "a hidden file": lambda folder: (folder / ".gitattributes").write_text("*"),
}


@pytest.mark.parametrize("rewrite", REWRITES.values(), ids=REWRITES)
def test_the_same_content_in_another_form_passes(rewrite, original, attestation, tmp_path):
    folder = copy(original, tmp_path)
    rewrite(folder)
    assert compare(attestation, open_checkpoint(folder)) == []


@pytest.fixture
def opened():
    """Paths of all files that this process opens during the test."""
    paths = []
    is_active = [True]  # a hook of sys.addaudithook cannot be removed

    def note(event, arguments):
        if is_active[0] and event == "open" and isinstance(arguments[0], str | bytes):
            paths.append(os.fsdecode(arguments[0]))

    sys.addaudithook(note)
    yield paths
    is_active[0] = False


@pytest.mark.parametrize("without", [(), ("tokenizer.json",), ("tokenizer.json", "vocab.json")])
def test_every_file_that_is_read_is_in_the_inventory(original, tmp_path, opened, without):
    folder = copy(original, tmp_path)
    for name in without:
        (folder / name).unlink()
    opened.clear()
    checkpoint = open_checkpoint(folder)
    with suppress(BitnetError):
        resolve_tokenizer(checkpoint)
    inside = {os.path.relpath(path, folder) for path in opened if path.startswith(f"{folder}/")}
    assert {"config.json", "model.safetensors"} < inside
    assert inside <= {*read_files(checkpoint).names}


def findings(folder, **options):
    """Findings of ``verify_model`` by the name of the check.

    The option *proof* is the file of the attestation, which need not exist. With it, every file of
    the folder and the tokenizer must be covered.
    """
    return {finding.subject: finding for finding in verify_model(folder, **options)}


def test_files_that_are_not_read_are_named(original, attestation):
    identity = findings(original, against=attestation)["identity"]
    assert identity.severity == "ok"
    assert "not read: README.md" in identity.text
    assert "not read: README.md" in findings(original)["identity"].text


# A file of the folder, and a function that adds it or edits it.
UNCOVERED = {
    "notes.txt": lambda folder: (folder / "notes.txt").write_text("more"),
    "README.md": lambda folder: (folder / "README.md").write_text("other"),
    "modeling_x.py": lambda folder: (folder / "modeling_x.py").write_text("import os"),
    "2_Dense/config.json": lambda folder: shutil.copytree(folder / "1_Pooling", folder / "2_Dense"),
}


@pytest.mark.parametrize("name", UNCOVERED)
def test_what_the_attestation_does_not_cover_is_named_and_does_not_pass(
    name, original, attestation, tmp_path
):
    folder = copy(original, tmp_path)
    proof = folder / "attestation.json"
    attestation.write(proof)
    covered = findings(folder, against=Attestation.read(proof), proof=proof)
    assert covered["identity"].severity == "ok", covered["identity"]
    UNCOVERED[name](folder)
    identity = findings(folder, against=attestation, proof=proof)["identity"]
    assert identity.severity == "failed"
    is_edit = name == "README.md"
    said = "was edited" if is_edit else "is not covered, nothing says what it is"
    assert f"{name} {said}" in identity.text
    assert f"the model itself: as {attestation.name} is attested" in identity.text


def test_a_page_that_is_not_here_is_named_and_the_model_passes(original, attestation, tmp_path):
    folder = copy(original, tmp_path)
    (folder / "README.md").unlink()
    identity = findings(folder, against=attestation, proof=tmp_path / "a")["identity"]
    assert (identity.severity, "not here: README.md" in identity.text) == ("ok", True)


def test_an_edited_page_does_not_hide_a_changed_model(original, attestation, tmp_path):
    folder = copy(original, tmp_path)
    (folder / "README.md").write_text("other")
    (folder / "generation_config.json").write_text("{}")
    identity = findings(folder, against=attestation, proof=tmp_path / "a")["identity"]
    assert identity.severity == "failed"
    assert "README.md was edited" in identity.text
    assert "generation_config.json" in identity.text
    assert "the model itself" not in identity.text


def test_a_tokenizer_from_elsewhere_is_covered_by_its_pin_alone(original, tmp_path):
    folder = copy(original, tmp_path)
    for name in ("tokenizer.json", "vocab.json", "merges.txt"):
        (folder / name).unlink()
    own = tmp_path / "tokenizer.json"  # one folder up, where it is looked for
    shutil.copy(original / "tokenizer.json", own)
    # With *proof*, a tokenizer outside of the folder is covered by a pin only.
    options = {"against": attest(open_checkpoint(folder), trace=False), "proof": tmp_path / "a"}
    finding = findings(folder, **options)["tokenizer"]
    assert (finding.severity, "is not covered" in finding.text) == ("failed", True)
    pin = Digest(digest_of(own), "the lock file")
    pins = {own: pin}
    assert findings(folder, find_pin=pins.get, **options)["tokenizer"].severity == "ok"
    own.write_text(own.read_text() + " ")
    assert findings(folder, find_pin=pins.get, **options)["tokenizer"].severity == "failed"


def test_a_folder_is_pinned_when_each_of_its_files_is(original):
    sums = {
        original / name: sha for name, sha in read_files(open_checkpoint(original)).sha256.items()
    }
    pins = {path: Digest(sha256, "the lock file") for path, sha256 in sums.items()}
    assert findings(original, find_pin=pins.get)["identity"].severity == "ok"
    some = {path: pin for path, pin in pins.items() if path.name != "config.json"}
    assert "UNPINNED" in findings(original, find_pin=some.get)["identity"].text
    wrong = pins | {original / "modules.json": Digest("0" * 64, "the lock")}
    failed = findings(original, find_pin=wrong.get)["identity"]
    assert failed.severity == "failed"
    assert "modules.json" in failed.text


def test_a_model_that_is_replaced_while_it_is_checked_has_no_verdict(original, tmp_path):
    folder = copy(original, tmp_path)
    checks = verify_model(folder)
    assert next(checks).severity == "ok"
    fresh = tmp_path / "fresh"
    fresh.write_bytes((folder / "model.safetensors").read_bytes())
    fresh.replace(folder / "model.safetensors")
    later_checks = [*checks]
    assert later_checks[0].severity == "failed"
    assert "replaced" in later_checks[0].text


def test_an_inventory_notices_a_changed_file(original, tmp_path):
    folder = copy(original, tmp_path)
    files = open_checkpoint(folder).inventory
    files.check()
    (folder / "config.json").write_text("{}")
    with pytest.raises(IntegrityError, match=r"config\.json"):
        files.check()
