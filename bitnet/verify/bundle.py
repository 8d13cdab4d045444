"""Signed attestations in the OpenSSF model-signing form, to be exchanged with other tools.

An in-toto statement names every file of a model with its SHA-256 (``resources``), and their root
digest as its subject. It also contains our attestation by content (``content``), which other tools
ignore. With a key it is signed as a DSSE envelope inside a Sigstore bundle.

Form: sigstore/model-transparency, predicate ``https://model_signing/signature/v1.0``.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import IntegrityError, InvalidFormat, Unsupported, UsageError
from bitnet.base.files import read_bytes
from bitnet.base.invocation import extra_command, shell_quote
from bitnet.base.outputs import OutputKind, json_in
from bitnet.base.trust import printable
from bitnet.formats.checkpoint import parse_json
from bitnet.tokenizer.load import read_files
from bitnet.verify.attest import Attestation
from bitnet.verify.manifest import FileManifest, refuse_names

if TYPE_CHECKING:
    from bitnet.formats.checkpoint import Checkpoint

_STATEMENT = "https://in-toto.io/Statement/v1"
_PREDICATE = "https://model_signing/signature/v1.0"
_PAYLOAD = "application/vnd.in-toto+json"
# OID of the extension of Sigstore's certificates that names the OIDC issuer.
_ISSUER = "1.3.6.1.4.1.57264.1.1"
_BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"


def statement_of(checkpoint: Checkpoint, attestation: Attestation) -> dict[str, Any]:
    """In-toto statement about *checkpoint*: its files by SHA-256, and *attestation*.

    The files include those of a folder that no reader opens. Hidden files are left out, and are
    listed as ignored.
    """
    files = read_files(checkpoint)
    if checkpoint.path.is_dir():
        names = {name: name for name in (*files.names, *attestation.unread)}
        hidden = checkpoint.inventory.hidden
    else:  # model-signing calls the only file of a model "."
        names = {name: "." if len(files.names) == 1 else name for name in files.names}
        hidden = []
    digests = {names[n]: sha256 for n, sha256 in (files.sha256 | dict(attestation.unread)).items()}
    refuse_names(digests)
    resources = [
        {"name": name, "algorithm": "sha256", "digest": digests[name]}
        for name in sorted(digests, key=PurePosixPath)
    ]
    return {
        "_type": _STATEMENT,
        "subject": [{"name": attestation.name, "digest": {"sha256": _root_digest(resources)}}],
        "predicateType": _PREDICATE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": True,
                "ignore_paths": sorted(hidden),
            },
            "resources": resources,
            "content": attestation.facts(),
        },
    }


def sign(statement: dict[str, Any], key: Path) -> dict[str, Any]:
    """Sigstore bundle with *statement*, signed with the private elliptic-curve *key* (PEM)."""
    crypto = _crypto()
    try:
        private = crypto.serialization.load_pem_private_key(read_bytes(key), password=None)
        public = private.public_key()
        payload = json.dumps(statement, sort_keys=True).encode()
        form = crypto.serialization
        pem = public.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
        signature = private.sign(_message_of(payload), _algorithm(crypto, public))
    except (ValueError, TypeError, AttributeError, crypto.UnsupportedAlgorithm) as error:
        raise _not_a_key(key, "private") from error
    hint = hashlib.sha256(pem).hexdigest()
    return {
        "mediaType": _BUNDLE,
        "verificationMaterial": {"publicKey": {"hint": hint}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": _PAYLOAD,
            "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
        },
    }


def is_bundle(text: bytes) -> bool:
    """True if *text* is a statement or a bundle, and not a plain attestation."""
    try:
        document = json.loads(text) if text.lstrip()[:1] == b"{" else None
    except (ValueError, RecursionError):
        return False
    if not isinstance(document, dict):
        return False
    return "dsseEnvelope" in document or document.get("_type") == _STATEMENT


def _is_statement(path: Path) -> bool:
    document = json_in(path)
    return isinstance(document, dict) and is_bundle(json.dumps(document).encode())


BUNDLE = OutputKind("a bundle", _is_statement)


def open_bundle(path: Path, key: Path | None) -> tuple[Attestation | None, FileManifest]:
    """Attestation by content in the file *path*, or None if it has none; and the files it names.

    *key* is the public key (PEM) of the signature; it is needed exactly if the file is signed.
    """
    document = parse_json(read_bytes(path), path, dict)
    is_signed = "dsseEnvelope" in document
    if is_signed:
        _refuse_other_signers(document.get("verificationMaterial"), path, key)
    elif key is not None:
        raise UsageError(f"{path} is not signed", hint="leave --key out, or sign it")
    try:
        if key is not None:
            document = parse_json(_check_signature(document, key, path), path, dict)
        statement_type = document["_type"], document["predicateType"]
        if statement_type != (_STATEMENT, _PREDICATE):
            raise ValueError(f"it is a statement of the type {document['predicateType']!r}")
        predicate = document["predicate"]
        manifest = FileManifest.parse(predicate, path.name)
        (subject,) = document["subject"]
        if subject["digest"]["sha256"] != _root_digest(predicate["resources"]):
            raise ValueError("its digests do not fit")
        content = predicate.get("content")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise InvalidFormat(
            f"{path.name} is not a statement of model-signing: {why}",
            hint="make it again: bitnet attest ORIGINAL --bundle FILE",
        ) from error
    attestation = Attestation.parse(json.dumps(content), path.name) if content else None
    return attestation, manifest


def _refuse_other_signers(material: Any, path: Path, key: Path | None) -> None:
    """Refuse keyless signatures, which no key of the user can verify, and signatures without *key*.

    Sigstore's keyless signatures are made with a key that exists for minutes and has a certificate
    for an identity. Signatures by a company's certificate come with its chain. *material* is the
    ``verificationMaterial`` of the bundle.
    """
    material = material if isinstance(material, dict) else {}
    has_chain = "x509CertificateChain" in material
    if "certificate" in material or (has_chain and material.get("tlogEntries")):
        identity, issuer = _identity_in(material.get("certificate"))
        command = (
            f"model_signing verify sigstore MODEL --signature {shell_quote(path)} --identity NAME "
            "--identity_provider URL"
        )
        raise Unsupported(
            f"{path} is a keyless signature of Sigstore: its certificate is for {identity}, by "
            f"{issuer}, and no key of yours verifies it",
            hint=f"verify it with the package model-signing: {command}",
        )
    if key is not None:
        return
    if has_chain:
        command = (
            f"model_signing verify certificate MODEL --signature {shell_quote(path)} "
            "--certificate_chain ROOT.pem"
        )
        raise UsageError(
            f"{path} is signed with a certificate, and no key says by whom",
            hint="name the public key of the certificate: --key PUBLIC.pem; or follow its chain "
            f"with the package model-signing: {command}",
        )
    raise UsageError(f"{path} is signed, and no key says by whom", hint="--key PUBLIC.pem")


def _identity_in(certificate: Any) -> tuple[str, str]:
    """Identity and issuer in Sigstore's *certificate* of a bundle, as far as they can be read."""
    unknown = "an identity", "an issuer"
    try:
        from cryptography import x509

        raw = base64.b64decode(certificate["rawBytes"], validate=True)
        extensions = x509.load_der_x509_certificate(raw).extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        issuer = extensions.get_extension_for_oid(x509.ObjectIdentifier(_ISSUER)).value
        text = getattr(issuer, "value", b"").decode("utf-8", "replace")
        first = next(iter(names)).value
    except ModuleNotFoundError:
        return unknown
    except (x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return unknown
    except (KeyError, TypeError, ValueError, StopIteration):
        return unknown
    return printable(str(first)), printable(text)


def _root_digest(resources: list[dict[str, str]]) -> str:
    """SHA-256 of the digests of *resources*, joined: the subject of a statement."""
    return hashlib.sha256(
        b"".join(bytes.fromhex(resource["digest"]) for resource in resources)
    ).hexdigest()


def _check_signature(bundle: dict[str, Any], key: Path, path: Path) -> bytes:
    """Check that *key* signed *bundle*; returns its payload."""
    crypto = _crypto()
    envelope = bundle["dsseEnvelope"]
    payload = base64.b64decode(envelope["payload"], validate=True)
    signatures = envelope["signatures"]
    if len(signatures) != 1:
        raise ValueError(f"it has {len(signatures)} signatures, expected one")
    signature = base64.b64decode(signatures[0]["sig"], validate=True)
    if envelope["payloadType"] != _PAYLOAD:
        raise ValueError("another kind of payload")
    try:
        public = crypto.serialization.load_pem_public_key(read_bytes(key))
        algorithm = _algorithm(crypto, public)
    except (ValueError, AttributeError, crypto.UnsupportedAlgorithm) as error:
        raise _not_a_key(key, "public") from error
    try:
        public.verify(signature, _message_of(payload), algorithm)
    except crypto.InvalidSignature:
        raise IntegrityError(
            f"{path.name} is not signed with {key.name}, or was changed",
            hint="ask its signer for the public key, or for the bundle again",
        ) from None
    return payload


def _message_of(payload: bytes) -> bytes:
    """The bytes that a DSSE signature of *payload* signs."""
    return b"DSSEv1 %d %s %d %s" % (len(_PAYLOAD), _PAYLOAD.encode(), len(payload), payload)


def _algorithm(crypto: Any, public: Any) -> Any:
    """Signature algorithm of an elliptic-curve key: the hash has the strength of the curve."""
    hashes = {256: crypto.hashes.SHA256, 384: crypto.hashes.SHA384, 521: crypto.hashes.SHA512}
    if public.curve.key_size not in hashes:
        raise ValueError("another curve")
    return crypto.ec.ECDSA(hashes[public.curve.key_size]())


def _crypto() -> Any:
    """The parts of the package ``cryptography`` that signatures need."""
    try:
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"signatures need the package {error.name}", hint=extra_command("signing")
        ) from None
    return SimpleNamespace(
        InvalidSignature=InvalidSignature,
        UnsupportedAlgorithm=UnsupportedAlgorithm,
        ec=ec,
        hashes=hashes,
        serialization=serialization,
    )


def _not_a_key(key: Path, kind: str) -> UsageError:
    hint = "openssl ecparam -name prime256v1 -genkey -noout -out key.pem"
    return UsageError(f"{key} is not a {kind} elliptic-curve key without a password", hint=hint)
