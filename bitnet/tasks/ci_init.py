"""``inv ci-init``."""

from __future__ import annotations

from pathlib import Path

from bitnet.tasks.declare import Output, task
from bitnet.terminal import as_json


@task(
    name="ci-init",
    help={
        "with_": "a template to write, instead of the usual six; may be repeated",
        "into": "root of the project",
        "branch": "the project's default branch",
        "force": "overwrite files that have other content",
        "dry_run": "show what would be written, and write nothing",
    },
    metavars={"with_": "NAME", "into": "DIR", "branch": "NAME"},
)
def ci_init(
    c,
    with_: list[str] | None = None,
    into=".",
    branch="main",
    force=False,
    dry_run=False,
    output=Output(),
):
    """Write GitHub Actions workflows into a project.

    Models and tokenizers come from a cache named by the hash of bitnet.lock.json, are checked, and
    need no connection when they are there. Files with other content stop it unless --force is
    given; then nothing was written.
    """
    from bitnet.ci.templates import DEFAULT, plan_files, summary_of, write_files

    names = with_ or list(DEFAULT)
    planned = plan_files(Path(into), names, branch=branch)
    if not dry_run:
        write_files(Path(into), planned, force=force)
    if output.json:
        print(as_json([{"path": str(file.path), "state": file.state} for file in planned]))
        return
    words = {"new": "write", "changed": "overwrite"} if dry_run else {"new": "wrote"}
    for file in planned:
        what = f": {summary_of(file.path.stem)}" if "workflows" in file.path.parts else ""
        state = words.get(file.state, "overwrote" if file.state == "changed" else file.state)
        print(f"{state:<9} {file.path}{what}")
