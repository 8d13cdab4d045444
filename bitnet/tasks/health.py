"""``inv health``."""

from __future__ import annotations

from pathlib import Path

from invoke.exceptions import Exit

from bitnet.options import CacheOptions
from bitnet.tasks.declare import Output, task
from bitnet.tasks.verify import examine
from bitnet.terminal import as_json


@task(
    help={
        "model_dir": "folder with models; looked through with everything below it",
        "allow_mock": "a model without a tokenizer is a warning and no failure",
    },
    metavars={"model_dir": "DIR"},
)
def health(c, model_dir="models", allow_mock=False, cache=CacheOptions(), output=Output()):
    """Verify every model in a folder: one line each.

    Ends with exit code 15 when one failed; `inv verify` shows the checks of a single one.
    """
    from bitnet.errors import VerificationFailed
    from bitnet.tokenizer.needs import find_models

    reports = []
    for model in find_models(Path(model_dir)):
        report = examine(model, cache.root, output, allow_mock=allow_mock, show=False)
        reports.append(report)
        if not output.json:
            print(f"Validating: {model}: {_line(report)}", flush=True)
    failed = [report["model"] for report in reports if not report["passed"]]
    if output.json:
        print(as_json(reports))
        raise Exit(code=VerificationFailed.exit_code if failed else 0)
    if not failed:
        print("✅ All models healthy")
        return
    print(*(f"❌ Failed: {model}" for model in failed), sep="\n")
    raise VerificationFailed(
        f"❌ Health check failed: {', '.join(failed)}", hint=f"bitnet verify --model {failed[0]}"
    )


def _line(report):
    """The first check that failed, else the warnings, else that it is fine."""
    for severity in ("failed", "warning"):
        found = [check for check in report["findings"] if check["severity"] == severity]
        if found:
            return f"{severity}: {found[0]['subject']}: {found[0]['text']}"
    return "ok"
