"""``cache list``, ``cache verify``, ``cache clean`` and ``rm``."""

from __future__ import annotations

import sys

from invoke.exceptions import Exit

from bitnet.cache.selection import Selection
from bitnet.commands.context import Context
from bitnet.commands.declare import Output, task
from bitnet.invocation import word
from bitnet.options import CacheOptions
from bitnet.tables import brief, counted, short, show, table
from bitnet.terminal import as_json


@task(group="Cache", example="bitnet cache list", name="cache.list")
def cache_list(c, cache=CacheOptions(), output=Output()):
    """List what is in the cache, with sizes and last use."""
    import time

    from bitnet.cache.entries import entries
    from bitnet.progress import human_size, human_time

    found = entries(cache.root)
    total = sum({entry.inode: entry.size_bytes for entry in found}.values())
    if output.json:
        facts = [entry.facts() for entry in found]
        print(as_json({"root": str(cache.root), "size_bytes": total, "entries": facts}))
        return
    head = ("size", "last used", "kind", "key", "path", "note")
    rows = [
        (
            human_size(entry.size_bytes),
            human_time(time.time() - entry.last_used_s),
            entry.kind,
            short(entry.key),
            _place(entry.path, cache.root),
            _note(entry),
        )
        for entry in found
    ]
    if rows:
        print(*table(head, rows, shrink=(2, 4, 5), whole=3, right=(0, 1)), sep="\n")
    print(f"{counted(len(found), 'file')}, {human_size(total)} in {cache.root}")


def _place(path, root):
    """*path* whole; on a terminal from the cache folder on, which the last line names."""
    is_below = sys.stdout.isatty() and path.is_relative_to(root)
    return str(path.relative_to(root) if is_below else path)


def _note(entry):
    """Known users of a file, and under how many other names, as far as that is known."""
    busy = [f"in use by {entry.owner}"] if entry.owner else []
    if not entry.is_stored:
        return ", ".join([*busy, *["a link"] * (entry.links > 1)])
    others = max(entry.links - 1, len(entry.users))
    return ", ".join([*busy, counted(others, "link") if others else "unreferenced"])


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
    from bitnet.store import Store
    from bitnet.store.tag import is_marked

    published = [e for e in entries(cache.root) if e.kind not in ("partial", "leftover")]
    expected = Store(cache.root).digests()
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


@task(
    group="Models",
    example="bitnet rm smollm2-135m --dry-run",
    positional=["model"],
    metavars={"model": "NAME"},
    help={
        "model": "name of a model, as `bitnet models` lists it",
        "dry_run": "show what would be removed, and remove nothing",
    },
)
def rm(c, model=None, dry_run=False, common=Context()):
    """Remove one model, and say what still holds its files.

    Files that a project or another model also has stay on the disk under those names.
    """
    from bitnet.hub.ref import parse
    from bitnet.hub.removal import removal_of

    planned = removal_of(parse(model), common.project())
    if not dry_run:
        planned.apply()
    if common.output.json:
        print(as_json(planned.facts()))
    else:
        show(*map(brief, planned.lines("would remove" if dry_run else "removed")))


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
