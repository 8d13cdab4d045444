"""``cache list``, ``cache verify``, ``cache clean`` and ``rm``."""

from __future__ import annotations

import sys
from pathlib import Path

from invoke.exceptions import Exit

from bitnet.base.invocation import word
from bitnet.base.options import CacheOptions
from bitnet.base.tables import brief, quantity, short, show, table
from bitnet.base.terminal import as_json
from bitnet.cache.prune import Selection
from bitnet.commands.context import Context
from bitnet.commands.declare import Output, task


@task(group="Cache", example="bitnet cache list", name="cache.list")
def cache_list(c, cache=CacheOptions(), output=Output()):
    """List what is in the cache, with sizes and last use.

    Models and tokenizers come first, by repository, with the paths that hold each file: deleting
    it from the cache frees its bytes only when no other path holds it.
    """
    import time

    from bitnet.base.progress import human_size, human_time
    from bitnet.cache.entries import entries

    listing = entries(cache.root)
    total = sum({entry.inode: entry.size_bytes for entry in listing}.values())
    if output.json:
        facts = [entry.facts() for entry in listing]
        print(as_json({"root": str(cache.root), "size_bytes": total, "entries": facts}))
        return
    print(*_by_repository(listing, cache.root), sep="", end="")
    of_repositories = {entry.inode for entry in listing if entry.repository}
    head = ("size", "last used", "kind", "key", "path", "note")
    rows = [
        (
            human_size(entry.size_bytes),
            human_time(time.time() - entry.last_used_s),
            entry.kind,
            entry.key if "/" in entry.key else short(entry.key),
            _place(entry.path, cache.root),
            _note(entry),
        )
        for entry in listing
        if entry.inode not in of_repositories
    ]
    if rows:
        print(*table(head, rows, shrink=(2, 4, 5), whole=3, right=(0, 1)), sep="\n")
    print(f"{quantity(len(listing), 'file')}, {human_size(total)} in {cache.root}")


def _by_repository(listing, root):
    """Lines of a table of the files of the store, by repository, with what holds each."""
    from bitnet.base.progress import human_size

    rows = []
    for name in sorted({entry.repository for entry in listing if entry.repository}):
        files = [entry for entry in listing if entry.repository == name]
        total = sum(entry.size_bytes for entry in files)
        rows.append((name, human_size(total), quantity(len(files), "file")))
        for entry in files:
            held = [_place(Path(path), root) for path in entry.holders(listing)]
            busy = [f"in use by {entry.owner}"] if entry.owner else []
            held_by = ", ".join([*busy, *held]) or "nothing else"
            rows.append((f"  {entry.origin.file}", human_size(entry.size_bytes), held_by))
    if rows:
        head = ("repository and file", "size", "held by")
        yield from (f"{line}\n" for line in table(head, rows, shrink=(2,), whole=0, right=(1,)))
        yield "\n"


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
    return ", ".join([*busy, quantity(others, "link") if others else "unreferenced"])


@task(
    group="Cache",
    example="bitnet cache verify",
    name="cache.verify",
    positional=["model"],
    help={"model": "compare the files of this repository with the hub's digests instead"},
    metavars={"model": "NAME|REPO"},
)
def cache_verify(c, model="", common=Context()):
    """Check every file in the cache for damage.

    Tokenizers must be valid JSON, models complete GGUF files, and both what was fetched where that
    is recorded. Ends with exit code 13 when one is damaged.

    With a repository it reads its files and asks the hub for the digest of each, at the commit that
    was fetched; a file whose digest the hub does not name is NOT CHECKED, and fails.
    """
    if model:
        _compare_with_hub(model, common)
        return
    cache, output = common.cache, common.output
    from bitnet.base.errors import IntegrityError
    from bitnet.cache.entries import entries, verify
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


def _compare_with_hub(name, common):
    from bitnet.base.errors import VerificationFailed
    from bitnet.base.findings import render
    from bitnet.hub.models import compare_with_hub
    from bitnet.hub.ref import parse

    findings = list(compare_with_hub(parse(name), common.project(verify=True)))
    if common.output.json:
        print(as_json([finding.facts() for finding in findings]))
    else:
        show(*map(brief, render(findings)))
    wrong = [finding for finding in findings if finding.severity != "ok"]
    if wrong or not findings:
        state = "NOT CHECKED" if not any(one.failed for one in wrong) else "not what the hub has"
        raise VerificationFailed(
            f"{len(wrong)} of {len(findings)} files of {name} are {state}",
            hint=wrong[0].hint if wrong else "",
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
    from bitnet.hub.models import removal_of
    from bitnet.hub.ref import parse

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
    from bitnet.base.errors import UsageError
    from bitnet.cache.prune import plan, prune

    planned = plan(cache.root, selection)
    terminal = sys.stdin.isatty() and not output.json
    lists = dry_run or output.verbose or (terminal and not yes)
    if not output.json and lists:
        show(*map(brief, planned.files("would remove")))
    if not output.json and (dry_run or not yes):
        show(planned.summary("would remove"))
    sure = not dry_run and (yes or not planned.remove or (terminal and _confirm()))
    if not (sure or dry_run or terminal):
        raise UsageError(
            "nothing was removed: there is no terminal to ask on",
            hint="bitnet cache clean --yes, or --dry-run",
        )
    done = prune(planned) if sure else planned
    if output.json:
        print(as_json({"removed": sure, **done.facts()}))
    elif sure:
        show(f"Cache cleanup complete: {done.summary('removed')}")


def _confirm() -> bool:
    print("Remove them? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
