"""``inv health``."""

from __future__ import annotations

from pathlib import Path

from invoke.exceptions import Exit

from bitnet.invocation import word
from bitnet.options import CacheOptions
from bitnet.tables import show
from bitnet.tasks.declare import Output, task
from bitnet.tasks.verify import attestation_beside, examine, pin_of, report_of
from bitnet.terminal import as_json


@task(
    group="Check",
    example="bitnet health --model-dir models",
    help={
        "model_dir": "folder with models; looked through with everything below it",
        "ignore_key": "key of the model to treat as if it were not there; may be repeated",
        "allow_mock": "a model without a tokenizer does not fail, and is reported as NOT CHECKED",
    },
    metavars={"model_dir": "DIR", "ignore_key": "KEY"},
)
def health(
    c,
    model_dir="models",
    ignore_key=[],  # noqa: B006
    allow_mock=False,
    cache=CacheOptions(),
    output=Output(),
):
    """Verify every model in a folder: one line each.

    Ends with exit code 15 when one failed; `inv verify` shows the checks of a single one.
    """
    from bitnet.errors import BitnetError, VerificationFailed
    from bitnet.findings import Finding
    from bitnet.tokenizer.needs import find_models

    reports = []
    for model in find_models(Path(model_dir)):
        try:
            report = examine(
                model,
                output,
                show=False,
                allow_mock=allow_mock,
                pin=pin_of(model, cache.root),
                against=attestation_beside(model),
                ignore_keys=ignore_key,
            )
        except BitnetError as error:  # among models, what is not one is a failure like others
            report = report_of(model, [Finding.of("file", error)])
        reports.append(report)
        if not output.json:
            show(f"Validating: {model}: {_line(report)}")
    failed = [report["model"] for report in reports if not report["passed"]]
    if output.json:
        print(as_json(reports))
        raise Exit(code=VerificationFailed.exit_code if failed else 0)
    if not failed:
        show(_verdict(reports))
        return
    show(*(f"❌ Failed: {model}" for model in failed))
    raise VerificationFailed(
        f"❌ Health check failed: {', '.join(failed)}",
        hint=f"bitnet verify {word(failed[0])}",
    )


def _verdict(reports):
    """The last line: healthy, and of how many it is not known that they are the original."""
    unchecked = [report["model"] for report in reports if report["not_checked"]]
    if unchecked:
        count = f"{len(unchecked)} of {len(reports)} models"
        return f"NOT CHECKED: {count} ran without some check: {', '.join(unchecked)}"
    unpinned = sum(not report["pinned"] for report in reports)
    if not unpinned:
        return "✅ All models healthy"
    return (
        f"✅ All models healthy; {unpinned} of {len(reports)} UNPINNED: nothing says these are "
        "the original bytes"
    )


def _line(report):
    """The first check that failed, else was not made, else is unusual, else that it is fine."""
    for severity in ("failed", "skipped", "warning"):
        found = [check for check in report["findings"] if check["severity"] == severity]
        if found:
            return f"{severity}: {found[0]['subject']}: {found[0]['text']}"
    return "ok"
