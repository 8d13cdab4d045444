"""``inv sync``."""

from __future__ import annotations

import sys
from pathlib import Path

from bitnet.errors import AuthError, NotFound, UsageError, VerificationFailed
from bitnet.tables import show
from bitnet.tasks.context import Context
from bitnet.tasks.declare import task
from bitnet.terminal import as_json


@task(
    group="Models",
    example="bitnet sync",
    help={
        "update": "accept files that have changed on the server, and pin them",
        "verify": "read what is there again instead of trusting size, time and inode",
        "check": "fetch nothing; fail when a pinned file is missing or is another one",
        "skip_gated": "leave out files that need an access token that this run does not have",
        "skipped_to": "with --skip-gated: write the names of files left out to this file",
    },
    metavars={"skipped_to": "FILE"},
)
def sync(
    c,
    update=False,
    verify=False,
    check=False,
    skip_gated=False,
    skipped_to="",
    common=Context(),
):
    """Fetch exactly what bitnet.lock.json says.

    What is there with the right digest needs no connection. A file that has been replaced on the
    server is an error, unless --update accepts it. Commands that fetch something write the lock
    file; commit it, and every machine gets the same bytes.
    """
    from bitnet.hub import lockfile
    from bitnet.hub.sync import provide_locked
    from bitnet.tokenizer.vocabulary import check_vocabulary
    from bitnet.verify.attest import attest_fetched

    if check and (update or skip_gated):
        raise UsageError("--check fetches nothing", hint="leave --update and --skip-gated out")
    project = common.project(update=update, verify=verify)
    entries = lockfile.read(project.lock_path)
    if not entries:
        raise NotFound(
            f"{project.lock_path} pins nothing",
            hint="fetch something: bitnet download-model smollm2-135m",
        )
    if check:
        _check(project, entries, common.output)
        return
    results, skipped = [], []
    for entry in entries:
        name = f"{entry.repo}/{entry.file}"
        try:
            got = provide_locked(entry, project, check=check_vocabulary)
        except AuthError:
            if not skip_gated:
                raise
            skipped.append(name)
            show(f"- {name}: NOT FETCHED, it needs an access token", stream=sys.stderr)
            continue
        changed = " (new version)" if got.sha256 != entry.sha256 else ""
        state = "already there" if got.cached else "fetched"
        show(f"✓ {name}: {state}{changed}", stream=sys.stderr)
        attest_fetched(got.path, fresh=not got.cached)
        results.append({"repo": entry.repo, "file": entry.file, **got.facts()})
    if skipped_to:
        _write_names(Path(skipped_to), skipped)
    paths = "\n".join(str(got["path"]) for got in results)
    print(as_json(results) if common.output.json else paths)


def _check(project, entries, output):
    """Every pinned file of the project is there with its digest; nothing is written."""
    from bitnet.files import digest_of, path_of
    from bitnet.findings import Finding, passed, render

    found = []
    for entry in entries:
        name = f"{entry.repo}/{entry.file}"
        if entry.path is None:
            said = "it is pinned for the cache, not for a place in the project"
            found.append(Finding("skipped", name, said, "bitnet cache verify"))
            continue
        path = project.folder / path_of(entry.path)
        if not path.exists():
            found.append(Finding("failed", name, f"{entry.path} is missing", "bitnet sync"))
        elif (digest := digest_of(path)) != entry.sha256:
            said = f"{entry.path} has SHA-256 {digest}, pinned is {entry.sha256}"
            found.append(Finding("failed", name, said, "bitnet sync --update, or restore the file"))
        else:
            found.append(Finding("ok", name, f"{entry.path} is what is pinned"))
    if output.json:
        print(as_json([one.facts() for one in found]))
    else:
        show(*render(found))
    wrong = [one for one in found if one.failed]
    if wrong:
        raise VerificationFailed(
            f"{len(wrong)} of {len(found)} pinned files are not what bitnet.lock.json says",
            hint=wrong[0].hint,
        )
    if not passed(found):
        raise VerificationFailed(
            "NOT CHECKED: bitnet.lock.json pins no file in this project", hint=found[0].hint
        )


def _write_names(path, names):
    from bitnet.files import write_text

    write_text(path, "".join(f"{name}\n" for name in names))
