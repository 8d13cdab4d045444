"""``inv cache list``."""

from __future__ import annotations

import sys

from bitnet.options import CacheOptions
from bitnet.tables import counted, short, table
from bitnet.tasks.declare import Output, task
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
        print(*table(head, rows, shrink=(3, 4, 5), right=(0, 1)), sep="\n")
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
