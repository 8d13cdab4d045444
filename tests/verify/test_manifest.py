"""The files that a statement names, and those of the model: compared in both directions.

Exit codes: 13 a statement that is not valid, 15 a check failed, 20 digests that are not computed.
"""

import copy
import hashlib
import json
import os
import shutil
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from hf_folders import tiny_folder, tokenizer_folder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_models import TOKENS, tiny_gguf

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.formats.containers import open_checkpoint
from bitnet.verify.attest import Attestation, attest, compare
from bitnet.verify.bundle import open_bundle, statement_of

needs_package = pytest.mark.skipif(
    find_spec("model_signing") is None, reason="pip install 'bitnet-xtask[signing-test]'"
)


def tiny_model(folder):
    """A folder with a page that no reader opens, and files that readers open if they exist."""
    tokenizer_folder(tiny_folder(folder, "llama"), TOKENS)
    (folder / "README.md").write_text("# A model\n")
    (folder / "generation_config.json").write_text('{"temperature": 0.6}')
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return folder


@pytest.fixture
def model(tmp_path):
    return tiny_model(tmp_path / "models/tiny")


def root_digest(resources):
    """Digest of the digests of *resources*, as model-signing computes that of its subject."""
    return hashlib.sha256(b"".join(bytes.fromhex(it["digest"]) for it in resources)).hexdigest()


def statement(model, *, with_content=True, **predicate):
    """An unsigned statement about *model* with other fields of its *predicate*.

    Its root digest fits. Without *with_content* it is as model-signing writes it, with files alone.
    """
    checkpoint = open_checkpoint(model)
    document = statement_of(checkpoint, attest(checkpoint, trace=False))
    document["predicate"] |= predicate
    if not with_content:
        del document["predicate"]["content"]
    resources = document["predicate"]["resources"]
    document["subject"][0]["digest"]["sha256"] = root_digest(resources)
    return document


def verify(bitnet, model, document, tmp_path):
    """Run ``bitnet verify`` on *model* against the statement *document*; the finished command."""
    path = tmp_path / "statement.json"
    path.write_text(json.dumps(document))
    return bitnet("verify", model, "--against", path)


def identity(bitnet, model, *options):
    """Severity and text of the check of identity.

    The command itself may fail: the weights are random, so its forward pass is not good enough.
    """
    done = bitnet("verify", model, *options, "--json")
    findings = json.loads(done.out)["findings"]
    (finding,) = (it for it in findings if it["subject"] == "identity")
    return finding["severity"], finding["text"]


def judge(bitnet, model, document, tmp_path):
    """Severity and text of the comparison of *model* with a statement."""
    path = tmp_path / "statement.json"
    path.write_text(json.dumps(document))
    return identity(bitnet, model, "--against", path)


@pytest.mark.parametrize("with_content", [True, False])
def test_the_model_that_a_statement_is_about_passes(bitnet, model, tmp_path, with_content):
    severity, text = judge(bitnet, model, statement(model, with_content=with_content), tmp_path)
    assert severity == "ok", text
    assert "SHA-256 as statement.json says" in text


NAMES = ("README.md", "generation_config.json", "chat_template.jinja", "tokenizer_config.json")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("with_content", [True, False])
def test_a_file_that_a_statement_names_and_that_is_gone_fails(
    bitnet, model, tmp_path, with_content, name
):
    document = statement(model, with_content=with_content)
    (model / name).unlink()
    severity, text = judge(bitnet, model, document, tmp_path)
    assert severity == "failed"
    assert f"{name} is gone, statement.json names it" in text


@pytest.mark.parametrize("with_content", [True, False])
def test_a_file_that_a_statement_does_not_name_fails(bitnet, model, tmp_path, with_content):
    document = statement(model, with_content=with_content)
    (model / "notes.txt").write_text("more")
    severity, text = judge(bitnet, model, document, tmp_path)
    assert severity == "failed"
    assert "notes.txt is not covered" in text
    (model / "notes.txt").unlink()
    (model / "added_tokens.json").write_text("{}")  # readers open it
    severity, text = judge(bitnet, model, document, tmp_path)
    assert severity == "failed"
    assert "statement.json says nothing of it" in text


def test_a_file_that_the_signer_left_out_need_not_be_covered(bitnet, model, tmp_path):
    document = statement(model)
    document["predicate"]["serialization"]["ignore_paths"] = ["notes", "page.txt"]
    (model / "notes").mkdir()
    (model / "notes/a.txt").write_text("more")
    (model / "page.txt").write_text("more")
    assert judge(bitnet, model, document, tmp_path)[0] == "ok"


def test_the_content_of_one_model_and_the_files_of_another_do_not_pass(bitnet, model, tmp_path):
    other = tiny_model(tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.01}))
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    document = statement(model, resources=statement(other)["predicate"]["resources"])
    assert judge(bitnet, model, document, tmp_path)[0] == "failed"
    assert judge(bitnet, other, document, tmp_path)[0] == "failed"


def resource(name, text=b""):
    """Entry of a statement for the file *name* with the content *text*."""
    return {"name": name, "algorithm": "sha256", "digest": hashlib.sha256(text).hexdigest()}


@pytest.mark.parametrize(
    "resources",
    [
        [resource("../x")],
        [resource("/etc/passwd")],
        [resource("a/../b")],
        [resource("a\\b")],
        [resource("a\nb")],
        [resource("")],
        [resource("a//b")],
        [resource("a") | {"digest": ""}],
        [resource("a") | {"digest": "00"}],
        [resource("a"), resource("a")],
    ],
    ids=str,
)
@pytest.mark.parametrize("as_well", [True, False], ids=["beside the right ones", "alone"])
def test_files_that_cannot_be_named_make_a_statement_invalid(
    bitnet, model, tmp_path, resources, as_well
):
    right = statement(model)["predicate"]["resources"]
    document = statement(model, resources=(right if as_well else []) + resources)
    done = verify(bitnet, model, document, tmp_path)
    assert done.code == 13, done.out
    assert "is not a statement of model-signing" in done.err


def test_a_statement_of_no_files_is_invalid(bitnet, model, tmp_path):
    done = verify(bitnet, model, statement(model, resources=[]), tmp_path)
    assert done.code == 13, done.out
    assert "is not a statement of model-signing" in done.err


# Names of parts of a file: its name, and the offsets of the first byte and behind the last.
@pytest.mark.parametrize(
    "shards",
    [["a:0"], ["a:0:x"], ["a:5:9"], ["a:0:5", "a:4:9"], ["a:0:5", "a:6:9"], ["a:0:0"], ["a:5:0"]],
)
def test_shards_that_are_not_a_whole_file_make_a_statement_invalid(bitnet, model, tmp_path, shards):
    serialization = {"method": "shards", "hash_type": "sha256", "shard_size": 5}
    resources = [resource(name) for name in shards]
    document = statement(model, resources=resources, serialization=serialization)
    assert verify(bitnet, model, document, tmp_path).code == 13


@needs_package
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("algorithm", ["sha256", "blake2"])
@pytest.mark.parametrize("shard_bytes", [0, 1000, 1 << 30])
@pytest.mark.parametrize("kind", ["folder", "file"])
def test_every_manifest_of_the_package_is_read(
    bitnet, model, tmp_path, algorithm, shard_bytes, kind
):
    from model_signing import hashing
    from model_signing._signing.signing import Payload

    path = model if kind == "folder" else tiny_gguf(tmp_path / "tiny.gguf")
    (model / "empty.txt").touch()
    config = hashing.Config()
    if shard_bytes:
        config.use_shard_serialization(hashing_algorithm=algorithm, shard_size=shard_bytes)
    else:
        config.use_file_serialization(hashing_algorithm=algorithm)
    document = json.loads(json.dumps(Payload(config.hash(path)).statement.pb, default=to_json))
    severity, text = judge(bitnet, path, document, tmp_path)
    assert severity == "ok", text
    title = {"sha256": "SHA-256", "blake2": "BLAKE2b"}[algorithm]
    assert f"{title} as statement.json says" in text
    weights = path / "model.safetensors" if kind == "folder" else path
    raw = bytearray(weights.read_bytes())
    raw[-3] ^= 1
    weights.write_bytes(raw)
    assert judge(bitnet, path, document, tmp_path)[0] == "failed"
    raw[-3] ^= 1
    weights.write_bytes(raw + b"\0")  # a byte more, behind the last shard
    assert judge(bitnet, path, document, tmp_path)[0] in ("failed", "skipped")


def to_json(message):
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(message, preserving_proto_field_name=False)


def test_digests_that_are_not_computed_here_are_named(bitnet, model, tmp_path):
    document = statement(model, resources=[resource("a") | {"algorithm": "blake3"}])
    done = verify(bitnet, model, document, tmp_path)
    assert done.code == 20
    assert "the digests are 'blake3'" in done.err
    assert "model_signing" in done.err


ODD = st.sampled_from([None, 0, 1.5, "", "x", [], {}, [0], {"a": 1}, [[]], ["a"], True])


def places(value, path=()):
    """Paths of everything in the JSON *value*, without the attestation's many digests."""
    yield path
    if path[-1:] == ("content",):
        return
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for at in range(len(value)):
            yield from places(value[at], (*path, at))


@pytest.fixture(scope="module")
def right_statement(tmp_path_factory):
    return statement(tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_statement_with_odd_values_is_read_or_refused(right_statement, tmp_path, data):
    document = copy.deepcopy(right_statement)
    *parents, last = data.draw(st.sampled_from([it for it in places(document) if it]))
    inner = document
    for key in parents:
        inner = inner[key]
    inner[last] = data.draw(ODD)
    path = tmp_path / "statement.json"
    path.write_text(json.dumps(document))
    with suppress(InvalidFormat, Unsupported):
        open_bundle(path, None)


# Names that files may have and that a bundle cannot list. An attestation lists all but the one that
# begins with a backslash: on Windows, such a path leaves the folder.
ODD_NAMES = ["a\nb", "\udcff.txt", "a:b", "\\x", '"dsseEnvelope": ', "\t"]


@pytest.mark.skipif(os.name == "nt", reason="such names cannot exist")
@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_attest_writes_nothing_that_verify_refuses(bitnet, model, tmp_path, name):
    try:
        (model / name).write_text("more")
    except (OSError, UnicodeEncodeError):
        pytest.skip("this file system has no such names")
    attestation = tmp_path / "attestation.json"
    done = bitnet("attest", model, "--no-trace", "--output", attestation)
    if name.startswith("\\"):
        assert done.code == 13
        assert not attestation.exists()
    else:
        assert done.code == 0, done.err
        assert identity(bitnet, model, "--against", attestation)[0] == "ok"
    bundle = tmp_path / "bundle.json"
    done = bitnet("attest", model, "--no-trace", "--bundle", bundle)
    assert done.code == 13
    assert not bundle.exists()


@pytest.mark.skipif(os.name == "nt", reason="such names cannot exist")
@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
@pytest.mark.parametrize("option", ["--output", "--bundle"])
def test_a_single_file_is_attested_and_verified_under_any_name(bitnet, tmp_path, name, option):
    folder = tmp_path / "models"
    folder.mkdir()
    file = folder / f"{name}.gguf"
    shutil.move(tiny_gguf(folder / "tiny.gguf"), file)
    proof = tmp_path / "proof.json"
    done = bitnet("attest", file, "--no-trace", option, proof)
    assert done.code == 0, done.err
    assert identity(bitnet, file, "--against", proof)[0] == "ok"


@pytest.mark.parametrize("name", ["https://in-toto.io/Statement/v1", '"dsseEnvelope"'])
def test_a_model_may_have_the_name_of_a_bundles_field(bitnet, model, tmp_path, name):
    path = tmp_path / "attestation.json"
    words = ("--no-trace", "--output", path, "--name", name)
    assert bitnet("attest", model, *words).code == 0
    assert identity(bitnet, model, "--against", path)[0] == "ok"


# --- folders that links lead to -----------------------------------------------------------------


def link_more(folder, elsewhere):
    elsewhere.mkdir()
    (elsewhere / "modeling.py").write_text("import os")
    (folder / "more").symlink_to(elsewhere, target_is_directory=True)


def link_pooling(folder, elsewhere):
    shutil.move(folder / "1_Pooling", elsewhere)
    (elsewhere / "modeling.py").write_text("import os")
    (folder / "1_Pooling").symlink_to(elsewhere, target_is_directory=True)


def link_to_itself(folder, elsewhere):
    (folder / "more").symlink_to(folder, target_is_directory=True)


def link_to_nothing(folder, elsewhere):
    (folder / "more").symlink_to(elsewhere)


LINKS = (link_more, link_pooling, link_to_itself, link_to_nothing)


@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.__name__)
@pytest.mark.parametrize("proof", ["attestation", "statement"])
def test_what_a_link_adds_to_a_folder_fails(bitnet, model, tmp_path, link, proof):
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling/config.json").write_text("{}")
    path = tmp_path / "proof.json"
    option = {"attestation": "--output", "statement": "--bundle"}[proof]
    assert bitnet("attest", model, "--no-trace", option, path).code == 0
    assert identity(bitnet, model, "--against", path)[0] == "ok"
    link(model, tmp_path / "elsewhere")
    assert identity(bitnet, model, "--against", path)[0] == "failed"


def test_a_linked_folder_with_the_same_files_passes(model, tmp_path):
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling/config.json").write_text("{}")
    before = attest(open_checkpoint(model), trace=False)
    shutil.move(model / "1_Pooling", tmp_path / "elsewhere")
    (model / "1_Pooling").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    checkpoint = open_checkpoint(model)
    assert compare(before, checkpoint) == []
    assert attest(checkpoint, trace=False).unread == before.unread


def test_an_attestation_is_read_as_it_was_written(model):
    attestation = attest(open_checkpoint(model), trace=False)
    assert Attestation.parse(attestation.text(), "a") == attestation


# --- lock files ----------------------------------------------------------------------------------


def pin_folder(project, model):
    """A lock file in *project* that names each file of *model*."""
    entries = [
        {
            "kind": "model",
            "repo": "org/tiny",
            "revision": "main",
            "commit": "ab" * 20,
            "file": path.name,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "size": path.stat().st_size,
            "licence": "mit",
            "path": path.relative_to(project).as_posix(),
        }
        for path in sorted(model.iterdir())
        if path.is_file()
    ]
    (project / "bitnet.lock.json").write_text(json.dumps({"version": 1, "files": entries}))


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_a_lock_file_names_and_that_is_gone_fails(bitnet, model, tmp_path, name):
    pin_folder(tmp_path, model)
    severity, text = identity(bitnet, model)
    assert severity == "ok"
    assert "as bitnet.lock.json says" in text
    (model / name).unlink()
    severity, text = identity(bitnet, model)
    assert severity == "failed"
    assert f"{name}: not here any more, bitnet.lock.json names it" in text
    assert bitnet("health", "--model-dir", model.parent).code == 15


def test_a_model_that_a_lock_file_names_and_that_is_gone_fails_the_health_check(bitnet, tmp_path):
    (tmp_path / "models").mkdir()
    path = tiny_gguf(tmp_path / "models/tiny.gguf")
    second_copy = shutil.copy(path, tmp_path / "models/again.gguf")
    pin_folder(tmp_path, tmp_path / "models")
    before = bitnet("health", "--model-dir", tmp_path / "models")
    assert "is gone" not in before.out
    Path(second_copy).unlink()
    done = bitnet("health", "--model-dir", tmp_path / "models")
    assert done.code == 15
    assert "again.gguf is gone, bitnet.lock.json names it" in done.out
    Path(second_copy).symlink_to(tmp_path / "nothing")  # listed as a model that cannot be read
    done = bitnet("health", "--model-dir", tmp_path / "models", "--json")
    assert done.code == 15
    assert len(json.loads(done.out)) == 2
