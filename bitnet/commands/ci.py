"""``ci-init`` and ``ci-lint``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from invoke.exceptions import Exit

from bitnet.base.invocation import extra_command
from bitnet.base.tables import show
from bitnet.base.terminal import as_json
from bitnet.commands.declare import Output, task


@task(
    group="CI",
    example="bitnet ci-init",
    name="ci-init",
    help={
        "with_": "a template to write, instead of the usual five; may be repeated",
        "from_": "source that CI installs: git+https://HOST/OWNER/REPO@COMMIT, or a folder or a "
        "wheel of the project; default: the commit from which this program was installed",
        "project": "root of the project",
        "image": "container image with Python, by its digest, for gitlab and docker: "
        "python:3.12-bookworm@sha256:DIGEST; default: the one that the project has",
        "branch": "the project's default branch",
        "force": "overwrite files with other content",
        "dry_run": "show what would be written, and write nothing",
    },
    formerly={"project": ("into",)},
    metavars={
        "with_": "NAME",
        "from_": "SOURCE",
        "project": "DIR",
        "image": "IMAGE",
        "branch": "NAME",
    },
)
def ci_init(
    c,
    with_: list[str] | None = None,
    from_="",
    project=".",
    image="",
    branch="main",
    force=False,
    dry_run=False,
    output=Output(),
):
    """Write workflows for continuous integration into a project.

    For GitHub Actions; --with gitlab, pre-commit and docker are templates, too. CI installs
    this program from a commit or from the project itself, and its requirements by SHA-256. Files
    with other content stop it, and nothing is written, unless --force is given.
    """
    from bitnet.ci.templates import DEFAULT, plan_files, write_files

    names = with_ or list(DEFAULT)
    planned = plan_files(Path(project), names, branch=branch, source=from_, image=image)
    if not dry_run:
        write_files(Path(project), planned, force=force)
    if output.json:
        print(as_json([{"path": str(file.path), "state": file.state} for file in planned]))
        return
    words = {"new": "write", "changed": "overwrite"} if dry_run else {"new": "wrote"}
    for file in planned:
        what = f": {file.summary}" if file.summary else ""
        state = words.get(file.state, "overwrote" if file.state == "changed" else file.state)
        show(f"{state:<9} {file.path}{what}")


@task(
    group="CI",
    example="bitnet ci-lint",
    name="ci-lint",
    help={"project": "root of the project"},
    metavars={"project": "DIR"},
)
def ci_lint(c, project=".", output=Output()):
    """Check a project's GitHub Actions workflows.

    The schema, zizmor, actionlint and shellcheck, from the extra `ci`; no connection is opened.
    """
    from bitnet.base.errors import NotFound, VerificationFailed
    from bitnet.ci.templates import lint

    outcomes = lint(Path(project))
    failed = [outcome.linter for outcome in outcomes if outcome.problems]
    missing = [outcome.linter for outcome in outcomes if outcome.missing]
    if output.json:
        print(as_json([asdict(outcome) for outcome in outcomes]))
        error = VerificationFailed if failed else NotFound
        raise Exit(code=error.exit_code if failed or missing else 0)
    print(*outcomes, sep="\n")
    if failed:
        raise VerificationFailed(
            f"workflows of {project} failed: {', '.join(failed)}", hint="correct what is listed"
        )
    if missing:
        raise NotFound(f"not installed: {', '.join(missing)}", hint=extra_command("ci"))
