"""``inv cache.list``."""

from __future__ import annotations

from bitnet.options import CacheOptions
from bitnet.tasks.declare import Output, task
from bitnet.terminal import as_json


@task(group="Cache", example="bitnet cache list", name="cache.list")
def cache_list(c, cache=CacheOptions(), output=Output()):
    """List what is in the cache, with sizes and last use."""
    import time

    from bitnet.cache import entries
    from bitnet.progress import human_size, human_time

    found = entries(cache.root)
    total = sum({entry.inode: entry.size_bytes for entry in found}.values())
    if output.json:
        facts = [entry.facts() for entry in found]
        print(as_json({"root": str(cache.root), "size_bytes": total, "entries": facts}))
        return
    for entry in found:
        age = human_time(time.time() - entry.last_used_s)
        busy = f"  (in use by {entry.owner})" if entry.owner else ""
        print(
            f"{human_size(entry.size_bytes):>9}  {age:>7}  {entry.kind:<11}  {entry.key}  "
            f"{entry.path}{_links(entry)}{busy}"
        )
    print(f"{len(found)} files, {human_size(total)} in {cache.root}")


def _links(entry):
    """Under how many other names a file of the store is in use, as far as that is known."""
    if not entry.is_stored:
        return "  (a link)" if entry.links > 1 else ""
    others = max(entry.links - 1, len(entry.users))
    return f"  ({others} links)" if others else "  (unreferenced)"
