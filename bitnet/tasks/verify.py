"""``inv verify``."""

from __future__ import annotations

from pathlib import Path

from invoke.exceptions import Exit

from bitnet import settings
from bitnet.options import CacheOptions
from bitnet.tasks.declare import Output, task
from bitnet.terminal import as_json


@task(
    help={
        "model": "GGUF file, or folder with config.json; else BITNET_GGUF",
        "tokenizer": "tokenizer file or folder to judge; else the one that would be used",
        "pre": "pre-tokenizer name to use instead of what the GGUF file says",
        "allow_mock": "a model without a tokenizer is a warning and no failure",
    },
    metavars={"model": "PATH", "tokenizer": "PATH", "pre": "NAME"},
)
def verify(
    c, model="", tokenizer="", pre="", allow_mock=False, cache=CacheOptions(), output=Output()
):
    """Check a model, its tokenizer and one pass of it.

    One verdict for each check: file, metadata, tensors, weights, tokenizer, template, stop ids, one
    forward pass. Ends with exit code 15 when one failed.
    """
    from bitnet.errors import UsageError, VerificationFailed

    path = model or settings.gguf()
    if not path:
        raise UsageError(
            "verify needs --model", hint="bitnet verify --model PATH, or set BITNET_GGUF"
        )
    report = examine(Path(path), cache.root, output, tokenizer, pre=pre, allow_mock=allow_mock)
    if output.json:
        print(as_json(report))
        raise Exit(code=0 if report["passed"] else VerificationFailed.exit_code)
    failed = [check for check in report["findings"] if check["severity"] == "failed"]
    if failed:
        names = ", ".join(check["subject"] for check in failed)
        raise VerificationFailed(f"{path} failed: {names}", hint=failed[0]["hint"])
    print(f"{path} is fine")


def examine(path, cache, output, tokenizer="", *, pre="", allow_mock=False, show=True):
    """The checks of *path* as JSON values, printed as they are made unless --json was given.

    A model of which nothing is pinned is not compared with a digest.
    """
    from bitnet.findings import passed, render
    from bitnet.verify import verify_model

    checks = []
    for check in verify_model(
        path,
        tokenizer=tokenizer or None,
        pre=pre or None,
        allow_mock=allow_mock,
        pin=pin_of(path, cache),
    ):
        checks.append(check)
        if show and not output.json:
            print(*render([check]), sep="\n", flush=True)
    facts = [check.facts() for check in checks]
    return {"model": str(path), "passed": passed(checks), "findings": facts}


def pin_of(path, cache):
    """What the lock file, the cache or the table of packaged models says *path* must be."""
    from bitnet.files import path_of
    from bitnet.hub import lockfile
    from bitnet.hub.origin import known_digests
    from bitnet.hub.package_index import PACKAGED
    from bitnet.verify import Pin

    for entry in lockfile.read(Path(lockfile.NAME)):
        if entry.path is not None and path_of(entry.path).absolute() == path.absolute():
            return Pin(entry.sha256, lockfile.NAME)
    if (digest := known_digests(cache).get(str(path.absolute()))) is not None:
        return Pin(digest, "the cache's record")
    packaged = next((model for model in PACKAGED.values() if model.file == path.name), None)
    return Pin(packaged.sha256, f"the pin of {packaged.id}") if packaged is not None else None
