"""``inv ci-lint``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from invoke.exceptions import Exit

from bitnet.tasks.declare import Output, task
from bitnet.terminal import as_json


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
    from bitnet.ci.lint import lint
    from bitnet.errors import NotFound, VerificationFailed

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
        raise NotFound(
            f"not installed: {', '.join(missing)}", hint="pip install 'bitnet-xtask[ci]'"
        )
