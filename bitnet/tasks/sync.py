"""``inv sync``."""

from __future__ import annotations

import sys

from bitnet.errors import NotFound
from bitnet.tasks.context import Context
from bitnet.tasks.declare import task
from bitnet.terminal import as_json


@task(
    help={
        "update": "accept files that have changed on the server, and pin them",
        "verify": "read what is there again instead of trusting size, time and inode",
    }
)
def sync(c, update=False, verify=False, common=Context()):
    """Fetch exactly what bitnet.lock.json says.

    What is there with the right digest needs no connection. A file that has been replaced on the
    server is an error, unless --update accepts it. Commands that fetch something write the lock
    file; commit it, and every machine gets the same bytes.
    """
    from bitnet.hub import lockfile
    from bitnet.hub.sync import provide_locked
    from bitnet.tokenizer.vocabulary import check_vocabulary
    from bitnet.verify.attest import attest_fetched

    project = common.project(update=update, verify=verify)
    entries = lockfile.read(project.lock_path)
    if not entries:
        raise NotFound(
            f"{project.lock_path} pins nothing",
            hint="fetch something: bitnet download-model --id smollm2-135m",
        )
    results = []
    for entry in entries:
        got = provide_locked(entry, project, check=check_vocabulary)
        changed = " (new version)" if got.sha256 != entry.sha256 else ""
        state = "already there" if got.cached else "fetched"
        print(f"✓ {entry.repo}/{entry.file}: {state}{changed}", file=sys.stderr)
        attest_fetched(got.path, fresh=not got.cached)
        results.append({"repo": entry.repo, "file": entry.file, **got.facts()})
    paths = "\n".join(str(got["path"]) for got in results)
    print(as_json(results) if common.output.json else paths)
