"""``inv cache verify``."""

from __future__ import annotations

from invoke.exceptions import Exit

from bitnet.invocation import word
from bitnet.options import CacheOptions
from bitnet.tables import brief, show
from bitnet.tasks.declare import Output, task
from bitnet.terminal import as_json


@task(group="Cache", example="bitnet cache verify", name="cache.verify")
def cache_verify(c, cache=CacheOptions(), output=Output()):
    """Check every file in the cache for damage.

    Tokenizers must be valid JSON, models complete GGUF files, and both what was fetched where that
    is recorded. Ends with exit code 13 when one is damaged.
    """
    from bitnet.cache.check import verify
    from bitnet.cache.entries import entries
    from bitnet.errors import IntegrityError
    from bitnet.formats.gguf import GGUF
    from bitnet.hub.origin import known_digests
    from bitnet.store.tag import is_marked

    published = [e for e in entries(cache.root) if e.kind not in ("partial", "leftover")]
    expected = known_digests(cache.root)
    verdicts = [
        verify(entry, read_gguf=lambda path: GGUF.open(path).close(), expected=expected)
        for entry in published
    ]
    damaged = [verdict for verdict in verdicts if not verdict.intact]
    if output.json:
        print(as_json([verdict.facts() for verdict in verdicts]))
        if damaged:
            raise Exit(code=IntegrityError.exit_code)
        return
    for verdict in map(str, verdicts):
        show(brief(verdict))
    if damaged:
        first = damaged[0].entry
        models = " --models" if first.kind == "model" else ""
        remedy = f"bitnet cache clean --key {word(first.key)}{models} --yes"
        if not is_marked(cache.root, first.path):
            remedy = f"delete {first.path}"
        raise IntegrityError(
            f"{len(damaged)} of {len(verdicts)} files in {cache.root} are damaged",
            hint=f"{remedy}, then fetch it again",
        )
