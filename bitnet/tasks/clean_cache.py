"""``inv cache clean``."""

from __future__ import annotations

import sys

from bitnet.cache.selection import Selection
from bitnet.options import CacheOptions
from bitnet.tables import brief, show
from bitnet.tasks.declare import Output, task
from bitnet.terminal import as_json


@task(
    group="Cache",
    aliases=("cache.clean",),
    example="bitnet cache clean --older-than 30d --dry-run",
    help={
        "dry_run": "show what would be removed, and remove nothing",
        "yes": "remove without asking",
    },
)
def clean_cache(
    c, selection=Selection(), dry_run=False, yes=False, cache=CacheOptions(), output=Output()
):
    """Remove cached files: shows them first, then asks.

    Without options everything but downloaded models is removed. Files in use by another process
    are kept and named. Without a terminal to ask on, nothing is removed unless --yes is given
    (exit code 2).
    """
    from bitnet.cache.prune import plan, prune
    from bitnet.errors import UsageError

    planned = plan(cache.root, selection)
    terminal = sys.stdin.isatty() and not output.json
    if not output.json and (dry_run or not yes):
        show(*map(brief, planned.lines("would remove")))
    sure = not dry_run and (yes or not planned.remove or (terminal and _agreed()))
    if not (sure or dry_run or terminal):
        raise UsageError(
            "nothing was removed: there is no terminal to ask on",
            hint="bitnet cache clean --yes, or --dry-run",
        )
    done = prune(planned) if sure else planned
    if output.json:
        print(as_json({"removed": sure, **done.facts()}))
    elif sure:
        show(*map(brief, done.lines("removed") if yes else ()), "Cache cleanup complete")


def _agreed() -> bool:
    print("Remove them? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
