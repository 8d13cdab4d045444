"""Bundles in the form of model-signing: what that package signs we verify, and the other way.

Exit codes: 2 a wrong call, 13 a bundle that is not valid, 15 a model that is not the signed one, 20
a kind of signature that is not supported.
"""

import base64
import json
import shutil
from datetime import datetime, timedelta, timezone
from importlib.util import find_spec

import pytest
from hf_folders import tiny_folder, tokenizer_folder
from tiny_models import TOKENS, tiny_gguf

from bitnet.base.errors import IntegrityError, Unsupported
from bitnet.formats.containers import open_checkpoint
from bitnet.verify.attest import attest
from bitnet.verify.bundle import open_bundle, sign, statement_of

pytest.importorskip("cryptography", reason="pip install 'bitnet-xtask[signing]'")
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

needs_package = pytest.mark.skipif(
    find_spec("model_signing") is None, reason="pip install 'bitnet-xtask[signing-test]'"
)
PEM = serialization.Encoding.PEM


@pytest.fixture(scope="module", params=[ec.SECP256R1(), ec.SECP384R1()], ids=lambda c: c.name)
def keys(request, tmp_path_factory):
    """Files of a private key, of its public key, and of the public key of another signer."""
    folder = tmp_path_factory.mktemp("keys")
    paths = []
    for name in ("key", "other"):
        private = ec.generate_private_key(request.param)
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        (folder / f"{name}.pem").write_bytes(
            private.private_bytes(
                PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        (folder / f"{name}.pub").write_bytes(private.public_key().public_bytes(PEM, form))
        paths.append(folder / f"{name}.pub")
    return folder / "key.pem", *paths


@pytest.fixture(params=["folder", "file"])
def model(request, tmp_path):
    """A folder with a page that no reader opens, or a file."""
    if request.param == "file":
        return tiny_gguf(tmp_path / "tiny.gguf")
    folder = tokenizer_folder(tiny_folder(tmp_path / "models/tiny", "llama"), TOKENS)
    (folder / "README.md").write_text("# A model\n")
    (folder / ".gitattributes").write_text("*\n")
    return folder


def damage(model):
    """Change a number of the model's configuration."""
    if model.is_dir():
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-2}))
    else:
        tiny_gguf(model, **{"llama.rope.freq_base": 77.0})


@pytest.fixture
def bundle(bitnet, model, keys, tmp_path):
    """A bundle of ``bitnet attest`` about the model, signed with the first key."""
    path = tmp_path / "bundle.sig"
    done = bitnet("attest", model, "--bundle", path, "--key", keys[0], "--no-trace")
    assert done.code == 0, done.err
    return path


def _parts_of(bundle):
    """The JSON of the file *bundle*, and the statement in it that is signed."""
    document = json.loads(bundle.read_text())
    return document, json.loads(base64.b64decode(document["dsseEnvelope"]["payload"]))


def _package_verifies(model, bundle, public):
    """Let model-signing verify *bundle*; it raises ValueError if the bundle is not right."""
    from model_signing import verifying

    config = verifying.Config().use_elliptic_key_verifier(public_key=public)
    config.verify(model, bundle)


@needs_package
@pytest.mark.filterwarnings("ignore")
def test_the_package_verifies_what_we_sign(model, bundle, keys):
    _package_verifies(model, bundle, keys[1])
    with pytest.raises(ValueError, match="Key mismatch"):
        _package_verifies(model, bundle, keys[2])
    damage(model)
    with pytest.raises(ValueError, match="Signature mismatch"):
        _package_verifies(model, bundle, keys[1])


@needs_package
@pytest.mark.filterwarnings("ignore")
def test_we_verify_what_the_package_signs(bitnet, model, keys, tmp_path):
    from model_signing import hashing, signing

    signature = tmp_path / "theirs.sig"
    ignored = hashing.Config().set_ignored_paths(paths=[], ignore_git_paths=True)
    config = signing.Config().use_elliptic_key_signer(private_key=keys[0])
    config.set_hashing_config(ignored).sign(model, signature)
    words = ("verify", model, "--against", signature, "--key")
    done = bitnet(*words, keys[1])
    assert "SHA-256 as theirs.sig says" in done.out, done.err
    assert bitnet(*words, keys[2]).code != 0
    if model.is_dir():
        (model / "generation_config.json").write_text("{}")
        assert "theirs.sig says nothing of it" in bitnet(*words, keys[1]).out
        (model / "generation_config.json").unlink()
    damage(model)
    assert bitnet(*words, keys[1]).code == 15


def test_our_bundle_is_verified_by_content(bitnet, model, bundle, keys):
    words = ("verify", model, "--against", bundle, "--key", keys[1])
    assert "is attested" in bitnet(*words).out
    if model.is_dir():
        config = json.loads((model / "config.json").read_text())
        # Other bytes of the same content.
        (model / "config.json").write_text(json.dumps(config, indent=7))
        assert "is attested" in bitnet(*words).out
    damage(model)
    done = bitnet(*words)
    assert done.code == 15
    assert "is attested to be" in done.out


def test_a_signature_of_another_key_or_text_is_refused(bitnet, model, bundle, keys):
    words = ("verify", model, "--against", bundle)
    assert bitnet(*words).code == 2  # nothing says by whom
    assert bitnet(*words, "--key", keys[2]).code == 13
    document, statement = _parts_of(bundle)
    statement["predicate"]["content"]["keys"] = {}
    changed = base64.b64encode(json.dumps(statement).encode()).decode()
    document["dsseEnvelope"]["payload"] = changed
    bundle.write_text(json.dumps(document))
    assert bitnet(*words, "--key", keys[1]).code == 13


def test_a_statement_without_a_signature_is_an_attestation(bitnet, model, tmp_path):
    path = tmp_path / "statement.json"
    assert bitnet("attest", model, "--bundle", path, "--no-trace").code == 0
    assert "is attested" in bitnet("verify", model, "--against", path).out
    statement = json.loads(path.read_text())
    statement["predicate"]["resources"][0]["digest"] = "0" * 64
    path.write_text(json.dumps(statement))
    assert bitnet("verify", model, "--against", path).code == 13


@pytest.mark.parametrize(
    "words",
    [
        ("attest", "{model}", "--key", "{key}"),
        ("attest", "{model}", "--bundle", "b", "--key", "{model}", "--no-trace"),
        ("verify", "{model}", "--key", "{key}"),
        ("verify", "{model}", "--against", "{model}", "--key", "{key}"),
    ],
)
def test_a_key_in_the_wrong_place_is_a_wrong_call(bitnet, tmp_path, keys, words):
    model = tiny_gguf(tmp_path / "tiny.gguf")
    done = bitnet(*(word.format(model=model, key=keys[0]) for word in words))
    assert done.code == 2, done.err


def test_one_file_for_attestation_and_bundle_is_a_wrong_call(bitnet, model, tmp_path):
    """Only one of them would be in it."""
    path = tmp_path / "proof.json"
    done = bitnet("attest", model, "--output", path, "--bundle", path, "--no-trace")
    assert done.code == 2
    assert "--output and --bundle are one file" in done.err
    assert not path.exists()


def test_every_file_is_a_resource_and_hidden_ones_are_not(bundle, model):
    _, statement = _parts_of(bundle)
    names = {entry["name"] for entry in statement["predicate"]["resources"]}
    if model.is_dir():
        assert {"config.json", "README.md", "model.safetensors"} < names
        assert ".gitattributes" not in names
    else:
        assert names == {"."}


def test_a_copy_has_the_same_digests(bitnet, model, tmp_path, bundle, keys):
    copy = tmp_path / f"copy{model.suffix}"
    (shutil.copytree if model.is_dir() else shutil.copy)(model, copy)
    assert "is attested" in bitnet("verify", copy, "--against", bundle, "--key", keys[1]).out


def set_verification_material(bundle, **fields):
    document = json.loads(bundle.read_text())
    document["verificationMaterial"] = fields
    bundle.write_text(json.dumps(document))


def sigstore_certificate(extensions=True):
    """A certificate as Sigstore makes them: for an address, with who identified its holder."""
    now = datetime.now(timezone.utc)
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name)
    builder = builder.public_key(private.public_key()).serial_number(7)
    builder = builder.not_valid_before(now).not_valid_after(now + timedelta(minutes=10))
    if extensions:
        address = x509.SubjectAlternativeName([x509.RFC822Name("ann@example.org")])
        issuer = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
        builder = builder.add_extension(address, critical=True)
        unknown = x509.UnrecognizedExtension(issuer, b"https://id.example.org")
        builder = builder.add_extension(unknown, critical=False)
    der = builder.sign(private, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
    return {"rawBytes": base64.b64encode(der).decode()}


@pytest.mark.parametrize("with_key", [True, False])
@pytest.mark.parametrize(
    ("certificate", "who"),
    [
        (sigstore_certificate(), "for ann@example.org, by https://id.example.org"),
        (sigstore_certificate(extensions=False), "for an identity, by an issuer"),
        ({"rawBytes": "AAAA"}, "for an identity, by an issuer"),
        ({}, "for an identity, by an issuer"),
        ("x", "for an identity, by an issuer"),
    ],
)
def test_a_keyless_bundle_is_named_with_what_verifies_it(
    bitnet, model, bundle, keys, with_key, certificate, who
):
    set_verification_material(bundle, certificate=certificate, tlogEntries=[{}])
    key = ("--key", keys[1]) if with_key else ()
    done = bitnet("verify", model, "--against", bundle, *key)
    assert done.code == 20
    assert "is a keyless signature of Sigstore" in done.err
    assert who in done.err
    assert "model_signing verify sigstore MODEL --signature" in done.err


def test_a_bundle_with_a_chain_of_certificates_is_verified_by_its_key(bitnet, model, bundle, keys):
    set_verification_material(
        bundle, x509CertificateChain={"certificates": [sigstore_certificate()]}
    )
    done = bitnet("verify", model, "--against", bundle)
    assert done.code == 2
    assert "is signed with a certificate" in done.err
    assert "model_signing verify certificate MODEL --signature" in done.err
    done = bitnet("verify", model, "--against", bundle, "--key", keys[1])
    assert "is attested" in done.out
    assert bitnet("verify", model, "--against", bundle, "--key", keys[2]).code == 13


@pytest.mark.parametrize("count", [0, 2])
def test_a_bundle_has_one_signature(bitnet, model, bundle, keys, count):
    document = json.loads(bundle.read_text())
    document["dsseEnvelope"]["signatures"] *= count
    bundle.write_text(json.dumps(document))
    done = bitnet("verify", model, "--against", bundle, "--key", keys[1])
    assert done.code == 13
    assert f"it has {count} signatures, expected one" in done.err


@pytest.fixture(scope="module")
def statement(tmp_path_factory):
    """A statement about a tiny model."""
    checkpoint = open_checkpoint(tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf"))
    return statement_of(checkpoint, attest(checkpoint, trace=False))


ODD = (None, 0, 1.5, "", "x", [], {}, [0], {"a": 1}, True)


@pytest.mark.parametrize("value", ODD, ids=repr)
@pytest.mark.parametrize(
    "path",
    [
        ("dsseEnvelope",),
        ("dsseEnvelope", "payload"),
        ("dsseEnvelope", "payloadType"),
        ("dsseEnvelope", "signatures"),
        ("dsseEnvelope", "signatures", 0),
        ("dsseEnvelope", "signatures", 0, "sig"),
        ("verificationMaterial", "certificate"),
    ],
    ids=str,
)
def test_a_bundle_with_odd_values_is_refused(statement, keys, tmp_path, path, value):
    document = sign(statement, keys[0])
    file = tmp_path / "bundle.sig"
    file.write_text(json.dumps(document))
    assert open_bundle(file, keys[1])[0] is not None
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    file.write_text(json.dumps(document))
    with pytest.raises((IntegrityError, Unsupported)):
        open_bundle(file, keys[1])


# Object identifiers of two curves in DER, both of eight bytes.
P256 = bytes.fromhex("2a8648ce3d030107")
SM2 = bytes.fromhex("2a811ccf5501822d")


@pytest.mark.parametrize("kind", ["private", "public"])
def test_a_key_of_a_curve_that_is_not_supported_is_not_a_key(bitnet, tmp_path, kind):
    private = ec.generate_private_key(ec.SECP256R1())
    der = private.private_bytes(
        serialization.Encoding.DER,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (tmp_path / "right.pem").write_bytes(
        private.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    if kind == "public":
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        der = private.public_key().public_bytes(serialization.Encoding.DER, form)
    assert P256 in der
    text = base64.encodebytes(der.replace(P256, SM2)).decode()
    title = f"{kind.upper()} KEY"
    key = tmp_path / "sm2.pem"
    key.write_text(f"-----BEGIN {title}-----\n{text}-----END {title}-----\n")
    model = tiny_gguf(tmp_path / "tiny.gguf")
    signer = key if kind == "private" else tmp_path / "right.pem"
    words = ("attest", model, "--bundle", tmp_path / "b.sig", "--no-trace", "--key", signer)
    done = bitnet(*words)
    if kind == "public":
        done = bitnet("verify", model, "--against", tmp_path / "b.sig", "--key", key)
    assert done.code == 2, done.err
    assert f"is not a {kind} elliptic-curve key" in done.err


@pytest.fixture
def hidden(tmp_path):
    """A folder with a model, and hidden files at every depth."""
    folder = tokenizer_folder(tiny_folder(tmp_path / "hidden", "llama"), TOKENS)
    for name in (".DS_Store", "sub/.DS_Store", "sub/deep/.cache/a/b", "sub/page.md", ".x/y/.z"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_hidden_files_in_folders_are_listed_as_left_out(bitnet, hidden, tmp_path):
    bundle = tmp_path / "b.json"
    assert bitnet("attest", hidden, "--bundle", bundle, "--no-trace").code == 0
    predicate = json.loads(bundle.read_text())["predicate"]
    left_out = predicate["serialization"]["ignore_paths"]
    assert left_out == [".DS_Store", ".x", "sub/.DS_Store", "sub/deep/.cache"]
    named = {resource["name"] for resource in predicate["resources"]}
    assert "sub/page.md" in named
    assert not any(part.startswith(".") for name in named for part in name.split("/"))


@needs_package
@pytest.mark.filterwarnings("ignore")
def test_the_package_verifies_a_folder_with_hidden_files(bitnet, hidden, keys, tmp_path):
    bundle = tmp_path / "b.sig"
    assert bitnet("attest", hidden, "--bundle", bundle, "--key", keys[0], "--no-trace").code == 0
    _package_verifies(hidden, bundle, keys[1])
