"""``inv verify``."""

from __future__ import annotations

from pathlib import Path

from invoke.exceptions import Exit

from bitnet import settings, tables
from bitnet.options import CacheOptions
from bitnet.tasks.context import Context
from bitnet.tasks.declare import Output, task
from bitnet.terminal import as_json


@task(
    group="Check",
    example="bitnet verify smollm2-135m",
    help={
        "model": "GGUF file, folder with config.json, or name of a model; else BITNET_GGUF",
        "tokenizer": "tokenizer file or folder to judge; else the one that would be used",
        "pre": "pre-tokenizer name to use instead of what the GGUF file says",
        "against": "what it must be: an attestation, an original, or a known model's name",
        "sha256": "digest the file must have",
        "ignore_key": "key of the model to treat as if it were not there; may be repeated",
        "allow_mock": "a model without a tokenizer does not fail, and is reported as NOT CHECKED",
    },
    positional=["model"],
    metavars={
        "model": "PATH|NAME",
        "tokenizer": "PATH",
        "pre": "NAME",
        "against": "FILE|NAME",
        "sha256": "DIGEST",
        "ignore_key": "KEY",
    },
)
def verify(
    c,
    model="",
    tokenizer="",
    pre="",
    against=None,
    sha256=None,
    ignore_key=[],  # noqa: B006
    allow_mock=False,
    cache=CacheOptions(),
    output=Output(),
):
    """Check a model, its tokenizer and one pass of it.

    One verdict for each check: file, identity, metadata, tensors, weights, family, tokenizer,
    vocabulary, template, stop ids, one forward pass. Ends with exit code 15 when one failed; what
    is not a model at all ends with the exit code that it has everywhere, 13 or 19. A model that
    nothing identifies (no attestation, no digest, none that this version knows) is UNPINNED at
    best.
    """
    from bitnet.errors import UsageError, VerificationFailed

    path = model or settings.gguf()
    if not path:
        raise UsageError("verify needs MODEL", hint="bitnet verify PATH, or set BITNET_GGUF")
    path = Context(cache=cache).model(path)
    pin = _digest_given(sha256) if sha256 is not None else pin_of(path, cache.root)
    report = examine(
        path,
        output,
        tokenizer=tokenizer or None,
        pre=pre or None,
        allow_mock=allow_mock,
        pin=pin,
        against=_given(against) if against is not None else attestation_beside(path),
        ignore_keys=ignore_key,
    )
    if output.json:
        print(as_json(report))
        raise Exit(code=0 if report["passed"] else VerificationFailed.exit_code)
    failed = [check for check in report["findings"] if check["severity"] == "failed"]
    if failed:
        raise VerificationFailed(report["verdict"], hint=failed[0]["hint"])
    tables.show(report["verdict"])


def examine(path, output, *, show=True, **options):
    """The checks of *path* as JSON values, printed as they are made unless --json was given."""
    from bitnet.findings import render
    from bitnet.verify import verify_model

    checks = []
    for check in verify_model(path, **options):
        checks.append(check)
        if show and not output.json:
            tables.show(*render([check]))
    return report_of(path, checks, ignored=options["ignore_keys"])


def report_of(path, checks, ignored=()):
    """Results of *checks* for the model at *path*, as JSON values."""
    from bitnet.findings import passed
    from bitnet.verify import verdict

    said = {"ignored_keys": list(ignored)} if ignored else {}
    return said | {
        "model": str(path),
        "passed": passed(checks),
        "pinned": any(one.subject == "identity" and one.severity == "ok" for one in checks),
        "not_checked": [check.subject for check in checks if check.severity == "skipped"],
        "verdict": verdict(path, checks),
        "findings": [check.facts() for check in checks],
    }


def _digest_given(sha256):
    from bitnet.errors import UsageError
    from bitnet.verify import Pin

    if len(sha256) != 64 or set(sha256.lower()) - set("0123456789abcdef"):
        raise UsageError("--sha256 expects 64 hexadecimal digits", hint="sha256sum FILE")
    return Pin(sha256.lower(), "--sha256")


def _given(against):
    """The attestation that --against means; an empty one, as of an unset variable, is refused."""
    from bitnet.errors import UsageError
    from bitnet.verify.attest import attestation_of

    if not against:
        raise UsageError("--against names nothing", hint="name one: --against FILE")
    return attestation_of(against)


def attestation_beside(path):
    """Attestation that a download wrote next to the model; ``None`` if nothing."""
    from bitnet.verify.attestation import Attestation, beside

    written = beside(path)
    return Attestation.read(written) if written.is_file() else None


def pin_of(path, cache):
    """Digest of *path* according to the lock file or the cache."""
    from bitnet.files import path_of
    from bitnet.hub import lockfile
    from bitnet.hub.origin import known_digests
    from bitnet.verify import Pin

    for entry in lockfile.read(Path(lockfile.NAME)):
        if entry.path is not None and path_of(entry.path).absolute() == path.absolute():
            return Pin(entry.sha256, lockfile.NAME)
    if (digest := known_digests(cache).get(str(path.absolute()))) is not None:
        return Pin(digest, "the cache's record")
    return None
